"""Runs give the same bits as before: stored digests of one run of each method, form, mechanism and
engine.

``python tests/test_same_bits.py`` stores them anew, for a change that is meant to change results:
say so in its message, and raise NUMERICS (``sordino.base``).

Sums of floats differ in their last bits between processors and libraries. So digests are compared
where a fixed computation gives the bits that it gave where they were stored, and everywhere what
was logged and booked is compared to four digits.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from cases import METHODS, MORE, ORDERED, study_of
from sordino.base import NUMERICS, entropy
from sordino.clients import assemble
from sordino.core.run import environment, session
from sordino.privacy import Ledger
from sordino.regimes.vertical import models as vertical

STORED = Path(__file__).parent / "golden" / "runs.json"
CASES = {**METHODS, **MORE, **ORDERED}
TIMES = ("seconds", "active_seconds", "passive_seconds", "server_seconds")  # measured by a clock

Found = dict[str, Any]


@contextmanager
def still() -> Iterator[None]:
    """Noise is addressed by this program's sources, its environment, first weights, and what it
    covers, to the last bit: here, by nothing that a rewriting or another processor changes.
    """
    with (
        mock.patch.object(environment, "numerics", return_value="pinned"),
        mock.patch.object(environment, "environment", return_value={}),
        mock.patch.object(entropy, "digest", return_value=bytes(32)),
        mock.patch.object(assemble, "digest_of_model", return_value="first"),
        mock.patch.object(vertical.Split, "digests", return_value=["first"]),
        mock.patch("secrets.token_hex", side_effect=lambda n: "0" * (2 * n)),
    ):
        yield


def probe() -> str:
    """A digest of sums, products and exponentials that the machine rounds its own way."""
    rng = np.random.default_rng(0)
    a, b = (torch.from_numpy(rng.normal(size=(64, 300)).astype(np.float32)) for _ in range(2))
    images, kernels = a.reshape(-1, 1, 10, 10)[:100], b.reshape(-1, 1, 5, 5)[:8]
    narrow = []  # processors differ most in products of few columns, and at addresses of odd kinds
    for inputs, outputs in ((6, 8), (10, 3), (30, 10), (64, 10), (10, 64), (50, 7), (300, 5)):
        for rows in (1, 2, 12, 20, 24):
            x, w = a[:rows, :inputs].contiguous(), b[:outputs, :inputs].contiguous()
            narrow += [x @ w.T, x @ w.T.contiguous()]
    parts = [
        a @ b.T,
        torch.exp(a),
        torch.log_softmax(b, 1),
        torch.nn.functional.conv2d(images, kernels),
        a.double() @ b.double().T,
        torch.linalg.vector_norm(a, dim=1),
        torch.mv(a.T, b[:, 0]),
        *narrow,
    ]
    numbers = [np.linalg.norm(part.numpy().ravel()) for part in parts]
    return hashlib.sha256(
        b"".join(part.numpy().tobytes() for part in parts) + repr(numbers).encode()
    ).hexdigest()


def ended(name: str, folder: Path) -> Found:
    """What a run of a case leaves: its model, its log, its ledger and its result, as digests and as
    numbers.
    """
    torch.set_num_threads(1)
    with still():
        session.begin(study_of(CASES[name], folder), folder / "run", lambda _: None, lambda _: None)
    run = folder / "run"
    weights = load_file(run / "model.safetensors")
    rows = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    rows = [{key: value for key, value in row.items() if key not in TIMES} for row in rows]
    result = {
        key: value
        for key, value in json.loads((run / "run.json").read_text())["result"].items()
        if key != "seconds"
    }
    with Ledger.open(run / "ledger.sqlite", readonly=True) as ledger:
        booked = {
            unit: [[repr(event), count] for event, count in ledger.spent(unit)]
            for unit in ledger.units()
        }
    bits = hashlib.sha256(b"".join(part.tobytes() for _, part in sorted(weights.items())))
    return {
        "model": bits.hexdigest(),
        "rows": hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest(),
        "booked": hashlib.sha256(json.dumps(booked, sort_keys=True).encode()).hexdigest(),
        "result": result,
        "norm": math.sqrt(
            sum(float((part.astype(np.float64) ** 2).sum()) for part in weights.values())
        ),
        "kinds": [row["kind"] for row in rows],
    }


def stored() -> Found:
    found: Found = json.loads(STORED.read_text())
    return found


def test_every_case_is_stored() -> None:
    assert set(stored()["runs"]) == set(CASES)


@pytest.mark.parametrize("name", list(CASES))
def test_runs_give_what_they_gave(name: str, tmp_path: Path) -> None:
    before, now = stored(), json.loads(json.dumps(ended(name, tmp_path)))
    then = before["runs"][name]
    if before["probe"] == probe():
        assert now == then
    assert now["kinds"] == then["kinds"]
    assert now["norm"] == pytest.approx(then["norm"], rel=1e-4)
    assert now["result"]["why"] == then["result"]["why"]
    numbers = [
        [each for each in found["result"].get("spent") or [] if each != "inf"]
        for found in (now, then)
    ]
    assert numbers[0] == pytest.approx(numbers[1], rel=1e-9)


def test_they_are_of_this_number() -> None:
    assert stored()["numerics"] == NUMERICS


def _store() -> None:
    """Digests that differ on the same machine have another number: killed runs of before must not
    go on, and no draw may be used twice.
    """
    before = stored()
    found: Found = {"numerics": NUMERICS, "probe": probe(), "runs": {}}
    for name in CASES:
        with tempfile.TemporaryDirectory() as folder:
            found["runs"][name] = ended(name, Path(folder))
    alike = before["probe"] == found["probe"] and before["runs"] != found["runs"]
    if alike and before["numerics"] == NUMERICS:
        sys.exit("Results have changed: raise NUMERICS in src/sordino/base/__init__.py first")
    STORED.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    _store()
