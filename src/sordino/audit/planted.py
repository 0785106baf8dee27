"""Canaries among a client's examples, each there or not by a coin, and what a run shows of them.

The run is the study's own: its clients, its kernel and its ledger. Only the sums of one client are
told what to add where a canary is drawn:

    Dirac       a gradient of length C on one number of the vector, another for each canary
    example     noise with a random label, through the model, like any other example

A canary that is not there adds nothing and is counted in the size n, as the ledger's adjacency has
it. Without coins for them, all other examples are known to the adversary, who takes what they add
off every released sum; what is left of a Dirac canary's number is (b C + noise), where b says
whether it was drawn. With s = deviation / C, y the rest over C and q the sampling rate, the
likelihood ratio of a run is the sum over its steps of

    log(1 - q + q exp((2 y - 1) / (2 s^2))).
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor

from sordino.audit.bounds import Scores, TradeOff, audited, of_curve
from sordino.audit.intervals import Interval, played
from sordino.base.arrays import Bools, Floats
from sordino.base.errors import StudyError
from sordino.base.message import Vector
from sordino.clients import regime as clients
from sordino.clients.division import Federation
from sordino.clients.study import HorizontalStudy
from sordino.core.prepared import PreparedRun
from sordino.data import Dataset
from sordino.mechanisms.correlated import CorrelatedGaussian, Memory, released
from sordino.mechanisms.gaussian import Bounded
from sordino.mechanisms.gaussian import Gaussian as SameNoise
from sordino.privacy import Composed, Event, Gaussian, PoissonSampled, Pure, Repeated, accountant
from sordino.training.flat import Flat
from sordino.training.loss import Loss
from sordino.training.perexample.clipping import UNKNOWN, Bound, Clipped
from sordino.training.perexample.sums import ClippedSum, Examples

Coins = Bools

EPSILONS: Floats = np.concatenate([np.linspace(0.0, 6.0, 49), np.linspace(6.5, 20.0, 28)])
"""At which a curve is looked at; a promise between two of them is not needed."""


ABSENT = -1
"""The label of an example that a coin leaves out."""


class MembersSum(ClippedSum):
    """The clipped sum over those examples of a batch that are there."""

    def of(
        self,
        examples: Examples,
        chosen: Tensor,
        bound: float | Bound,
        out: Tensor,
        *,
        expected: float = UNKNOWN,
    ) -> Clipped:
        present = chosen[examples.y[chosen] != ABSENT]
        return super().of(examples, present, bound, out, expected=expected)


class PlantedSum(MembersSum):
    """The same, where examples from ``real`` on are canaries with a gradient on one number.

    Args:
        flat, loss: the model's.
        real: how many examples are none.
        places: (m,), the number of the vector that each one's gradient lies on.
    """

    def __init__(self, flat: Flat, loss: Loss, real: int, places: Tensor) -> None:
        super().__init__(flat, loss)
        self._real, self.places = real, places
        self.others = torch.zeros(0, dtype=torch.float64)
        """The last sum on the canaries' places without any of them, (m,)."""

    def without(self, total: Tensor) -> Tensor:
        return self.others

    def of(
        self,
        examples: Examples,
        chosen: Tensor,
        bound: float | Bound,
        out: Tensor,
        *,
        expected: float = UNKNOWN,
    ) -> Clipped:
        found = super().of(examples, chosen[chosen < self._real], bound, out, expected=expected)
        self.others = out[self.places].clone()
        canaries = chosen[chosen >= self._real]
        drawn = canaries[examples.y[canaries] != ABSENT] - self._real
        out.index_add_(
            0, self.places[drawn], torch.full((len(drawn),), found.clip, dtype=out.dtype)
        )
        none_more = torch.full((len(drawn),), found.clip, dtype=found.norms.dtype)
        return Clipped(torch.cat([found.norms, none_more]), found.clip, found.loss)


@dataclass(frozen=True, slots=True, eq=False)
class Watched:
    """A mechanism whose releases are looked at on the canaries' places.

    Attributes:
        mechanism: whose noise is the same on every number.
        others: a sum (d,) at the canaries' places (m,) without any of them; asked once of it.
        places: (m,).
        seen: of every release, (b C + noise) (m,) and the noise's deviation, both in units of C;
            where noise is correlated, the deviation of fresh noise.
    """

    mechanism: Bounded
    others: Callable[[Tensor], Tensor]
    places: Tensor
    seen: list[tuple[Scores, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not isinstance(self.mechanism, SameNoise) or self.mechanism.measure != "flat":
            raise StudyError(
                "privacy.mechanism.kind: --attack canaries needs the same noise on every number "
                "and clipping as a whole. Use kind = 'gaussian', or --attack mechanism for the "
                "others"
            )

    def __getattr__(self, name: str) -> Any:
        return getattr(self.mechanism, name)

    def scaled(self, clip: float, noise_multiplier: float) -> Watched:
        """The same with another C and sigma, and the same memory."""
        return replace(self, mechanism=self.mechanism.scaled(clip, noise_multiplier))

    def release_counted(
        self, total: Tensor, excess: float, rng: Generator
    ) -> tuple[Tensor, float | None]:
        noisy, count, _ = self.release_after(total, excess, rng, None, 0)
        return noisy, count

    def release_after(
        self, total: Tensor, excess: float, rng: Generator, memory: Memory | None, number: int
    ) -> tuple[Tensor, float | None, Memory | None]:
        others, made = self.others(total), self.mechanism
        noisy, count, after = released(made, total, excess, rng, memory, number)
        rest = (noisy[self.places].double() - others).numpy() / self.clip
        deviation = made.vector_multiplier
        if isinstance(made, CorrelatedGaussian):
            deviation = made.fresh_multiplier
        self.seen.append((rest, deviation))
        return noisy, count, after


def dirac(
    flat: Flat, loss: Loss, part: Dataset, coins: Coins, rng: Generator
) -> tuple[PlantedSum, Examples]:
    """Canaries (m,) behind a client's examples, each with a gradient on one number of its own."""
    m = len(coins)
    places = torch.from_numpy(np.sort(rng.permutation(flat.dim)[:m]))
    x = np.concatenate([part.x, np.zeros((m, *part.x.shape[1:]), part.x.dtype)])
    y = np.concatenate([part.y, np.where(coins, 0, ABSENT)])
    examples = Examples(torch.from_numpy(x), torch.from_numpy(y))
    return PlantedSum(flat, loss, len(part), places), examples


def likelihoods(seen: Sequence[tuple[Scores, float]], rate: float) -> Scores:
    """Log-likelihood ratios (m,) of the canaries over all releases of a run."""
    total: Scores = np.zeros_like(seen[0][0])
    for rest, deviation in seen:
        drawn = math.log(rate) + (2.0 * rest - 1.0) / (2.0 * deviation**2)
        total += np.logaddexp(math.log1p(-rate), drawn) if rate < 1.0 else drawn
    return total


def likelihoods_in_order(found: Watched, start: int, batches: int) -> Scores:
    """Log-likelihood ratios (m,) of canaries that take part at known steps.

    Args:
        start: canary i takes part in the steps with the number start + i modulo ``batches``.
    """
    seen = found.seen
    first = (start + np.arange(len(found.places))) % batches
    rests, deviation = np.stack([rest for rest, _ in seen]), seen[0][1]
    steps = np.arange(len(seen))[:, None]
    there = (steps % batches == first[None, :]).astype(np.float64)
    if isinstance(found.mechanism, CorrelatedGaussian):  # C of what is released has fresh noise
        column: Scores = found.mechanism.correlation.column(len(seen))
        rests, there = (_convolved(column, rows) for rows in (rests, there))
    ratios: Scores = (there * rests - there * there / 2.0).sum(axis=0) / deviation**2
    return ratios


def _convolved(column: Scores, rows: Scores) -> Scores:
    """Return C times rows (n, m)."""
    found = np.zeros_like(rows)
    for lag, factor in enumerate(column[: len(rows)]):
        found[lag:] += factor * rows[: len(rows) - lag]
    return found


MANY, FEW = (0.02, 0.05, 0.1), (0.05, 0.1, 0.25)
"""Shares of many and of few canaries that are guessed."""


@dataclass(frozen=True, slots=True)
class Promised:
    """The guarantee of the run of a table's row.

    Attributes:
        name: of the row, in words.
        unit: whose presence is asked about.
        how: which attack.
        spent: what the ledger has booked on this unit.
        delta, accountant: at which epsilons are told, and by whom.
    """

    name: str
    unit: str
    how: str
    spent: tuple[tuple[Event, int], ...]
    delta: float
    accountant: str

    @property
    def epsilon(self) -> float:
        """The ledger's; without delta the sum of what answers cost."""
        if self.delta == 0.0 and all(isinstance(event, Pure) for event, _ in self.spent):
            return sum(event.epsilon * n for event, n in self.spent if isinstance(event, Pure))
        return accountant(self.accountant).epsilon(self.spent, self.delta)

    def interval(self, scores: Scores, coins: Coins, alpha: float) -> Interval:
        """The row, from scores (m,) of canaries that were in where ``coins`` (m,) say so."""
        price = accountant("pld")

        def spent(noise: float) -> list[tuple[Event, int]]:
            return [(quieter(event, noise), count) for event, count in self.spent]

        def curve(noise: float) -> TradeOff:
            history = spent(noise)
            deltas = [price.delta(history, epsilon) for epsilon in EPSILONS.tolist()]
            return of_curve(EPSILONS, np.array(deltas))

        def epsilon(noise: float) -> float:
            return price.epsilon(spent(noise), self.delta)

        shares = MANY if len(coins) >= 2000 else FEW
        found = audited(scores, coins, self.delta, alpha, curve, epsilon, shares)
        return self.told(found.low_curve, found.low, len(coins))

    def told(self, low: float, plain: float, canaries: int) -> Interval:
        """The row, from both lower bounds."""
        return Interval(
            name=self.name,
            unit=self.unit,
            how=self.how,
            low=low,
            plain=plain,
            claimed=self.epsilon,
            ledger=self.epsilon,
            releases=canaries,
            delta=self.delta,
        )


Planted = tuple[PreparedRun, Callable[[Vector], Scores], Coins]
"""A run with canaries, their scores (m,) by the model at its end, and which are there (m,)."""


def attacked(
    study: HorizontalStudy,
    divided: Federation,
    plant: Callable[[PreparedRun], Planted],
    row: tuple[str, str, str],
    alpha: float,
) -> Interval:
    """One run of a study by the ordinary kernel, on the processor, with canaries in it.

    Args:
        plant: puts canaries into the run.
        row: its name, the unit that is asked about, and what the adversary sees.
    """
    privacy, (name, unit, how) = study.privacy, row
    here = study.model_copy(
        update={"execution": study.execution.model_copy(update={"device": "cpu"})}
    )
    with tempfile.TemporaryDirectory() as folder:
        built = clients.of(here).assembled(here, divided, Path(folder), "audit", None)
        planted, scores, coins = plant(built)
        found = scores(played(planted).model)
        simulation = planted.simulation
        spent = simulation.ledgers.spent(simulation.units[0])
        simulation.ledgers.close()
    promised = Promised(
        name=name,
        unit=unit,
        how=f"one run, {how}",
        spent=spent,
        delta=privacy.delta or 1e-5,
        accountant=privacy.accountant,
    )
    return promised.interval(found, coins, alpha)


def quieter(event: Event, noise: float) -> Event:
    """The event with so many times the noise.

    Raises:
        TypeError: for an event that has no noise, or that was chosen on the way.

    >>> quieter(PoissonSampled(sampling_rate=0.5, event=Gaussian(noise_multiplier=2.0)), 3.0)
    PoissonSampled(sampling_rate=0.5, event=Gaussian(noise_multiplier=6.0))
    """
    match event:
        case Gaussian(noise_multiplier=sigma):
            return Gaussian(noise_multiplier=sigma * noise)
        case PoissonSampled(sampling_rate=rate, event=inside):
            return PoissonSampled(sampling_rate=rate, event=quieter(inside, noise))
        case Composed(events=parts):
            return Composed(events=tuple(quieter(part, noise) for part in parts))
        case Repeated(event=inside, count=count):
            return Repeated(event=quieter(inside, noise), count=count)
        case Pure(epsilon=epsilon):
            return Pure(epsilon=epsilon / noise)
        case _:
            raise TypeError(f"{type(event).__name__}: how it changes with noise is not known")
