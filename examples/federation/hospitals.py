"""Data to try a federation with: scikit-learn's breast cancer table, one file for each hospital.

Features are divided by public constants, the largest values that the instruments of the study give,
rounded up: never by what the training rows hold.
"""

import csv
import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer

SCALE = [
    *(30, 40, 200, 2600, 0.2, 0.4, 0.5, 0.25, 0.4, 0.1),
    *(3, 5, 25, 600, 0.04, 0.15, 0.4, 0.06, 0.1, 0.03),
    *(40, 50, 260, 4300, 0.25, 1.1, 1.3, 0.3, 0.7, 0.21),
]
PARTS = {"north": 170, "south": 150, "west": 140, "public": 109}


def main(folder: Path) -> None:
    """Write ``north.csv``, ``south.csv``, ``west.csv``, and ``public.csv`` for the server."""
    table = load_breast_cancer()
    order = np.random.default_rng(0).permutation(len(table.target))
    rows = (table.data / np.array(SCALE) * 2 - 1).round(6)
    start = 0
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in PARTS.items():
        with (folder / f"{name}.csv").open("w", newline="") as file:
            out = csv.writer(file)
            out.writerow([*(n.replace(" ", "_") for n in table.feature_names), "diagnosis"])
            for i in order[start : start + count]:
                out.writerow([*rows[i], "benign" if table.target[i] else "malignant"])
        start += count


main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
