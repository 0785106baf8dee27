"""What jax_privacy's auditing says of given guesses, as JSON: `make bench/jax_privacy/.venv` first.

Run in that environment; tests/audit/test_jax_privacy.py holds our bounds against its answers.
"""

from __future__ import annotations

import json
import sys
from typing import Any

GUESSES = (  # m, r, v
    (100, 100, 80),
    (100, 40, 40),
    (1000, 50, 48),
    (1000, 1000, 600),
    (15000, 300, 280),
)
SHARES = ((900, 100, 1000), (60, 3, 400))  # hits, false alarms, releases in each world
DELTA, ALPHA = 1e-5, 0.05


def answers() -> dict[str, Any]:
    """Lower bounds of epsilon at DELTA, each wrong with probability at most ALPHA."""
    from jax_privacy import auditing  # type: ignore[import-not-found]

    one_run = [auditing._epsilon_one_run(0.0, *each, ALPHA, DELTA) for each in GUESSES]
    curve = [auditing._epsilon_one_run_fdp(1e-3, *each, ALPHA, DELTA) for each in GUESSES]
    upper = [float(auditing._clopper_pearson_upper(b, n, ALPHA)) for _, b, n in SHARES]
    return {"one_run": one_run, "one_run_gaussian": curve, "at_most": upper}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(answers()) + "\n")
