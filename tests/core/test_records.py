"""Records: what is read is written again as it stood, what does not fit is named, and nothing ends
the reader.
"""

from __future__ import annotations

import json
import math
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sordino.base.errors import StudyError
from sordino.base.files import Malformed
from sordino.core import records
from sordino.regimes.asynchronous.records import AsynchronousRound
from sordino.regimes.synchronous.records import SynchronousRound
from sordino.regimes.vertical.records import Vertical

ROWS: list[tuple[str, dict[str, Any]]] = [
    (
        "synchronous",
        {
            "kind": "round",
            "round": 1,
            "steps": 2,
            "tau": 2,
            "clipped": None,
            "snr": 0.5,
            "note": None,
            "epsilon": 1.0,
        },
    ),
    (
        "synchronous",
        {
            "kind": "round",
            "round": 1,
            "steps": 2,
            "mu": 0.5,
            "anything": [1, {"a": None}],
            "epsilon": "inf",
            "time": 3,
        },
    ),
    ("synchronous", {"kind": "late", "round": 1, "client": 0, "released": True, "time": 1.5}),
    (
        "asynchronous",
        {
            "kind": "round",
            "round": 50,
            "histogram": [[0, 3], [2, 1]],
            "clip": None,
            "stalest": None,
            "loss": 0.25,
        },
    ),
    (
        "asynchronous",
        {
            "kind": "left",
            "round": 7,
            "client": 2,
            "updates": 9,
            "why": "its budget is spent",
            "time": 1.0,
        },
    ),
    (
        "vertical",
        {
            "kind": "round",
            "round": 40,
            "error": -0.05,
            "active": [1.0, 0.5],
            "changes": [],
            "up": 3,
            "epsilon": "inf",
        },
    ),
    (
        "vertical",
        {"kind": "end", "round": 40, "why": "all 40 events were played", "accuracy": None},
    ),
    ("vertical", {"kind": "weather", "round": "x"}),
    ("vertical", {}),
]

ABOUT: dict[str, Any] = {
    "format": 1,
    "run": "00ff",
    "regime": "asynchronous",
    "epsilon_budget": "inf",
    "batch": 20,
    "payable": None,
    "modules": {"mine": {"file": "mine.py", "sha256": "ab", "beside": True}},
    "clients": [{"client": 0, "name": None, "unit": "client:0", "examples": 3, "labels": [1, 2]}],
    "stages": [
        {
            "number": 1,
            "start": 0,
            "length": 10,
            "clip": "inf",
            "rate": None,
            "variance": 0.5,
            "slowing": 1.0,
        }
    ],
    "test": {"kind": "none", "rows": 0},
    "warnings": ["w"],
    "result": {"rounds": 3, "epsilon": "inf", "spent": None},
    "weather": ["further", {"keys": 1}],
}


@pytest.mark.parametrize(("regime", "row"), ROWS)
def test_a_row_is_written_as_it_stood(regime: str, row: dict[str, Any]) -> None:
    read = records.row(json.dumps(row), regime)
    assert json.loads(records.dumped(read)) == row
    assert read.kind == row.get("kind", "")
    assert records.row(records.dumped(read), regime) == read


@pytest.mark.parametrize("regime", ["synchronous", "asynchronous", "vertical"])
def test_run_json_is_written_as_it_stood(regime: str) -> None:
    changed = {**ABOUT, "regime": regime}
    if regime == "vertical":
        changed |= {
            "clients": [{"client": 0, "features": 5}],
            "activation": {"kind": "random", "p": 0.5},
            "open": None,
        }
    read = records.about(json.dumps(changed).encode(), "run.json")
    assert read.regime == regime
    assert json.loads(records.dumped(read)) == changed
    assert read.epsilon_budget == math.inf


def test_whole_numbers_stay_whole_and_no_number_is_infinite_by_chance() -> None:
    read = records.about(json.dumps(ABOUT).encode(), "run.json")
    assert isinstance(read.batch, int)
    assert '"batch": 20,' in records.dumped(read)
    told = SynchronousRound(round=1, epsilon=math.inf, loss=math.nan, accuracy=-math.inf)
    assert (
        records.dumped(told)
        == '{"kind": "round", "round": 1, "epsilon": "inf", "accuracy": "-inf", "loss": null}'
    )


def test_what_a_regime_does_not_know_stands_apart() -> None:
    read = records.about(b"{}", "run.json")
    assert (read.regime, read.extra, records.known(read.result)) == ("synchronous", {}, None)
    row = records.row('{"kind": "round", "mu": 0.5, "tau": 3}', "asynchronous")
    assert (records.at(row, "mu"), records.at(row, "tau"), records.at(row, "clip")) == (
        0.5,
        3,
        msgspec.UNSET,
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"kind": "round", "round": -1}', "round must be a whole number, at least 0; got -1"),
        ('{"kind": "round", "round": 1e400}', "round must be a whole number; got inf"),
        ('{"kind": "round", "accuracy": [1]}', "accuracy must be a number; got [1]"),
        ('{"kind": "round", "epsilon": true}', "epsilon must be a number; got True"),
        ('{"kind": "round", "note": 3}', "note must be text or null; got 3"),
        ('{"kind": "late", "client": "x"}', "client must be a whole number; got 'x'"),
        ('{"kind": "end", "why": null}', "why must be text; got None"),
        ("[1]", "it must be an object; got [1]"),
    ],
)
def test_what_does_not_fit_is_named(line: str, message: str) -> None:
    with pytest.raises(records.Misfit) as found:
        records.row(line)
    assert str(found.value) == message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"delta": "x"}, "run.json: delta must be a number; got 'x'. Restore it from a copy"),
        ({"stages": [{"number": 1}, {"clip": []}]}, r"stages\[1\].clip must be a number; got \[\]"),
        (
            {"clients": [{"labels": [1.5]}]},
            r"clients\[0\].labels\[0\] must be a whole number; got 1.5",
        ),
        ({"result": {"spent": ["x"]}}, r"result.spent\[0\] must be a number; got 'x'"),
        (
            {"payable": [10**30]},
            r"payable\[0\] must be a whole number, at most 9223372036854775807; got 1000",
        ),
        ({"modules": {"m": {"file": 1}}}, r"modules\[...\].file must be text"),
        ({"format": 2}, "format must be 1, which this version reads; got 2"),
        ({"facts": {}}, "facts must not stand there"),
        ({"result": {"\ud800": 1}}, "it must be something else .*surrogates not allowed"),
    ],
)
def test_parts_of_run_json_that_do_not_fit_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(StudyError, match=message):
        records.about(json.dumps({**ABOUT, **changes}).encode(), "run.json")


def test_a_regime_that_is_not_known_is_one_error() -> None:
    told = r"^run\.json: regime 'weather' is not known\. Known: synchronous, .*--modules FOLDER$"
    with pytest.raises(StudyError, match=told):
        records.about(json.dumps({**ABOUT, "regime": "weather"}).encode(), "run.json")
    with pytest.raises(StudyError, match=r"run\.json: regime must be text; got 3"):
        records.about(json.dumps({**ABOUT, "regime": 3}).encode(), "run.json")
    with pytest.raises(StudyError, match="regime 'weather' is not known"):
        records.row('{"kind": "round"}', "weather")


def test_environment() -> None:
    found = {"modules": {"mine": "ab"}, "python": "3.11", "threads": 1, "weather": None}
    assert (
        records.plain(
            records.record_of(json.dumps(found).encode(), "environment.json", records.Environment)
        )
        == found
    )
    with pytest.raises(
        StudyError, match=r"environment\.json: threads must be a whole number; got 'x'\. Restore"
    ):
        records.record_of(b'{"threads": "x"}', "environment.json", records.Environment)


@pytest.mark.parametrize(
    ("found", "kind", "message"),
    [
        ({}, records.Begin, "it must be"),
        (
            {"study": 1, "environment": {}, "promise": {}},
            records.Begin,
            "study must be text; got 1",
        ),
        (
            {"study": "", "environment": [], "promise": {}},
            records.Begin,
            "environment must be an object",
        ),
        (
            {"files": {}, "run": {}, "spent": {"each": ["x"], "test": None}},
            records.Seal,
            r"spent.each\[0\] must be a number",
        ),
        (
            {"files": {"a": 1}, "run": {}, "spent": {"each": [], "test": None}},
            records.Seal,
            "must be text",
        ),
    ],
)
def test_notes_that_lack_a_part_are_named(
    found: dict[str, Any], kind: type[msgspec.Struct], message: str
) -> None:
    with pytest.raises(records.Misfit, match=message):
        records.fitted(found, kind)
    seal = {
        "files": {"a": "ab"},
        "run": {"epsilon": "inf"},
        "spent": {"each": [1, "inf"], "test": None},
    }
    assert records.plain(records.fitted(seal, records.Seal)) == seal


WEIRD = st.characters(codec=None)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=True)
    | st.text(WEIRD, max_size=5)
    | st.sampled_from(["inf", "-inf"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["kind", "client", "clip", "why", "\ud800"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)
ROW_KEYS = st.sampled_from(
    sorted({*SynchronousRound.__struct_fields__, *AsynchronousRound.__struct_fields__, "kind"})
)
ABOUT_KEYS = st.sampled_from(
    sorted({*records.About.__struct_fields__, *Vertical.__struct_fields__, "regime", "stages"})
)


@given(
    st.dictionaries(ROW_KEYS, VALUES, max_size=4),
    st.sampled_from(["round", "late", "end", "x"]),
    st.sampled_from(["synchronous", "vertical"]),
)
def test_whatever_stands_in_a_row_is_read_or_named(
    row: dict[str, Any], kind: str, regime: str
) -> None:
    with suppress(Malformed):
        read = records.row(json.dumps({**row, "kind": kind}), regime)
        again = records.row(records.dumped(read), regime)
        assert records.dumped(again) == records.dumped(read)


@given(st.dictionaries(ABOUT_KEYS, VALUES, max_size=4))
def test_whatever_stands_in_run_json_is_read_or_named(about: dict[str, Any]) -> None:
    with suppress(StudyError):
        read = records.about(json.dumps(about).encode(), "run.json")
        assert records.plain(
            records.about(json.dumps(records.plain(read)).encode(), "run.json")
        ) == records.plain(read)
