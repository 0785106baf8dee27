"""``sordino audit``: attacks on what a study releases, run by who owns the data."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sordino.base.errors import StudyError
from sordino.base.files import there
from sordino.base.modules import tell
from sordino.cli import say
from sordino.cli.run import AsJson, Set

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sordino.audit.attempt import Level, Scene
    from sordino.audit.scenes import Attacked, NoiseLevel
    from sordino.clients.study import HorizontalStudy
    from sordino.core.study.base import Study

ATTACKS = {
    "inversion": "recover training images from a client's gradient, at several noise levels",
    "mechanism": "tell a record's presence from releases; without a study, of every mechanism",
    "canaries": "tell from one run which of many planted records were in it; without a study, of "
    "one small run for each unit",
    "lira": "tell by shadow runs which records a run was trained on",
    "all": "mechanism and canaries, and lira with --shadows or without a study",
}
RAW = (
    "the picture contains raw training images. With real data, it must stay with the owner "
    "of the data"
)
NO_PROOF = (
    "An attack that fails proves nothing: another may succeed. The guarantee is the "
    "ledger's epsilon."
)
NOISE = "0,0.01,0.1,1,study"
IMAGES = 6
# noise multiplier, and one over the least epsilon of MAPA's noise: beyond it numbers leave float32
MOST = 1e9
PICTURE = "inversion.svg"


def audit(
    path: Annotated[
        Path | None,
        typer.Argument(
            metavar="STUDY|RUN",
            help="A study file (initial weights) or a run folder (trained model).",
        ),
    ] = None,
    attack: Annotated[str | None, typer.Option(help=f"One of: {', '.join(ATTACKS)}.")] = None,
    images: Annotated[int, typer.Option(help="Number of training images to attack.")] = IMAGES,
    noise: Annotated[
        str,
        typer.Option(
            metavar="LEVELS",
            help="Noise multipliers; 'study' for the study's own, mapa@EPSILON for MAPA's noise.",
        ),
    ] = NOISE,
    model: Annotated[
        list[str] | None,
        typer.Option(help="A model to use instead of the study's. May be repeated."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help=f"A folder for what is made, or the name of the picture ({PICTURE}, audit.svg). "
            "Default: runs/audit-STUDY."
        ),
    ] = None,
    canaries: Annotated[int, typer.Option(help="Most records to plant in a run.")] = 16_000,
    shadows: Annotated[
        int | None,
        typer.Option(
            help="Shadow runs of --attack lira; half as many runs are attacked. Finished runs are "
            "kept, and the same command continues."
        ),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(help="Number of parallel runs. Default: the number of cores.")
    ] = None,
    scale: Annotated[
        str,
        typer.Option(help="quick, or full: more releases, and without a study longer runs."),
    ] = "quick",
    seed: Annotated[int, typer.Option(help="Of the releases of --attack mechanism.")] = 0,
    change: Set = None,
    as_json: AsJson = False,
) -> None:
    """Attack the releases of a study's clients, and show what the attack recovers."""
    chosen = _known(attack)
    _refuse_others(chosen, images, noise, model or (), shadows)
    if chosen != "inversion":
        from sordino.cli.intervals import PICTURE as INTERVALS
        from sordino.cli.intervals import Asked, show

        study = None if path is None else _study(path, change or ())
        asked = Asked(
            attack=chosen,
            study=study,
            canaries=canaries,
            scale=scale,
            seed=seed,
            shadows=shadows,
            jobs=jobs,
            modules=None if path is None or path.is_dir() else path.parent,
            picture=_picture(out, INTERVALS, path),
        )
        show(asked, as_json=as_json)
        return
    if path is None:
        raise StudyError("--attack inversion needs a study or a run folder")
    _invert(path, images, noise, model or (), out, change or (), as_json=as_json)


def _invert(
    path: Path,
    images: int,
    noise: str,
    model: Sequence[str],
    out: Path | None,
    change: Sequence[str],
    *,
    as_json: bool,
) -> None:
    """``--attack inversion``."""
    asked, picture = _levels(noise), _picture(out, PICTURE, path)
    from sordino.audit import scenes as inversion
    from sordino.core.files import replace_file, said_clearly
    from sordino.report.inversion import inversion_figure

    if not 1 <= images <= inversion.MOST_IMAGES:
        raise StudyError(f"--images must be from 1 to {inversion.MOST_IMAGES}; got {images}")
    found = _attacked(path, asked, model, change)
    scenes = [scene for one in found for scene in inversion.scenes(one, images)]
    with said_clearly(picture):
        picture.parent.mkdir(parents=True, exist_ok=True)
    replace_file(picture, inversion_figure(scenes).encode())
    weights = "trained" if path.is_dir() else "initial"
    _show(scenes)
    say.people(
        f"weights: {weights}; epsilon of one release, and of all that the study plans, at delta "
        f"{found[0].delta:g} ({found[0].accountant}), one example's contribution replaced by none"
    )
    say.people(f"warning: {RAW}")
    say.people(NO_PROOF)
    say.people(f"Picture: {picture}")
    if as_json:
        from sordino.audit.told import AuditTold, scenes_told

        say.machine(
            AuditTold(
                attack="inversion",
                study=str(path),
                weights=weights,
                picture=str(picture),
                delta=found[0].delta,
                accountant=found[0].accountant,
                clip=found[0].noise.clip,
                scenes=scenes_told(scenes),
            )
        )


def _refuse_others(
    attack: str, images: int, noise: str, model: Sequence[str], shadows: int | None
) -> None:
    """Options of another attack would be without effect, and nobody would see it.

    Raises:
        StudyError: naming the first of them.
    """
    if attack == "inversion":
        if shadows is not None:
            raise StudyError("--shadows does not go with --attack inversion; give --attack lira")
        return
    given = {"--model": bool(model), "--images": images != IMAGES, "--noise": noise != NOISE}
    for name, wrong in given.items():
        if wrong:
            raise StudyError(
                f"{name} does not go with --attack {attack}; leave it out, or give --attack "
                "inversion"
            )


def _known(attack: str | None) -> str:
    from sordino.base.registry import did_you_mean

    listed = ", ".join(f"{name} ({does})" for name, does in ATTACKS.items())
    if attack is None:
        raise StudyError(f"--attack is missing: it says which one. Known: {listed}")
    if attack not in ATTACKS:
        raise StudyError(
            f"--attack {attack!r} is not known{did_you_mean(attack, ATTACKS) or '.'} Known: "
            f"{listed}"
        )
    return attack


def _levels(text: str) -> list[NoiseLevel]:
    """The noise levels in ``--noise``."""
    from sordino.audit.scenes import NoiseLevel

    found = []
    for word in (part.strip() for part in text.split(",")):
        if word == "study":
            found.append(NoiseLevel())
            continue
        claimed = word.removeprefix("mapa@")
        try:
            value = float(claimed)
        except ValueError:
            value = math.nan
        if not (0.0 <= value <= MOST if claimed == word else 1.0 / MOST <= value < math.inf):
            raise StudyError(
                f"--noise {text}: {word!r} is no noise level. Give noise multipliers from 0 to "
                f"{MOST:g}, 'study' for the study's own, or mapa@EPSILON for MAPA's noise, with "
                f"commas between: --noise {NOISE}"
            )
        found.append(NoiseLevel(sigma=value) if claimed == word else NoiseLevel(claimed=value))
    return found


def _picture(out: Path | None, name: str, path: Path | None) -> Path:
    """Where the picture goes: beside runs, in a folder that is called after what was audited."""
    if out is None:
        from sordino.comparison.schedule import slug

        # of "." and "..", too
        called = "" if path is None else slug(path.resolve().name.removesuffix(".toml"))
        return Path("runs") / "-".join(filter(None, ("audit", called))) / name
    if out.is_dir() or not out.suffix:
        if out.is_file():
            raise StudyError(
                f"{out}: this is a file; give --out a name that ends in .svg, or a folder"
            )
        return out / name
    if out.suffix != ".svg":
        raise StudyError(
            f"{out}: the picture is an SVG file; give --out a name that ends in .svg, or a folder"
        )
    return out


def _attacked(
    path: Path, asked: Sequence[NoiseLevel], models: Sequence[str], changes: Sequence[str]
) -> list[Attacked]:
    """The study, once for each model."""
    from sordino.audit.scenes import MODEL, attacked, with_model

    if not path.is_dir():
        study = _gradients(_study(path, changes))
        named = dict.fromkeys(models or (study.model.name,))
        for name in named:
            if ":" in name:
                tell(name)
        return [attacked(with_model(study, name), asked) for name in named]
    if models:
        raise StudyError(
            f"{path}: --model does not go with a run folder, whose model is trained; give "
            "its study file instead"
        )
    return [attacked(_gradients(_study(path, changes)), asked, path / MODEL)]


def _study(path: Path, changes: Sequence[str]) -> Study:
    """The study in a file, or of a run folder."""
    if not path.is_dir():
        from sordino.core import study as studies

        return studies.read(path, changes)
    if missing := [name for name in ("run.json", "study.toml") if not there(path, name)]:
        raise StudyError(
            f"{path}: this is no run folder: it has no {missing[0]}. Give a study file, or a "
            "folder that `sordino run` made"
        )
    from sordino.core import named as code
    from sordino.core.records import known

    return code.study_of(path, known(code.about(path).modules) or {}, changes=changes)


def _gradients(study: Study) -> HorizontalStudy:
    from sordino.clients.study import HorizontalStudy

    if not isinstance(study, HorizontalStudy):
        raise StudyError(
            f"method.name = {study.method.name!r}: --attack inversion reads gradients, and parties "
            "of this method send embeddings. Use a study whose clients take noisy gradient steps, "
            "such as dp-sgd"
        )
    return study


def _show(scenes: Sequence[Scene]) -> None:
    from sordino.report.inversion import noise_words, scene_words

    for scene in scenes:
        rows = [["the label's mean image, no gradient", "0", "0", *_quality(scene.guessed), "-"]]
        rows += [
            [
                noise_words(each.level),
                *_prices(each.level),
                *_quality(each.correlations),
                say.number(_mean(each.psnr), 3),
            ]
            for each in scene.attempts
        ]
        head = ["noise", "epsilon once", "in all", "correlation", "lowest to highest", "PSNR (dB)"]
        say.table(f"{scene_words(scene)}: {len(scene.originals)} images", head, rows)


def _prices(level: Level) -> tuple[str, str]:
    return say.bound(level.once), say.bound(level.whole)


def _quality(correlations: Sequence[float]) -> tuple[str, str]:
    mean, low, high = (
        f"{round(value, 2) + 0.0:.2f}"
        for value in (_mean(correlations), min(correlations), max(correlations))
    )
    return mean, f"{low} to {high}"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
