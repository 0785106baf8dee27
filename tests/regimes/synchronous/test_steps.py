"""budget.steps is what noise is calibrated for; where it is not, the plan says so."""

import pytest

from sordino.regimes.synchronous.study import Budget


@pytest.mark.parametrize(
    ("steps", "affordable_steps", "warned"),
    [(None, 500, False), (40, None, False), (40, 41, False), (4, 6, False), (40, 576, True)],
)
def test_steps_that_do_not_bound_a_run_are_told(
    steps: int | None, affordable_steps: int | None, warned: bool
) -> None:
    told = Budget(rounds=12, steps=steps).ignored(affordable_steps)
    assert bool(told) == warned
    assert not told or "privacy pays for 576 steps" in told[0]
