"""Ledgers of every format, as the programs of their time wrote them: read, verified, added up.

``tests/golden/ledgers`` holds files of small runs, and what the program that wrote each of them
said about it: entries, digests, fingerprints, epsilons by Rényi accounting at delta 1e-5. Formats
1a to 2d are those of :mod:`sordino.privacy.formats`. A later format adds files here; none is ever
taken out or changed.
"""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from sordino.privacy import Ledger, encode
from sordino.verify import verify
from sordino.verify.told import verdict_told

STORED = Path(__file__).parents[1] / "golden" / "ledgers"
EXPECTED: dict[str, dict[str, Any]] = json.loads((STORED / "expected.json").read_text())


def unpacked(name: str, folder: Path) -> Path:
    """The stored ledger of this name, as a file of its own."""
    path = folder / "ledger.sqlite"
    path.write_bytes(lzma.decompress((STORED / f"{name}.sqlite.xz").read_bytes()))
    return path


def test_every_stored_ledger_has_its_expectation() -> None:
    assert {path.name.removesuffix(".sqlite.xz") for path in STORED.glob("*.xz")} == set(EXPECTED)


@pytest.mark.parametrize("name", sorted(name for name in EXPECTED if name >= "2c"))
def test_a_stored_ledger_reads_as_it_did(name: str, tmp_path: Path) -> None:
    path, expected = unpacked(name, tmp_path), EXPECTED[name]
    with Ledger.open(path, readonly=True) as ledger:
        verified = ledger.verify(expected["digest"])
        assert (verified.entries, verified.digest) == (expected["entries"], expected["digest"])
        assert ledger.units() == expected["units"]
        assert [
            [e.seq, e.unit, encode(e.event), e.count, e.why, e.method, e.round, e.key, e.digest]
            for e in ledger.entries()
        ] == expected["charges"]
        for unit, epsilon in expected["epsilon"].items():
            found = ledger.epsilon(unit, 1e-5, "rdp")
            assert found == pytest.approx(float("inf") if epsilon is None else epsilon, rel=1e-9)
        if "notes" in expected:
            kinds = ("begin", "seal", "records")
            assert [note.digest for kind in kinds for note in ledger.notes(kind)] == expected[
                "notes"
            ]
    verdict = verify(path)
    assert not verdict.problems
    assert verdict.ledgers[0].digest == expected["digest"]


@pytest.mark.parametrize("name", [name for name in EXPECTED if "verdict" in EXPECTED[name]])
def test_a_stored_ledger_of_records_is_priced_as_it_was(name: str, tmp_path: Path) -> None:
    told, expected = verdict_told(verify(unpacked(name, tmp_path))), EXPECTED[name]["verdict"]
    assert (told.sealed, told.accountant) == (expected["sealed"], expected["accountant"])
    assert (told.delta, told.remarks) == (expected["delta"], tuple(expected["remarks"]))
    for unit, before in expected["units"].items():
        assert told.units[unit].label == before["label"]
        assert told.units[unit].epsilon == pytest.approx(before["epsilon"], rel=1e-9)
