"""Studies of events with features at parties: dynamic local regret, OGD and SLR."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sordino.core.method import ContractBroken, Method
from sordino.core.plan import Plan
from sordino.core.prepared import Affordable, PreparedRun
from sordino.core.regimes import Regime
from sordino.core.statements import FLOATS, LOOKING, SIMULATED, Paragraph, Table
from sordino.privacy.rounding import epsilon_text
from sordino.regimes.vertical.method import OnlineMethod
from sordino.regimes.vertical.plan import calibrate, disk, price, with_balances
from sordino.regimes.vertical.study import TEMPLATE, VerticalStudy

if TYPE_CHECKING:
    from sordino.core.network import NetworkRegime

OF_EVENTS = (
    "Event times, active parties and missing answers are public, and assumed to be "
    "independent of all protected data.",
    "The server learns responded labels and what parties send, and parties learn "
    "derivatives, which follow from these: neither is trusted.",
    "The number of events, and which events are about one entity, is public.",
)
MEMOISED = (
    "The label of an entity never changes. Its randomised response is drawn once and used "
    "for the whole stream."
)
KEPT = (
    "Checkpoints contain the last examples unprotected until the run ends, because method 'slr' "
    "sends their embeddings again. Keep the folder secret until then."
)
SYNTHETIC = (
    "Each deformed image is taken for an entity of its own; the people behind the images "
    "that were deformed are not protected by this."
)
PREQUENTIAL = (
    "Errors and losses are computed from responded labels and from what the server was sent, so "
    "they tell nothing beyond the ledger; labels that are not protected are used as they are, "
    "and in a simulation no party releases such errors."
)
RAW_ERRORS = (
    "Errors and losses are measured on the labels as they are, which nothing protects; in a "
    "simulation no party releases them."
)


class VerticalRegime(Regime[VerticalStudy]):
    """Parties with different features of the same entities learn from events, one after another."""

    name = "vertical"
    study = VerticalStudy
    budget = "events"
    template = TEMPLATE
    others = "entities"
    plain = (
        "No privacy guarantee: embeddings, labels and updates are used without noise, and "
        "epsilon is infinite."
    )
    calibrated = staticmethod(calibrate)

    def plan(self, study: VerticalStudy) -> tuple[Plan, tuple[int, ...]]:
        """Price the study, and refuse data and models that do not fit together.

        Built-in models fit any data; others are made, and only they wait for torch.
        """
        from sordino.regimes.vertical.stream import parts, source

        full = calibrate(study)
        stream, _, known = source(full)
        held = [len(part) for part in parts(full, stream)]
        if full.model.party is not None or full.model.server is not None:
            from sordino.regimes.vertical.models import Split

            Split.of(full, stream)
        takes = disk(full, held, len(stream.classes))
        priced = replace(price(full), calibrated=full != study, disk=takes)
        return with_balances(full, known, priced), ()

    def build(
        self, study: VerticalStudy, folder: Path, run: str, affordable_steps: Affordable
    ) -> PreparedRun:
        """Make the objects of a simulation, with its ledger in ``folder``."""
        from sordino.regimes.vertical.run import build  # a plan does not wait for what trains

        return build(calibrate(study), folder, run, affordable_steps)

    def told(self, study: VerticalStudy, plan: Plan) -> Sequence[Paragraph]:
        """Return a plan, for people."""
        data, method, privacy = study.data, study.method, study.privacy
        events = (
            f"{study.budget.events} events, {data.parties} parties, activation "
            f"{method.activation.kind}, window {method.window}"
        )
        if privacy.unit == "none":
            return [events, "no privacy: epsilon is infinite"]
        rows = [[unit, what, epsilon_text(epsilon)] for unit, what, epsilon in plan.releases]
        many, release = ("s", "release") if plan.used != 1 else ("", "releases")
        title = f"What {plan.used} appearance{many} of an entity {release}, at delta"
        head = ["unit of the ledger", "released", f"epsilon ({privacy.accountant})"]
        promise = f"promised, with unit '{privacy.unit}': epsilon {epsilon_text(privacy.epsilon)}"
        limit = "" if plan.steps is None else f"; it pays for {plan.steps} appearances of an entity"
        return [events, Table(f"{title} {privacy.delta:g}", head, rows), promise + limit]

    def check(self, method: Method) -> None:
        """Refuse a method whose window cannot be.

        Raises:
            ContractBroken: saying why.
        """
        if not isinstance(method, OnlineMethod):
            raise ContractBroken(f"{method.name}: is no OnlineMethod, and its about says vertical")
        if method.window < 1 or not 0.0 < method.attenuation <= 1.0:
            raise ContractBroken(
                f"{method.name}: a window of {method.window} events at attenuation "
                f"{method.attenuation}"
            )
        if method.resends not in (1, method.window):
            raise ContractBroken(
                f"{method.name}: sends {method.resends} examples an event, and its window holds "
                f"{method.window}"
            )
        if method.resends > 1 and method.attenuation != 1.0:
            raise ContractBroken(
                f"{method.name}: examples that are evaluated again count alike; its attenuation "
                f"is {method.attenuation}"
            )

    @property
    def network(self) -> type[NetworkRegime[Any]]:
        """Studies of events on a network: every site is a party, and one more has the labels."""
        from sordino.regimes.vertical.network import VerticalNetwork

        return VerticalNetwork

    def assumptions(self, study: VerticalStudy) -> list[str]:
        """Return what the guarantee, or the run, rests on."""
        if study.privacy.unit == "none":
            return [SIMULATED, RAW_ERRORS]
        found = [*OF_EVENTS, SIMULATED, FLOATS, LOOKING, PREQUENTIAL]
        if study.privacy.memoised:
            found.append(MEMOISED)
        if study.method.resends > 1:
            found.append(KEPT)
        if study.data.stream.kind == "deformed":
            found.append(SYNTHETIC)
        return found


REGIME = VerticalRegime()
