"""Print the tables of docs/ali-dpfl-tables.md from the run folders that grid.py made.

python docs/experiments/tables.py runs/tables
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from pathlib import Path

from grid import binding

METHODS = ("ali-dpfl", "als-dpfl", "tau=1", "tau=2", "tau=3", "tau=5", "tau=10")
CELL = re.compile(
    r"(?P<setting>\w+)-(?P<partition>dir005|iid)-r(?P<ratio>\d)-(?P<method>[\w=-]+?)-s(?P<seed>\d)(?P<tag>-\w+)?$"
)


def taus(folder: Path) -> set[int]:
    """Every tau that was used."""
    rows = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    return {row["tau"] for row in rows if row["kind"] == "round"}


def main(root: Path) -> None:
    """Group cells by seed and print mean and standard deviation of the final test accuracy in per
    cent.
    """
    cells: dict[tuple[str, str, str, str, str], list[tuple[float, float, set[int]]]] = {}
    for folder in sorted(root.iterdir()):
        found = CELL.match(folder.name)
        result = json.loads((folder / "run.json").read_text())["result"] if found else None
        if found and result:
            key = (
                found["setting"],
                found["tag"] or "",
                found["partition"],
                found["ratio"],
                found["method"],
            )
            cells.setdefault(key, []).append(
                (100 * result["accuracy"], result["epsilon"], taus(folder))
            )
    for setting, tag in sorted({key[:2] for key in cells}):
        columns = sorted({key[2:4] for key in cells if key[:2] == (setting, tag)})
        print(f"\n{setting}{tag}")
        print(
            "| | "
            + " | ".join(f"{partition}, R_s = R_c/{ratio}" for partition, ratio in columns)
            + " |"
        )
        print("|---|" + "---|" * len(columns))
        for method in METHODS:
            row = [
                cells.get(
                    (setting, tag, partition, str(binding(setting, method, int(ratio))), method)
                )
                for partition, ratio in columns
            ]
            if any(row):
                print(f"| {method} | " + " | ".join(shown(cell) for cell in row) + " |")


def shown(cell: list[tuple[float, float, set[int]]] | None) -> str:
    """Mean and spread over seeds; how many seeds where not three; epsilon where it was not spent;
    taus.
    """
    if not cell:
        return ""
    values = [accuracy for accuracy, _, _ in cell]
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    seeds = "" if len(values) == 3 else f" ({len(values)} seeds)"
    epsilon = max(epsilon for _, epsilon, _ in cell)
    spent = "" if epsilon > 1.99 else f", ε {epsilon:.2f}"
    known = sorted(set().union(*(used for _, _, used in cell)))
    used = (
        str(known[0])
        if len(known) == 1
        else f"{known[0]}{', ' if len(known) == 2 else '–'}{known[-1]}"
    )
    return f"{statistics.mean(values):.1f}{spread}{seeds} (τ {used}{spent})"


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/tables"))
