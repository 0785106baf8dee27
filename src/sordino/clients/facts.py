"""What run.json says of a study, beside the rest, if every client has examples of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from typing import Protocol, TypeVar

from msgspec import UNSET

from sordino.base.fingerprints import keyed
from sordino.clients import records
from sordino.clients.evaluation import told
from sordino.clients.setup import SharedSetup, Tensors
from sordino.clients.study import HorizontalStudy
from sordino.core.plan import Plan

F = TypeVar("F", bound=records.Horizontal)


class Simulation(Protocol):
    """What is said of a simulation."""

    @property
    def units(self) -> Sequence[str]:
        """Ledger unit of each client."""
        ...

    @property
    def clip(self) -> float:
        """C, or S."""
        ...


def _digest(examples: Tensors, *, public: bool) -> str | None:
    """A fingerprint of examples, (n, ...) and (n,); None of none."""
    if not len(examples[1]):
        return None
    found = hashlib.sha256(
        b"".join(each.cpu().contiguous().numpy().tobytes() for each in examples)
    ).hexdigest()
    return found if public else keyed(found)


def horizontal(
    kind: type[F],
    study: HorizontalStudy,
    setup: SharedSetup,
    plan: Plan,
    simulation: Simulation,
) -> F:
    """Clients and what they hold, the model's size, bounds and rates."""
    privacy = study.privacy
    # Label counts are raw data, and so are sizes where whole clients are protected and weigh the
    # same.
    public = setup.counted(study)
    labels = public and setup.span is None
    sizes = public or setup.remote or not study.hides_sizes
    return kind(
        classes=tuple(setup.classes),
        span=UNSET if setup.span is None else setup.span,
        test=told(study, setup.rows),
        clients=tuple(
            records.Holder(
                client=i,
                name=setup.names[i] if setup.names else None,
                unit=unit,
                examples=int(counts.sum()) if sizes else None,
                labels=tuple(counts.tolist()) if labels else (),
            )
            for i, (unit, counts) in enumerate(zip(simulation.units, setup.counts, strict=True))
        ),
        epsilons=getattr(privacy, "epsilons", None),  # of each edge, where they differ
        dimension=setup.kernels.flat.dim,
        clip=simulation.clip if privacy.unit != "none" else None,
        noise_multipliers=getattr(privacy, "noise_multipliers", None),  # likewise
        sampling_rate=getattr(privacy, "sampling_rate", None),
        staleness=getattr(study, "stalest", None),
        # rows that count as public: bounds and weights of noise may be chosen by them
        validation=_digest(setup.validation, public=setup.published(study)),
        R_c=plan.steps if privacy.unit != "client" else None,  # there, rounds are what is charged
        stages=tuple(records.Stage(**asdict(stage)) for stage in plan.stages),
    )
