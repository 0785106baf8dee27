"""A row is known by the same words whoever asks, however its cells are written, and to the ledgers
of versions before.
"""

from __future__ import annotations

import csv
import lzma
import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from hashlib import blake2b
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from sordino.base.errors import LedgerError
from sordino.clients import division
from sordino.core import study as studies
from sordino.data import load
from sordino.data.dataset import Dataset
from sordino.data.encoding import Encoding
from sordino.data.identity import column, persons
from sordino.data.stream.opening import Opened, Rows, Wanted
from sordino.data.table import ReadOptions
from sordino.privacy import Gaussian, LedgerSession, accountant
from sordino.privacy.records import Records
from sordino.regimes.synchronous.study import TEMPLATE

STORED = Path(__file__).parent / "golden" / "identity"
RULES = Encoding({"g": ("a", "b"), "d": ("x",)}, unknown="other")


def table(file: Path, **how: Any) -> Dataset:
    """A file's rows, as a run over a ledger of the data reads them."""
    options = ReadOptions(identify=True, classes=["p", "q"], **how)
    return load("t", file=file, test_fraction=None, how=options).train


def stream(file: Path, entity: str | None, classes: Sequence[str] = ("p", "q")) -> Opened:
    wanted = Wanted(
        name=None, file=file, label="label", entity=entity, classes=tuple(classes), scale=1.0,
        seed=0, events=9, identify=True, private=True,
    )  # fmt: skip
    return Rows(kind="file").open(wanted)


SAID = [
    ["", " ", "NA", "N/A", "None", "NULL", "null", "#N/A", "<NA>", "-1.#IND", "NaN", "-nan", "NaT",
     "\\N", "nan", "#N/A N/A", "?", "(null)"],
    ["3.5", "3,5", " 3.50 ", "0.35e1", "3,5E0"],
    ["2020-01-01", "2020-01-01 00:00:00", "2020-01-01T00:00:00.000000", "2020-01-01T00:00Z",
     "2020-01-01 UTC"],
    ["2020-01-01T12:30:00", "2020-01-01 12:30:00.000", "2020-01-01 12:30",
     "2020-01-01 12:30:00 UTC", "2020-01-01 13:30:00+01:00"],
    ["12:30:00", "12:30:00.000000000", "12:30:00.000000", "12:30"],
    ["00:00:01", "0:00:01", "0 days 00:00:01", "1000000"],
    ["-1 day, 23:59:59", "-1 days +23:59:59"],
    ["2 days", "2 days, 0:00:00", "2 days 00:00:00"],
    ["0.345703125", "0.3457", "0.34570312"],
    ["7", "7.0", "007"],
    ["red", " red "],
    ["a\r\nb", "a\nb"],
    ["-0.0", "0", "false", "False"],
]  # fmt: skip


def test_what_says_the_same_is_one_value_however_it_is_written(tmp_path: Path) -> None:
    """Else the same row would spend its budget again after an export by another program."""
    with (tmp_path / "t.csv").open("w", newline="") as file:
        rows = [[text, "1.5", "p"] for group in SAID for text in group]
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows([["g", "f", "label"], *rows])
    rules = Encoding({"g": ("a",), "f": ("x",)}, unknown="other")
    words = table(tmp_path / "t.csv", encoding=rules).words
    assert words is not None
    cuts = np.cumsum([len(group) for group in SAID])[:-1]
    found = [{tuple(pair) for pair in part[:, :2].tolist()} for part in np.split(words, cuts)]
    assert [len(group) for group in found] == [1] * len(SAID)
    assert len(set.union(*found)) == len(SAID)
    day = datetime(2020, 1, 1)
    kinds = [
        (["2020-01-01"], [date(2020, 1, 1)], [day], [day.replace(tzinfo=UTC)]),
        (["red"], [b"red"]),
        ([None], [""], [math.nan], [-math.nan]),
    ]
    for kind in kinds:
        parts = []
        for place, values in enumerate(kind):
            path = tmp_path / f"{place}.parquet"
            pl.DataFrame({"g": values, "f": [1.5], "label": ["p"]}).write_parquet(path)
            parts.append(table(path, encoding=rules).words)
        assert len({int(np.asarray(part)[0, 0]) for part in parts}) == 1


def share(one: Any, other: Any) -> bool:
    """Whether each row has a word that the row at its place has, too."""
    return all(np.isin(a, b).any() for a, b in zip(one, other, strict=True))


def test_a_row_is_known_whoever_asks(tmp_path: Path) -> None:
    """Whatever column names a client, a person or an entity, however labels are coded, columns
    called and ordered, in each kind of table and in a stream: all of it changed at once.
    """
    columns = {"u": [0.25, 1.25], "v": [0.75, 1.75], "site": [10, 11], "ward": [20, 21]}
    roles = [None, "site", "ward"]
    found: list[Any] = []
    for labels in (["p", "q"], ["0", "1"]):
        options = ReadOptions(identify=True, classes=labels)
        frame = pl.DataFrame(columns | {"label": labels})
        turned = frame.select("label", *reversed(columns)).rename({"u": "w", "v": "u"})
        for ending in ("csv", "parquet"):
            for i, each in enumerate((frame, turned)):
                file = tmp_path / f"{labels[0]}{i}.{ending}"
                getattr(each, f"write_{ending}")(file)
                for client, person in product(roles, roles):
                    how = replace(options, client_column=client, person=person)
                    found.append(load("t", file=file, test_fraction=None, how=how).train.words)
                found += [stream(file, entity, labels).rows for entity in roles]
        for client, person in product(roles, roles):
            named = [*filter(None, dict.fromkeys((client, person)))]
            arrays = {} if client is None else {"client": frame[client].to_numpy()}
            array = "client" if person == client else person
            arrays |= {array: frame[person].to_numpy()} if person and array else {}
            file = tmp_path / "t.npz"
            x = frame.drop("label", *named).to_numpy()
            np.savez(file, x=x, y=np.array(labels), **arrays)  # type: ignore[arg-type]
            how = replace(options, person=array if person else None)
            found.append(load("t", file=file, test_fraction=None, how=how).train.words)
    assert len(found) == 2 * (2 * 2 * 12 + 9)
    assert all(share(one, other) for one, other in combinations(found, 2))
    every = np.concatenate(found, axis=1)
    assert not np.intersect1d(every[0], every[1]).size


NAMES = {
    "moment": (
        pl.Series([datetime(1950, 1, 2), datetime(1951, 2, 3, 4, 5)]),
        [["1950-01-02", "1951-02-03 04:05:00"],
         ["1950-01-02T00:00:00.000000", "1951-02-03T04:05:00.000000"],
         ["1950-01-02 00:00:00 UTC", "1951-02-03T04:05Z"]],
    ),
    "day": (pl.Series([date(1950, 1, 2), date(1951, 2, 3)]),
            [["1950-01-02 00:00:00", "1951-02-03"]]),
    "time": (pl.Series([time(12, 30), time(0, 0, 1)]),
             [["12:30:00.000000000", "00:00:01.000000"], ["12:30", "0:00:01"]]),
    "duration": (pl.Series([timedelta(seconds=90), timedelta(days=1)]),
                 [["0 days 00:01:30", "1 days"], ["90000000", "86400000000"]]),
    "bytes": (pl.Series([b"P1", b"P2"]), [["b'P1'", "b'P2'"], ["P1", "P2"]]),
    "decimal comma": (pl.Series(["1,5", "2"]), [["1.5", "2"]]),
}  # fmt: skip


@pytest.mark.parametrize("kind", list(NAMES))
def test_a_person_has_one_name_however_it_is_written(kind: str, tmp_path: Path) -> None:
    """A CSV file of a Parquet file named other persons, who had a second budget each."""
    typed, written = NAMES[kind]
    columns = {"f": [1, 2], "label": ["p", "q"]}
    pl.DataFrame({"who": typed, **columns}).write_parquet(tmp_path / "t.parquet")
    known = table(tmp_path / "t.parquet", person="who").people
    assert known is not None
    assert not np.isin(known[0], known[1]).any()
    for names in written:
        pl.DataFrame({"who": names, **columns}).write_csv(tmp_path / "t.csv")
        people = table(tmp_path / "t.csv", person="who").people
        entities = stream(tmp_path / "t.csv", "who").people
        assert people is not None
        assert entities is not None
        for mine, others in ((known, people), (known, entities)):
            assert mine[:, 0].tolist() == others[:, 0].tolist(), names


def test_ledgers_of_versions_before_still_know_their_persons() -> None:
    """They took a moment's name as it is written."""
    for name in ("2020-01-01 08:00:00", "0:01:30", "b'P1'", "P1"):
        before = int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little") >> 1
        assert before in persons(np.array([name, "other"]))[0]


def test_half_precision_is_known_by_the_text_that_pandas_writes(tmp_path: Path) -> None:
    """0.345703125 as float16 is 0.3457 in its CSV file, and 0.34570312 as float32."""
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    every = every[np.isfinite(every)]
    said = column([str(each) for each in every])
    assert (column(every)[:, 0] == said[:, 0]).all()
    assert (column(every.astype(np.float64))[:, 0] == said[:, 0]).all()
    half = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float16)
    y = np.array(["p", "q"] * 3)
    np.savez(tmp_path / "half.npz", x=half, y=y)
    named = dict(zip("abcd", half.T.astype(np.float32), strict=True))
    pl.DataFrame(named | {"label": y}).write_parquet(tmp_path / "single.parquet")
    rows = [",".join([*map(str, row), label]) for row, label in zip(half, y, strict=True)]
    (tmp_path / "text.csv").write_text("\n".join(["a,b,c,d,label", *rows]))
    files = [tmp_path / name for name in ("half.npz", "single.parquet", "text.csv")]
    found = [table(file).words for file in files]
    found += [stream(file, None).rows for file in files[1:]]
    found.append(table(files[2], encoding=Encoding({"a": ("x",)}, unknown="other")).words)
    assert all(share(one, other) for one, other in combinations(found, 2))


def test_public_rows_of_several_parts_need_not_have_gaps_alike(tmp_path: Path) -> None:
    for name, cell in (("train", '"3,5"'), ("test", '"a"')):
        rows = [f"{cell},{i}.5,{i % 2}\n" for i in range(12)] + [f'"b",{name == "test":d}.7,1\n']
        (tmp_path / f"{name}.csv").write_text("g,f,label\n" + "".join(rows))
    path = tmp_path / "study.toml"
    path.write_text(TEMPLATE)
    files = f'file="{tmp_path / "train.csv"}", test_file="{tmp_path / "test.csv"}", test="file"'
    data = f'data={{{files}, clients=2, validation=4, categories={{g=["a", "b", "3.5"]}}}}'
    study = studies.read(
        path, [data, 'model.name="logistic"', f'privacy.ledger="{tmp_path / "k"}"']
    )
    (public,) = (
        each
        for each in division.known_records(study, division.federation(study))  # type: ignore[arg-type]
        if each.unit == "public"
    )
    assert len(public.rows) == 4 + 13


def cells(number: int) -> str:
    """Rows whose cells versions before knew otherwise."""
    said = ('"",2020-01-01 00:00:00', "NA,2020-01-02", '"3,5",2020-01-03T00:00:00', ",2020-01-04")
    rows = [f"{each},{number}.{i}5,{'pq'[i % 2]}\n" for i, each in enumerate(said)]
    return "g,d,f,label\n" + "".join(rows)


# Files over which versions before made runs of these names, one release each.
FILES = {
    "rows": cells(1),
    "clients": cells(2),
    "people": "who,f,label\n007,3.05,p\nA1,3.15,q\n5e-1,3.25,p\nB2,3.35,q\n",
    "times": "g,d,f,label\n12:30:00.000000000,2020-01-01 00:00:00 UTC,6.05,p\n"
    "0 days 00:00:01,x,6.15,q\n1:05:00,z,6.25,p\n2 days,0.345703125,6.35,q\n",
    "numbers": "a,b,label\n0.345703125,16388,p\n0.25,7.05,q\n",
    "stream": "u,v,station,label\n4.05,5.05,10,p\n4.15,5.15,11,q\n4.25,5.25,12,p\n4.35,5.35,13,q\n",
}
RELEASE = Gaussian(noise_multiplier=4.0)
ONCE = accountant("rdp").epsilon([(RELEASE, 1)], 1e-5)


def spent(folder: Path, records: Records, name: str = "again") -> float:
    """What the records of a run have spent before it."""
    with LedgerSession.for_data(folder, name, [records]) as ledgers:
        found = ledgers.epsilon(records.unit, 1e-5, "rdp")
        ledgers.finish()
    return found


@pytest.mark.parametrize("version", ["1", "2", "3", "4"])
def test_ledgers_of_versions_before_still_know_their_rows(tmp_path: Path, version: str) -> None:
    """Versions of 23 November, 19:35, and of 24 November, 11:03, 13:40 and 17:10 UTC."""
    kept = tmp_path / "kept"
    kept.mkdir(mode=0o700)
    content = lzma.decompress((STORED / f"{version}.sqlite.xz").read_bytes())

    def anew() -> Path:
        (kept / "ledger.sqlite").write_bytes(content)
        return kept

    for name, text in FILES.items():
        (tmp_path / f"{name}.csv").write_text(text)
    rows = table(tmp_path / "rows.csv", encoding=RULES)
    for i in range(4):
        assert spent(anew(), division.records(rows.take([i]), "x", "sample")) == ONCE
    named = table(tmp_path / "rows.csv", encoding=RULES, person="f")
    named_rows = [division.records(named.take([i]), "x", "sample", 1) for i in range(4)]
    for each in named_rows:
        with pytest.raises(LedgerError, match="were used without"):
            spent(anew(), each)
    clients = table(tmp_path / "clients.csv", encoding=RULES)
    assert spent(anew(), division.records(clients, "x", "client")) == ONCE
    people = table(tmp_path / "people.csv", person="who")
    for i in range(4):
        assert spent(anew(), division.records(people.take([i]), "x", "sample", 1)) == ONCE
    if version == "4":
        for name, how in (("times", {"encoding": RULES}), ("numbers", {})):
            examples = table(tmp_path / f"{name}.csv", **how)
            for i in range(len(examples)):
                assert spent(anew(), division.records(examples.take([i]), "x", "sample")) == ONCE
    opened = stream(tmp_path / "stream.csv", "station")
    assert opened.rows is not None
    assert spent(anew(), Records("x", "entity", opened.rows, opened.people)) == ONCE
    for each in opened.rows:
        with pytest.raises(LedgerError, match="does not name them"):
            spent(anew(), Records("x", "entity", each[None]))
