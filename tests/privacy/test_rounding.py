"""Epsilon is an upper bound: no text may name less, wherever it stands."""

from __future__ import annotations

import ast
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sordino
from sordino.base.errors import BudgetExceeded
from sordino.cli import say
from sordino.core.plan import Plan
from sordino.live.console import epsilon_of
from sordino.privacy import Budget, Gaussian
from sordino.privacy.rounding import epsilon_text
from sordino_papers.inversion.picture import price_words
from sordino_papers.inversion.scenes import Level

positive = st.floats(min_value=1e-300, max_value=1e300, allow_nan=False)
digits = st.integers(1, 17)


def rounded_up(value: float, kept: int = 4) -> float:
    return float(epsilon_text(value, kept))


@given(positive, digits)
def test_never_below_and_within_one_unit_of_the_last_digit(value: float, kept: int) -> None:
    shown = rounded_up(value, kept)
    assert shown >= value
    assert shown <= value * (1 + 10.0 ** (1 - kept)) * (1 + 1e-12)


@given(st.floats(min_value=1e-12, max_value=1e12), st.integers(0, 9))
def test_with_fixed_decimals_too(value: float, decimals: int) -> None:
    text = epsilon_text(value, decimals=decimals)
    assert float(text) >= value
    assert len(text.partition(".")[2]) == decimals


@given(positive, positive, digits)
def test_order_is_kept(one: float, two: float, kept: int) -> None:
    low, high = sorted((one, two))
    assert rounded_up(low, kept) <= rounded_up(high, kept)


@given(positive, digits)
def test_rounding_twice_changes_nothing(value: float, kept: int) -> None:
    once = rounded_up(value, kept)
    assert rounded_up(once, kept) == once


def test_the_ends() -> None:
    assert rounded_up(0.0) == 0.0
    assert rounded_up(math.inf) == math.inf
    assert rounded_up(math.nan) == math.inf, "what is no number is no bound"
    assert (
        epsilon_text(None),
        epsilon_text(math.inf),
        epsilon_text(math.nan),
        epsilon_text(0.0),
    ) == ("-", "inf", "inf", "0")
    assert [epsilon_text(each) for each in (0.5, 2e-4, 9e-5)] == ["0.5", "0.0002", "9e-5"]
    assert rounded_up(0.1) == 0.1, "the shortest decimal counts, not the float's 55 digits"


# A value just above a short decimal, which every rounding to nearest shows as that decimal.
ABOVE = 2.00000001


def test_all_places_for_people_round_up() -> None:
    plan = Plan(
        noise_multiplier=1.0, steps=1, rounds=1, used=1, epsilon=ABOVE, curve=(ABOVE,)
    ).exposed("form", ABOVE, "so")
    shown = [
        say.bound(ABOVE),
        epsilon_of(ABOVE, 3.0).partition("/")[0],
        *(part.partition(" ")[0] for part in plan.warnings[0].split("epsilon = ")[1:]),
        price_words(Level(sigma=0.1, once=ABOVE, whole=ABOVE)).split()[2],
    ]
    assert all(float(text) >= ABOVE for text in shown), shown


def test_a_refusal_shows_no_less_than_was_asked_for() -> None:
    budget = Budget(epsilon=1.0, delta=1e-5)
    with pytest.raises(BudgetExceeded) as refused:
        budget.check("client:0", [(Gaussian(noise_multiplier=3.0), 1)])
    text = str(refused.value).partition("epsilon to ")[2].partition(",")[0]
    assert float(text) > 1.0


ALLOWED = {
    "sordino/privacy/rounding.py"  # which does it
}
"""Files in which an epsilon may be formatted by hand."""
INPUTS = {"label_epsilon", "privacy.epsilon", "self.epsilon", "self.label_epsilon"}


def _formatted(tree: ast.AST) -> list[tuple[int, str]]:
    """Every expression in an f-string, with a format of digits, that names an epsilon."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FormattedValue) and node.format_spec is not None:
            said = ast.unparse(node.value).lower()
            kind = ast.unparse(node.format_spec)
            if (
                ("epsilon" in said or "claimed" in said or said.endswith(("spent", "spent)")))
                and "_text" not in said
                and "s" not in kind[2:-1]
            ):
                found.append((node.lineno, ast.unparse(node.value)))
    return found


def test_nobody_formats_an_epsilon_by_hand() -> None:
    root = Path(sordino.__file__).parent
    by_hand = [
        f"{path.relative_to(root.parent)}:{line}: {said}"
        for path in sorted(root.rglob("*.py"))
        if str(path.relative_to(root.parent)) not in ALLOWED
        for line, said in _formatted(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not by_hand, "use sordino.privacy.rounding.epsilon_text:\n" + "\n".join(by_hand)
