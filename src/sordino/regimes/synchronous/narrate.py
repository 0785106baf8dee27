"""What people are told of a study in rounds."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sordino.engine.narration import Table, Told, number
from sordino.engine.plan import Plan
from sordino.privacy.rounding import epsilon_text
from sordino.regimes.synchronous.plan import Cell
from sordino.regimes.synchronous.study import SynchronousStudy


def advised(study: SynchronousStudy, cells: Sequence[Cell]) -> list[Told]:
    """Sampling rates and tau at the study's epsilon, for people."""
    rows = [
        [
            f"{c.sampling_rate:g}",
            str(c.tau),
            str(c.steps),
            f"{c.noise_multiplier:.3f}",
            f"{1e6 * c.relative_noise:.1f}",
            f"{c.compute:,.0f}",
        ]
        for c in cells
    ]
    head = ["q", "tau", "steps", "sigma", "sigma/(q n) x 1e6", "examples per client"]
    title = (
        f"epsilon {epsilon_text(study.privacy.epsilon)} in {study.budget.rounds} rounds: what "
        "sampling rate and tau would give"
    )
    return [
        Table(title, head, rows),
        "sigma/(q n) is the noise of an averaged step relative to the data. Lower is better. "
        "The last column is the computing cost.",
    ]


def told(study: SynchronousStudy, priced: Plan) -> list[Told]:
    """A plan, for people."""
    found: list[Told] = []
    if math.isinf(priced.epsilon) and not priced.most:
        found.append(f"no privacy: epsilon is infinite; {priced.rounds} rounds")
        return found
    made = "calibrated" if priced.calibrated else "given"
    found.append(
        f"noise multiplier {priced.noise_multiplier:g} ({made}), sampling rate "
        f"{study.privacy.sampling_rate:g}, clip {study.privacy.clip:g}"
    )
    charged = "rounds" if study.privacy.unit == "client" else "local steps"
    rows = [
        [name + (" *" if name == study.privacy.accountant else ""), number(n, 10)]
        for name, n in priced.most.items()
    ]
    found.append(
        Table(
            f"R_c: most {charged} within epsilon {epsilon_text(study.privacy.epsilon)}, "
            f"delta {study.privacy.delta:g}",
            ["accountant", charged],
            rows,
        )
    )
    shown = sorted(
        {
            0,
            len(priced.curve) // 4,
            len(priced.curve) // 2,
            3 * len(priced.curve) // 4,
            len(priced.curve) - 1,
        }
    )
    what = "epsilon" if priced.claimed is None else "claimed epsilon"
    found.append(
        Table(
            f"{what} after round, at the planned pace",
            ["round", what],
            [[str(k + 1), epsilon_text(priced.curve[k])] for k in shown],
        )
    )
    if (
        priced.batches is not None
        and priced.signal_to_noise is not None
        and priced.relative_noise is not None
    ):
        low, middle, high = priced.batches
        if study.privacy.unit == "client":
            found.append(
                f"expected cohort: {middle:.1f} clients; signal to noise of a round: at most "
                f"{priced.signal_to_noise:.3f}"
            )
        else:
            found.append(
                f"expected batch: {low:.1f} (smallest client), {middle:.1f} (median), "
                f"{high:.1f} (largest)"
            )
            found.append(
                "signal to noise of one step at the median client: at most "
                f"{priced.signal_to_noise:.3f}"
            )
            found.append(
                "noise of an averaged step relative to the data, sigma/(q n): "
                f"{1e6 * priced.relative_noise:.1f}e-6"
            )
    end = "the privacy budget" if priced.ends == "privacy" else "the round budget"
    taken = f"{priced.used} {charged} in {len(priced.curve)} of {priced.rounds} rounds"
    found.append(f"{end} ends the run: {taken}, epsilon {epsilon_text(priced.epsilon)}")
    return found
