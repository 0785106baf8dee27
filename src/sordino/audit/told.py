"""What ``sordino audit`` tells machines: frozen records with the number of their format."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from sordino.audit.attempt import Attempt, Scene

FORMAT = 1


class LevelTold(msgspec.Struct, frozen=True, kw_only=True):
    """What came out at one noise level; epsilons of one release, and of all that are planned."""

    noise_multiplier: float | None
    mapa_epsilon: float | None
    study: bool
    epsilon_once: float
    epsilon: float
    correlation: float
    correlations: tuple[float, ...]
    psnr: tuple[float, ...]


class SceneTold(msgspec.Struct, frozen=True, kw_only=True):
    """One model attacked through one kind of batch; see :class:`~sordino.audit.attempt.Scene`."""

    model: str
    batch: float
    alone: bool
    labels: tuple[str, ...]
    without_gradient: tuple[float, ...]
    levels: tuple[LevelTold, ...]


class AuditTold(msgspec.Struct, frozen=True, kw_only=True):
    """A whole audit: which attack on which study, what epsilons mean, and every scene."""

    format: int = FORMAT
    attack: str
    study: str
    weights: str
    picture: str
    delta: float
    accountant: str
    clip: float
    scenes: tuple[SceneTold, ...]


def scenes_told(scenes: Sequence[Scene]) -> tuple[SceneTold, ...]:
    """Scenes for machines."""
    return tuple(
        SceneTold(
            model=scene.model,
            batch=scene.batch,
            alone=scene.alone,
            labels=tuple(scene.labels),
            without_gradient=tuple(scene.guessed),
            levels=tuple(map(_level, scene.attempts)),
        )
        for scene in scenes
    )


def _level(attempt: Attempt) -> LevelTold:
    level = attempt.level
    return LevelTold(
        noise_multiplier=level.sigma,
        mapa_epsilon=level.claimed,
        study=level.own,
        epsilon_once=level.once,
        epsilon=level.whole,
        correlation=sum(attempt.correlations) / len(attempt.correlations),
        correlations=tuple(attempt.correlations),
        psnr=tuple(attempt.psnr),
    )
