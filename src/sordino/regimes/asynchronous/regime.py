r"""Studies whose gradients are applied as they arrive: MAPA, AUDP, and their baselines; and their
price, before anything runs.

Edge k draws its batches with q_k = b / n_k. With T updates, K edges and M gradients to an update,
an edge's fair share is ceil(T M / K) tasks; edges that are faster than others are given more. So
where delays differ a quarter more is planned for, unless ``budget.tasks`` says how many. A stage of
MAPA that does not end within T updates is said here, with what would make it end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from sordino.base.errors import StudyError
from sordino.base.modules import raised
from sordino.clients import pricing
from sordino.clients.division import examples, federation
from sordino.clients.regime import HorizontalRegime
from sordino.clients.study import BATCHES, ORDERED, resting_on
from sordino.core.plan import Plan
from sordino.mechanisms.gaussian import LARGEST, SMALLEST
from sordino.regimes.asynchronous import report
from sordino.regimes.asynchronous.method import EdgeTerms, Mapa, Noisy, Stage, check, feasible
from sordino.regimes.asynchronous.study import TEMPLATE, AsynchronousStudy

if TYPE_CHECKING:
    from sordino.clients.assemble import Assembly
    from sordino.core.world import Snapshot

SPARE = 1.25  # times the fair share, where delays differ
OF_EDGES = (
    "The sizes of the edges' data sets are public: with the expected batch b they set the "
    "sampling rates b / n_k.",
    "It is public when and how often an edge answers. This is assumed to be independent of "
    "its data.",
    BATCHES,
)
ORDERED_EDGES = (
    "The sizes of the edges' data sets are public: with the batch b they set how many batches a "
    "pass of an edge has.",
    "It is public when and how often an edge answers.",
    ORDERED.format(batches="batches"),
)


class AsynchronousRegime(HorizontalRegime[AsynchronousStudy]):
    """Edges send gradients when they are ready, and the server applies each as it arrives."""

    name = "asynchronous"
    study = AsynchronousStudy
    budget = "updates"
    template = TEMPLATE
    charged = "gradients"
    carried = True
    told = staticmethod(report.plan_told)
    check = staticmethod(check)

    def share(self, study: AsynchronousStudy) -> int:
        """Return the tasks of an edge, if all are equally fast."""
        return math.ceil(study.budget.updates * study.participation.buffer / study.edges)

    def planned(self, study: AsynchronousStudy) -> int | None:
        """Return the most tasks of an edge: all of the run are its own, and it may lose as many
        that it has reserved. What the literal form releases has no price.
        """
        if study.method.literal:
            return None
        return 2 * study.budget.updates * study.participation.buffer

    def wanted(self, study: AsynchronousStudy) -> int:
        """Return the tasks of an edge that noise is calibrated for."""
        if study.budget.tasks is not None:
            return study.budget.tasks
        world, share = study.world, self.share(study)
        even = world.latency.even and world.latency.spread == 0 and world.dropout == 0
        return share if even else math.ceil(SPARE * share)

    def rates(self, study: AsynchronousStudy, sizes: Sequence[int]) -> tuple[float, ...]:
        """Return q_k = b / n_k of every edge; of many different ones in steps of 3 %.

        Each kind of event is priced by itself.

        Raises:
            StudyError: for an edge with fewer examples than a batch.
        """
        batch = study.method.batch
        if min(sizes) < batch:
            raise StudyError(
                f"method.batch = {batch:g}, but the smallest edge has {min(sizes)} examples: "
                "lower it, or data.clients"
            )
        if study.ordered:
            return tuple(1.0 / count for count in self.passes(study, sizes) if count)
        exact = [batch / size for size in sizes]
        if len(set(exact)) <= pricing.KINDS:
            return tuple(exact)
        return tuple(min(2.0 ** (round(32.0 * math.log2(rate)) / 32.0), 1.0) for rate in exact)

    def passes(self, study: AsynchronousStudy, sizes: Sequence[int]) -> tuple[int | None, ...]:
        """Return the batches of a pass of every edge: as many of at least b examples as it has."""
        if not study.ordered:
            return (None,) * len(sizes)
        return tuple(max(int(size // study.method.batch), 1) for size in sizes)

    def complete(self, study: AsynchronousStudy, moment: Snapshot) -> bool:
        """Return False: nothing plans how many of the updates are one edge's."""
        return False

    def may_choose(self, study: AsynchronousStudy) -> bool:
        """Return whether batches may come in a public order or be drawn."""
        return study.privacy.unit == "sample" and not study.method.literal

    def calibrate(self, study: AsynchronousStudy, sizes: Sequence[int]) -> AsynchronousStudy:
        """Return the study with its noise filled in, for edges of these sizes."""
        privacy = study.privacy
        if study.method.literal and privacy.unit != "none" and privacy.noise_multiplier is None:
            # that form does not use it
            return study.with_privacy({"noise_multiplier": 1.0})
        return super().calibrate(study, sizes)

    def calibrated(self, study: AsynchronousStudy) -> AsynchronousStudy:
        """Return the study with its noise filled in: sampling rates follow from examples."""
        return self.calibrate(self.sized(study), federation(examples(study)).sizes)

    def price(self, study: AsynchronousStudy, sizes: Sequence[int], dimension: int) -> Plan:
        """Return the plan of a study over edges of these sizes and a model of this dimension."""
        full = self.calibrate(study, sizes)
        stages = _stages(full, terms(full, dimension))
        method = full.method
        if full.privacy.unit == "none" or not (isinstance(method, Noisy) and method.literal):
            return replace(super().price(study, sizes, dimension), stages=stages)
        claimed = self.share(full) * max(method.claims(full.edges))
        claim = replace(
            self.unprotected(full, sizes),
            epsilon=claimed,
            curve=(claimed,),
            warnings=tuple(self.warnings(full, sizes, None, dimension)),
            stages=stages,
        )
        return claim.exposed("method.form", math.inf, method.unpriced or "")

    def vectors(self, study: AsynchronousStudy) -> tuple[int, int]:
        """Return the most vectors of an answer, a gradient, and of a checkpoint: the model, its
        average, a buffer, and the version that each edge works on.
        """
        return 1, 3 + study.edges

    def batches(self, study: AsynchronousStudy, sizes: Sequence[int]) -> tuple[float, float, float]:
        """Return b, three times: all edges have the same."""
        return (study.method.batch,) * 3

    def curve_counts(self, used: int) -> list[int]:
        """Return numbers of charges after which a plan shows epsilon: twentieths of the run."""
        return sorted({max(math.ceil(used * part / 20), 1) for part in range(1, 21)})

    def warnings(
        self, study: AsynchronousStudy, sizes: Sequence[int], steps: int | None, dimension: int
    ) -> list[str]:
        """Return what is allowed but should be looked at."""
        method, known = study.method, terms(study, dimension)
        found = pricing.warnings(study.privacy.delta, min(sizes), steps, "edge", "gradient")
        noise = known.noise * math.sqrt(known.dimension) / known.batch
        if noise > 1.0 and not method.literal:
            found.append(
                "more noise than signal: a gradient of length at most G carries noise of length z "
                f"sqrt(d) / b = {noise:.3g} G (z = {known.noise:.3g}, d = {known.dimension}, b = "
                f"{known.batch:g}); a larger method.batch would help"
            )
        if isinstance(method, Mapa):
            found += _unfinished(method, known, method.stages(known)[0])
        return found

    @property
    def assembly(self) -> type[Assembly[AsynchronousStudy]]:
        """The maker of a run's objects."""
        from sordino.regimes.asynchronous.assemble import ArrivalsAssembly

        return ArrivalsAssembly

    def bounded(self, study: AsynchronousStudy) -> bool:
        """Return whether a mechanism bounds what edges send; the literal form has none."""
        return not study.method.literal

    def clips(self, study: AsynchronousStudy, dimension: int) -> Sequence[float]:
        """Return C of each stage."""
        return [stage.clip for stage in _stages(study, terms(study, dimension))]

    def assumptions(self, study: AsynchronousStudy) -> list[str]:
        """Return what the promise rests on."""
        return resting_on(study, ORDERED_EDGES if study.ordered else OF_EDGES)


def terms(study: AsynchronousStudy, dimension: int) -> EdgeTerms:
    """Return the public facts of a calibrated study."""
    private = study.privacy.unit != "none"
    return EdgeTerms(
        dimension=dimension,
        edges=study.edges,
        batch=study.method.batch,
        clip=study.privacy.clip if private else math.inf,
        noise=max(study.multipliers) if private else 0.0,
        staleness=study.stalest,
        updates=study.budget.updates,
    )


def _stages(study: AsynchronousStudy, known: EdgeTerms) -> tuple[Stage, ...]:
    """Return the method's stages.

    Raises:
        StudyError: where they leave the numbers that can be reckoned with.
    """
    try:
        stages = study.method.planned(known)
        usable = all(
            SMALLEST <= stage.clip <= LARGEST or math.isinf(known.clip) for stage in stages
        )
    except ArithmeticError as error:
        if raised(error) is not None:
            raise
        usable = False
    if not usable:
        raise StudyError(
            f"method '{study.method.name}': with these constants clipping bounds or lengths of "
            f"stages leave what can be reckoned with (bounds from {SMALLEST:g} to {LARGEST:g}): "
            "look at privacy.clip and method.theta, smoothness, deviation and gap"
        )
    return stages


def _unfinished(method: Mapa, known: EdgeTerms, first: Stage) -> list[str]:
    if first.end <= known.updates:
        return []
    said = (
        f"MAPA does not leave its first stage: it takes {first.length} updates (P = "
        f"{first.slowing:.3g}) and budget.updates is {known.updates}; clip and learning rate stay "
        "what they are"
    )
    if method.literal:
        return [said]
    batch, noise = feasible(method, known)
    ways = [f"method.batch from {math.ceil(batch)} at this noise"] if batch is not None else []
    ways += [f"a noise_multiplier up to {noise:.2g} at this batch"] if noise is not None else []
    return [
        f"{said}. It would end with {' or '.join(ways)}"
        if ways
        else f"{said}. No larger batch and no less noise would change that: lower smoothness"
    ]


REGIME = AsynchronousRegime()
