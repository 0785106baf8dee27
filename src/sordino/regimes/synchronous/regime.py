"""Studies in rounds: ALS-DPFL, ALI-DPFL, DP-SGD, DP-FedAvg, and what they are compared with."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from sordino.base.entropy import Seeded
from sordino.base.errors import StudyError
from sordino.base.message import Train
from sordino.clients.division import examples, federation
from sordino.clients.pricing import LOOKED_AT, Trial, exposed
from sordino.clients.promise import BATCHES, SIZES, resting_on
from sordino.clients.regime import HorizontalRegime
from sordino.core.method import Method
from sordino.core.plan import Plan, Schedule
from sordino.core.statements import Advice, Paragraph
from sordino.core.world import Summing
from sordino.mechanisms.kinds import NoiseRequest
from sordino.privacy import Gaussian
from sordino.regimes.synchronous import methods as _methods  # noqa: F401  (registers them)
from sordino.regimes.synchronous import plan, report, sharing
from sordino.regimes.synchronous.method import check
from sordino.regimes.synchronous.methods.client_level import ClientLevel
from sordino.regimes.synchronous.methods.fixed import Clipped
from sordino.regimes.synchronous.study import TEMPLATE, SynchronousStudy

if TYPE_CHECKING:
    from sordino.clients.assemble import Assembly
    from sordino.mechanisms.gaussian import Bounded

OF_CLIENTS = (
    "The aggregator is trusted with single bounded updates, or sees only their sum (secure "
    "aggregation); all else sees the noisy sum.",
    "The members and the size of a cohort are secret; amplification by sampling depends on "
    "this. Checkpoints hold both until the run ends: keep the folder secret until then.",
    "The number of clients and their weights are public and fixed: they form the divisor "
    "of every sum.",
)


class SynchronousRegime(HorizontalRegime[SynchronousStudy]):
    """Clients train on the same model in rounds; the server averages what they send."""

    name = "synchronous"
    study = SynchronousStudy
    budget = "rounds"
    template = TEMPLATE
    charged = "local steps"
    carried = True

    def wanted(self, study: SynchronousStudy) -> int:
        """Return the charges of a client that noise is calibrated for."""
        return plan.planned_steps(study)

    def schedule(self, study: SynchronousStudy, sizes: Sequence[int]) -> Schedule:
        """Return what a study charges its clients."""
        return plan.schedule(study)

    def price(self, study: SynchronousStudy, sizes: Sequence[int], dimension: int) -> Plan:
        """Return the plan of a study over clients of these sizes and a model of this dimension."""
        return plan.price(study, sizes, dimension)

    def mechanism(self, study: SynchronousStudy, sizes: Sequence[int], trial: Trial) -> Bounded:
        """Return the mechanism that a calibrated study begins with."""
        return shaped(study, sizes, trial)

    def announced(
        self, priced: Plan, study: SynchronousStudy, noise: Bounded, sizes: Sequence[int]
    ) -> Plan:
        """Return the plan with what a literal form claims beside what it gives."""
        true, where = noise.event(), "privacy.mechanism.form"
        if isinstance(study.method, ClientLevel) and not study.method.aggregated:
            level = priced.noise_multiplier / (max(sizes) * study.method.tau)
            true, where = Gaussian(noise_multiplier=level), "method.form"
        return exposed(priced, study, plan.schedule(study), "client:0", true, where)

    @property
    def assembly(self) -> type[Assembly[SynchronousStudy]]:
        """The maker of a run's objects."""
        from sordino.regimes.synchronous.assemble import RoundsAssembly

        return RoundsAssembly

    def whole(self, study: SynchronousStudy) -> bool:
        """Return whether whole clients are protected by noise on their sum."""
        return sharing.aggregated(study)

    def told(self, study: SynchronousStudy, plan: Plan) -> Sequence[Paragraph]:
        """Return a plan, for people."""
        return report.plan_told(study, plan)

    def advise(self, study: SynchronousStudy, seen: Callable[[int, int], None]) -> Advice:
        """Return other sampling rates and tau."""
        sized = self.sized(study)
        cells = plan.advise(sized, federation(examples(sized)).sizes, seen)
        return Advice(cells, report.advised(sized, cells))

    def check(self, method: Method) -> None:
        """Hold a method against its contract, in some rounds with made-up releases."""
        check(method)

    def assumptions(self, study: SynchronousStudy) -> list[str]:
        """Return what the promise rests on."""
        if sharing.shared(study):
            return resting_on(study, sharing.resting(study, SIZES, BATCHES))
        return resting_on(study, OF_CLIENTS if study.privacy.unit == "client" else (SIZES, BATCHES))

    def released(self, study: SynchronousStudy) -> str | None:
        """Return what the promise is about, where clients share the noise."""
        return sharing.RELEASED if sharing.shared(study) else None

    def summing(self, study: SynchronousStudy) -> Summing | None:
        """Return what secure sums follow from, where clients share the noise."""
        return sharing.summing(study) if sharing.shared(study) else None

    def against(self, study: SynchronousStudy) -> str:
        """Return against whom the promise holds."""
        return sharing.against(study) if sharing.shared(study) else super().against(study)


def shaped(study: SynchronousStudy, sizes: Sequence[int], trial: Trial) -> Bounded:
    """Return the mechanism of a calibrated study at its first multiplier, shaped by a trial."""
    privacy, method, deviation, bound, largest = study.privacy, study.method, None, None, 1.0
    adaptive, clip = False, privacy.clip
    if isinstance(method, ClientLevel):
        adaptive = method.clipping == "adaptive"
        if adaptive:
            # Andrew et al. 2021, section 3
            deviation = method.count_noise or privacy.sampling_rate * len(sizes) / 20.0
        if method.clipping == "proxy":
            clip = proxy_clip(study, method, sizes, trial)
        bound = method.learning_rate * method.tau * privacy.clip
        largest = float(max(sizes)) if method.weights == "size" else 1.0
    made = privacy.mechanism.made(
        NoiseRequest(
            unit=privacy.unit,
            clip=clip,
            noise_multiplier=privacy.noise_multiplier or 0.0,
            parameters=trial.parameters,
            energies=trial.energies if study.data.validation else None,
            counted=(privacy.clipped_fraction or adaptive) and privacy.noise == "own",
            count_deviation=deviation,
            update_bound=bound,
            largest=largest,
        )
    )
    if isinstance(method, Clipped) and method.clipping == "proxy":
        return made.scaled(gradient_clip(made, trial), made.noise_multiplier)
    return made


def gradient_clip(made: Bounded, trial: Trial) -> float:
    """Return C: the median norm of public examples' gradients at the first model.

    It is the norm of the mechanism, in which gradients will be clipped.
    """
    import torch

    from sordino.training.dpsgd import bound_of

    kernels, (x, y) = trial.look()
    out = torch.empty_like(kernels.flat.weights, dtype=torch.float64)
    seen = kernels.clipped(x[:LOOKED_AT], y[:LOOKED_AT], bound_of(made), out)
    return _median(seen.norms.tolist(), "gradient")


def proxy_clip(
    study: SynchronousStudy, method: ClientLevel, sizes: Sequence[int], trial: Trial
) -> float:
    """Return S: the median norm of first updates, of median-sized clients of public examples."""
    import torch

    from sordino.training.client import Examples
    from sordino.training.local import LocalWork

    kernels, public = trial.look()
    size = min(max(sorted(sizes)[len(sizes) // 2], 1), len(public[1]))
    start, norms = kernels.flat.weights.clone(), []
    for index, part in enumerate(range(0, len(public[1]) - size + 1, size)):
        work = LocalWork(
            index=index,
            examples=Examples(public[0][part : part + size], public[1][part : part + size]),
            learning_rate=method.learning_rate,
            batch=method.batch,
            proximal=method.proximal,
            optimizer=method.optimizer,
            kernels=kernels,
            entropy=Seeded(study.seed),  # round 0 is nobody else's
        )
        moved = work.train(Train(round=0, steps=method.tau, weights=start.cpu().numpy()))
        norms.append(float(torch.linalg.vector_norm(moved)))
    kernels.flat.load(start)
    return _median(norms, "update")


def _median(norms: Sequence[float], of: str) -> float:
    found = statistics.median(norms)
    if not (found > 0 and math.isfinite(found)):
        raise StudyError(
            f"method.clipping 'proxy' found a median {of} of length {found}: "
            + (
                "lower method.learning_rate, or set privacy.clip"
                if of == "update"
                else "choose other public examples or another model, or leave clipping out"
            )
        )
    return found


REGIME = SynchronousRegime()
