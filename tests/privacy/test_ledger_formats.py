"""Ledgers of every format, as the programs of their time wrote them: read, verified, added up.

``tests/golden/ledgers`` holds files of small runs, and what the program that wrote each of them
said about it: entries, digests, fingerprints, epsilons by Rényi accounting at delta 1e-5. Formats
1a to 5 are those of :mod:`sordino.privacy.formats`. A later format adds files here; none is ever
taken out or changed. ``python tests/privacy/test_ledger_formats.py 6-sample-sealed LEDGER`` stores
the ledger of a run that has ended, under a new name, with what the program says of it.
"""

from __future__ import annotations

import json
import lzma
import sqlite3
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from sordino.base.errors import LedgerError, ResumeError
from sordino.cli import app
from sordino.core.records import simple
from sordino.core.run.verify import verdict_record, verify
from sordino.privacy import (
    Budget,
    Charge,
    Entry,
    Gaussian,
    Ledger,
    LedgerSession,
    NonPrivate,
    accountant,
    encode,
    formats,
    storage,
)
from sordino.privacy import ledger as ledgers
from sordino.privacy.chain import SHOWN_COLUMNS, digest
from sordino.privacy.formats import Adjacency, LedgerFormat
from sordino.privacy.records import Records, spendings, store

STORED = Path(__file__).parents[1] / "golden" / "ledgers"
EXPECTED: dict[str, dict[str, Any]] = json.loads((STORED / "expected.json").read_text())


def unpacked(name: str, folder: Path) -> Path:
    """The stored ledger of this name, as a file of its own."""
    path = folder / "ledger.sqlite"
    path.write_bytes(lzma.decompress((STORED / f"{name}.sqlite.xz").read_bytes()))
    return path


def charges(ledger: Ledger) -> list[list[Any]]:
    """All columns of each charge but the digest of the link before."""
    rows = [(entry, {"event": encode(entry.event)}) for entry in ledger.entries()]
    names = [name for name in ledger.format.names if name != "prev"]
    return [[told.get(name, getattr(entry, name)) for name in names] for entry, told in rows]


def notes(ledger: Ledger) -> list[str]:
    """The digests of all notes but those of units."""
    kinds = ("begin", "seal", "records")
    return [note.digest for kind in kinds for note in ledger.notes(kind)]


def test_every_stored_ledger_has_its_expectation() -> None:
    assert {path.name.removesuffix(".sqlite.xz") for path in STORED.glob("*.xz")} == set(EXPECTED)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_stored_ledger_reads_as_it_did(name: str, tmp_path: Path) -> None:
    path, expected = unpacked(name, tmp_path), EXPECTED[name]
    with Ledger.open(path, readonly=True) as ledger:
        verified = ledger.verify(expected["digest"])
        assert (verified.entries, verified.digest) == (expected["entries"], expected["digest"])
        assert ledger.units() == expected["units"]
        for unit, spent in spendings(ledger).items():  # the first formats have no tables of records
            assert spent[0] == ledger.spent(unit)
        assert charges(ledger) == expected["charges"]
        for unit, epsilon in expected["epsilon"].items():
            found = ledger.epsilon(unit, 1e-5, "rdp")
            assert found == pytest.approx(float("inf" if epsilon is None else epsilon), rel=1e-9)
        if "notes" in expected:
            assert notes(ledger) == expected["notes"]
    verdict = verify(path)
    assert not verdict.problems
    assert verdict.ledgers[0].digest == expected["digest"]


@pytest.mark.parametrize("name", [name for name in EXPECTED if "verdict" in EXPECTED[name]])
def test_a_stored_ledger_of_records_is_priced_as_it_was(name: str, tmp_path: Path) -> None:
    told, expected = verdict_record(verify(unpacked(name, tmp_path))), EXPECTED[name]["verdict"]
    for key in ("sealed", "accountant", "delta", "remarks"):
        assert told[key] == expected[key]
    for unit, before in expected["units"].items():
        assert told["units"][unit]["label"] == before["label"]
        assert told["units"][unit]["epsilon"] == pytest.approx(before["epsilon"], rel=1e-9)


EARLY = ("1", "2a")


def command(*words: object) -> Any:
    """What a command says, as JSON; its error, where it refuses."""
    done = CliRunner().invoke(app, [*map(str, words), "--json"])
    if done.exception is not None:
        assert isinstance(done.exception, LedgerError), done.output
        return str(done.exception)
    return json.loads(done.stdout)


DAILY = ("1a-sample", "1b-data", "1b-sample-unsealed", "2a-label", "2b-sample", "2c-data",
         "2d-entity-unsealed", "2d-own-sealed", "2d-person-unsealed")  # fmt: skip
"""Ledgers of each of the first formats that all commands read by day; the others at night."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in DAILY else pytest.mark.nightly)
        for name in sorted(EXPECTED)
        if name < "3"
    ],
)
def test_every_command_takes_ledgers_of_the_first_formats(name: str, tmp_path: Path) -> None:
    """It reads, verifies and adds up all of them, and runs open sets in those of the data that are
    charged.
    """
    path, expected = unpacked(name, tmp_path), EXPECTED[name]
    shown = command("ledger", "show", tmp_path, "--last", "0")
    assert [each["digest"] for each in shown] == [each[-1] for each in expected["charges"]]
    assert command("ledger", "verify", tmp_path)["digest"] == expected["digest"]
    terms = ("--delta", "1e-5", "--accountant", "rdp")
    prices = command("ledger", "epsilon", tmp_path, *terms)["epsilon"]
    for unit, epsilon in expected["epsilon"].items():  # of records, what all runs come to
        least = float("inf" if epsilon is None else epsilon)
        assert float(prices[unit]) >= least * (1 - 1e-9)
    before = path.read_bytes()
    if not name.startswith(EARLY):
        others = Records("x", "sample", np.arange(1, 81, dtype=np.uint64).reshape(40, 2))
        if not any(" " in each["unit"] for each in shown):  # of one run
            with pytest.raises(LedgerError, match="ledger of one run"):
                LedgerSession.for_data(tmp_path, "later", [others])
        else:
            with LedgerSession.for_data(tmp_path, "later", [others]) as later:
                later.finish()
        assert command("ledger", "verify", tmp_path)["ok"]
        after = command("ledger", "epsilon", tmp_path, *terms)["epsilon"]
        assert prices == {unit: each for unit, each in after.items() if unit in prices}
        return
    rows = tmp_path / "rows.csv"
    rows.write_text("x,y,label\n" + "".join(f"{i},{i % 7},{i % 2}\n" for i in range(40)))
    study = tmp_path / "study.toml"
    study.write_text(
        f"data.file = '{rows}'\ndata.clients = 2\ndata.test = 'none'\nmodel.name = 'logistic'\n"
        "method.name = 'dp-sgd'\nmethod.learning_rate = 0.1\nbudget.rounds = 2\n"
        f"[privacy]\nunit = 'sample'\nepsilon = 2.0\ndelta = 1e-3\nclip = 1.0\n"
        f"sampling_rate = 0.2\nledger = '{tmp_path}'\n"
    )
    for words in (("plan", study), ("run", study, "--out", tmp_path / "new")):
        assert "takes no more charges" in command(*words)
    assert not (tmp_path / "new").exists()
    assert path.read_bytes() == before


FREE = Budget(epsilon=float("inf"), delta=1e-5, accountant="rdp")
STEP = Gaussian(noise_multiplier=3.0)


def charge(unit: str, key: str) -> Charge:
    return Charge(unit=unit, event=STEP, count=2, why="test", method="toy", round=1, key=key)


def changed(path: Path, statement: str) -> None:
    with sqlite3.connect(path) as db:
        db.execute(statement)
    db.close()


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_what_is_changed_in_a_stored_ledger_is_found(name: str, tmp_path: Path) -> None:
    for statement in (
        "UPDATE entries SET count = count + 1 WHERE seq = (SELECT max(seq) FROM entries)",
        "DELETE FROM entries WHERE seq = (SELECT min(seq) FROM entries)",
        "UPDATE meta SET value = 'anything' WHERE name = 'adjacency'",
        "ALTER TABLE entries ADD COLUMN more TEXT",
        "CREATE VIEW more AS SELECT 1",
        "DELETE FROM units" if name < "2" else "DELETE FROM notes WHERE kind = 'unit'",
    ):
        path = unpacked(name, tmp_path)
        changed(path, statement)
        with pytest.raises(LedgerError), Ledger.open(path, readonly=True) as ledger:
            ledger.verify()


@pytest.mark.parametrize("name", ["1a-sample", "1b-data", "2a-sample"])
def test_early_ledgers_take_no_charges(name: str, tmp_path: Path) -> None:
    path = unpacked(name, tmp_path)
    before = path.read_bytes()
    with pytest.raises(LedgerError, match=r"of format [12] .* takes no more charges"):
        Ledger.open(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", ["2b-sample", "2c-sample-unsealed", "2d-own-unsealed"])
def test_a_ledger_stays_in_the_format_it_was_made_in(name: str, tmp_path: Path) -> None:
    path = unpacked(name, tmp_path)
    with Ledger.open(path) as ledger:
        made, unit = ledger.format, next(iter(ledger.units()))
        before = dict(ledger.spent(unit))
        (permit,) = ledger.charge([charge(unit, "more")], FREE)
        assert permit.new
        assert ledger.charge([charge(unit, "more")], FREE)[0].seq == permit.seq
    with Ledger.open(path, readonly=True) as ledger:
        assert ledger.format is made is not formats.NEWEST
        assert dict(ledger.spent(unit)) == {**before, STEP: 2}
        assert ledger.verify().entries == EXPECTED[name]["entries"] + 1


@pytest.mark.parametrize(
    "made", [one for one in formats.FORMATS if one.charged], ids=lambda one: str(one.meta["format"])
)
def test_a_row_has_several_histories_in_every_format_that_is_charged(
    made: LedgerFormat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that may be in either of two sets of a run is held by the dearer one later."""
    for module in (storage, ledgers):
        monkeypatch.setattr(module, "NEWEST", made)
    words = np.array([[7, 8]], np.uint64)
    wanted = [Records(f"client:{i}", "sample", words) for i in range(2)]
    dear = Gaussian(noise_multiplier=2.0)
    with LedgerSession.for_data(tmp_path, "one", wanted) as session:
        session.begin("one", {}, {})
        for each, event in zip(wanted, (STEP, dear), strict=True):
            session.charge([replace(charge(each.unit, f"one/{each.unit}"), event=event)], FREE)
        session.finish()
        assert session.ledger.format is made
        found, _ = store.classes(session.ledger.connection)
        assert [len(one.ways) for one in found if one.most] == [2]
    with LedgerSession.for_data(tmp_path, "two", wanted[:1]) as session:
        once = accountant("rdp").epsilon([(dear, 2)], 1e-5)
        assert session.epsilon("client:0", 1e-5, "rdp") == pytest.approx(once)
        session.ledger.verify()


def test_adjacency_is_a_code_in_every_format() -> None:
    for one in formats.FORMATS:
        outer = Adjacency.ADD_OR_REMOVE if one.meta["format"] == "1" else Adjacency.ZERO_OUT
        for unit in ("client:3", "samples 76f5", "clients 8dff", "anybody", "partying:1"):
            assert one.adjacency(unit) == outer
        for unit in ("labels", "labels b924", "entities", "entitys b871", "party:1"):
            assert one.adjacency(unit) == Adjacency.REPLACE_ONE
            assert one.adjacency(f"6aaffd15aff6ecd0/{unit}") == Adjacency.REPLACE_ONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed(Charge):
    """A charge with one more field, of a later version."""

    place: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedEntry(Entry):
    """The same, in the ledger."""

    place: str = ""


def test_a_new_field_is_a_new_format_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = unpacked("2d-own-sealed", tmp_path).rename(tmp_path / "old.sqlite")
    tables = dict(formats.NEWEST.tables)
    tables["entries"] = tables["entries"].replace("prev TEXT", "place TEXT NOT NULL, prev TEXT")
    number = str(int(formats.NEWEST.meta["format"]) + 1)
    later = LedgerFormat({"format": number, "adjacency": "?"}, digest([number]), tables)
    monkeypatch.setattr(formats, "Entry", PlacedEntry)
    monkeypatch.setattr(formats, "FORMATS", (*formats.FORMATS, later))
    for module in (storage, ledgers):
        monkeypatch.setattr(module, "NEWEST", later)
    path = tmp_path / "ledger.sqlite"
    with Ledger.create(path, {"client:0": "aaaa"}) as ledger:
        about = ("client:0", STEP, 2, "test", "toy", 1)
        names = ("unit", "event", "count", "why", "method", "round")
        placed = Placed(**dict(zip(names, about, strict=True)), key="a", place="Rome")  # type: ignore[arg-type]
        ledger.charge([placed], FREE)
        unlike: Any
        for unlike in (b"Oslo", 7):
            with pytest.raises(LedgerError, match="place of a charge must be text"):
                replace(placed, place=unlike)
        for other in (replace(placed, count=3), replace(placed, place="Oslo")):
            with pytest.raises(ResumeError, match="charged before as"):
                ledger.charge([other], FREE)
        ledger.note("begin", "run", {"a": 1})
        ledger.charge([replace(placed, key="b", event=NonPrivate(reason="raw"))], FREE)
    with Ledger.open(path, readonly=True) as ledger:
        assert ledger.verify().entries == 2
        assert [entry.place for entry in ledger.entries() if isinstance(entry, PlacedEntry)] == [
            "Rome",
            "Rome",
        ]
    with Ledger.open(old, readonly=True) as ledger:
        assert ledger.verify().entries == EXPECTED["2d-own-sealed"]["entries"]
        assert {entry.place for entry in ledger.entries() if isinstance(entry, PlacedEntry)} == {""}
    changed(path, "UPDATE entries SET place = 'Oslo'")
    with pytest.raises(LedgerError, match="was changed"), Ledger.open(path) as ledger:
        ledger.verify()
    monkeypatch.undo()
    for readonly in (True, False):
        with pytest.raises(
            LedgerError, match=f"format {number}, of a later version of this program"
        ):
            Ledger.open(path, readonly=readonly)
    with Ledger.open(old, readonly=True) as ledger:
        assert ledger.verify().entries == EXPECTED["2d-own-sealed"]["entries"]


def test_what_is_shown_of_a_charge_are_columns_of_the_newest_format() -> None:
    """A new column is named in ``SHOWN_COLUMNS``, or left out here with intent."""
    assert {*formats.NEWEST.names} - {*SHOWN_COLUMNS} == {"prev"}


def _store(name: str, path: Path) -> None:
    """Store a ledger that nobody has open, with what this program says of it."""
    with Ledger.open(path, readonly=True) as ledger:
        verified, units = ledger.verify(), ledger.units()
        found = {
            "entries": verified.entries,
            "digest": verified.digest,
            "units": units,
            "charges": charges(ledger),
            "epsilon": {unit: ledger.epsilon(unit, 1e-5, "rdp") for unit in units},
            "notes": notes(ledger),
            "verdict": verdict_record(verify(path)),
        }
    (STORED / f"{name}.sqlite.xz").write_bytes(lzma.compress(path.read_bytes(), preset=9))
    index = STORED / "expected.json"  # what stands there stays as it is
    before, more = index.read_text().removesuffix("\n}\n"), json.dumps({name: simple(found)})
    index.write_text(f"{before},\n{more[1:-1]}\n}}\n")


if __name__ == "__main__":
    _store(sys.argv[1], Path(sys.argv[2]))
