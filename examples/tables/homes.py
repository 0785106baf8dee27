"""Writes homes.csv: prices of homes in three counties, drawn at random, with gaps, a column of
names, and semicolons, as spreadsheets write them. It lies here already:

    sordino run examples/tables/homes.toml
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

PLACES = ("inland", "by the bay", "by the ocean")


def homes(count: int = 6000) -> pl.DataFrame:
    """Income (ten thousands a year), rooms with gaps, place, county, and price (thousands)."""
    rng = np.random.default_rng(0)
    income, rooms = rng.gamma(3.0, 1.3, count), rng.integers(1, 9, count)
    place = rng.choice(PLACES, count, p=(0.5, 0.2, 0.3))
    price = 80 + 45 * income + 6 * rooms + 90 * (place != "inland") + rng.normal(0, 25, count)
    unknown = rng.random(count) < 0.1
    return pl.DataFrame(
        {
            "income": income.round(3),
            "rooms": [None if gap else each for gap, each in zip(unknown, rooms, strict=True)],
            "place": place,
            "county": rng.choice(("north", "middle", "south"), count, p=(0.5, 0.4, 0.1)),
            "price": price.round(1),
        }
    )


if __name__ == "__main__":
    homes().write_csv(Path(__file__).with_name("homes.csv"), separator=";")
