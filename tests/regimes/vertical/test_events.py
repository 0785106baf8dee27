"""Whole runs of events: killed anywhere they come to the same end, nothing raw gets past what is
booked, and every byte is counted.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from sordino.base.errors import BudgetExceeded, DataError
from sordino.base.message import Derivative, Embedding, Query, Turn, encode
from sordino.core import regimes as builder
from sordino.core import study as studies
from sordino.core.effect import Arrived, Send
from sordino.core.records import Row, known, plain
from sordino.core.run import environment, session
from sordino.core.run import folder as log
from sordino.data.stream import opening
from sordino.mechanisms.gaussian import Single
from sordino.mechanisms.response import RandomisedResponse
from sordino.privacy import Allowance, Gaussian, NonPrivate, Pure, accountant
from sordino.regimes.vertical import run as events
from sordino.regimes.vertical.halves import Engine, Party, Played
from sordino.regimes.vertical.protocol import EventRules
from sordino.regimes.vertical.run import Events, Sizes
from sordino.regimes.vertical.study import VerticalPrivacy

STUDY = """
name = "events"
[data]
name = "digits"
parties = 3
stream = "replay"
[model]
name = "mlp"
embedding = 3
hidden = 5
[method]
name = "dlr"
length = 4
alpha = 0.8
activation = { kind = "random", p = 0.5 }
[privacy]
unit = "none"
[budget]
events = 150
[execution]
path = "messages"
evaluate_every = 35
"""

LABEL = 'privacy={unit="label", epsilon=3.0, delta=1e-5}'
COVERED = 'privacy={unit="label", epsilon=3.0, delta=1e-5, embedding={clip=1.0}, updates="noisy"}'
OFTEN = 'privacy={unit="label", epsilon=6.0, delta=1e-5, memoised=false, appearances=3}'
NOISY = (
    'privacy={unit="entity", epsilon=60.0, delta=1e-5, embedding={clip=1.0}, '
    'updates="noisy", appearances=2}'
)
FROZEN = (
    'privacy={unit="entity", epsilon=60.0, delta=1e-5, memoised=false, '
    'embedding={clip=1.0}, updates="frozen", appearances=3}'
)
SILENT = "world.dropout=0.4"
REPEATED = 'data={file="FILE", parties=3}'  # 60 rows, replayed: up to three times in 150 events
OWNED = 'data={file="FILE", parties=3, stream="file", classes=["0","1","2"], entity="who"}'
COUNT = 'method.activation={kind="count", k=2}'
SLR = 'method={name="slr", length=3, activation="full"}'
OGD = 'method={name="ogd", batch=2, activation={kind="event", threshold=0.3}}'

WORLDS = {
    "plain": (),
    "ogd, by event, two at a time, silent": (OGD, LABEL, SILENT, 'world.missing="zeros"'),
    "slr, silent, 16 bits": (
        SLR,
        LABEL,
        REPEATED,
        'method.activation={kind="random", p=0.3}',
        SILENT,
        "world.precision=16",
    ),
    "labels told anew, skipped": (OFTEN, REPEATED, COUNT, SILENT, 'world.missing="skip"'),
    "entities, noisy, slr": (NOISY, SLR, REPEATED),
    "entities, noisy, dlr": (NOISY, COUNT, REPEATED, SILENT),
    "entities, frozen": (FROZEN, OWNED, "budget.events=60"),
    "a file, names change": (
        OFTEN,
        OWNED,
        'data.drift={kind="swap", every=20}',
        "budget.events=60",
    ),
    "whole, compiled, labels": ('execution.path="auto"', LABEL, REPEATED),
    "whole, compiled, slr, deformed": (
        'execution.path="auto"',
        SLR,
        'data={name="digits", parties=3, stream={kind="deformed", size=12}}',
    ),
    "whole, two at a time": ('execution.path="auto"', "method.batch=2"),
    "classes change": ('data.drift={kind="gradual", every=30}', 'method={name="ogd"}'),
}


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "BLOCK", 40)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rng, path = np.random.default_rng(5), tmp_path / "table.csv"
    lines = ["a,b,c,d,e,label,who"]
    for i in range(60):
        who = i % 23
        label = who % 3
        lines.append(
            ",".join(f"{v:.4f}" for v in rng.standard_normal(5) + label) + f",{label},{who}"
        )
    path.write_text("\n".join(lines) + "\n")
    return path


class Watch:
    """Keeps rows, but for what a clock says, and packed moments."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.saved: list[tuple[Any, int]] = []

    def row(self, row: Row) -> None:
        self.rows.append(
            {key: value for key, value in plain(row).items() if not key.endswith("_seconds")}
        )

    def due(self, number: int, ended: str | None) -> bool:
        return True

    def save(self, moment: Any) -> None:
        self.saved.append((moment.pack(), len(self.rows)))

    @property
    def rounds(self) -> list[Any]:
        return [row for row in self.rows if row["kind"] == "round"]


def read(folder: Path, *changes: str) -> studies.Study:
    (folder / "study.toml").write_text(STUDY)
    return studies.read(
        folder / "study.toml",
        [change.replace("FILE", str(folder / "table.csv")) for change in changes],
    )


def made(
    folder: Path, *changes: str, run: str = "run", affordable_steps: list[int] | None = None
) -> tuple[Events, Any]:
    built = builder.build(read(folder, *changes), folder, run, affordable_steps)
    assert isinstance(built.simulation, Events)
    return built.simulation, built.first


def booked(world: Events) -> dict[str, Any]:
    return {unit: world.ledgers.spent(unit) for unit in world.ledgers.names}


DAILY = (
    "plain",
    "slr, silent, 16 bits",
    "labels told anew, skipped",
    "entities, noisy, dlr",
    "a file, names change",
    "whole, compiled, labels",
)
"""Worlds of every method, unit, stream and engine but one; all of them at night."""


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(changes, marks=() if name in DAILY else pytest.mark.nightly, id=name)
        for name, changes in WORLDS.items()
    ],
)
def test_killed_anywhere_it_comes_to_the_same_end(
    tmp_path: Path, table: Path, changes: tuple[str, ...]
) -> None:
    """From every checkpoint, with a ledger that knows the whole run already."""
    world, first = made(tmp_path, *changes)
    whole = Watch()
    end = world.run(first, whole)
    once = booked(world)
    assert len(whole.saved) >= min(world.study.horizon // 40, 3)
    kills = [whole.saved[0], whole.saved[len(whole.saved) // 2], whole.saved[-1]]
    (tmp_path / "checkpoints").mkdir()
    for packed, length in kills:
        log.write_checkpoint(tmp_path, log.Saved(world.unpack(packed), length, "vertical", {}))
        saved = log.read_checkpoint(tmp_path, world, "vertical")
        assert saved is not None
        again = Watch()
        again.rows = whole.rows[:length]
        moment: Any = saved.moment
        rest = world.run(moment, again) if moment.ended is None else moment
        assert rest.model.tobytes() == end.model.tobytes()
        assert again.rows == whole.rows
        assert booked(world) == once
        if moment.ended is None:  # else nothing of it is kept
            assert {name: value.tobytes() for name, value in rest.state.kept.items()} == {
                name: value.tobytes() for name, value in end.state.kept.items()
            }
    world.ledgers.ledger.verify()


@pytest.mark.parametrize(
    "changes", [(), (SLR, NOISY, REPEATED), (OGD, LABEL, SILENT)], ids=["plain", "noisy", "silent"]
)
def test_what_is_logged_changes_nothing_that_is_drawn(
    tmp_path: Path, table: Path, changes: tuple[str, ...]
) -> None:
    ends, sums = [], []
    for every in (7, 1000):
        folder = tmp_path / str(every)
        folder.mkdir()
        (folder / "table.csv").write_bytes(table.read_bytes())
        world, first = made(folder, *changes, f"execution.evaluate_every={every}")
        watch = Watch()
        ends.append(world.run(first, watch).model.tobytes())
        last = watch.rounds[-1]
        sums.append({key: last[key] for key in ("up", "down", "framing", "accumulated", "steps")})
        sums[-1] |= {
            key: sum(row[key] for row in watch.rounds) for key in ("learned", "dropped", "unused")
        }
        assert [row["round"] for row in watch.rounds] == [*range(every, 150, every), 150]
    assert ends[0] == ends[1]
    assert sums[0] == sums[1]


def test_a_session_that_is_killed_and_resumed_leaves_the_same_files(
    tmp_path: Path, table: Path
) -> None:
    study = read(
        tmp_path, LABEL, OGD, SILENT, "execution.checkpoint_every=1", "execution.evaluate_every=20"
    )

    def lines(folder: Path) -> list[Any]:
        rows = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
        return [
            {key: value for key, value in row.items() if not key.endswith("_seconds")}
            for row in rows
        ]

    def dies(row: Row) -> None:
        if (known(row.round) or 0) >= 120:
            raise KeyboardInterrupt

    session.begin(study, tmp_path / "whole", lambda _: None, lambda _: None)
    with pytest.raises(KeyboardInterrupt):
        session.begin(study, tmp_path / "killed", dies, lambda _: None)
    about = json.loads((tmp_path / "killed" / "run.json").read_text())
    assert about["status"] == "running"
    done = session.resume(tmp_path / "killed", lambda _: None, lambda _: None)
    assert done.rounds == 150
    assert lines(tmp_path / "killed") == lines(tmp_path / "whole")
    assert (tmp_path / "killed/model.safetensors").read_bytes() == (
        tmp_path / "whole/model.safetensors"
    ).read_bytes()


# Who is active


class Nobody(Engine):
    """An engine that learns nothing, says what it is told to, and keeps what it was given."""

    def __init__(
        self,
        says: Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]] | None = None,
        skip: int = 0,
    ) -> None:
        self.says, self.skip = says or (lambda x, y: np.zeros(len(y), np.int64)), skip
        self.given = list[tuple[Any, ...]]()

    def run(self, x: Any, y: Any, active: Any, silent: Any, paid: Allowance) -> Played:
        self.given.append((x, y, active, silent))
        learned = np.arange(len(active)) % max(self.skip, 1) == 0
        predictions = np.where(np.repeat(learned, len(y) // len(active)), self.says(x, y), 0)
        return Played(
            predictions, learned * 1.0, np.ones(len(active)), learned,
            np.zeros(len(active), np.int64), np.zeros(3),
        )  # fmt: skip

    def weights(self) -> dict[str, NDArray[np.float32]]:
        return {"server": np.zeros(1, np.float32)}

    def pack(self) -> dict[str, NDArray[Any]]:
        return {}

    def unpack(self, kept: Any) -> None: ...

    def all(self, place: int) -> NDArray[Any]:
        return np.concatenate([given[place] for given in self.given])


def observed(
    folder: Path, *changes: str, engine: Nobody | None = None
) -> tuple[Nobody, Watch, Events]:
    world, _ = made(folder, *changes)
    spy, watch = engine or Nobody(), Watch()
    world = replace(world, engine=lambda: spy)
    world.run(world.first(), watch)
    return spy, watch, world


@pytest.mark.parametrize("p", [0.0, 0.25, 0.5, 1.0])
def test_random_activates_each_party_as_often_as_it_says_and_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, p: float
) -> None:
    monkeypatch.setattr(events, "BLOCK", 1000)
    n = 20_000
    spy, watch, world = observed(
        tmp_path,
        f'method.activation={{kind="random", p={p}}}',
        f"budget.events={n}",
        "world.dropout=0.2",
    )
    active, silent = spy.all(2), spy.all(3)
    deviation = math.sqrt(p * (1 - p) / n)
    assert np.abs(active.mean(0) - p).max() <= 5 * deviation
    patterns = Counter(map(tuple, active.tolist()))
    for pattern, count in patterns.items():
        share = math.prod(p if on else 1 - p for on in pattern)
        assert abs(count / n - share) <= 5 * math.sqrt(share * (1 - share) / n)
    assert abs((active[1:, 0] & active[:-1, 0]).mean() - p * p) <= 5 * math.sqrt(
        p * p * (1 - p * p) * 3 / n
    )
    assert not (active & silent).any()
    if p < 1:
        share = silent[~active].mean()
        assert abs(share - 0.2) <= 5 * math.sqrt(0.16 / (~active).sum())
    payload = world.sizes.traffic(1, active, np.ones(n, bool))
    full = world.sizes.traffic(1, np.ones_like(active), np.ones(n, bool))
    ratio = (payload[0] + payload[1]) / (full[0] + full[1])
    assert abs(ratio - (1 + p) / 2) <= 5 * deviation / 2 / math.sqrt(3)
    assert watch.rounds[-1]["steps"] == active.sum(0).max()


@pytest.mark.parametrize("k", [0, 1, 2, 3])
def test_count_activates_exactly_so_many_each_as_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, k: int
) -> None:
    monkeypatch.setattr(events, "BLOCK", 1000)
    spy, _, _ = observed(
        tmp_path, f'method.activation={{kind="count", k={k}}}', "budget.events=9000"
    )
    active = spy.all(2)
    assert (active.sum(1) == k).all()
    assert np.abs(active.mean(0) - k / 3).max() <= 5 * math.sqrt(2 / 9 / 9000)


@pytest.mark.parametrize("threshold", ["-inf", "0.25", "inf"])
def test_a_stimulus_activates_where_the_mean_feature_is_above(
    tmp_path: Path, threshold: str
) -> None:
    spy, _, world = observed(
        tmp_path, f'method.activation={{kind="event", threshold={threshold}}}', "method.batch=2"
    )
    x = spy.all(0).astype(np.float64).reshape(150, 2, 64)
    for m, columns in enumerate(world.activity.columns):
        means = x[:, :, columns].mean((1, 2))
        assert (spy.all(2)[:, m] == (means > float(threshold))).all()
    assert threshold != "0.25" or 0.05 < spy.all(2).mean() < 0.95


# Bytes


@contextmanager
def encoded(world: Events) -> Iterator[Counter[str]]:
    """Bytes of every message that got where it was meant to, really encoded."""
    found: Counter[str] = Counter()
    step, learn = EventRules.step, Party.learn

    def hears(self: EventRules, state: Any, heard: Any) -> Any:
        state, effects = step(self, state, heard)
        # in time or too late
        if isinstance(heard, Arrived) and isinstance(heard.message, Embedding):
            found["up"] += len(heard.message.values)
            found["framing"] += len(encode(heard.message)) - len(heard.message.values)
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.message, Turn):
                assert effect.message.asked
                found["framing"] += len(encode(Query(effect.message.event)))
        return state, effects

    def learns(self: Party, answer: Derivative) -> bool:
        found["down"] += len(answer.values)
        found["framing"] += len(encode(answer)) - len(answer.values)
        return learn(self, answer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EventRules, "step", hears)
        patch.setattr(Party, "learn", learns)
        yield found


HANDED = {
    name: changes for name, changes in WORLDS.items() if "file" not in name and "whole" not in name
}


@pytest.mark.parametrize("changes", HANDED.values(), ids=HANDED)
def test_every_byte_that_is_counted_was_sent(
    tmp_path: Path, table: Path, changes: tuple[str, ...]
) -> None:
    world, first = made(tmp_path, *changes)
    watch = Watch()
    with encoded(world) as found:
        world.run(first, watch)
    last = watch.rounds[-1]
    assert {name: last[name] for name in ("up", "down", "framing")} == dict(found)


@pytest.mark.parametrize("first", [1, 120, 250, 2**16 - 5, 2**32 - 5])
def test_framing_is_that_of_the_codec_wherever_numbers_grow(first: int) -> None:
    sizes = Sizes((6, 128, 80_000), bits=16)
    rng = np.random.default_rng(first)
    active = rng.random((12, 3)) < 0.5
    learned = rng.random(12) < 0.7
    up = down = framing = 0
    for i in range(12):
        for m, size in enumerate((12, 256, 160_000)):
            up += size
            framing += (
                len(encode(Embedding(m, first + i, bool(active[i, m]), 16, bytes(size)))) - size
            )
            if not active[i, m]:
                framing += len(encode(Query(first + i)))
            if active[i, m] and learned[i]:
                down += size
                framing += len(encode(Derivative(m, first + i, 16, bytes(size)))) - size
    assert sizes.traffic(first, active, learned) == (up, down, framing)


def test_traffic_is_that_of_the_paper() -> None:
    """Tables 1 and 2: 2 000 000 events, four parties, 64 numbers of 16 bits: 1953.12 MB full, and
    40 times that for SLR.
    """
    everybody = np.ones((100_000, 4), bool)
    for resends, expected in ((1, 1953.125), (40, 78125.0)):
        sizes = Sizes((64 * resends,) * 4, bits=16)
        up, down, _ = sizes.traffic(1, everybody, np.ones(100_000, bool))
        assert (up + down) * 20 / 2**20 == expected
    wide, *_ = Sizes((64 * 3,) * 4, bits=32).traffic(1, everybody, np.ones(100_000, bool))
    assert wide == 6 * 100_000 * 4 * 64 * 2


# What is told


def normals(count: int, rng: np.random.Generator) -> torch.Tensor:
    return torch.from_numpy(rng.standard_normal(count, np.float32))


@dataclass(frozen=True)
class Other:
    """The same stream with other labels, or other features: a neighbour in every entity at once."""

    stream: Any
    labels: bool
    features: bool

    def read(self, start: int, count: int) -> Any:
        piece = self.stream.read(start, count)
        y = (piece.y + 1) % 3 if self.labels else piece.y
        x = -piece.x[:, ::-1].copy() + 0.3 if self.features else piece.x
        return replace(piece, x=x, y=y)

    def changes(self, start: int, stop: int) -> Any:
        return self.stream.changes(start, stop)


class Overheard:
    """Everything that is sent, in order."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.said: list[Any] = []
        step, learn = EventRules.step, Party.learn

        def hears(regime: EventRules, state: Any, heard: Any) -> Any:
            state, effects = step(regime, state, heard)
            self.said += [heard, *(effect for effect in effects if isinstance(effect, Send))]
            return state, effects

        def learns(party: Party, answer: Derivative) -> bool:
            self.said.append(answer)
            return learn(party, answer)

        patch.setattr(EventRules, "step", hears)
        patch.setattr(Party, "learn", learns)


@pytest.mark.parametrize(
    ("changes", "features"),
    [
        ((LABEL, REPEATED), False),
        ((OFTEN, REPEATED, SLR, SILENT), False),
        ((LABEL, REPEATED, OGD, 'world.missing="skip"', SILENT), False),
        ((NOISY, REPEATED, SLR), True),
        ((NOISY, REPEATED, COUNT, "world.precision=16"), True),
        ((FROZEN, OWNED, "budget.events=60", SILENT), True),
    ],
    ids=[
        "label",
        "label anew, slr",
        "label, by event",
        "entity, slr",
        "entity, dlr",
        "entity, frozen",
    ],
)
def test_raw_data_gets_out_by_way_of_the_mechanisms_only(
    tmp_path: Path, table: Path, changes: tuple[str, ...], features: bool
) -> None:
    """With mechanisms that do not look at their input, other raw data leaves every message, row,
    weight and entry as it was.
    """
    ends = []
    for name in ("own", "other", "unguarded"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "table.csv").write_bytes(table.read_bytes())
        with pytest.MonkeyPatch.context() as patch:
            if name != "unguarded":
                patch.setattr("sordino.base.entropy.digest", lambda *parts: bytes(32))
                patch.setattr(
                    RandomisedResponse,
                    "respond_for",
                    lambda self, labels, entities, key, visits=None: entities % 3,
                )
            if features and name != "unguarded":
                patch.setattr(
                    Single,
                    "release_rows",
                    lambda self, rows, rng: normals(rows.numel(), rng).view(rows.shape),
                )
                patch.setattr(
                    Single, "release", lambda self, v, rng: 0.01 * normals(v.numel(), rng)
                )
            world, _ = made(folder, *changes)
            if name == "other":
                other: Any = Other(world.stream, labels=True, features=features)
                world = replace(world, stream=other)
            heard, watch = Overheard(patch), Watch()
            end = world.run(world.first(), watch)
            ends.append((watch.rows, end.model.tobytes(), heard.said, booked(world)))
    assert ends[0] == ends[1]
    assert ends[0][1] != ends[2][1]  # with the mechanisms as they are, it does matter


def test_labels_are_answered_as_the_mechanism_does_and_once_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "BLOCK", 1000)
    raw: dict[int, int] = {}
    spy, _, world = observed(tmp_path, LABEL, "budget.events=2874")
    piece = world.stream.read(0, 2874)
    assert piece.entity is not None
    answers: dict[int, set[int]] = {}
    for entity, label, answer in zip(
        piece.entity.tolist(), piece.y.tolist(), spy.all(1).tolist(), strict=True
    ):
        answers.setdefault(entity, set()).add(answer)
        raw[entity] = label
    assert len(answers) == 1437
    assert {len(found) for found in answers.values()} == {1}
    keep = RandomisedResponse(epsilon=3.0, classes=10).keep
    share = np.mean([raw[entity] in found for entity, found in answers.items()])
    assert abs(share - keep) < 5 * math.sqrt(keep * (1 - keep) / 1437)


def test_the_error_that_is_logged_is_unbiased(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Predictions that are right three times in four, under noisy labels; what agrees with the
    answers is far off.
    """
    monkeypatch.setattr(events, "BLOCK", 1000)
    rng, n = np.random.default_rng(2), 20_000
    truth: list[NDArray[Any]] = []

    class Knows(Other):
        def read(self, start: int, count: int) -> Any:
            piece = super().read(start, count)
            truth.append(piece.y)
            return piece

    def says(x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
        return np.where(rng.random(len(y)) < 0.75, truth[-1], (truth[-1] + 1) % 10)

    changes = (
        'privacy={unit="label", epsilon=30.0, delta=1e-5, memoised=false, appearances=15}',
        f"budget.events={n}",
    )
    world, _ = made(tmp_path, *changes)
    spy, watch = Nobody(says), Watch()
    knows: Any = Knows(world.stream, False, False)
    world = replace(world, engine=lambda: spy, stream=knows)
    world.run(world.first(), watch)
    mechanism = RandomisedResponse(epsilon=2.0, classes=10)
    p, q = mechanism.keep, mechanism.other
    answers = math.sqrt((0.75 * p * (1.0 - p) + 0.25 * q * (1.0 - q)) / n) / (p - q)
    spread = answers + math.sqrt(0.75 * 0.25 / n)
    shown = watch.rounds[-1]["accumulated"]
    assert abs(shown - 0.25) < 4 * spread
    errors = np.array([row["error"] for row in watch.rounds])
    assert abs(errors.mean() - 0.25) < 4 * spread
    agreement = np.mean(spy.all(1) == np.concatenate(truth))
    assert abs((1 - agreement) - 0.25) > 20 * spread  # as it would have been taken for


def test_skipped_events_make_no_predictions(tmp_path: Path) -> None:
    """Neither right nor wrong ones, and no loss."""
    _, watch, _ = observed(tmp_path, engine=Nobody(lambda x, y: y, skip=3))
    assert [row["error"] for row in watch.rounds] == [0.0] * len(watch.rounds)
    assert [row["loss"] for row in watch.rounds] == [1.0] * len(watch.rounds)
    assert sum(row["learned"] for row in watch.rounds) < 60


# The ledger


def steps(spent: Any) -> Any:
    """Equal releases, however they are nested."""
    from sordino.privacy.accounting import flatten

    return flatten(spent)


def test_one_answer_is_booked_once_however_often_it_is_used(tmp_path: Path, table: Path) -> None:
    world, first = made(tmp_path, LABEL, REPEATED)
    world.run(first, Watch())
    assert world.ledgers.spent("labels") == ((Pure(epsilon=3.0), 1),)
    assert world.ledgers.epsilon("labels", 1e-5, "pld") <= 3.0
    for unit in ("entities", "party:0", "party:2"):
        assert any(
            isinstance(event, NonPrivate) or "NonPrivate" in repr(event)
            for event, _ in world.ledgers.spent(unit)
        )
        assert math.isinf(world.ledgers.epsilon(unit, 1e-5, "pld"))


@pytest.mark.parametrize(
    "changes",
    [
        (OFTEN, REPEATED),
        (OFTEN, OWNED),
        (NOISY, REPEATED, SLR),
        (NOISY, OWNED),
        (FROZEN, REPEATED, COUNT),
    ],
)
def test_entries_are_what_one_entity_released_and_nobody_releases_more(
    tmp_path: Path, table: Path, changes: tuple[str, ...]
) -> None:
    world, _ = made(tmp_path, *changes)
    spy, watch = Nobody(), Watch()
    seen: Counter[int] = Counter()
    used: list[int] = []
    run = spy.run

    def checks(x: Any, y: Any, active: Any, silent: Any, paid: Allowance) -> Played:
        """What is about to be released is in the ledger already."""
        for row in x:
            entity = owners[row.tobytes()]
            seen[entity] += 1
            used.append(entity)
        highest = max(seen.values())
        assert responses(highest) <= sum(
            count for event, count in world.ledgers.spent("labels") if isinstance(event, Pure)
        )
        assert world.ledgers.epsilon(unit, 1e-5, "pld") <= world.budget.epsilon
        return run(x, y, active, silent, paid)

    spy.run = checks  # type: ignore[method-assign]
    world = replace(world, engine=lambda: spy)
    piece = world.stream.read(0, 150)
    assert piece.entity is not None
    owners = {row.tobytes(): int(entity) for row, entity in zip(piece.x, piece.entity, strict=True)}
    unit, privacy = world.units[0], read(tmp_path, *changes).privacy
    assert isinstance(privacy, VerticalPrivacy)

    def responses(times: int) -> int:
        return 1 if privacy.memoised else times

    world.run(world.first(), watch)
    expected, counted = [], Counter[int]()
    for entity in piece.entity.tolist():
        counted[entity] += 1
        if counted[entity] <= privacy.appearances:
            expected.append(entity)
    assert used == expected
    assert max(seen.values()) == min(privacy.appearances, max(counted.values()))
    assert sum(row["unused"] for row in watch.rounds) == len(piece.y) - len(expected)
    each = {"label": 6.0 / 3, "entity": 15.0 / (1 if privacy.memoised else 3)}[privacy.unit]
    times = max(seen.values())
    told: list[Any] = [(Pure(epsilon=each), responses(times))]
    assert steps(world.ledgers.spent("labels")) == steps(told)
    if privacy.unit == "entity":
        study = builder.calibrated(read(tmp_path, *changes))
        kept = study.privacy
        assert isinstance(kept, VerticalPrivacy)
        assert kept.embedding is not None
        assert kept.embedding.noise_multiplier is not None
        resends = getattr(study.method, "resends", 1)
        told.append(
            (Gaussian(noise_multiplier=kept.embedding.noise_multiplier), 3 * resends * times)
        )
        if kept.updates == "noisy":
            told.append(
                (
                    Gaussian(noise_multiplier=kept.update.noise_multiplier or 0.0),
                    3 * resends * times,
                )
            )
        assert steps(world.ledgers.spent("entities")) == steps(told)
        assert accountant("pld").epsilon(told, 1e-5) <= 60.0
        # calibrated for it, and no lower
        assert accountant("pld").epsilon(told, 1e-5) > (
            50.0 if times == privacy.appearances else 0.0
        )


def test_without_a_promise_the_ledger_says_that_everything_was_told(tmp_path: Path) -> None:
    world, first = made(tmp_path)
    watch = Watch()
    world.run(first, watch)
    for unit in ("entities", "labels", "party:0"):
        assert math.isinf(world.ledgers.epsilon(unit, 1e-5, "pld"))
    assert {row["epsilon"] for row in watch.rounds} == {"inf"}


def test_runs_over_one_ledger_of_the_data_add_up(tmp_path: Path, table: Path) -> None:
    """Each draws answers of its own, so each pays for them; what is spent is spent, and a refusal
    leaves nothing behind.
    """
    ledger = f'ledger="{tmp_path / "ledgers"}"'

    def begun(name: str, privacy: str, *changes: str) -> session.Outcome:
        study = read(
            tmp_path,
            REPEATED,
            "budget.events=60",
            f"privacy={{{privacy}, delta=1e-5, {ledger}}}",
            *changes,
        )
        return session.begin(study, tmp_path / name, lambda _: None, lambda _: None)

    first = begun("first", 'unit="label", epsilon=3.0')
    assert 2.9 < first.epsilon <= 3.0
    with pytest.raises(BudgetExceeded, match="does not pay for a single appearance"):
        begun("second", 'unit="label", epsilon=3.0')
    assert not (tmp_path / "second").exists()
    third = begun("third", 'unit="label", epsilon=6.0, label_epsilon=3.0')
    assert 5.9 < third.epsilon <= 6.0
    told = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("first", "third")]
    assert told[0] != told[1]  # other answers to the same questions
    with pytest.raises(BudgetExceeded):  # entities have sent their embeddings without noise
        begun("fourth", 'unit="entity", epsilon=900.0, embedding={clip=1.0}, updates="frozen"')


def test_appearances_that_another_run_has_spent_are_not_used(tmp_path: Path, table: Path) -> None:
    ledger = f'privacy.ledger="{tmp_path / "ledgers"}"'
    changes = (
        REPEATED,
        'privacy={unit="label", epsilon=6.0, delta=1e-5, label_epsilon=4.0, memoised=false, '
        "appearances=2}",
        ledger,
    )
    limits, used = [], []
    for run in ("one", "two", "three"):
        (tmp_path / run).mkdir()
        (tmp_path / run / "table.csv").write_bytes(table.read_bytes())
        world, first = made(tmp_path / run, *changes, run=run)
        limits.append(world.affordable_steps)
        watch = Watch()
        if world.affordable_steps != [0]:
            world.run(first, watch)
        used.append(sum(row["learned"] for row in watch.rounds))
        assert world.ledgers.epsilon("labels", 1e-5, "pld") <= 6.0
        world.ledgers.close()
    assert limits == [[2], [1], [0]]
    assert used == [120, 60, 0]


def test_two_runs_at_once_cannot_both_spend_the_last(tmp_path: Path, table: Path) -> None:
    changes = (LABEL, REPEATED, f'privacy.ledger="{tmp_path / "ledgers"}"')
    (one, first) = made(tmp_path, *changes, run="one")
    (two, second) = made(tmp_path, *changes, run="two")
    one.run(first, Watch())
    watch, spy = Watch(), Nobody()
    end = replace(two, engine=lambda: spy).run(second, watch)
    assert "over the budget of 3" in (end.state.ended or "")
    kinds = [row["kind"] for row in watch.rows]
    assert (kinds[0], kinds[-1]) == ("refused", "end")
    assert not spy.given  # nothing was released


@pytest.mark.parametrize(
    ("changes", "again"),
    [((LABEL,), False), ((LABEL, "ledger"), True), ((NOISY,), True), ((LABEL, COVERED), True)],
    ids=["labels", "labels of the data", "entities", "labels beside noisy embeddings"],
)
def test_in_another_environment_what_may_come_out_differently_is_booked_again(
    tmp_path: Path,
    table: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: tuple[str, ...],
    again: bool,
) -> None:
    """Answers of a run's own key are whole numbers and the same everywhere; a ledger of the data
    makes keys by environment.

    Parties that put noise on their embeddings have a finite price, promised or not: what they
    release again is booked again.
    """
    asked = [
        REPEATED,
        *(f'privacy.ledger="{tmp_path / "ledgers"}"' if c == "ledger" else c for c in changes),
    ]
    world, first = made(tmp_path, *asked)
    watch = Watch()
    world.run(first, watch)
    affordable_steps, unit, once = (
        world.affordable_steps,
        world.units[0],
        dict(world.ledgers.spent(world.units[0])),
    )
    world.ledgers.close()
    monkeypatch.setattr(environment, "environment", lambda study: {"machine": "another"})
    world, _ = made(tmp_path, *asked, affordable_steps=affordable_steps)
    world.budget = replace(world.budget, epsilon=1e6)
    moment = world.unpack(watch.saved[1][0])
    assert moment.number == 80
    world.run(moment, Watch())
    after = dict(world.ledgers.spent(unit))
    assert (after != once) == again
    assert after[Pure(epsilon=3.0 if unit == "labels" else 15.0)] == 1 + again
    assert sum(after.values()) >= sum(once.values())


def _two_labels(table: Path) -> None:
    """Rows 39 and 49, of entities that came before with labels 1 and 0, say others."""
    lines = table.read_text().splitlines()
    for line, label in ((40, "1"), (50, "2")):
        cells = lines[line].split(",")
        lines[line] = ",".join([*cells[:5], label, cells[6]])
    table.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("ledger", ["run", "shared"])
def test_an_entity_with_two_labels_is_refused_before_anything_is_booked(
    tmp_path: Path, table: Path, ledger: str
) -> None:
    _two_labels(table)
    asked = ['privacy={unit="label", epsilon=60.0, delta=1e-5}', OWNED, "budget.events=60"]
    if ledger == "shared":
        asked.append(f'privacy.ledger="{tmp_path / "kept"}"')
    with pytest.raises(
        DataError, match=r"rows \d+ and \d+ .*are of one entity.*set memoised = false"
    ) as told:
        made(tmp_path, *asked)
    assert str(table) in str(told.value)
    assert not (tmp_path / "ledger.sqlite").exists()
    assert not (tmp_path / "kept").exists()
    world, first = made(tmp_path, OFTEN, OWNED, "budget.events=60")
    world.run(first, Watch())


def test_an_array_of_entities_with_two_labels_is_refused_likewise(tmp_path: Path) -> None:
    file = tmp_path / "two.npz"
    x = np.random.default_rng(0).random((6, 4), dtype=np.float32)
    np.savez(file, x=x, y=np.array([0, 1, 0, 1, 0, 1]), client=np.array([0, 1, 2, 0, 1, 2]))
    with pytest.raises(DataError, match=r"two\.npz.*: rows 0 and 3 .*are of one entity"):
        made(tmp_path, LABEL, f'data={{file="{file}", parties=2}}')


def test_a_stream_that_breaks_its_promise_of_one_label_ends_the_run(
    tmp_path: Path, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream of one's own is not read before the run, so it is held to its promise then."""
    _two_labels(table)
    monkeypatch.setattr(opening, "refuse_two_labels", lambda *told: None)
    world, first = made(
        tmp_path, 'privacy={unit="label", epsilon=60.0, delta=1e-5}', OWNED, "budget.events=60"
    )
    with pytest.raises(DataError, match=r"has two labels in this stream.*set memoised = false"):
        world.run(first, Watch())


# Models that diverge


@pytest.mark.parametrize("precision", [16, 32])
def test_a_model_that_diverges_ends_the_run_in_order_and_can_be_resumed(
    tmp_path: Path, precision: int
) -> None:
    world, first = made(
        tmp_path, "method.learning_rate=1e30", f"world.precision={precision}", "budget.events=90"
    )
    watch = Watch()
    end = world.run(first, watch)
    assert end.ended == "all 90 events were played"
    assert sum(row["dropped"] for row in watch.rounds) > 50
    assert not np.isfinite(end.state.whole.loss)
    (packed, length), again = watch.saved[0], Watch()
    again.rows = watch.rows[:length]
    assert world.run(world.unpack(packed), again).model.tobytes() == end.model.tobytes()
    assert str(again.rows) == str(watch.rows)  # NaN is not NaN


def test_a_file_without_rows_is_no_stream(tmp_path: Path) -> None:
    file = tmp_path / "none.csv"
    file.write_text("a,b,label\n")
    with pytest.raises(DataError, match=r"none\.csv: there are no rows"):
        made(tmp_path, f'data={{file="{file}", parties=2, stream="file", classes=["0","1"]}}')
