"""Exponentials of the vertical regime's compiled loops."""

from __future__ import annotations

import numpy as np

from sordino.training.jit import losses


def test_exponentials_are_right_to_the_last_places() -> None:
    x = np.concatenate([np.linspace(-85.99, 0, 20_001), [-86.01, -1e30, -np.inf, np.nan]]).astype(
        np.float32
    )
    seen = np.array([losses.exponential(one) for one in x])
    assert np.allclose(seen[:-4], np.exp(x[:-4].astype(np.float64)), rtol=2e-7, atol=0)
    assert seen[-4:-1].tolist() == [0, 0, 0]
    assert np.isnan(seen[-1])
