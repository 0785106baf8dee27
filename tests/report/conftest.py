"""Run folders made by hand, so that every number on a page has a known origin."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import drawings
from command import paint
from sordino.core import records

Row = dict[str, Any]
Maker = Callable[..., Path]


@pytest.fixture(autouse=True)
def drawn_once() -> Iterator[None]:
    """Every figure is drawn whole, whatever was left empty before, and none twice; see
    :func:`drawings.once`.
    """
    paint()
    with drawings.once():
        yield


SENTENCE = (
    "Everything that the clients send is (epsilon = 2, delta = 1e-05)-differentially private."
)

ABOUT: Row = {
    "format": 1,
    "run": "00ff00ff00ff00ff",
    "name": "a small run",
    "method": "ali-dpfl",
    "form": "sound",
    "regime": "synchronous",
    "status": "done",
    "classes": ["cat", "dog"],
    "clients": [
        {"client": i, "unit": f"client:{i}", "examples": 30 + i, "labels": [30, i]}
        for i in range(3)
    ],
    "unit": "sample",
    "adjacency": "one example's contribution replaced by none",
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


def readable(log: list[Row], regime: str) -> list[Row]:
    """The rows that fit their records, and after them one that does not: it ends what is read."""
    kept: list[Row] = []
    wrong: list[Row] = []
    for row in log:
        try:
            records.row(json.dumps(row), regime)
        except records.Misfit:
            wrong = [row]
        else:
            kept.append(row)
    return [*kept, *wrong]


def rows() -> list[Row]:
    """Five rounds; the first, third and last are evaluated."""
    found: list[Row] = []
    for i, tau in enumerate(TAUS, start=1):
        row: Row = {
            "kind": "round",
            "round": i,
            "steps": sum(TAUS[:i]),
            "tau": tau,
            "cohort": 3,
            "answered": 3,
            "missing": 0,
        }
        row |= {
            "clipped": 0.5 - 0.05 * i,
            "snr": 0.1 * i,
            "note": None,
            "epsilon": 0.4 * i - 0.012345679 * (i == 5),
            "time": float(i),
        }
        if i in (1, 3, 5):
            row |= {"accuracy": {1: 0.4121, 3: 0.7501, 5: 0.7313}[i], "loss": 1.0 / i}
        found.append(row)
    return [*found, {"kind": "end", "why": "the round budget is used up", "time": 5.0}]


@pytest.fixture
def make(tmp_path: Path) -> Maker:
    """Makes a run folder: changes to run.json, rows of the log, text after the log's last line."""

    def make(
        at: str = "run-001", log: list[Row] | None = None, tail: str = "", **changes: Any
    ) -> Path:
        folder = tmp_path / at
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps({**ABOUT, **changes}))
        (folder / "study.toml").write_text('name = "a small run"\n[privacy]\nclip = 3.0  # <b>&\n')
        (folder / "environment.json").write_text(json.dumps({"python": "3.11.7", "threads": 1}))
        (folder / "ledger.sqlite").write_bytes(b"")
        (folder / "rounds.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in (rows() if log is None else log)) + tail
        )
        return folder

    return make


def arrival_rows(updates: int = 300, every: int = 10, staged: bool = True) -> list[Row]:
    """Rows of a run of arrivals with known numbers: three stages, one edge lost and back, one that
    leaves.
    """
    found: list[Row] = []
    for t in range(every, updates + 1, every):
        stage = 1 + (t > 100) + (t > 200) if staged else 1
        row: Row = {
            "kind": "round",
            "round": t,
            "steps": t // 5,
            "stage": stage,
            "clip": 0.5 ** (stage - 1),
            "rate": 0.1 / t**0.5,
        }
        row |= {
            "norm": 0.0 if t == 50 else 0.8**stage,
            "staleness": 4.0,
            "stalest": 6,
            "histogram": [[3, 4], [4, 2], [5, 4]],
        }
        row |= {
            "stale": 0,
            "dropped": 0,
            "present": 4,
            "gone": 0,
            "epsilon": 2.0 * t / updates,
            "time": float(t),
        }
        found.append(row | {"accuracy": 0.2 + 0.6 * t / updates, "loss": 2.0 - t / updates})
    found[7:7] = [{"kind": "lost", "round": 70, "client": 1, "released": False, "time": 70.0}]
    found[10:10] = [{"kind": "joined", "round": 90, "client": 1, "time": 90.0}]
    found[20:20] = [
        {
            "kind": "stale",
            "round": 180,
            "client": 1,
            "staleness": 9,
            "released": True,
            "time": 180.0,
        }
    ]
    found[25:25] = [
        {
            "kind": "left",
            "round": 220,
            "client": 2,
            "updates": 44,
            "why": "its budget is spent",
            "time": 220.0,
        }
    ]
    return [
        *found,
        {"kind": "end", "why": "the update budget is used up: 300 of 300 updates", "time": 300.0},
    ]


STAGES = [
    {
        "number": 1,
        "start": 0,
        "length": 100,
        "clip": 1.0,
        "rate": 0.1,
        "variance": 0.5,
        "slowing": 1.0,
    },
    {
        "number": 2,
        "start": 100,
        "length": 100,
        "clip": 0.5,
        "rate": None,
        "variance": 0.2,
        "slowing": 1.0,
    },
    {
        "number": 3,
        "start": 200,
        "length": 5000,
        "clip": 0.25,
        "rate": 0.1,
        "variance": 0.1,
        "slowing": 1.0,
    },
    {
        "number": 4,
        "start": 5200,
        "length": 9000,
        "clip": 0.125,
        "rate": 0.1,
        "variance": 0.05,
        "slowing": 1.0,
    },
]
ARRIVALS: Row = {
    "regime": "asynchronous",
    "method": "mapa",
    "clients": [
        {"client": i, "unit": f"client:{i}", "examples": 60, "labels": [30, 30]} for i in range(5)
    ],
    "sampling_rate": None,
    "learning_rate": None,
    "clip": 1.0,
    "noise_multiplier": 2.5,
    "batch": 12.0,
    "staleness": 5,
    "R_c": 61,
    "R_s": 300,
    "stages": STAGES,
    "epsilons": None,
    "result": {
        "rounds": 300,
        "steps": 60,
        "accuracy": 0.8,
        "epsilon": 2.0,
        "seconds": 1.0,
        "why": "used up",
        "spent": [2.0, 1.9, 2, 2, 1],
    },
}


@pytest.fixture
def arrive(make: Maker) -> Maker:
    """Makes the folder of a run of arrivals."""

    def arrive(at: str = "run-001", log: list[Row] | None = None, **changes: Any) -> Path:
        return make(at, arrival_rows() if log is None else log, **{**ARRIVALS, **changes})

    return arrive


def event_rows(events: int = 4000, every: int = 40) -> list[Row]:
    """Rows of a stream with known numbers: errors fall, the world changes at 1000, 2000 and 3000,
    the last party is often silent.
    """
    found: list[Row] = []
    wrong = regret = 0.0
    for t in range(every, events + 1, every):
        error, square = 0.9 - 0.6 * t / events + 0.1 * (t % 1000 < 100), 1.0 + t / events
        wrong, regret = wrong + error * every, regret + square * every
        row: Row = {
            "kind": "round",
            "round": t,
            "accuracy": 1 - error,
            "error": error,
            "accumulated": wrong / t,
            "loss": 1.0,
        }
        row |= {
            "regret": square,
            "regret_sum": regret,
            "active": [1.0, 0.5, 0.25],
            "silent": [0.0, 0.0, 0.25 if t % 80 else 0.5],
        }
        row |= {
            "up": 2048 * t,
            "down": 1024 * t,
            "framing": 512 * t,
            "learned": every,
            "dropped": 1,
            "unused": 0,
        }
        row |= {"changes": [float(t - every)] if t > every and (t - every) % 1000 == 0 else []}
        row |= {
            "active_seconds": t * 1e-4,
            "passive_seconds": t * 5e-5,
            "server_seconds": t * 2e-5,
            "steps": t,
            "epsilon": "inf",
        }
        found.append(row)
    return [
        *found,
        {
            "kind": "end",
            "round": events,
            "why": f"all {events} events were played",
            "accuracy": 1 - wrong / events,
        },
    ]


EVENTS: Row = {
    "regime": "vertical",
    "method": "dlr",
    "title": "DLR-Random",
    "clients": [
        {"client": i, "unit": f"party:{i}", "features": 196, "embedding": 64, "parameters": 12608}
        for i in range(3)
    ],
    "unit": "none",
    "epsilon_budget": "inf",
    "delta": None,
    "guarantee": "No privacy guarantee: embeddings, labels and updates are used without noise, and "
    "epsilon is infinite.",
    "warnings": [],
    "stream": "digits",
    "drift": "swap",
    "activation": {"kind": "random", "p": 0.5},
    "window": 10,
    "alpha": 0.95,
    "batch": 1,
    "resends": 1,
    "precision": 16,
    "missing": "last",
    "path": "messages",
    "label_epsilon": None,
    "open": None,
    "payable": None,
    "releases": [],
    "clip": None,
    "noise_multiplier": 0.0,
    "sampling_rate": None,
    "R_c": None,
    "R_s": 4000,
    "result": {
        "rounds": 4000,
        "steps": 4000,
        "accuracy": 0.393,
        "epsilon": "inf",
        "seconds": 7.0,
        "why": "all 4000 events were played",
    },
}
LABELS: Row = {
    "unit": "label",
    "epsilon_budget": 3.0,
    "delta": 1e-5,
    "guarantee": "Everything that the server sends and publishes is (epsilon = 3, delta = "
    "1e-05)-differentially private.",
    "adjacency": "replace one entity's label",
    "label_epsilon": 3.0,
    "open": "embeddings are sent without noise",
    "releases": [
        {"unit": "labels", "what": "randomised response at epsilon = 3, once", "epsilon": 2.99999},
        *(
            {"unit": f"party:{i}", "what": "embeddings are sent without noise", "epsilon": "inf"}
            for i in range(3)
        ),
    ],
    "result": {**EVENTS["result"], "epsilon": 2.99999},
}


def under_privacy(rows: list[Row]) -> list[Row]:
    """The same rows, of a run that protects labels: everything is spent with the first event."""
    return [{**row, "epsilon": 2.99999} if row["kind"] == "round" else row for row in rows]


@pytest.fixture
def play(make: Maker) -> Maker:
    """Makes the folder of a run of events."""

    def play(at: str = "run-001", log: list[Row] | None = None, **changes: Any) -> Path:
        return make(at, event_rows() if log is None else log, **{**EVENTS, **changes})

    return play
