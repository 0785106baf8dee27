"""A site and a server that asks for more than was agreed: it refuses, and books nothing for it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from federations import laid, plain, read_incidents
from sordino.base.logs import log_to
from sordino.base.message import Compute, Train, Update, encode
from sordino.core.effect import Book
from sordino.network import frames
from sordino.network.frames import Ask, FromSite, Say
from sordino.network.kit import Agreed
from sordino.network.site import JoinOptions, opened, prepare_site
from sordino.network.site_session import SiteMoment, SiteSession
from sordino.network.storage import OUTBOX as NAMES
from sordino.network.storage import AnswerStore
from sordino.network.transport import Lost
from sordino.privacy import encode as written
from sordino.privacy.event import Gaussian


@dataclass
class Kept:
    """A watcher that keeps rows."""

    rows: list[Any]

    def row(self, row: Any) -> None:
        self.rows.append(row)

    def due(self, number: int, ended: str | None) -> bool:
        return True

    def save(self, moment: Any) -> None: ...


def no_line(limit: int) -> Any:
    raise AssertionError("a desk knows no connection")


@dataclass
class Victim:
    """A site's desk without a connection: what a hostile server meets."""

    desk: SiteSession
    watch: Kept
    dimension: int
    sigma: float

    def said(self, frame: frames.FromServer | bytes) -> list[FromSite]:
        raw = frame if isinstance(frame, bytes) else frames.encode(frame)
        return list(self.desk.said(raw))

    def train(self, number: int = 1, **other: Any) -> Ask:
        own: dict[str, Any] = {
            "round": number,
            "steps": 2,
            "weights": np.zeros(self.dimension, np.float32),
        }
        return Ask(number, encode(Train(**{**own, **other})))

    def log(self) -> list[tuple[str, str, str]]:
        """The site's log: who, what and the detail."""
        return [
            (each.site, each.what, each.detail) for each in read_incidents(self.desk._site.folder)
        ]

    def entries(self) -> int:
        return sum(1 for _ in self.desk._site.ledgers.ledger.entries())


@pytest.fixture
def victim(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Victim]:
    name = getattr(request, "param", "synchronous")
    shaped = ["privacy.mechanism={kind='haar',weights='learned'}"] if name == "haar" else []
    found = laid(tmp_path, "synchronous" if shaped else name, shaped)
    kit, data = found.sites[0]
    _, index, study, own = opened(JoinOptions(kit=kit, data=data))
    folder = tmp_path / "run"
    folder.mkdir()
    build = prepare_site(
        agreed=Agreed(kit), index=index, own=own, connects=no_line, log=log_to(lambda text: None)
    )
    built = build(study, folder, "run", None)
    watch, outbox = Kept([]), AnswerStore(folder)
    moment = built.first
    assert isinstance(moment, SiteMoment)
    site: Any = built.simulation
    desk = SiteSession(site, moment, watch, outbox)
    made = Victim(
        desk, watch, moment.model.size, float(getattr(study.privacy, "noise_multiplier", 0.0))
    )
    assert made.said(frames.Welcome("run")) == []
    yield made
    outbox.close()
    site.ledgers.close()


BEYOND: dict[str, dict[str, Any]] = {
    "another clip": {"clip": 9.0, "noise_multiplier": 1.0},
    "less noise": {"clip": 1.0, "noise_multiplier": 0.01},
    "a clip alone": {"clip": 1.0},
    "more steps": {"steps": 3},
    "no steps": {"steps": 0},
    "a probe": {"probe": np.zeros(21, np.float32)},
    "the first gradient": {"wants_first": True},
    "the loss": {"loss_bound": 1.0},
    "an order": {"order": 8.0},
    "a shape": {"shape": (1.0, 2.0)},
    "round 0 of none": {"round": 9, "number": 9},
    "another round": {"round": 2, "number": 1},
    "NaN": {"weights": np.full(21, np.nan, np.float32)},
    "another model": {"weights": np.zeros(4, np.float32)},
}


def test_every_field_of_a_task_is_tried() -> None:
    """A new field of a task must be one that a site holds against the study."""
    tried = {key for changes in BEYOND.values() for key in changes} - {"number"}
    assert tried == set(Train.__struct_fields__) - {"loss_noise"}  # nothing without a loss_bound


@pytest.mark.parametrize("attack", BEYOND)
def test_a_site_refuses_what_was_not_agreed_and_books_nothing(attack: str, victim: Victim) -> None:
    other = dict(BEYOND[attack])
    number = other.pop("number", 1)
    body = victim.train(**{"number": number, **other}).body
    (answer,) = victim.said(Ask(number, body))
    assert isinstance(answer, frames.Refuse)
    assert answer.why
    assert [row.why for row in victim.watch.rows] == [answer.why]
    assert victim.log() == [("server", "task", answer.why)]
    assert victim.entries() == 0
    (good,) = victim.said(victim.train())
    assert isinstance(good, Say)


def test_a_site_says_the_same_again_and_nothing_else_under_one_number(victim: Victim) -> None:
    (first,) = victim.said(victim.train())
    booked = victim.entries()
    (again,) = victim.said(victim.train())
    assert again == first
    (refusal,) = victim.said(victim.train(weights=np.ones(21, np.float32)))
    assert isinstance(refusal, frames.Refuse)
    assert "second task" in refusal.why
    assert victim.log() == [("server", "second task", refusal.why)]
    assert victim.entries() == booked
    assert isinstance(victim.said(victim.train(3))[0], Say)
    (past,) = victim.said(victim.train(2))
    assert isinstance(past, frames.Refuse)
    assert "asked task 3 before" in past.why
    assert victim.entries() == 2 * booked


def test_a_server_says_first_of_which_run_it_speaks(victim: Victim) -> None:
    """Else the answers would be missing in the digest that the site signs at the end."""
    victim.desk.welcomed = False  # a connection begins
    for frame in (
        victim.train(),
        frames.Book(1, written(Gaussian(1.0))),
        frames.Bye("over", np.zeros(victim.dimension, "<f4").tobytes()),
    ):
        assert victim.said(frame) == []  # passed over, as what was meant for an earlier connection
    assert victim.entries() == victim.desk.answers.progress.sent == 0
    assert victim.desk.moment.ended is None
    assert victim.said(frames.Welcome("run")) == []
    assert isinstance(victim.said(victim.train())[0], Say)


@pytest.mark.parametrize("victim", ["haar"], indirect=True)
@pytest.mark.parametrize("shape", [(1.0,), (1.0,) * 7, (np.inf,) * 6, (np.nan,) * 6, (1e308,) * 6])
def test_a_site_refuses_a_shape_that_no_noise_has(shape: tuple[float], victim: Victim) -> None:
    (refusal,) = victim.said(victim.train(shape=shape))
    assert isinstance(refusal, frames.Refuse)
    assert "no noise has the shape" in refusal.why
    assert victim.entries() == 0
    assert isinstance(victim.said(victim.train(shape=(1.0,) * 6))[0], Say)


@pytest.mark.parametrize("victim", ["client"], indirect=True)
def test_no_answer_is_left_when_the_run_is_over(victim: Victim) -> None:
    """It has no noise yet, and nobody but its owner may read it before."""
    train = victim.train(clip=0.3, noise_multiplier=1.0)
    (said,) = victim.said(train)
    assert isinstance(said, Say)
    folder = victim.desk._site.folder
    assert any(said.body in (folder / name).read_bytes() for name in NAMES)
    assert all((folder / name).stat().st_mode & 0o777 == 0o600 for name in NAMES)
    before = victim.desk.answers.progress
    bye = frames.Bye("over", np.zeros(victim.dimension, "<f4").tobytes())
    assert victim.said(bye) == [frames.Done()]
    assert not any(said.body[-40:] in (folder / name).read_bytes() for name in NAMES)
    after = victim.desk.answers.progress
    assert after.sent == (None if victim.desk._world.regime.secret else before.sent)
    assert after.number == before.number


@pytest.mark.parametrize(
    "frame",
    [
        frames.encode(frames.Bye("over", b"\x00" * 7)),
        frames.encode(frames.Bye("over", np.full(21, np.inf, "<f4").tobytes())),
        frames.encode(Ask(1, b"")),
        frames.encode(Ask(1, encode(Compute(1, 0, np.zeros(21, np.float32))))),
        frames.encode(Ask(1, encode(Update(0, 1, 2, np.zeros(21, np.float32))))),
        frames.encode(frames.Book(1, written(Gaussian(1.0)))),
        frames.encode(frames.Book(1, "no event")),
    ],
)
def test_a_site_refuses_frames_that_make_no_sense(frame: bytes, victim: Victim) -> None:
    (answer,) = victim.said(frame)
    assert isinstance(answer, frames.Refuse)
    over = b"bye" in frame  # the run has ended all the same, and nobody asks again
    assert (victim.desk.moment.ended is None) != over
    (logged,) = victim.log()
    assert answer.why.startswith(logged[2][:40])
    assert victim.entries() == 0


@pytest.mark.parametrize(
    "frame", [b"", b"\xc1", frames.encode(frames.Done()), frames.encode(frames.Book(-1, "{}"))]
)
def test_a_frame_that_cannot_be_read_ends_the_connection(frame: bytes, victim: Victim) -> None:
    with pytest.raises(Lost, match="could not be read"):
        victim.said(frame)
    ((who, what, _),) = victim.log()
    assert (who, what, victim.entries()) == ("server", "unreadable", 0)


@pytest.mark.parametrize("victim", ["client"], indirect=True)
def test_a_site_books_no_round_but_the_agreed_one(victim: Victim) -> None:
    world = victim.desk._world
    regime: Any = world.regime
    noise = regime.method.round_noise(regime.method.start(regime.terms), regime.terms, 1)
    event = regime.aggregator.event(noise)
    for wrong in (
        frames.Book(1, written(Gaussian(9.0))),
        frames.Book(99, written(event)),
        frames.Book(0, written(event)),
    ):
        assert isinstance(victim.said(wrong)[0], frames.Refuse)
    assert victim.entries() == 0
    for _ in range(2):
        assert victim.said(frames.Book(1, written(event))) == [frames.Booked(1)]
    assert victim.entries() == 1
    assert world.regime.objection_to_round(Book(1, event)) is None


@pytest.mark.parametrize("victim", ["synchronous", "asynchronous", "client"], indirect=True)
def test_mutated_frames_of_a_server_release_nothing_unbooked(victim: Victim) -> None:
    dice, asked = random.Random(3), victim.desk._world
    weights = np.zeros(victim.dimension, np.float32)
    unit = type(asked).__name__
    task = Compute(1, 0, weights) if unit == "Arrivals" else Train(1, 2, weights)
    valid = [
        frames.encode(each)
        for each in (
            Ask(1, encode(task)),
            frames.Book(1, written(Gaussian(1.0))),
            frames.Bye("over", weights.tobytes()[:-1]),
        )
    ]
    sent: set[int] = set()
    for _ in range(1_000):
        frame = bytearray(dice.choice(valid))
        for _ in range(dice.randint(1, 3)):
            frame[dice.randrange(len(frame))] = dice.randrange(256)
        answers: list[FromSite] = []
        with suppress(Lost):
            answers = victim.said(bytes(frame))
        for answer in answers:
            assert isinstance(answer, frames.Refuse | Say | frames.Booked)
            if isinstance(answer, Say):
                sent.add(answer.number)
    assert victim.entries() >= len(sent) / (1 if unit != "Arrivals" else 30)
    assert len(victim.watch.rows) <= 1_100
    assert "the final model" in plain(victim.desk.moment.ended or "the final model")
