"""Nothing leaves without a permit, and what left is what the ledger holds: every method, form,
regime and kind of ledger.

Spies stand on every class that releases something. What they have seen leave, by unit and event, is
held against the ledger: never more than it holds at that time, and at the end equal to it, but for
tasks that were paid for and never answered, and for what edges have reserved and not worked off.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import pytest

import sordino
from cases import CLIENT, METHODS, MORE, SAMPLE, Case, study_of
from permitted import permit
from sordino.base.errors import LocalProtocolError
from sordino.base.message import Train
from sordino.clients.world import HorizontalWorld
from sordino.core import regimes as builder
from sordino.core.kernel import Kernel
from sordino.core.prepared import UNIT, PaidEvaluation
from sordino.privacy import (
    Allowance,
    Event,
    Gaussian,
    Grouped,
    LedgerSession,
    NonPrivate,
    Permit,
    Repeated,
    covers_one,
    covers_round,
)
from sordino.privacy.permit import unpacked
from sordino.regimes.asynchronous import assemble
from sordino.regimes.asynchronous.assemble import BlockWorld, LiteralEdge, PlainEdge, PrivateEdge
from sordino.regimes.synchronous import aggregate
from sordino.regimes.synchronous.aggregate import PrivateSum, SharedSum
from sordino.regimes.vertical.halves import Engine, Party
from sordino.regimes.vertical.regime import ENTITIES, LABELS, features, label, party_unit, units
from sordino.regimes.vertical.run import Events
from sordino.regimes.vertical.stream import LabelRandomizer
from sordino.training import client, local
from sordino.training.client import PlainClient, PrivateClient
from sordino.training.local import LocalClient, NoisyModelClient, SummedClient, SummedLocalClient

AGAIN = [  # 30 rows, each of which comes twice or more
    'data={file="FILE", parties=2}',
    "budget.events=80",
    "privacy.epsilon=8",
    "privacy.delta=1e-5",
    "privacy.unit=label",
    "privacy.memoised=false",
    "privacy.appearances=2",
]
SHARED = 'privacy.noise="shared"'
CASES: dict[str, Case] = {
    **METHODS,
    **MORE,
    "dp-sgd/shared": ("synchronous", "dp-sgd", [*SAMPLE, "method.tau=1", SHARED]),
    "dp-fedavg/shared": ("synchronous", "dp-fedavg", [*CLIENT, SHARED]),
    "dlr/labels told anew": ("vertical", "dlr", AGAIN),
}
Left = Counter[tuple[str, Event]]


class Watch:
    """Keeps nothing."""

    def row(self, row: dict[str, Any]) -> None: ...

    def due(self, number: int, ended: str | None) -> bool:
        return True

    def save(self, moment: Any) -> None: ...


def study(name: str, folder: Path, *changes: str) -> Any:
    regime, method, own = CASES[name]
    rng = np.random.default_rng(1)
    lines = [
        "a,b,c,label",
        *(",".join([*(f"{v:.5f}" for v in rng.normal(size=3)), str(i % 3)]) for i in range(30)),
    ]
    (folder / "rows.csv").write_text("\n".join(lines))
    return study_of(
        (regime, method, [change.replace("FILE", str(folder / "rows.csv")) for change in own]),
        folder,
        changes,
    )


class Spies:
    """On everything that releases. ``world`` is who plays the run, as soon as it is known."""

    def __init__(self) -> None:
        self.world: Any = None
        self.left: Left = Counter()
        self.asked: Counter[tuple[int, int]] = Counter()  # tasks that nobody has answered
        self.tasks: dict[tuple[int, int], Train] = {}
        # how often each unit released something of each entity
        self.seen: dict[str, Counter[Any]] = {}

    def leaves(self, unit: str, event: Event, count: int = 1) -> None:
        """Something has left: the ledger holds it, and all before it, by now."""
        self.left[unit, event] += count
        assert self.left[unit, event] <= dict(self.world.ledgers.spent(unit)).get(event, 0)

    def client(self, client: Any, task: Train, permits: Any) -> None:
        self.asked[client.index, task.round] -= 1
        for event, count in client.price(task):
            self.leaves(self.world.units[client.index], event, count)

    def edge(self, edge: Any, task: Any, permit: Any) -> None:
        self.leaves(self.world.units[edge.index], edge.price)

    def sum(self, one: PrivateSum, answers: Any, contract: Any, *rest: Any) -> None:
        for unit in dict.fromkeys(self.world.units):
            self.leaves(unit, one.event(contract))

    def opened(self, one: SharedSum, values: Any, clients: Any, contract: Any) -> None:
        for unit in dict.fromkeys(self.world.units) if one.whole else ():
            self.leaves(unit, one.event(contract))

    def evaluation(self, one: PaidEvaluation, *told: Any) -> None:
        self.leaves(UNIT, one.mechanism.event())

    def rows(self, unit: str, x: Any) -> None:
        self.seen.setdefault(unit, Counter()).update(
            np.ascontiguousarray(row).tobytes() for row in x
        )

    def embed(self, one: Party, event: int, x: Any, active: bool, paid: Any) -> None:
        self.rows(one.unit, x.numpy())

    def whole(self, engine: Engine, x: Any, *rest: Any) -> None:
        for m, columns in enumerate(self.world.activity.columns):
            self.rows(party_unit(m), x[:, columns])

    def respond(
        self, one: LabelRandomizer, labels: Any, entities: Any, places: Any, paid: Any
    ) -> None:
        self.seen.setdefault(LABELS, Counter()).update(entities.tolist())

    def sent(self, kernel: Any, site: int, task: Any) -> None:
        if isinstance(task, Train):
            self.asked[site, task.round] += 1
            self.tasks[site, task.round] = task


SITES: dict[type[Any], tuple[str, str]] = {  # what releases, by which method, and its spy
    PrivateClient: ("answer", "client"),
    SummedClient: ("answer", "client"),
    PlainClient: ("answer", "client"),
    NoisyModelClient: ("answer", "client"),
    PlainEdge: ("answer", "edge"),
    PrivateEdge: ("answer", "edge"),
    LiteralEdge: ("answer", "edge"),
    PrivateSum: ("release", "sum"),
    SharedSum: ("released", "opened"),
    PaidEvaluation: ("release", "evaluation"),
    Party: ("embed", "embed"),
    Engine: ("run", "whole"),
    LabelRandomizer: ("__call__", "respond"),
}


@contextmanager
def spied() -> Iterator[Spies]:
    """Spies everywhere."""
    spies = Spies()

    def wrapped(do: Callable[..., Any], spy: Callable[..., None]) -> Callable[..., Any]:
        def does(*told: Any, **named: Any) -> Any:
            found = do(*told, **named)
            spy(*told)
            return found

        return does

    with pytest.MonkeyPatch.context() as patch:
        for kind, (method, spy) in SITES.items():
            patch.setattr(kind, method, wrapped(getattr(kind, method), getattr(spies, spy)))
        patch.setattr(Kernel, "dispatch", wrapped(Kernel.dispatch, spies.sent))
        yield spies


def held(ledgers: LedgerSession) -> Left:
    """What the ledger holds, by the ledger's own names of units."""
    found: Left = Counter()
    for name in set(ledgers.names.values()):
        for event, count in ledgers.ledger.spent(name):
            found[name, event] += count
    return found


def named(left: Left, ledgers: LedgerSession) -> Left:
    found: Left = Counter()
    for (unit, event), count in left.items():
        found[ledgers.names[unit], event] += count
    return found


def horizontal(spies: Spies, world: Any, end: Any) -> None:
    """Rounds and arrivals."""
    left, booked = named(spies.left, world.ledgers), held(world.ledgers)
    assert isinstance(world, HorizontalWorld)
    if not isinstance(world, BlockWorld):
        unanswered: Left = Counter()
        for (site, number), open_ in spies.asked.items():
            if open_ > 0 and not world.charges_everybody:
                unanswered.update(
                    {
                        (world.units[site], event): count
                        for event, count in world.clients[site].price(spies.tasks[site, number])
                    }
                )
        assert left + named(unanswered, world.ledgers) == booked
        return
    block = world.block
    assert set(left) <= set(booked)
    for i, unit in enumerate(world.units):
        key = world.ledgers.names[unit], world.clients[i].price
        assert (
            left[key]
            <= end.state.given[i]
            <= booked[key]
            <= end.state.given[i] + block + block // 4
        )
    assert {event for _, event in booked} <= {each.price for each in world.clients}


def vertical(spies: Spies, world: Events, full: Any) -> None:
    """Events: the ledger holds what the entity released that released most; where nothing bounds a
    release, that there was one.
    """
    expected: Left = Counter()

    def most(unit: str, event: Event, *, memoised: bool = False) -> int:
        found = max(spies.seen[unit].values())
        return 1 if memoised or full.privacy.unit == "none" else found

    for m in range(full.data.parties):
        expected[party_unit(m), features(full)] += most(party_unit(m), features(full))
        expected[ENTITIES, Repeated(features(full), full.data.parties)] = most(
            party_unit(m), features(full)
        )
    for unit in (LABELS, ENTITIES):
        expected[unit, label(full)] += most(LABELS, label(full), memoised=full.privacy.memoised)
    assert set(spies.seen) == set(units(full)) - {ENTITIES}
    assert named(expected, world.ledgers) == held(world.ledgers)


def holds(name: str, folder: Path, *changes: str) -> None:
    """The contract: play a case, and compare what left with what the ledger holds."""
    with spied() as spies:
        asked = study(name, folder, *changes)
        built = builder.build(asked, folder, "run")
        world: Any = built.simulation
        spies.world = world
        try:
            end = world.run(built.first, Watch())
            assert end.ended is not None
            if isinstance(world, Events):
                vertical(spies, world, built.study)
            else:
                horizontal(spies, world, end)
            world.ledgers.ledger.verify()
        finally:
            world.ledgers.close()


BY_DAY = ("dp-sgd", "ali-dpfl", "dp-fedavg", "audp", "mapa", "slr/label", "dlr/entity")
"""Cases of every regime and unit that are charged to a ledger of the data; all others to the run's
own; each to both at night.
"""


@pytest.mark.parametrize(
    ("name", "ledger"),
    [
        pytest.param(
            name,
            ledger,
            marks=() if (ledger == "data") == (name in BY_DAY) else pytest.mark.nightly,
        )
        for name in CASES
        for ledger in ("run", "data")
    ],
)
def test_what_left_is_what_the_ledger_holds(name: str, ledger: str, tmp_path: Path) -> None:
    kept = () if ledger == "run" else (f'privacy.ledger="{tmp_path / "kept"}"',)
    holds(name, tmp_path, *kept)


KINDS: dict[str, tuple[str, str]] = {  # a case in which something is released, and on which unit
    "PrivateClient": ("dp-sgd", "client:0"),
    "PrivateClient, raw constants": ("ali-dpfl/paper", "client:2"),
    "PlainClient": ("fedavg", "client:1"),
    "NoisyModelClient": ("pe-dpfl/paper", "client:0"),
    "LocalClient and PrivateSum": ("dp-fedavg", "clients"),
    "PrivateEdge": ("mapa", "client:0"),
    "PlainEdge": ("asgd", "client:0"),
    "LiteralEdge": ("audp/paper", "client:1"),
    "LabelRandomizer": ("dlr/label", LABELS),
    "LabelRandomizer, as they are": ("ogd", LABELS),
    "LabelRandomizer, all of an entity": ("dlr/label", ENTITIES),
    "Party": ("dlr/entity", party_unit(1)),
    "Party, without a price": ("slr/deformed", party_unit(0)),
    "Party, all of an entity": ("dlr/entity", ENTITIES),
    "Engine": ("slr/label", party_unit(0)),
}


def forgetful(unit: str) -> Callable[..., Any]:
    """Booking that leaves out the last charge on a unit, once."""
    book, done = Kernel.book, list[str]()

    def books(kernel: Any, requests: Sequence[Any]) -> Any:
        found = [i for i, request in enumerate(requests) if request.charge.unit == unit]
        if found and not done:
            done.append(unit)
            requests = [request for i, request in enumerate(requests) if i != found[-1]]
        return book(kernel, requests)

    return books


@pytest.mark.parametrize("kind", list(KINDS))
def test_whoever_is_not_booked_refuses_to_work(kind: str, tmp_path: Path) -> None:
    name, unit = KINDS[kind]
    with (
        mock.patch.object(Kernel, "book", forgetful(unit)),
        pytest.raises(LocalProtocolError, match="the ledger charged"),
    ):
        holds(name, tmp_path)


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_permit_of_another_unit_is_no_permit(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Booked is the right charge, and what is handed out is a permit of somebody else's data."""
    name, unit = KINDS[kind]
    charge = LedgerSession.charge

    def charges(ledgers: LedgerSession, charges: Any, budget: Any) -> Any:
        found = charge(ledgers, charges, budget)
        other = next((name for name in ledgers.names if name != unit), "client:another")
        return [each.named(other) if each.unit == unit else each for each in found]

    monkeypatch.setattr(LedgerSession, "charge", charges)
    with pytest.raises(LocalProtocolError, match="the ledger charged"):
        holds(name, tmp_path)


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_release_that_is_not_booked_shows(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of somebody who does not ask for a permit either."""
    name, unit = KINDS[kind]
    for module in (client, local, assemble, aggregate):
        for check in ("covers_round", "covers_one"):
            if hasattr(module, check):
                monkeypatch.setattr(module, check, lambda *told: None)
    monkeypatch.setattr(Allowance, "covers", lambda *told: None)
    monkeypatch.setattr(Kernel, "book", forgetful(unit))
    with pytest.raises(AssertionError):
        holds(name, tmp_path)


def test_an_evaluation_on_private_rows_needs_a_permit_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    charge, first = LedgerSession.charge, list[Any]()

    def charges(ledgers: LedgerSession, charges: Any, budget: Any) -> Any:
        if charges[0].unit == UNIT and first:
            return first[0]
        found = charge(ledgers, charges, budget)
        first.extend([found] if charges[0].unit == UNIT else [])
        return found

    monkeypatch.setattr(LedgerSession, "charge", charges)
    with pytest.raises(LocalProtocolError, match="not for this evaluation"):
        holds("dp-sgd/cnn, private share", tmp_path)
    monkeypatch.setattr(PaidEvaluation, "release", lambda one, *told: 0.5)
    (tmp_path / "again").mkdir()
    first.clear()
    with pytest.raises(AssertionError):
        holds("dp-sgd/cnn, private share", tmp_path / "again")


def classes(*modules: ModuleType) -> set[type[Any]]:
    found = set()
    for module in modules:
        found |= {
            each
            for _, each in inspect.getmembers(module, inspect.isclass)
            if each.__module__ == module.__name__
        }
    return found


def test_every_class_that_answers_is_watched() -> None:
    """A class that is new must get a spy here."""
    answering = {
        each
        for each in classes(client, local, assemble)
        if "answer" in vars(each) and not getattr(each, "_is_protocol", False)
    }
    kinds = {*SITES, LocalClient, SummedLocalClient}
    assert answering == kinds & classes(client, local, assemble)
    # a sum opens what its clients have sent, and it is they who need permits
    for kind in (*(set(SITES) - {SharedSum}), LocalClient, SummedClient, SummedLocalClient):
        told = inspect.signature(getattr(kind, SITES.get(kind, ("answer", ""))[0])).parameters
        assert {"permit", "permits", "paid"} & set(told), kind


# Permits themselves


def test_only_a_ledger_makes_permits() -> None:
    good = permit(Gaussian(noise_multiplier=1.0), 3)
    with pytest.raises(LocalProtocolError, match="a permit comes from the ledger"):
        Permit("client:0", good.event, 3, 1, "key", 1, "digest")
    with pytest.raises(LocalProtocolError, match="a permit comes from the ledger"):
        Permit("client:0", good.event, 3, 1, "key", 1, "digest", object())
    source = Path(sordino.__file__).parent
    makers = {
        path.name
        for path in source.rglob("*.py")
        if re.search(r"permit import .*\bissue\b|\bissue\(", path.read_text())
    }
    assert makers == {"ledger.py", "permit.py"}


def test_a_permit_that_went_to_a_worker_is_the_same() -> None:
    first = permit(Gaussian(noise_multiplier=1.0), 3)
    for one in (replace(first, new=True), replace(first, new=False)):
        there = unpacked(one.packed())
        assert (there, there.new) == (one, one.new)


def test_a_permit_covers_just_what_was_booked() -> None:
    event: Event = Gaussian(noise_multiplier=1.0)
    other: Event = Grouped(event=event, size=2)
    one, block = permit(event, 2, 5), permit(event, 4, 7)
    covers_round("client:0", [one], [(event, 2)], 5)
    covers_round("client:0", [one, permit(other, 1, 5)], [(event, 2), (other, 1)], 5)
    for permits, price, number in (
        ([], [(event, 2)], 5),
        ([], [], 5),
        ([one], [(event, 1)], 5),
        ([one], [(event, 3)], 5),
        ([one], [(other, 2)], 5),
        ([one], [(event, 2)], 6),
        ([one], [(event, 2), (event, 2)], 5),
        ([one, one], [(event, 2)], 5),
    ):
        with pytest.raises(LocalProtocolError, match="the ledger charged"):
            covers_round("client:0", permits, price, number)
    for number in (7, 10):
        covers_one("client:0", block, event, number)
    for wrong, what, number in (
        (None, event, 7),
        (block, other, 7),
        (block, event, 6),
        (block, event, 11),
    ):
        with pytest.raises(LocalProtocolError, match="the ledger charged"):
            covers_one("client:0", wrong, what, number)
    with pytest.raises(LocalProtocolError, match="client:1 would release"):
        covers_round("client:1", [one], [(event, 2)], 5)
    with pytest.raises(LocalProtocolError, match="the work of client:1 would release"):
        covers_one("client:1", block, event, 7)
    both = Allowance([one, block], releases=6)
    both.covers("client:0", event)
    for unit, what, times in (
        ("client:0", event, 7),
        ("client:1", event, 1),
        ("client:0", NonPrivate(reason="x"), 1),
    ):
        with pytest.raises(LocalProtocolError, match="the ledger charged"):
            both.covers(unit, what, times)
