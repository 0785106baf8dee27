"""Who is asked in a round, and for what."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from sordino.base.entropy import Entropy, drawable
from sordino.base.message import Train
from sordino.regimes.synchronous.method import RoundNoise, Wants
from sordino.regimes.synchronous.state import State


def drawn(entropy: Entropy, solvent: Sequence[int], size: int | None, number: int) -> list[int]:
    """The cohort of a round, in ascending order: uniform, without replacement."""
    if size is None or len(solvent) <= size:
        return list(solvent)
    found = entropy.at("cohort", number).choice(len(solvent), size=size, replace=False)
    return sorted(solvent[int(j)] for j in found)


def sampled(
    entropy: Entropy, rate: float, count: int, present: Collection[int], number: int
) -> list[int]:
    """A Poisson sample of all clients, those of it that are within reach."""
    uniform = entropy.at("cohort", number).random(count)
    return [int(i) for i in np.flatnonzero(uniform < drawable(rate)) if int(i) in present]


def task(
    state: State, client: int, wants: Wants, given: RoundNoise | None, order: float | None
) -> Train:
    """What a client of the open round is asked; ``given`` where C and sigma are not its own."""
    return Train(
        round=state.round,
        steps=state.tau,
        weights=state.weights,
        wants_first=wants.first,
        probe=state.models[client] if wants.raw else None,
        clip=None if given is None else given.clip,
        noise_multiplier=None if given is None else given.noise_multiplier,
        order=order,
        shape=state.seen,
        loss_bound=None if wants.loss is None else wants.loss[0],
        loss_noise=0.0 if wants.loss is None else wants.loss[1],
    )
