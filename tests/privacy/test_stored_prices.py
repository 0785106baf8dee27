"""Prices are those of before, to ten digits: of histories of every kind, by every accountant.

``python tests/privacy/test_stored_prices.py`` stores them anew, for a change that is meant to
change prices: say so in its message. A price is a bound by proof, which no test here looks at; but
a bound that has moved without anybody's knowing is a slip.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sordino.privacy import parts, renyi
from sordino.privacy.accounting import accountant
from sordino.privacy.budget import most_steps, noise_multiplier
from sordino.privacy.event import (
    Chosen,
    Composed,
    Event,
    Gaussian,
    Grouped,
    NegativeBinomial,
    NonPrivate,
    Nothing,
    Poisson,
    PoissonSampled,
    Pure,
    Repeated,
    SampledRows,
    Selected,
)
from sordino.privacy.pure import Kind

STORED = Path(__file__).parents[1] / "golden" / "prices.json"
NAMES = ("pld", "rdp", "rdp-classic", "rdp@8")


def sampled(rate: float, sigma: float) -> Event:
    return PoissonSampled(rate, Gaussian(sigma))


BOTH = Composed((Gaussian(2.0), Pure(0.3)))
HISTORIES: dict[str, list[tuple[Event, int]]] = {
    "plain": [(Gaussian(6.0), 7), (Gaussian(9.0), 2)],
    "sampled": [(sampled(0.015, 1.1), 317), (sampled(0.05, 2.0), 20)],
    "blocks": [(sampled(0.001, 2.0), 4100)],
    "sampled twice": [(PoissonSampled(0.5, sampled(0.2, 1.5)), 30)],
    "hardly any noise": [(sampled(0.01, 2e-3), 40)],
    "hardly any noise, often": [(sampled(0.2, 2e-3), 4000)],
    "harsh and mild": [(sampled(0.02, 0.03), 5), (sampled(0.05, 2.0), 20), (Gaussian(0.04), 1)],
    "harsh beside much": [(sampled(0.1, 0.045), 1), (sampled(0.3, 2.0), 200)],
    "pure": [(Pure(0.1), 200), (PoissonSampled(0.1, Pure(0.5)), 60)],
    "pure, alone": [(PoissonSampled(0.05, Pure(0.4)), 500)],
    "pure, and much of it": [(PoissonSampled(0.3, Pure(35.0)), 3)],
    "pure, very often": [(Pure(2e-4), 10**7)],
    "pure, hardly private": [(Pure(50.0), 2)],
    "pure and noise": [(Pure(0.02), 5), (sampled(0.05, 1.3), 60), (Gaussian(20.0), 3)],
    "of one sample": [(PoissonSampled(0.04, BOTH), 25)],
    "of one sample, whole": [(PoissonSampled(1.0, BOTH), 3), (BOTH, 1)],
    "repeated in a sample": [(PoissonSampled(0.04, Repeated(Composed((BOTH, Pure(0.1))), 3)), 9)],
    "rows": [(SampledRows(0.01, 3, Gaussian(2.0)), 50)],
    "rows of pure": [(SampledRows(0.01, 3, Pure(0.2)), 50), (SampledRows(1.0, 2, Gaussian(9.0)),
    1)],
    "group": [(Grouped(sampled(0.01, 2.0), 2), 40)],
    "groups": [(Grouped(sampled(0.01, 2.0), 3), 20), (sampled(0.02, 2.0), 20)],
    "a large group": [(Grouped(Gaussian(1e6), 70_000), 1)],
    "selected": [(Selected(Repeated(sampled(0.02, 2.0), 30), NegativeBinomial(1.0, 0.2)), 1)],
    "selected twice": [
        (Selected(Gaussian(4.0), NegativeBinomial(0.0, 0.1)), 2),
        (Selected(Gaussian(5.0), Poisson(3.0)), 1),
        (sampled(0.02, 2.0), 30),
    ],
    "selected, rarely": [(Selected(Gaussian(3.0), Poisson(0.4)), 1)],
    "selected, of nothing": [(Selected(Nothing(), Poisson(2.0)), 1)],
    "selected, of raw ones": [(Selected(NonPrivate("raw"), Poisson(2.0)), 1)],
    "selected, pure": [(Selected(Pure(0.4), NegativeBinomial(1.0, 0.2)), 1)],
    "selected, beside": [
        (Selected(Repeated(sampled(0.02, 2.0), 30), NegativeBinomial(1.0, 0.2)), 1),
        (sampled(0.02, 1.0), 30),
    ],
    "chosen": [(Chosen(8.0, sampled(0.02, 2.0)), 40), (Gaussian(10.0), 1)],
    "chosen for another order": [(Chosen(4.0, Gaussian(2.0)), 1)],
    "chosen, without noise": [(Chosen(8.0, NonPrivate("raw")), 1)],
    "repeated": [(Repeated(Composed((sampled(0.02, 2.0), Nothing())), 12), 3)],
    "nothing": [(Nothing(), 3), (Gaussian(1.0), 0), (Repeated(NonPrivate("raw"), 0), 1)],
    "nothing in a sample": [(PoissonSampled(0.1, Composed((Nothing(), Gaussian(2.0)))), 4)],
    "never in a sample": [(PoissonSampled(0.1, Repeated(NonPrivate("raw"), 0)), 4)],
    "raw": [(NonPrivate("raw"), 1)],
    "raw in a sample": [(PoissonSampled(0.1, NonPrivate("raw")), 1)],
    "raw beside noise": [(PoissonSampled(0.1, Composed((Gaussian(0.0), Gaussian(1.0)))), 1)],
    "no noise": [(sampled(0.1, 0.0), 1)],
    "the least noise": [(Gaussian(1e-100), 1)],
    "the most epsilon": [(Pure(1e100), 1)],
    "selected, never": [(Selected(NonPrivate("raw"), Poisson(1.0)), 0), (Gaussian(2.0), 1)],
}  # fmt: skip


Figure = Callable[[], float]


def prices() -> Iterator[tuple[str, Figure]]:
    """Names of figures, and what computes each."""
    by = accountant("pld")
    for what, spent in HISTORIES.items():
        yield f"quick epsilon of {what}", partial(by.epsilon, spent, 1e-5, quick=True)
        for name in NAMES:
            one = accountant(name)
            for delta in (1e-5, 1e-9):
                yield (
                    f"epsilon of {what} by {name} at {delta:g}",
                    partial(one.epsilon, spent, delta),
                )
            for epsilon in (0.5, 3.0):
                yield (
                    f"delta of {what} by {name} at {epsilon:g}",
                    partial(one.delta, spent, epsilon),
                )
        yield f"quick epsilon of {what}", partial(by.epsilon, spent, 1e-5, quick=True)
    for what, epsilon in (
        ("harsh and mild", 1500.0), ("hardly any noise", 3e5),
        ("harsh beside much", 30.0), ("harsh beside much", 300.0),
    ):  # fmt: skip
        yield f"delta of {what} at {epsilon:g}", partial(by.delta, HISTORIES[what], epsilon)
    best, usual = accountant("pld-best-of-logarithmic@20"), HISTORIES["sampled"]
    yield "best", partial(best.epsilon, usual, 1e-5)
    yield "best, quick", partial(best.epsilon, usual, 1e-5, quick=True)
    yield "best, delta", partial(best.delta, usual, 2.0)
    for rate, sigma, rows in ((0.01, 1.0, 4), (0.3, 3.0, 2), (0.001, 0.6, 20)):
        kind = Kind(rate, sigma, rows=rows)
        for order in (1.5, 8.0, 64.0):
            yield f"rows of {kind} at {order}", partial(renyi.rows_divergence, kind, order)
    for law in (*(parts.law(name, 7.0) for name in parts.LAWS), NegativeBinomial(0.5, 0.1)):
        yield f"mean of {law}", partial(parts.expected, law)
        yield f"missed by {law}", partial(parts.missed, law, 9)
        for uniform in (0.0, 0.3, 0.9, 0.999):
            yield f"number of {law} at {uniform}", partial(parts.number, law, uniform, round)
        yield f"ratio of {law}", partial(parts.ratio, law, falling, 1.5)
        yield f"ratio of {law}, flat", partial(parts.ratio, law, lambda _: 0.3, 1.5)
    about: dict[str, Any] = {"sampling_rate": 0.02, "epsilon": 1.5, "delta": 1e-5}
    for steps, rows, names in (
        (30, 1, NAMES), (30, 3, ("rdp",)), ([(1.0, 20), (1.5, 10)], 1, ("pld", "rdp")),
    ):  # fmt: skip
        for name in names:
            about |= {"steps": steps, "rows": rows, "accountant": name}
            yield f"noise for {steps} {rows} by {name}", partial(noise_multiplier, **about)
    about = {"delta": 1e-5, "spent": [(sampled(0.02, 2.0), 9)]}
    for name in NAMES:
        for epsilon in (0.4, 2.0):
            about |= {"epsilon": epsilon, "accountant": name}
            yield f"steps for {epsilon} by {name}", partial(most_steps, sampled(0.01, 1.4), **about)


def falling(epsilon: float) -> float:
    """A privacy profile."""
    return max(0.0, 0.4 - 0.2 * epsilon)


def found(figure: Figure) -> float | str:
    """A figure; of what cannot be priced the kind of error."""
    try:
        return float(figure())
    except (TypeError, ArithmeticError) as error:
        return type(error).__name__


PRICES = dict(prices())


@pytest.mark.parametrize("first", range(4))
def test_prices_are_those_of_before(first: int) -> None:
    stored = json.loads(STORED.read_text())
    assert stored.keys() == PRICES.keys()
    for name in [*stored][first::4]:
        told = found(PRICES[name])
        before = float(stored[name]) if stored[name] in ("inf", "nan") else stored[name]
        if isinstance(before, str):
            assert told == before, name
        else:
            close = 1e-12 if name.startswith(("rows", "mean", "ratio")) or "rdp" in name else 1e-10
            assert told == pytest.approx(before, rel=close, abs=1e-14), name


if __name__ == "__main__":
    told = {name: found(figure) for name, figure in PRICES.items()}
    kept = {
        n: str(x) if isinstance(x, float) and not math.isfinite(x) else x for n, x in told.items()
    }
    STORED.write_text(json.dumps(kept, indent=1) + "\n")
