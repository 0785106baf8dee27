"""``sordino audit --attack inversion``: the table, the picture and the record of the attack."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from sordino.extend.commands import AttackOptions, StudyError, say
from sordino.extend.runs import MODEL, HorizontalStudy, replace_file, said_clearly, tell
from sordino_papers.inversion import scenes as inversion
from sordino_papers.inversion.picture import inversion_figure, noise_words, scene_words
from sordino_papers.inversion.scenes import Attacked, NoiseLevel, Scene

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

FORMAT = 1


def _record(scene: Scene) -> dict[str, object]:
    """A scene for machines; epsilons of one release, and of all that are planned."""
    return {
        "model": scene.model,
        "batch": scene.batch,
        "alone": scene.alone,
        "labels": scene.labels,
        "without_gradient": scene.guessed,
        "levels": [
            {
                "noise_multiplier": each.level.sigma,
                "mapa_epsilon": each.level.claimed,
                "study": each.level.own,
                "epsilon_once": each.level.once,
                "epsilon": each.level.whole,
                "correlation": _mean(each.correlations),
                "correlations": each.correlations,
                "psnr": each.psnr,
            }
            for each in scene.attempts
        ],
    }


def attack(asked: AttackOptions) -> None:
    """Recover training images from a client's gradient, at several noise levels.

    Raises:
        StudyError: if the attack cannot be made on this study.
    """
    if asked.path is None:
        raise StudyError("--attack inversion needs a study or a run folder")
    images = IMAGES if asked.images is None else asked.images
    levels, picture = _levels(NOISE if asked.noise is None else asked.noise), asked.place(PICTURE)
    if not 1 <= images <= inversion.MOST_IMAGES:
        raise StudyError(f"--images must be from 1 to {inversion.MOST_IMAGES}; got {images}")
    found = _attacked(asked, asked.path, levels)
    scenes = [scene for one in found for scene in inversion.scenes(one, images)]
    with said_clearly(picture):
        picture.parent.mkdir(parents=True, exist_ok=True)
    replace_file(picture, inversion_figure(scenes).encode())
    weights = "trained" if asked.path.is_dir() else "initial"
    _show(scenes)
    say.people(
        f"weights: {weights}; epsilon of one release, and of all that the study plans, at delta "
        f"{found[0].delta:g} ({found[0].accountant}), one example's contribution replaced by none"
    )
    say.warn(RAW)
    say.result(NO_PROOF)
    say.result(f"Picture: {picture}")
    if asked.as_json:
        say.machine(
            {
                "format": FORMAT,
                "attack": "inversion",
                "study": str(asked.path),
                "weights": weights,
                "picture": str(picture),
                "delta": found[0].delta,
                "accountant": found[0].accountant,
                "clip": found[0].noise.clip,
                "scenes": list(map(_record, scenes)),
            }
        )


def _levels(text: str) -> list[NoiseLevel]:
    """The noise levels in ``--noise``."""
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


def _attacked(asked: AttackOptions, path: Path, levels: Sequence[NoiseLevel]) -> list[Attacked]:
    """Return the study, once for each model."""
    study = asked.study(path)
    if not isinstance(study, HorizontalStudy):
        raise StudyError(
            f"method.name = {study.method.name!r}: --attack inversion reads gradients, and parties "
            "of this method send embeddings. Use a study whose clients take noisy gradient steps, "
            "such as dp-sgd"
        )
    if not path.is_dir():
        named = dict.fromkeys(asked.models or (study.model.name,))
        for name in named:
            if ":" in name:
                tell(name)
        return [inversion.attacked(inversion.with_model(study, name), levels) for name in named]
    if asked.models:
        raise StudyError(
            f"{path}: --model does not go with a run folder, whose model is trained; give "
            "its study file instead"
        )
    return [inversion.attacked(study, levels, path / MODEL)]


def _show(scenes: Sequence[Scene]) -> None:
    for scene in scenes:
        rows = [["the label's mean image, no gradient", "0", "0", *_quality(scene.guessed), "-"]]
        rows += [
            [
                noise_words(each.level),
                say.bound(each.level.once),
                say.bound(each.level.whole),
                *_quality(each.correlations),
                say.number(_mean(each.psnr), 3),
            ]
            for each in scene.attempts
        ]
        head = ["noise", "epsilon once", "in all", "correlation", "lowest to highest", "PSNR (dB)"]
        say.table(f"{scene_words(scene)}: {len(scene.originals)} images", head, rows)


def _quality(correlations: Sequence[float]) -> tuple[str, str]:
    mean, low, high = (
        f"{round(value, 2) + 0.0:.2f}"
        for value in (_mean(correlations), min(correlations), max(correlations))
    )
    return mean, f"{low} to {high}"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
