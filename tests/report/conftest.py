"""Run folders made by hand, so that every number on a page has a known origin."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Row = dict[str, Any]
Maker = Callable[..., Path]

SENTENCE = "What any client sends differs by (epsilon = 2, delta = 1e-05) when one example is added or removed."

ABOUT: Row = {
    "format": 1,
    "run": "00ff00ff00ff00ff",
    "name": "a small run",
    "method": "ali-dpfl",
    "form": "sound",
    "regime": "synchronous",
    "status": "done",
    "classes": ["cat", "dog"],
    "clients": [{"client": i, "unit": f"client:{i}", "examples": 30 + i, "labels": [30, i]} for i in range(3)],
    "unit": "sample",
    "adjacency": "add or remove one example",
    "epsilon_budget": 2.0,
    "delta": 1e-05,
    "accountant": "pld",
    "clip": 3.0,
    "noise_multiplier": 2.3208,
    "sampling_rate": 0.06,
    "learning_rate": 0.5,
    "R_c": 12,
    "R_s": 5,
    "guarantee": SENTENCE,
    "assumptions": ["The sizes of the clients' data sets are public."],
    "warnings": ["gamma is far from what was measured"],
    "result": {
        "rounds": 5,
        "steps": 12,
        "accuracy": 0.7313,
        "epsilon": 1.987654321,
        "seconds": 105.8,
        "why": "the round budget is used up",
    },
    "ledger": {"seq": 15, "digest": "ab" * 32, "scope": "run"},
}
TAUS = (2, 2, 3, 3, 2)


def rows() -> list[Row]:
    """Five rounds; the first, third and last are evaluated."""
    found: list[Row] = []
    for i, tau in enumerate(TAUS, start=1):
        row: Row = {"kind": "round", "round": i, "steps": sum(TAUS[:i]), "tau": tau, "cohort": 3, "answered": 3, "missing": 0}
        row |= {"clipped": 0.5 - 0.05 * i, "snr": 0.1 * i, "note": None, "epsilon": 0.4 * i - 0.012345679 * (i == 5), "time": float(i)}
        if i in (1, 3, 5):
            row |= {"accuracy": {1: 0.4121, 3: 0.7501, 5: 0.7313}[i], "loss": 1.0 / i}
        found.append(row)
    return [*found, {"kind": "end", "why": "the round budget is used up", "time": 5.0}]


@pytest.fixture
def make(tmp_path: Path) -> Maker:
    """Makes a run folder: changes to run.json, rows of the log, text after the log's last line."""

    def make(at: str = "run-001", log: list[Row] | None = None, tail: str = "", **changes: Any) -> Path:
        folder = tmp_path / at
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps({**ABOUT, **changes}))
        (folder / "study.toml").write_text('name = "a small run"\n[privacy]\nclip = 3.0  # <b>&\n')
        (folder / "environment.json").write_text(json.dumps({"python": "3.11.7", "threads": 1}))
        (folder / "ledger.sqlite").write_bytes(b"")
        (folder / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in (rows() if log is None else log)) + tail)
        return folder

    return make
