"""The special functions that prices need, against those of SciPy's own package."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from scipy import special as theirs  # type: ignore[import-untyped]

from sordino.privacy import grid

X = np.concatenate([np.linspace(-40, 40, 4001), 10.0 ** np.linspace(-300, 300, 601)])


@pytest.mark.parametrize("name", ["erfcx", "gammaln", "log_ndtr", "ndtr"])
def test_every_bit_is_that_of_the_package(name: str) -> None:
    with np.errstate(all="ignore"):
        mine, other = getattr(grid.functions(), name)(X), getattr(theirs, name)(X)
    assert mine.tobytes() == other.tobytes()


def test_a_price_does_not_import_the_package() -> None:
    asked = (
        "import sys; from sordino.privacy.renyi import sampled_divergence as d; d(0.1, 2.0, 2.5); "
        "from sordino.privacy.grid import gaussian as g; g(0.1, 2.0, 1e-2); "
        "print('scipy.special' in sys.modules); import scipy.special as s; print(s.gammaln(5.0))"
    )
    told = subprocess.run([sys.executable, "-c", asked], capture_output=True, check=True).stdout
    assert told.split()[0] == b"False"
    assert float(told.split()[1]) == pytest.approx(np.log(24))


def test_another_layout_of_the_library_does_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid, "_compiled", lambda: None)
    grid.functions.cache_clear()
    try:
        assert grid.functions() is theirs
    finally:
        grid.functions.cache_clear()


def test_the_edge_of_what_is_looked_at() -> None:
    assert theirs.ndtri(0.5 * np.exp(grid._OUTSIDE)) == grid._EDGE
