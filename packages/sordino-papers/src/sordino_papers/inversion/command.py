"""``sordino audit --attack inversion``: the table, the picture and the record of the attack."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec

from sordino.extend.commands import AttackOptions, StudyError, say
from sordino.extend.runs import MODEL, HorizontalStudy, Study, replace_file, said_clearly, tell
from sordino_papers.inversion import scenes as inversion
from sordino_papers.inversion.attempt import Attempt, Level, Scene
from sordino_papers.inversion.picture import inversion_figure, noise_words, scene_words
from sordino_papers.inversion.scenes import Attacked, NoiseLevel

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


class LevelRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome at one noise level; epsilons of one release, and of all that are planned."""

    noise_multiplier: float | None
    mapa_epsilon: float | None
    study: bool
    epsilon_once: float
    epsilon: float
    correlation: float
    correlations: tuple[float, ...]
    psnr: tuple[float, ...]


class SceneRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One model attacked through one kind of batch; see :class:`.attempt.Scene`."""

    model: str
    batch: float
    alone: bool
    labels: tuple[str, ...]
    without_gradient: tuple[float, ...]
    levels: tuple[LevelRecord, ...]


class InversionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A whole audit: which attack on which study, what epsilons mean, and every scene."""

    format: int = FORMAT
    attack: str
    study: str
    weights: str
    picture: str
    delta: float
    accountant: str
    clip: float
    scenes: tuple[SceneRecord, ...]


def scene_records(scenes: Sequence[Scene]) -> tuple[SceneRecord, ...]:
    """Scenes for machines."""
    return tuple(
        SceneRecord(
            model=scene.model,
            batch=scene.batch,
            alone=scene.alone,
            labels=tuple(scene.labels),
            without_gradient=tuple(scene.guessed),
            levels=tuple(map(_level, scene.attempts)),
        )
        for scene in scenes
    )


def _level(attempt: Attempt) -> LevelRecord:
    level = attempt.level
    return LevelRecord(
        noise_multiplier=level.sigma,
        mapa_epsilon=level.claimed,
        study=level.own,
        epsilon_once=level.once,
        epsilon=level.whole,
        correlation=sum(attempt.correlations) / len(attempt.correlations),
        correlations=tuple(attempt.correlations),
        psnr=tuple(attempt.psnr),
    )


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
            InversionRecord(
                attack="inversion",
                study=str(asked.path),
                weights=weights,
                picture=str(picture),
                delta=found[0].delta,
                accountant=found[0].accountant,
                clip=found[0].noise.clip,
                scenes=scene_records(scenes),
            )
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
    study = _gradients(asked.study(path))
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


def _gradients(study: Study) -> HorizontalStudy:
    if not isinstance(study, HorizontalStudy):
        raise StudyError(
            f"method.name = {study.method.name!r}: --attack inversion reads gradients, and parties "
            "of this method send embeddings. Use a study whose clients take noisy gradient steps, "
            "such as dp-sgd"
        )
    return study


def _show(scenes: Sequence[Scene]) -> None:
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
