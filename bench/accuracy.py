"""``python -m bench.accuracy [ROW ...]``: the table of docs/accuracy.md, from bench/accuracy.toml.

For each row and epsilon, constants are chosen first, by ``sordino tune``: by its rules, or by
trials on images that are declared public and trained on by nobody else. Then each split and seed is
run with them. Results go to bench/accuracy.jsonl as they come, and what
lies there is not run again. ``--table`` prints the table of what is there.

Each run is the command line's (``sordino run``), in a process that has the kernels already.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "accuracy.jsonl"
KEPT = ("validation", "accuracy", "epsilon", "seconds")


def main(arguments: Sequence[str]) -> None:
    """Run what is missing of all rows, or of those whose names begin with an argument."""
    catalog = tomllib.loads((HERE / "accuracy.toml").read_text())
    if "--table" in arguments:
        print(table(catalog, _results()))
        return
    rows = [
        row for row in catalog["row"] if not arguments or row["name"].startswith(tuple(arguments))
    ]
    for row in rows:
        for epsilon in row.get("epsilons", catalog["epsilons"]):
            chosen = _chosen(catalog, row, epsilon)
            for split in row.get("splits", catalog["splits"]):
                for seed in catalog["seeds"]:
                    _result(catalog, row, epsilon, split, seed, chosen)


def _chosen(catalog: Mapping[str, Any], row: Mapping[str, Any], epsilon: float) -> dict[str, Any]:
    """What `sordino tune` takes: by rules, or by trials on public images."""
    fixed = {
        name: value * (epsilon if row.get("scaled") and name.endswith("learning_rate") else 1.0)
        for name, value in row.get("with", {}).items()
    }
    if "vary" not in row and not row.get("rules"):
        return fixed
    asked = _asked(row, epsilon)
    key = json.dumps(["chosen", row["name"], epsilon, asked], sort_keys=True)
    found = _results().get(key)
    if found is None:
        first = next(iter(row.get("splits", catalog["splits"])))
        changes = {**_changes(catalog, row, epsilon, first, 0), **fixed}
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "tuned.toml"
            whole = ["sordino", "tune", row["study"], *asked, "--out", str(out)]
            _call(whole if row.get("rules") else [*whole, "--runs", f"{folder}/runs"], changes)
            found = {"chosen": tomllib.loads(out.read_text())["tuned"]["chosen"]}
        _keep(key, found)
    return {**fixed, **found["chosen"]}


def _asked(row: Mapping[str, Any], epsilon: float) -> list[str]:
    """Options of `sordino tune`."""
    if row.get("rules"):
        return ["--rules"]
    found = ["--on", "validation"]
    for name, values in row["vary"].items():
        times = epsilon if row.get("scaled") and name.endswith("learning_rate") else 1.0
        found += ["--vary", f"{name}={','.join(str(times * each) for each in values)}"]
    return found


def _result(
    catalog: Mapping[str, Any],
    row: Mapping[str, Any],
    epsilon: float,
    split: str,
    seed: int,
    constants: Mapping[str, Any],
) -> dict[str, Any]:
    """What one run ends with, from the file of results if it is there."""
    key = json.dumps([row["name"], epsilon, split, seed, dict(constants)], sort_keys=True)
    found = _results().get(key)
    if found is not None:
        return found
    found = _run(row["study"], {**_changes(catalog, row, epsilon, split, seed), **constants})
    _keep(key, found)
    return found


def _changes(
    catalog: Mapping[str, Any], row: Mapping[str, Any], epsilon: float, split: str, seed: int
) -> dict[str, Any]:
    changes = {
        **dict(_flat(catalog["common"])),
        **dict(_flat(catalog["splits"][split])),
        **dict(_flat(row.get("set", {}))),
        "seed": seed,
    }
    return changes if math.isinf(epsilon) else {**changes, "privacy.epsilon": epsilon}


def _keep(key: str, found: Mapping[str, Any]) -> None:
    line = json.dumps({"key": json.loads(key), **found})
    with RESULTS.open("a") as file:
        file.write(line + "\n")
    print(line, flush=True)


def _run(study: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        started = time.perf_counter()
        _call(["sordino", "run", study, "--quiet", "--out", str(out)], changes)
        lines = (out / "rounds.jsonl").read_text().splitlines()
        last = [row for row in map(json.loads, lines) if row.get("accuracy") is not None][-1]
        last["seconds"] = round(time.perf_counter() - started, 1)
        return {key: last.get(key) for key in KEPT}


def _call(arguments: list[str], changes: Mapping[str, Any]) -> None:
    whole = list(arguments)
    for key, value in changes.items():
        whole += ["--set", f"{key}={_toml(value)}"]
    process = multiprocessing.get_context("fork").Process(target=_command, args=(whole,))
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(f"{' '.join(whole)} ended with {process.exitcode}")


def _command(arguments: list[str]) -> None:
    from sordino.cli import main as command

    sys.argv = arguments
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        command()


def _results() -> dict[str, dict[str, Any]]:
    if not RESULTS.exists():
        return {}
    lines = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    return {json.dumps(line["key"], sort_keys=True): line for line in lines}


def _flat(tables: Mapping[str, Any], *above: str) -> Iterator[tuple[str, Any]]:
    """Keys with dots and their values; a table with a kind or a name is a value."""
    for key, value in tables.items():
        if isinstance(value, dict) and not {"kind", "name"} & value.keys():
            yield from _flat(value, *above, key)
        else:
            yield ".".join((*above, key)), value


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items()) + " }"
    return json.dumps(value)


def table(catalog: Mapping[str, Any], results: Mapping[str, dict[str, Any]]) -> str:
    """Markdown: mean and range over seeds, for each row, split and epsilon."""
    heads = [f"ε = {epsilon:g}" for epsilon in catalog["epsilons"]]
    lines = ["| | split | " + " | ".join(heads) + " |", "|---" * (len(heads) + 2) + "|"]
    for row in catalog["row"]:
        for split in row.get("splits", catalog["splits"]):
            cells = [_cell(row, epsilon, split, results) for epsilon in catalog["epsilons"]]
            lines.append(f"| {row['name']} | {split} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(
    row: Mapping[str, Any], epsilon: float, split: str, results: Mapping[str, dict[str, Any]]
) -> str:
    """Of the constants with most seeds: the chosen ones; others have one seed only."""
    seeds: dict[str, list[float]] = {}
    for line in results.values():
        if "accuracy" not in line:
            continue
        name, its_epsilon, its_split, _, constants = line["key"]
        if (name, its_epsilon, its_split) == (row["name"], epsilon, split):
            seeds.setdefault(json.dumps(constants), []).append(100 * line["accuracy"])
    whole = [each for each in seeds.values() if len(each) > 1]
    if not whole:
        return ""
    (found,) = whole
    return f"{statistics.mean(found):.1f} ({min(found):.1f} to {max(found):.1f})"


if __name__ == "__main__":
    main(sys.argv[1:])
