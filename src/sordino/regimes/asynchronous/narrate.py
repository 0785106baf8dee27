"""What people are told of a study in which gradients are applied as they arrive."""

from __future__ import annotations

import math

from sordino.core.plan import Plan
from sordino.core.statements import Paragraph, Table, number
from sordino.privacy.rounding import epsilon_text
from sordino.regimes.asynchronous.method import Stage
from sordino.regimes.asynchronous.study import AsynchronousStudy


def told(study: AsynchronousStudy, priced: Plan) -> list[Paragraph]:
    """A plan, for people."""
    found: list[Paragraph] = []
    found.append(
        Table(
            "Stages",
            ["stage", "updates", "length", "clip G", "learning rate", "P", "Delta_b"],
            [_stage(s, study) for s in priced.stages],
        )
    )
    if not priced.most:
        found.append(f"no privacy: epsilon is infinite; {study.budget.updates} updates")
        return found
    made = "calibrated" if priced.calibrated else "given"
    found.append(
        f"noise multiplier {priced.noise_multiplier:g} ({made}), expected batch "
        f"{study.method.batch:g}, clip {study.privacy.clip:g}"
    )
    rows = [
        [name + (" *" if name == study.privacy.accountant else ""), number(n, 10)]
        for name, n in priced.most.items()
    ]
    within = f"within epsilon {epsilon_text(study.privacy.epsilon)}, delta {study.privacy.delta:g}"
    title = f"Most gradients of the edge that spends fastest, {within}"
    found.append(Table(title, ["accountant", "gradients"], rows))
    found.append(f"signal to noise of one gradient: at most {priced.signal_to_noise:.3f}")
    found.append(
        f"fair share of an edge: {priced.used} gradients, epsilon {epsilon_text(priced.epsilon)}; "
        "a faster one sends more"
    )
    return found


def _stage(stage: Stage, study: AsynchronousStudy) -> list[str]:
    first = stage.start + 1
    last = min(stage.end, study.budget.updates)
    rate = f"{stage.rate:.4g}" if stage.rate is not None else "falls"
    clip = "-" if math.isinf(stage.clip) else f"{stage.clip:.4g}"
    return [
        str(stage.number),
        f"{first} to {last}",
        str(stage.length),
        clip,
        rate,
        f"{stage.slowing:.3g}",
        f"{stage.variance:.4g}",
    ]
