"""The live display: plain lines without control characters, a panel that holds what matters."""

import io
from typing import Any

import pytest

from sordino.console import Progress, display, panel


def row(number: int, **more: Any) -> dict[str, Any]:
    return {"kind": "round", "round": number, "steps": 2 * number, "tau": 2, "epsilon": 0.1 * number, "accuracy": 0.5, "note": None, **more}


def test_lines_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    with display(total_rounds=10, budget_epsilon=2.0, budget_steps=20, title="t", stream=stream) as shown:
        shown.show({"kind": "late", "round": 1, "client": 3})
        shown.show(row(1))
        shown.show(row(2, accuracy=None))
        shown.show({"kind": "surprise"})
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2
    assert lines[0] == "round 1/10  tau 2  steps 2  accuracy 50.0 %  epsilon 0.100/2  late 1  lost 0"
    assert "s left" in lines[1]
    assert all(character.isprintable() for text in lines for character in text)


@pytest.mark.parametrize("budget", [2.0, float("inf")])
@pytest.mark.parametrize("epsilon", [1.25, "inf"])
def test_panel_holds_what_matters(budget: float, epsilon: float | str) -> None:
    from rich.console import Console

    progress = Progress(total_rounds=100, budget_epsilon=budget, budget_steps=None, title="a [bold]title", started=0.0)
    progress.take(row(1))
    progress.take(row(50, epsilon=epsilon, note="something to say", accuracy=0.4))
    console = Console(file=io.StringIO(), width=100, record=True)
    console.print(panel(progress, 10.0))
    text = console.export_text()
    for part in ("a [bold]title", "40.0 %", "best 50.0 %", "50/100", "something to say"):
        assert part in text
    assert ("inf" if epsilon == "inf" else "1.250") in text


def test_time_left_follows_whichever_budget_ends_first() -> None:
    progress = Progress(total_rounds=100, budget_epsilon=2.0, budget_steps=24, title="t", started=0.0)
    assert progress.left(5.0) is None
    for number in range(1, 11):
        progress.take(row(number))
    assert progress.left(10.0) == pytest.approx(2.0)  # 4 steps left are 2 rounds of a second each
    progress.budget_steps = None
    assert progress.left(10.0) == pytest.approx(90.0)
