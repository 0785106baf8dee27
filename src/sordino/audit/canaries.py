r"""A study under ``sordino audit --attack canaries``: canaries among a client's examples, each
there or not by a coin, and what one run shows of them.

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

from sordino import data as datasets
from sordino.audit.bounds import Scores, TradeOff, audited, of_curve
from sordino.audit.intervals import Interval, alone, played
from sordino.audit.mechanisms import Subject, releases
from sordino.base.arrays import Bools, Floats
from sordino.base.entropy import Seeded
from sordino.base.errors import StudyError
from sordino.base.message import Vector
from sordino.clients import regime as horizontal
from sordino.clients.assemble import loss_of, model
from sordino.clients.division import Federation, federation
from sordino.clients.pricing import Trial
from sordino.clients.study import HorizontalStudy
from sordino.clients.world import HorizontalWorld
from sordino.core.prepared import PreparedRun
from sordino.mechanisms.correlated import CorrelatedGaussian, Memory, released
from sordino.mechanisms.gaussian import Bounded, learns
from sordino.mechanisms.gaussian import Gaussian as SameNoise
from sordino.mechanisms.haar.gaussian import HaarGaussian
from sordino.privacy import Composed, Event, Gaussian, PoissonSampled, Pure, Repeated, accountant
from sordino.training.client import ModelKernels
from sordino.training.evaluate import Evaluator
from sordino.training.flat import Flat
from sordino.training.loss import Loss
from sordino.training.perexample.clipping import UNKNOWN, Bound, ClippedBatch
from sordino.training.perexample.sums import ClippedSum, Examples, MeanGradient

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
    ) -> ClippedBatch:
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
    ) -> ClippedBatch:
        found = super().of(examples, chosen[chosen < self._real], bound, out, expected=expected)
        self.others = out[self.places].clone()
        canaries = chosen[chosen >= self._real]
        drawn = canaries[examples.y[canaries] != ABSENT] - self._real
        out.index_add_(
            0, self.places[drawn], torch.full((len(drawn),), found.clip, dtype=out.dtype)
        )
        none_more = torch.full((len(drawn),), found.clip, dtype=found.norms.dtype)
        return ClippedBatch(torch.cat([found.norms, none_more]), found.clip, found.loss)


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
        built = horizontal.of(here).assembled(here, divided, Path(folder), "audit", None)
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


MOST = 16_000
"""Canaries of a run; more make the bound a little better and the run slower."""
FINE = 2000
"""Numbers of a vector from which on its wavelets are looked at many at once."""
PART = 0.5
"""Canaries that are examples, for each example of the client."""


def refuse(study: HorizontalStudy) -> None:
    """Refuse a study in which no example can be planted.

    Raises:
        StudyError: if it does not protect examples, promises nothing, or chooses its noise on the
            way.
    """
    if study.privacy.unit != "sample":
        raise StudyError(
            f"privacy.unit = {study.privacy.unit!r}: --attack canaries plants examples, and no "
            "epsilon is promised for single ones. Use a study with privacy.unit = 'sample', such "
            "as dp-sgd, or --attack mechanism, which needs no study"
        )
    if study.method.unpriced is not None:
        raise StudyError(
            f"method.name = {study.method.name!r}: {study.method.unpriced}, which nothing has to "
            "be planted for: no epsilon is promised. Use form = 'sound'"
        )
    if study.method.adapts_noise:
        raise StudyError(
            f"method.name = {study.method.name!r}: --attack canaries reads releases whose noise is "
            "known before the run, and this method chooses it on the way"
        )


def white_box(study: HorizontalStudy, canaries: int, alpha: float, name: str) -> Interval:
    """One run with Dirac canaries at the first client, by an adversary who sees all it releases.

    Raises:
        StudyError: if its noise differs from number to number.
    """
    study = alone(study)
    divided = federation(study)

    def plant(built: PreparedRun) -> Planted:
        client, flat = _first(built)
        coins, part = _coins(study, "dirac", min(canaries, flat.dim, MOST)), divided.parts[0]
        rng = Seeded(study.seed).at("audit", "canaries", "places")
        places = torch.from_numpy(np.sort(rng.permutation(flat.dim)[: len(coins)]))
        none = np.zeros((len(coins), *part.x.shape[1:]), part.x.dtype)
        x = np.concatenate([part.x, none])
        y = np.concatenate([part.y, np.where(coins, 0, ABSENT)])
        examples = Examples(torch.from_numpy(x), torch.from_numpy(y))
        kernel = PlantedSum(flat, loss_of(study), len(part), places)
        seen = Watched(client.mechanism, kernel.without, kernel.places)
        kernels = ModelKernels(flat, kernel, client.kernels.mean)
        planted = replace(client, examples=examples, kernels=kernels, mechanism=seen)
        rate, passes = client.sampling_rate, client.passes

        def scores(_: Vector) -> Scores:
            if passes is None:
                return likelihoods(seen.seen, rate)
            return likelihoods_in_order(seen, len(part), passes.batches)

        return _with_first(built, planted), scores, coins

    return attacked(study, divided, plant, (name, "sample", "white box"), alpha)


def black_box(study: HorizontalStudy, canaries: int, alpha: float, name: str) -> Interval:
    """One run with canaries that are examples, by an adversary who sees the final model alone.

    A canary is noise with a random label: each of its numbers is the lowest or the highest of all
    test examples. No other example teaches what it does, so it is told from others better than a
    mislabelled example. Its score is how much the run has lowered its loss.

    Raises:
        StudyError: if the study has no public test examples, or its labels are numbers.
    """
    study = alone(study)
    divided = federation(study)
    part, test = divided.parts[0], divided.test
    if not len(test) or len(test.classes) < 2 or study.data.testing == "private share":
        raise StudyError(
            "data.test: canaries are made in the range of public test examples of two classes or "
            "more; set data.test = 'file' or 'public share'"
        )
    m = min(canaries, max(int(PART * len(part)), 1))
    rng = Seeded(study.seed).at("audit", "canaries", "examples")
    ends = np.array([test.x.min(), test.x.max()])
    noise = ends[rng.integers(0, 2, (m, *part.x.shape[1:]))]
    labels = rng.integers(0, len(test.classes), m)
    coins, loss = _coins(study, "examples", m), loss_of(study)
    x = np.concatenate([part.x, noise])
    y = np.concatenate([part.y, np.where(coins, labels, ABSENT)])
    examples = Examples(torch.from_numpy(x), torch.from_numpy(y))

    def plant(built: PreparedRun) -> Planted:
        client, flat = _first(built)

        def lost(weights: Vector) -> Scores:
            flat.load(torch.from_numpy(weights))
            scores = Evaluator(flat, loss).scores(torch.tensor(noise))
            return loss(scores, torch.from_numpy(labels)).numpy().astype(np.float64)

        kernels = ModelKernels(flat, MembersSum(flat, loss), client.kernels.mean)
        planted = _with_first(built, replace(client, examples=examples, kernels=kernels))
        return planted, lambda end: lost(built.first.model) - lost(end), coins

    return attacked(study, divided, plant, (name, "sample", "black box"), alpha)


def _coins(study: HorizontalStudy, kind: str, m: int) -> Coins:
    rng = Seeded(study.seed).at("audit", "canaries", "coins", kind)
    return rng.random(m) < 0.5


def _first(built: PreparedRun) -> tuple[Any, Flat]:
    """Return the first client of a run, and the model that all share."""
    assert isinstance(built.simulation, HorizontalWorld)
    client = built.simulation.clients[0]
    flat: Flat = client.kernels.flat
    return client, flat


def _with_first(built: PreparedRun, client: Any) -> PreparedRun:
    """Return the run with another first client."""
    assert isinstance(built.simulation, HorizontalWorld)
    clients = [client, *built.simulation.clients[1:]]
    return replace(built, simulation=replace(built.simulation, clients=clients))


def own_mechanism(study: HorizontalStudy) -> Subject:
    """A study's mechanism at its own noise, for an audit of one release in two worlds.

    Raises:
        StudyError: if the study promises nothing, or its mechanism is somebody's own.
    """
    if study.privacy.unit == "none":
        raise StudyError("privacy.unit = 'none': there is no mechanism to audit")
    divided, regime = federation(study), horizontal.of(study)
    full = regime.calibrate(regime.sized(study, divided), divided.sizes)
    flat = Flat(model(full, divided.test.shape, divided.test.outputs))
    made = mechanism_of(full, divided, flat)
    asked = full.privacy.mechanism
    try:
        draw = releases(made)
    except TypeError as error:
        raise StudyError(
            f"privacy.mechanism.kind = {asked.kind!r}: {error}. "
            "Leave the study out to see the mechanisms that come with the package"
        ) from None
    return Subject(
        name=f"the study's {asked.kind}",
        sound=asked.form == "sound",
        unit=full.privacy.unit,
        claimed=asked.for_dimension(flat.dim).event(made.noise_multiplier),
        booked=made.event(),
        draw=draw,
        cheap=type(made) is SameNoise or (isinstance(made, HaarGaussian) and flat.dim > FINE),
    )


def mechanism_of(study: HorizontalStudy, divided: Federation, flat: Flat) -> Bounded:
    """Return the study's first mechanism; a Gaussian of its clip where it promises nothing."""
    if study.privacy.unit == "none":
        return SameNoise(clip=study.privacy.clip, noise_multiplier=1.0)
    loss = loss_of(study)
    public = (torch.empty(0), torch.empty(0, dtype=torch.int64))
    if divided.validation is not None:
        public = (
            torch.from_numpy(datasets.scaled(divided.validation.x)),
            torch.from_numpy(divided.validation.y),
        )
    kernels = ModelKernels(flat, ClippedSum(flat, loss), MeanGradient(flat, loss))
    made = horizontal.of(study).mechanism(study, divided.sizes, Trial.of(kernels, public))
    return made.shaped(()) if learns(made) else made
