"""Draw docs/without-sampling.svg: what noise adds up to, with and without secret sampling.

python docs/experiments/passes.py
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from sordino.core.statements import Figure, Panel, Series
from sordino.mechanisms.correlated import Correlation
from sordino.privacy import noise_multiplier
from sordino.report.drawing import export

DELTA, STEPS = 1e-5, 160
NAMES = ("passes", "Poisson, secret", "passes, correlated")
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)


def needed(epsilon: float, batches: int, *, drawn: bool) -> float:
    """The noise multiplier of 160 steps, as Poisson samples or in passes."""
    return noise_multiplier(
        sampling_rate=1.0 / batches if drawn else 1.0,
        steps=STEPS if drawn else -(-STEPS // batches),
        epsilon=epsilon,
        delta=DELTA,
        accountant="pld",
    )


def panel(batches: int, names: Sequence[str] = ("", "", "")) -> Panel:
    """Three lines for so many batches of a pass, with their names in the legend."""
    noise = Correlation(kind="banded", separation=batches, passes=-(-STEPS // batches))
    share = noise.together(STEPS) / math.sqrt(STEPS)
    passes = [needed(epsilon, batches, drawn=False) for epsilon in EPSILONS]
    drawn = [needed(epsilon, batches, drawn=True) for epsilon in EPSILONS]
    together = [share * each for each in passes]
    for name, line in (("drawn", drawn), ("passes", passes), ("correlated", together)):
        print(batches, name, *(f"{value:.3f}" for value in line))
    return Panel(
        label=f"b = {batches}",
        series=(
            Series(x=EPSILONS, y=passes, name=names[0], colour="orange"),
            Series(x=EPSILONS, y=drawn, name=names[1], colour="grey", dash="dashed"),
            Series(x=EPSILONS, y=together, name=names[2], colour="blue"),
        ),
        log=True,
    )


def main() -> None:
    """Draw the figure beside the page."""
    figure = Figure(
        key="without-sampling",
        title="What the noise of 160 steps adds up to",
        caption="As the noise multiplier of independent noise; lower is better.",
        label="Noise against epsilon: passes above, Poisson and correlated passes below",
        panels=(panel(10, NAMES), panel(40)),
        x="epsilon",
        limits=(0.45, 18.0),
        log=True,
    )
    place = Path(__file__).parent.parent / "without-sampling.svg"
    place.write_bytes(export(figure, "svg"))


if __name__ == "__main__":
    main()
