"""jax_privacy's auditing as referee: the same guesses, the same bounds.

Its answers (2.0.0) stand here; where its environment is made, they are asked for again.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from bench.jax_privacy.referee import ALPHA, DELTA, GUESSES, SHARES
from scipy import stats  # type: ignore[import-untyped]

from sordino.audit.bounds import at_most, gaussian_epsilon, least_noise, one_run, refuted


def gaussian(mu: float) -> Callable[[float], float]:
    """b of a Gaussian release whose sensitivity is mu deviations."""
    return lambda r: float(stats.norm.cdf(stats.norm.ppf(r) - mu))


FOLDER = Path(__file__).parents[2] / "bench/jax_privacy"
ANSWERS = {
    "one_run": (
        0.9580863562992425,
        2.5511272085474137,
        1.9735464109028311,
        0.2972269575896597,
        2.2095363003304023,
    ),
    "one_run_gaussian": (
        2.130336401063387,
        5.150886353918177,
        2.8222958934365896,
        0.5835406792920641,
        2.811108463159013,
    ),
    "at_most": (0.11699153209636791, 0.019269229283088177),
}


def curve(m: int, r: int, v: int) -> float:
    """Our bound against Gaussian trade-offs."""
    noise = least_noise(lambda s: refuted(m, r, v, gaussian(1.0 / s), ALPHA))
    return gaussian_epsilon(1.0 / noise, DELTA)


def test_we_agree_with_jax_privacy() -> None:
    ours = [one_run(*each, DELTA, ALPHA) for each in GUESSES]
    assert ours == pytest.approx(ANSWERS["one_run"], rel=1e-4)
    ours = [curve(*each) for each in GUESSES]
    assert ours == pytest.approx(ANSWERS["one_run_gaussian"], rel=1e-4)
    ours = [at_most(alarms, n, ALPHA) for _, alarms, n in SHARES]
    assert ours == pytest.approx(ANSWERS["at_most"], rel=1e-9)


def test_the_answers_are_still_its_own() -> None:
    python = FOLDER / ".venv/bin/python"
    if not python.exists():
        pytest.skip("not installed: make bench/jax_privacy/.venv")
    done = subprocess.run(
        [python, FOLDER / "referee.py"], capture_output=True, text=True, check=True
    )
    told = json.loads(done.stdout.splitlines()[-1])
    for name, wanted in ANSWERS.items():
        assert told[name] == pytest.approx(wanted, rel=1e-9)
