"""The base of regimes in which every client has examples of its own, and all train one model."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from sordino.base.entropy import Seeded
from sordino.base.errors import StudyError
from sordino.clients import pricing
from sordino.clients import study as studies
from sordino.clients.division import Federation, examples, federation, identified, known_records
from sordino.clients.study import H, HorizontalStudy, SampledPromise
from sordino.core import regimes
from sordino.core.plan import Disk, Plan, Schedule
from sordino.core.prepared import Affordable, PreparedRun
from sordino.core.statements import Paragraph
from sordino.mechanisms.gaussian import checked_clip
from sordino.privacy.budget import left_out
from sordino.privacy.rounding import epsilon_text
from sordino.training.outline import MAPPED, Outline, outline

if TYPE_CHECKING:  # a plan of a built-in model does not wait for torch
    from torch import Tensor

    from sordino.clients.assemble import Assembly
    from sordino.clients.world import Rules
    from sordino.core.network import NetworkRegime
    from sordino.mechanisms.correlated import Correlation
    from sordino.mechanisms.gaussian import Bounded
    from sordino.mechanisms.kinds import NoiseRequest
    from sordino.training.client import ModelKernels

MEASURE = (
    "For an accuracy set data.test = 'private share' (with noise, at a price), 'public "
    "share' or 'file'."
)


class HorizontalRegime(regimes.Regime[H]):
    """A regime whose clients have examples of their own.

    It answers for regimes in which a client's every charge is one step of DP-SGD on a Poisson
    sample of its examples, at one noise multiplier: there :meth:`wanted` and :meth:`protocol`
    are all that is left to say (docs/own-regime.md).

    Attributes:
        charged: what a client pays for, in the plural.
        carried: whether a network carries its studies: its rules say what a site refuses.
    """

    charged: ClassVar[str] = "local steps"
    carried: ClassVar[bool] = False

    @abstractmethod
    def wanted(self, study: H) -> int:
        """Return the charges of a client that noise is calibrated for."""

    def share(self, study: H) -> int:
        """Return the charges of a client that a plan shows, whatever its budget pays for."""
        return self.wanted(study)

    def planned(self, study: H) -> int | None:
        """Return how many steps, or rounds of whole clients, of a client are charged in all, or at
        most; None where nothing bounds their number, or what they release is not fixed.
        """
        return None

    def protocol(
        self, study: H, sizes: Sequence[int], affordable_steps: tuple[int, ...] | None
    ) -> Rules[Any]:
        """Return the rules for clients of these sizes, which can pay for so many steps each.

        Args:
            affordable_steps: None without a limit.
        """
        raise NotImplementedError

    def rates(self, study: H, sizes: Sequence[int]) -> tuple[float, ...]:
        """Return q of every client."""
        return (sampled(study).sampling_rate,) * study.data.clients

    def passes(self, study: H, sizes: Sequence[int]) -> tuple[int | None, ...]:
        """Return the batches of a pass of every client; None where batches are drawn."""
        return (study.batches,) * study.data.clients

    def may_choose(self, study: H) -> bool:
        """Return whether batches may come in a public order or be drawn: a plan tells both."""
        return False

    def schedule(self, study: H, sizes: Sequence[int]) -> Schedule:
        """Return what a study charges its clients, by unit of the ledger in their order."""
        rates, stages = self.rates(study, sizes), ((1.0, self.wanted(study)),)
        passes = self.passes(study, sizes)
        return pricing.schedule(study, rates, self.charged, stages, batches=passes)

    def promised(self, study: H, sizes: Sequence[int]) -> Schedule:
        """Return the charges as they bound whom the study protects: all rows of a person."""
        return self.schedule(study, sizes).for_group(study.rows_at_once)

    def calibrate(self, study: H, sizes: Sequence[int]) -> H:
        """Return the study with its noise filled in, for clients of these sizes."""
        privacy = study.privacy
        if privacy.unit == "none" or privacy.noise_multiplier is not None:
            return study
        try:
            sigmas = tuple(self.promised(study, sizes).calibrated().multipliers.values())
        except StudyError as error:
            raise StudyError(pricing.remedy(study, str(error))) from error
        update: dict[str, object] = {"noise_multiplier": max(sigmas)}
        if study.given_epsilons is not None:
            update["noise_multipliers"] = sigmas
        return study.with_privacy(update)

    def price(self, study: H, sizes: Sequence[int], dimension: int) -> Plan:
        """Return the plan of a study over clients of these sizes and a model of this dimension.

        Of what is promised it is that of the client that spends most.
        """
        full = self.calibrate(study, sizes)
        privacy, wanted = full.privacy, self.share(full)
        if privacy.unit == "none" or privacy.delta is None or privacy.epsilon is None:
            return self.unprotected(full, sizes)
        asked, batch = self.promised(full, sizes), self.batches(full, sizes)
        unit = pricing.dearest(asked, wanted)
        sigma = asked.multipliers[unit]
        rate = self.schedule(full, sizes).noisy[unit].sampling_rate
        most, budget = asked.most(unit), asked.budgets[unit]
        steps = most[budget.accountant]
        used = wanted if steps is None else min(wanted, steps)
        curve = asked.curve(unit, self.curve_counts(used))
        return Plan(
            noise_multiplier=sigma,
            steps=steps,
            most=most,
            rounds=study.horizon,
            used=used,
            epsilon=curve[-1],
            curve=curve,
            ends="privacy" if steps is not None and wanted > steps else "rounds",
            batches=batch,
            signal_to_noise=batch[1] / (sigma * math.sqrt(dimension)),
            relative_noise=sigma / (rate * sum(sizes)),
            calibrated=study.privacy.noise_multiplier is None,
            warnings=(
                *self.warnings(full, sizes, steps, dimension),
                *left_out(privacy.delta, budget.epsilon, numbers=used * dimension),
            ),
        )

    def unprotected(self, study: H, sizes: Sequence[int]) -> Plan:
        """Return the plan of a study without a bound of epsilon."""
        batch = self.batches(study, sizes)
        return Plan(rounds=study.horizon, used=self.share(study), curve=(math.inf,), batches=batch)

    def batches(self, study: H, sizes: Sequence[int]) -> tuple[float, float, float]:
        """Return the expected batch of the smallest, the median and the largest client."""
        rate, ordered = self.rates(study, sizes)[0], sorted(sizes)
        return rate * ordered[0], rate * ordered[len(ordered) // 2], rate * ordered[-1]

    def disk(self, study: H, dimension: int) -> Disk:
        """Return what a study takes on disks, with a model of this dimension."""
        clients, summing, model = study.data.clients, self.summing(study), 4 * dimension
        sent, kept = self.vectors(study)
        answer, tasks = model * sent, study.horizon * clients
        if study.streams:
            tasks = self.share(study) * clients
        if summing is not None:
            answer = dimension * -(-summing.bits // 8)
        found = Disk.of(
            kept=model * (kept + self.noise_kept(study)),
            models=model,
            answer=answer,
            answers=tasks,
            at_once=1 if study.streams else clients,
            rows=-(-study.horizon // study.stride) + clients,
            entries=tasks,
            sites=clients,
            site=model,
        )
        return found if self.carried else Disk(found.run)

    def vectors(self, study: H) -> tuple[int, int]:
        """Return the most vectors of the model's length in an answer, and in a checkpoint."""
        return 1, 1

    def noise_kept(self, study: H) -> int:
        """Return the vectors in a checkpoint that clients' correlated noise goes on from."""
        if study.correlated is None:
            return 0
        wanted, streams = self.wanted(study), 1 if self.whole(study) else study.data.clients
        banded = min(study.batches or wanted, wanted)  # float64 counts twice
        return streams * (4 if study.correlated == "blt" else banded)

    def curve_counts(self, used: int) -> list[int]:
        """Return numbers of charges, the last one ``used``, after which a plan shows epsilon."""
        return [used]

    def warnings(
        self, study: H, sizes: Sequence[int], steps: int | None, dimension: int
    ) -> list[str]:
        """Return what is allowed but should be looked at; ``steps`` are what a budget pays for."""
        return pricing.warnings(study.privacy.delta, min(sizes), steps, "client", "step")

    def told(self, study: H, plan: Plan) -> Sequence[Paragraph]:
        """Return a plan, for people."""
        words, privacy = regimes.vocabulary(self.name), sampled(study)
        rounds = words.many(plan.rounds or 0)
        if not plan.most:
            return [f"no privacy: epsilon is infinite; {rounds}"]
        made = "calibrated" if plan.calibrated else "given"
        return [
            f"noise multiplier {plan.noise_multiplier:g} ({made}), sampling rate "
            f"{privacy.sampling_rate:g}, clip {privacy.clip:g}",
            pricing.most_table(f"R_c: most {words.steps}", words.steps, study, plan),
            f"at most {plan.used} {words.steps} of one {words.client} in {rounds}: epsilon "
            f"{epsilon_text(plan.epsilon)}",
        ]

    def mechanism(self, study: H, sizes: Sequence[int], trial: pricing.Trial) -> Bounded:
        """Return the mechanism that a calibrated study begins with.

        It has the largest multiplier of any client. No count is released beside.

        Args:
            trial: has public examples, by which the mechanism may be shaped.
        """
        asked = self.request(study, sizes, trial)
        made = study.privacy.mechanism.made(asked)
        for clip in {asked.clip, *self.clips(study, asked.dimension)}:
            made.scaled(clip, made.noise_multiplier)  # each kind knows its bounds
            if made.measure == "layers":
                layers = len(asked.parameters)  # at most
                place = f"privacy.clip (in a round {clip:g}) / sqrt({layers} parameters)"
                checked_clip(clip / math.sqrt(layers), place)
        return made

    def clips(self, study: H, dimension: int) -> Sequence[float]:
        """Return C of all tasks, as far as a schedule sets it; for a model of this dimension."""
        return ()

    def request(self, study: H, sizes: Sequence[int], trial: pricing.Trial) -> NoiseRequest:
        """Return the terms that this mechanism is made for."""
        from sordino.mechanisms.kinds import NoiseRequest

        return NoiseRequest(
            unit=study.privacy.unit,
            clip=study.privacy.clip,
            noise_multiplier=study.privacy.noise_multiplier or 0.0,
            parameters=trial.parameters,
            energies=trial.energies if study.data.validation else None,
            correlation=self.correlation(study, sizes, 0),
        )

    def correlation(self, study: H, sizes: Sequence[int], client: int) -> Correlation | None:
        """Return the matrix of a client's correlated noise, for as many passes as are planned."""
        if (kind := study.correlated) is None:
            return None
        if (batches := study.batches or self.passes(study, sizes)[client]) is None:
            return None
        from sordino.mechanisms.correlated import Correlation

        passes = max(-(-self.wanted(study) // batches), 1)
        return Correlation(kind=kind, separation=batches, passes=passes)

    def announced(self, priced: Plan, study: H, noise: Bounded, sizes: Sequence[int]) -> Plan:
        """Return the plan with what a literal form claims beside what it gives."""
        asked = self.schedule(study, sizes)
        unit = pricing.dearest(asked, self.share(study))
        true = noise.scaled(noise.clip, priced.noise_multiplier).event()
        return pricing.exposed(priced, study, asked, unit, true, "privacy.mechanism.form")

    @property
    def assembly(self) -> type[Assembly[H]]:
        """The maker of a run's objects. A plan does not wait for what trains."""
        from sordino.clients.assemble import Assembly

        return Assembly

    def bounded(self, study: H) -> bool:
        """Return whether the mechanism bounds what clients send; a literal form may have none."""
        return True

    def whole(self, study: H) -> bool:
        """Return whether whole clients are protected by noise on their sum."""
        return False

    def sized(self, study: H, divided: Federation | None = None) -> H:
        """Return the study, its mechanism told the model's size where its price depends on it."""
        if study.privacy.unit == "none" or not study.privacy.mechanism.sized:
            return study
        if divided is None:
            test = federation(examples(study)).test
            shape = study.data.seen(test.shape)
        else:
            test, shape = divided.test, divided.test.shape
        return studies.for_dimension(study, _outline(study, shape, test.outputs).dim)

    def calibrated(self, study: H) -> H:
        """Return the study with its noise filled in."""
        return self.calibrate(self.sized(study), ())

    def plan(self, study: H) -> tuple[Plan, tuple[int, ...]]:
        """Return the price of a study and the clients' numbers of examples."""
        divided = federation(examples(study))
        shape, sizes = study.data.seen(divided.test.shape), divided.sizes
        known = _outline(study, shape, divided.test.outputs)
        if study.world.latency.reads:  # whether its file can be used
            study.world.latency.tasks(Seeded(study.seed), len(sizes))
        sized = studies.for_dimension(study, known.dim)
        priced = self.price(sized, sizes, known.dim)
        priced = replace(priced, disk=self.disk(sized, known.dim))
        if study.execution.device not in ("auto", "cpu"):
            from sordino.core.run.environment import absent_device

            priced = replace(priced, warnings=(*priced.warnings, *absent_device(study)))
        if study.privacy.unit == "none":
            return priced, sizes
        if priced.most and self.may_choose(study):
            asked = self.promised(sized, sizes)
            # the dearest: with the least epsilon, in the largest batches
            unit = min(
                asked.noisy,
                key=lambda each: (asked.budgets[each].epsilon, -asked.noisy[each].sampling_rate),
            )
            priced = replace(priced, samplings=pricing.samplings(asked, unit))
        if study.data.testing == "private share":  # whose rows are people, too
            priced = replace(priced, epsilon=max(priced.epsilon, pricing.tested(study)))
        if study.privacy.unit == "sample":
            path = known.path
            priced = replace(priced, gradients=f"{path.name} ({path.why}): {path.cost}")
        full = self.calibrate(sized, sizes)
        if self.bounded(full):
            trial = pricing.Trial(known.parameters, lambda: _trained_on(study))
            noise = self.mechanism(full, sizes, trial)
            priced = self.announced(priced, full, noise, sizes)
        if not identified(full):
            return priced, sizes
        asked, held = self.schedule(full, sizes), known_records(full, divided)
        return pricing.with_balances(full, asked, held, divided, priced), sizes

    def build(self, study: H, folder: Path, run: str, affordable_steps: Affordable) -> PreparedRun:
        """Return the objects of a calibrated study."""
        return self.assembled(study, federation(study), folder, run, affordable_steps)

    def assembled(
        self,
        study: H,
        divided: Federation,
        folder: Path,
        run: str,
        affordable_steps: Affordable,
        *,
        mine: int | None = None,
    ) -> PreparedRun:
        """The objects of a study over this data; at the site of client ``mine``, or for all."""
        full = self.calibrate(self.sized(study, divided), divided.sizes)
        objects = self.assembly(self, full, divided, folder, run, mine)
        del divided  # each part is let go of when it has become a client's tensors
        return objects.built(affordable_steps)

    @property
    def network(self) -> type[NetworkRegime[Any]]:
        """Its studies on a network: every site is a client."""
        from sordino.clients.network import HorizontalNetwork

        return HorizontalNetwork

    def assumptions(self, study: H) -> list[str]:
        """Return what the promise rests on."""
        return studies.resting_on(study)

    def remarks(self, study: H) -> list[str]:
        """Return what is said of the test set before a run, where its rows are a user's own."""
        if study.data.published:
            return []
        return [studies.testing(study) + (f" {MEASURE}" if study.data.testing == "none" else "")]


def sampled(study: HorizontalStudy) -> SampledPromise:
    """Return the promise of a study whose clients draw Poisson samples at one rate."""
    assert isinstance(study.privacy, SampledPromise)
    return study.privacy


def of(study: H) -> HorizontalRegime[H]:
    """The regime of a study whose clients have examples of their own."""
    found = regimes.of(study)
    assert isinstance(found, HorizontalRegime)
    return found


def _outline(study: HorizontalStudy, shape: tuple[int, ...], classes: int) -> Outline:
    """The study's model as a plan needs it; a model that is not built in is made and tried.

    Args:
        shape: of an example as the model sees it.
        classes: how many there are, or scores that a model gives.
    """
    if (known := outline(study.model.name, shape, classes)) is not None:
        return known
    from sordino.clients.assemble import loss_of, model
    from sordino.training.flat import Flat
    from sordino.training.perexample.sums import path_of

    flat = Flat(model(study, shape, classes))
    sizes = tuple(slot.size for slot in flat.layout)
    # How gradients are computed is tried out only where it is told.
    tried = study.privacy.unit == "sample"
    path = path_of(flat, shape, loss_of(study)) if tried else MAPPED
    return Outline(sizes, path)


def _trained_on(study: HorizontalStudy) -> tuple[ModelKernels, tuple[Tensor, Tensor]]:
    """Kernels of the study's model, and its validation examples."""
    import torch

    from sordino.clients.assemble import kernels_of, tensors

    divided, place = federation(study), torch.device("cpu")
    return kernels_of(study, divided.test, place), tensors(divided.validation, place)
