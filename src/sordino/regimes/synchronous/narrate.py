"""What people are told of a study in rounds."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sordino.core.plan import Plan
from sordino.core.statements import Paragraph, Table, number
from sordino.privacy.rounding import epsilon_text
from sordino.regimes.synchronous.plan import Cell
from sordino.regimes.synchronous.sharing import fewest, honest
from sordino.regimes.synchronous.study import SynchronousStudy

MOST_CLIENTS = 20


def advised(study: SynchronousStudy, cells: Sequence[Cell]) -> list[Paragraph]:
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


def told(study: SynchronousStudy, priced: Plan) -> list[Paragraph]:
    """A plan, for people."""
    found: list[Paragraph] = []
    if math.isinf(priced.epsilon) and not priced.most:
        found.append(f"no privacy: epsilon is infinite; {priced.rounds} rounds")
        return found
    made = "calibrated" if priced.calibrated else "given"
    found.append(
        f"noise multiplier {priced.noise_multiplier:g} ({made}), sampling rate "
        f"{study.privacy.sampling_rate:g}, clip {study.privacy.clip:g}"
    )
    found += _clients(priced)
    charged = "rounds" if study.privacy.unit == "client" else "local steps"
    found += _shared(study, priced)
    found += [_most(study, priced, charged), _curve(priced), *_noise(study, priced)]
    end = "the privacy budget" if priced.ends == "privacy" else "the round budget"
    taken = f"{priced.used} {charged} in {len(priced.curve)} of {priced.rounds} rounds"
    found.append(f"{end} ends the run: {taken}, epsilon {epsilon_text(priced.epsilon)}")
    return found


def _clients(priced: Plan) -> list[Table]:
    """What each client spends, adds and counts, where that differs."""
    rows = [
        [str(client), epsilon_text(epsilon), number(sigma), f"{100 * weight:.3g} %"]
        for client, (epsilon, sigma, weight) in enumerate(priced.clients[:MOST_CLIENTS])
    ]
    more = len(priced.clients) - len(rows)
    title = "Each client's own epsilon" + (f"; {more} more are not shown" if more else "")
    head = ["client", "epsilon", "noise multiplier", "weight in the average"]
    return [Table(title, head, rows)] if rows else []


def _shared(study: SynchronousStudy, priced: Plan) -> list[str]:
    """Whose noise a sum has, and what it is counted in."""
    grid = priced.shared
    if grid is None:
        return []
    n, most = len(grid.reach), honest(study)
    return [
        f"noise shared by {n} clients: enough with {most} honest parts; a sum of fewer than "
        f"{fewest(study)} is not opened. The server sees who contributes and the opened sums, no "
        "single contribution",
        f"sums modulo 2^{grid.bits} in steps of 2^{math.log2(grid.step):.0f}, {grid.rounding} "
        f"rounding ({100 * (grid.growth - 1):.2g} % more noise), {grid.deviation:.4g} steps of "
        "noise from each; chance that any number overflows: below "
        f"2^{math.ceil(grid.overflow):.0f}",
    ]


def _most(study: SynchronousStudy, priced: Plan, charged: str) -> Table:
    """R_c under every accountant; the study's own has a star."""
    privacy = study.privacy
    return Table(
        f"R_c: most {charged} within epsilon {epsilon_text(privacy.epsilon)}, "
        f"delta {privacy.delta:g}",
        ["accountant", charged],
        [
            [name + (" *" if name == privacy.accountant else ""), number(n, 10)]
            for name, n in priced.most.items()
        ],
    )


def _curve(priced: Plan) -> Table:
    """Epsilon after the first round, each quarter of the rounds, and the last."""
    rounds = len(priced.curve)
    shown = sorted({0, rounds // 4, rounds // 2, 3 * rounds // 4, rounds - 1})
    what = "epsilon" if priced.claimed is None else "claimed epsilon"
    return Table(
        f"{what} after round, at the planned pace",
        ["round", what],
        [[str(k + 1), epsilon_text(priced.curve[k])] for k in shown],
    )


def _noise(study: SynchronousStudy, priced: Plan) -> list[str]:
    """Expected batch, or cohort, and how strong the noise is."""
    if priced.batches is None or priced.signal_to_noise is None or priced.relative_noise is None:
        return []
    low, middle, high = priced.batches
    if study.privacy.unit == "client":
        return [
            f"expected cohort: {middle:.1f} clients; signal to noise of a round: at most "
            f"{priced.signal_to_noise:.3f}"
        ]
    if priced.shared is not None:
        return [
            f"expected batch: {low:.1f} (smallest client), {middle:.1f} (median), {high:.1f} "
            "(largest)",
            f"signal to noise of the sum of all clients: at most {priced.signal_to_noise:.3f}",
        ]
    return [
        f"expected batch: {low:.1f} (smallest client), {middle:.1f} (median), {high:.1f} (largest)",
        f"signal to noise of one step at the median client: at most {priced.signal_to_noise:.3f}",
        "noise of an averaged step relative to the data, sigma/(q n): "
        f"{1e6 * priced.relative_noise:.1f}e-6",
    ]
