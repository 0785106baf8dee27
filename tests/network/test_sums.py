"""Secure sums between sites: exact whoever drops out, and shut to a server that lies."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec import UNSET

from cases import CLIENT
from cases import study_of as case_of
from federations import Hand, read_incidents, study_of
from memory import MemoryLine, Net
from sordino.base import residues
from sordino.base.errors import RemoteProtocolError, StudyError
from sordino.base.message import Masked, Train
from sordino.clients.division import examples, federation
from sordino.clients.regime import of
from sordino.core.effect import Book, Open, Summed
from sordino.core.kernel import Kernel
from sordino.core.run import session
from sordino.mechanisms.secure.messages import Included, KeyList, Keys, Signatures, decode, encode
from sordino.mechanisms.secure.server import Opened, Void
from sordino.network import certificates, frames, kit, sums
from sordino.network.kit import KEYS, Agreed
from sordino.network.secure_client import SecureSumClient
from sordino.network.site import JoinOptions, promised, site_of
from sordino.network.storage import AnswerStore, Journal, SiteProgress
from sordino.network.sums import Sums
from sordino.privacy import Permit
from sordino.regimes.synchronous.records import SynchronousRound
from sordino.training.local import SummedLocalClient

from .conftest import Makes
from .test_kills import Fate, _torn_input, _torn_slot

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

FOUR = ["privacy.honest=3", "privacy.epsilon=1e6"]


class Seen:
    """What sites put into sums, and what came out: the test looks where no server can."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.parts: dict[tuple[int, int], list[set[bytes]]] = {}
        self.sums: list[tuple[Open, Summed]] = []
        masked, summed = SecureSumClient.masked, Sums.summed

        def puts(own: SecureSumClient, kept: SiteProgress, answer: Any, shares: bytes) -> Any:
            found = masked(own, kept, answer, shares)
            said = self.parts.setdefault((own.index, answer.round), [set(), set()])
            said[0].add(answer.values)
            said[1] |= {each.values for each in found if isinstance(each, Masked)}
            return found

        def opens(own: Sums, done: Opened | Void) -> Summed:
            assert own.opening is not None
            self.sums.append((own.opening, summed(own, done)))
            return self.sums[-1][1]

        patch.setattr(SecureSumClient, "masked", puts)
        patch.setattr(Sums, "summed", opens)

    def exact(self) -> int:
        """How many sums were opened, each of them what its sites have put into it."""
        opened = 0
        for effect, told in self.sums:
            if not told.clients:
                continue
            assert told.clients == effect.clients
            total = np.zeros_like(told.values)
            for site in told.clients:
                raw, hidden = self.parts[site, told.number]
                assert len(raw) == len(hidden) == 1  # said again, it is the same
                total += residues.unpacked(next(iter(raw)), len(total), 32)
                assert raw != hidden
            assert (total % 2**32).tolist() == told.values.tolist()
            assert effect.values.tolist() != told.values.tolist()
            opened += 1
        return opened


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        *(("shared", phase) for phase in (1, 3)),
        *(("shared-client", phase) for phase in (2, 4)),
        *(pytest.param("shared", phase, marks=pytest.mark.nightly) for phase in (2, 4)),
        *(pytest.param("shared-client", phase, marks=pytest.mark.nightly) for phase in (1, 3)),
    ],
)
def test_a_site_that_drops_out_in_any_step_is_recovered_from(
    name: str, phase: int, federate: Makes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a round with all four, site-1 vanishes: when it is asked for its shares, its masked input,
    its signature or its own shares of others; it comes back later and is in a sum again.
    """
    seen = Seen(monkeypatch)
    found = federate(name, [*FOUR, "budget.rounds=20000"], minimum=1, clients=4)
    send, gone = MemoryLine.send, list[int]()

    def sends(own: MemoryLine, frame: bytes) -> None:
        said = frames.to_server(frame)
        now = isinstance(said, frames.Stepped) and said.phase == phase
        now = now or (phase == 2 and isinstance(said, frames.Say))
        four = found.kernels and found.kernels[-1].state.cohort == 4
        if now and four and own._name == "site-1" and not gone:
            gone.append(said.number)  # type: ignore[union-attr]
            own._net.stopped.add("site-1")
            own._net.drop("site-1", "")
        send(own, frame)

    monkeypatch.setattr(MemoryLine, "send", sends)
    found.start()
    found.until(lambda: gone)
    found.until(lambda: any(told.number > gone[0] + 1 for _, told in seen.sums))
    found.threads.pop("site-1").join(10)
    found.net.stopped.discard("site-1")
    found.start("site-1")
    last = max(told.number for _, told in seen.sums)
    found.until(lambda: any(1 in told.clients and told.number > last for _, told in seen.sums))
    assert seen.exact() > 2
    (then,) = [told for _, told in seen.sums if told.number == gone[0]]
    assert then.clients == ((0, 1, 2, 3) if phase > 2 else (0, 2, 3))
    assert all(told.clients for _, told in seen.sums)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (1, 2))]
)
def test_killed_anywhere_every_sum_is_exact(
    seed: int, federate: Makes, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = federate("shared", [*FOUR, "budget.rounds=12"], minimum=1, clients=4)
    with monkeypatch.context() as patch:
        seen, fate = Seen(patch), Fate(seed=seed, kills=12, every=40)
        fate.threatens(patch, Journal, "append", _torn_input)
        fate.threatens(patch, AnswerStore, "save", _torn_slot)
        fate.threatens(patch, Net, "send")
        fate.threatens(patch, MemoryLine, "send")
        fate.threatens(patch, SecureSumClient, "step")
        found.start()
        found.wait(120)
    assert sum(found.kills.values()) >= 8, fate.where
    assert set(found.done) == {"server", *found.names}
    models = {(found.folder(each) / "model.safetensors").read_bytes() for each in found.done}
    assert len(models) == 1
    # noise of the study's seed: who is killed before he has kept it computes the same again
    assert seen.exact() > 3, [told.clients for _, told in seen.sums]


Lie = Callable[[Sums, int, Any], Any]


def _forged(own: Sums, site: int, told: Any) -> Any:
    """Another key for client 1, for everybody but client 1."""
    if not isinstance(told, KeyList) or site == 1:
        return told
    changed = [
        msgspec.structs.replace(each, mask=bytes(31) + b"\x42") if each.client == 1 else each
        for each in told.keys
    ]
    return KeyList(told.round, tuple(changed))


def _smaller(own: Sums, site: int, told: Any) -> Any:
    """Sets of two."""
    two = tuple(sorted((site, (site + 1) % 4)))
    return Included(told.round, two) if isinstance(told, Included) else told


def _different(own: Sums, site: int, told: Any) -> Any:
    """A set without client 3 for client 0 and client 1."""
    if isinstance(told, Included) and site < 2:
        return Included(told.round, (0, 1, 2))
    return told


def _unsigned(own: Sums, site: int, told: Any) -> Any:
    """Signatures of which one is another's."""
    if isinstance(told, Signatures):
        return Signatures(told.round, told.signers, told.signatures[::-1])
    return told


@pytest.mark.parametrize(
    ("lie", "why", "who"),
    [
        (_forged, "client 1: keys that its certificate has not signed", {0, 2, 3}),
        (_smaller, "of fewer than 3 is not opened", {0, 1, 2, 3}),
        (_different, "it has signed another set, or none", {0, 1}),
        (_unsigned, "has not signed the set that this client has signed", {0, 1, 2, 3}),
    ],
)
def test_a_server_that_lies_opens_nothing(
    lie: Lie, why: str, who: set[int], federate: Makes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server shows sites something else than it should; it is refused, and that is named."""
    seen = Seen(monkeypatch)
    monkeypatch.setattr(sums, "FAILURES", 10)  # it blames who has signed what it has not shown
    real = Sums._ask

    def asks(own: Sums, site: int, number: int, phase: int, body: bytes) -> None:
        out = lie(own, site, decode(body))
        real(own, site, number, phase, encode(out))

    monkeypatch.setattr(Sums, "_ask", asks)
    found = federate("shared", [*FOUR, "budget.rounds=3"], minimum=4, clients=4)
    found.start()
    found.wait()
    assert seen.exact() == 0
    if lie is _different:  # the server itself finds that these signatures are of another set
        told = {each.site for each in read_incidents(found.server) if why in each.detail}
    else:
        told = {
            name
            for name in found.names
            if any(why in each.detail for each in read_incidents(found.folder(name)))
        }
    assert told == {f"site-{i}" for i in who}
    rounds = [row for row in found.rows["server"] if isinstance(row, SynchronousRound)]
    assert [row.snr for row in rounds] == [UNSET] * 3  # nothing was released


@pytest.mark.parametrize("deadline", [None, 2.0])
def test_a_site_that_is_silent_in_a_step_is_left_out(
    deadline: float | None, federate: Makes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sums, "STEP", 0.3 if deadline is None else 60.0)
    seen = Seen(monkeypatch)
    ends = [] if deadline is None else [f"participation.deadline={deadline}"]
    found = federate("shared", [*FOUR, *ends, "budget.rounds=3"], minimum=4, clients=4)
    found.start("server", "site-0", "site-1", "site-2")
    found.until(lambda: found.net.listens)
    hand = Hand(found, "site-3")
    hand.hello()
    found.wait(60, "site-0", "site-1", "site-2")
    assert {told.clients for _, told in seen.sums} == {(0, 1, 2)}
    assert seen.exact() == 3
    assert (
        found.kernels[-1].session.sites[3].refused["its step of a secure sum has not come in time"]
    )


def test_steps_that_do_not_fit_leave_their_site_out_and_are_counted(
    federate: Makes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sums, "FAILURES", 10)
    found = federate("shared", [*FOUR, "budget.rounds=4"], minimum=1, clients=4)
    found.start("server", "site-0", "site-1", "site-2")
    found.until(lambda: found.net.listens)
    hand = Hand(found, "site-3")
    hand.hello()
    bad = (
        b"\xc1",
        encode(KeyList(1, ())),
        encode(Keys(0, 2, b"", b"", b"", b"")),
        encode(Keys(3, 4, bytes(32), bytes(32), bytes(32), b"")),
    )
    for number, body in enumerate(bad, start=1):
        step = hand.get(frames.Step)
        while step.number < number:
            step = hand.get(frames.Step)
        hand.send(frames.Stepped(step.number, 3, body))  # of another phase: not even looked at
        hand.send(frames.Stepped(step.number, 0, body))
    found.wait(60, "site-0", "site-1", "site-2")
    refused = found.kernels[-1].session.sites[3].refused
    assert refused["a step of a secure sum that nobody waits for"] == 4
    for why in (
        "could not be read",
        "no step of a secure sum: KeyList",
        "it speaks for client 0 and is client 3",
        "client 3: a public key of small order",
    ):
        assert any(why in each for each in refused), (why, refused)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_steps_whose_bytes_were_changed_do_no_harm(
    seed: int, federate: Makes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every twelfth step has other bits, on the way to a site or from it: whoever gets it refuses,
    or the sum is void; every sum that is opened is exact, and the run goes on to its end.
    """
    seen, dice = Seen(monkeypatch), random.Random(seed)
    send, answer = Net.send, MemoryLine.send

    def changed(frame: bytes, found: Any) -> bytes:
        if not isinstance(found, frames.Step | frames.Stepped) or dice.random() > 1 / 12:
            return frame
        data = bytearray(found.body or b"\0")
        for _ in range(dice.randint(1, 3)):
            data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
        return frames.encode(msgspec.structs.replace(found, body=bytes(data)))

    monkeypatch.setattr(sums, "FAILURES", 1000)  # the server cannot know that it was the way
    monkeypatch.setattr(
        Net, "send", lambda own, site, frame: send(own, site, changed(frame, frames.to_site(frame)))
    )
    monkeypatch.setattr(
        MemoryLine, "send", lambda own, frame: answer(own, changed(frame, frames.to_server(frame)))
    )
    found = federate("shared", [*FOUR, "budget.rounds=30"], minimum=1, clients=4)
    found.start()
    found.wait(120)
    assert len([row for row in found.rows["server"] if isinstance(row, SynchronousRound)]) == 30
    assert seen.exact() > 3


def test_a_site_says_the_same_again_and_nothing_about_the_past(federate: Makes) -> None:
    found = federate("shared", FOUR, clients=4)
    folder, _ = found.laid.sites[0]
    agreed = Agreed(folder)
    own = SecureSumClient(
        agreed=agreed,
        index=0,
        summing=_summing(agreed),
        dimension=3,
        pair=certificates.read_pair(folder, "site"),
    )
    kept = SiteProgress(run="r", number=4)
    for number in (0, -1):  # no other error: it would end the site
        with pytest.raises(RemoteProtocolError, match=f"there is no round {number}"):
            own.step(kept, _invitation(number))
    kept, first = own.step(kept, _invitation(5))
    assert own.step(kept, _invitation(5)) == (kept, first)
    for number in (3, 4):
        with pytest.raises(Exception, match=f"round {number} is over"):
            own.step(kept, _invitation(number))
    with pytest.raises(Exception, match="to whose sum this site has sent no keys"):
        own.step(kept, frames.Step(6, 3, encode(Included(6, (0, 1, 2)))))
    with pytest.raises(Exception, match="a step of another round than its frame"):
        own.step(kept, frames.Step(5, 3, encode(Included(6, (0, 1, 2)))))
    with pytest.raises(Exception, match="no step of the server"):
        own.step(kept, frames.Step(5, 0, first))
    with pytest.raises(Exception, match="a task without the shares of its sum"):
        own.masked(kept, Masked(0, 5, bytes(12)), encode(Included(5, ())))
    kept, other = own.step(kept, _invitation(7))
    assert other != first
    with pytest.raises(Exception, match="round 5 is over"):
        own.step(kept, _invitation(5))


def _invitation(number: int) -> frames.Step:
    from sordino.mechanisms.secure.messages import Invitation

    return frames.Step(number, 0, encode(Invitation(number)))


def _summing(agreed: Agreed) -> Any:
    from sordino.core import regimes

    return regimes.of(agreed.study).summing(agreed.study)


@pytest.mark.parametrize(
    ("name", "kills"),
    [
        ("shared", 5),
        *(
            pytest.param(*each, marks=pytest.mark.nightly)
            for each in (("shared", 0), ("shared-client", 0), ("shared-client", 5))
        ),
    ],
)
def test_a_script_with_drop_outs_ends_with_the_model_of_the_simulation(
    name: str, kills: int, federate: Makes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some answers never come or come too late, some rounds are void; the server is killed."""
    world = ["participation.deadline=2.0", "world.dropout=0.2", "world.rejoin=0.5"]
    changes = [*FOUR, *world, "budget.rounds=12", "privacy.epsilon=1e6"]
    found = federate(name, [*changes, "execution.checkpoint_every=1"], clients=4)
    found.scripted = True
    with monkeypatch.context() as patch:
        seen, fate = Seen(patch), Fate(seed=kills, kills=kills, every=25)
        fate.threatens(patch, Journal, "append", _torn_input)
        fate.threatens(patch, Kernel, "tell")
        fate.threatens(patch, Net, "send")
        found.start()
        found.wait(120)
    assert found.kills.get("server", 0) >= kills // 2
    study = study_of(tmp_path / "own", name, changes, clients=4)
    session.begin(study, tmp_path / "alone", lambda row: None, lambda going: None)
    wanted = (tmp_path / "alone" / "model.safetensors").read_bytes()
    assert (found.server / "model.safetensors").read_bytes() == wanted
    sizes = {len(told.clients) for _, told in seen.sums}
    assert seen.exact() > 3
    assert sizes == {3, 4}


def test_kits_hold_the_public_keys_of_all_sites(federate: Makes, tmp_path: Path) -> None:
    import datetime as dt

    found = federate("shared", FOUR, clients=4)
    folders = [found.laid.server, *(folder for folder, _ in found.laid.sites)]
    assert len({(folder / KEYS).read_bytes() for folder in folders}) == 1
    agreed = [Agreed(folder) for folder in folders]
    assert len({each.digest for each in agreed}) == 1
    pair = certificates.read_pair(folders[2], "site")  # of site 1
    assert [agreed[0].verify(i, b"x", certificates.signed(pair, b"x")) for i in range(-1, 5)] == [
        i == 1 for i in range(-1, 5)
    ]
    # a new certificate is for the same key, which everybody knows
    authority, now = folders[0].parent / kit.AUTHORITY, dt.datetime.now(dt.UTC)
    before = (folders[2] / "site.pem").read_bytes()
    kit.renew(authority, "site-1", folders[2], now)
    again = certificates.read_pair(folders[2], "site")
    assert (folders[2] / "site.pem").read_bytes() != before
    assert again.key.private_numbers() == pair.key.private_numbers()
    with pytest.raises(StudyError, match="this is the kit of site-1, whose key would be lost"):
        kit.renew(authority, "site-0", folders[2], now)
    keys = (folders[2] / KEYS).read_bytes()
    (folders[2] / KEYS).write_bytes(keys[178:] + keys[:178])
    with pytest.raises(StudyError, match="its key is not the one of site-1"):
        kit.renew(authority, "site-1", folders[2], now)
    (folders[2] / KEYS).write_bytes(keys)
    # of a key that was revoked there is no new certificate
    kit.revoke(authority, "site-1", now)
    with pytest.raises(StudyError, match="provision the study again with --authority"):
        kit.renew(authority, "site-1", folders[2], now)
    # of the new key that it gets then, there is
    kit.write(agreed[0].agreement, agreed[0].study, tmp_path / "anew", now, authority)
    kit.renew(authority, "site-1", tmp_path / "anew" / "site-1", now)
    # other keys are another agreement
    keys = (folders[1] / KEYS).read_bytes()
    (folders[1] / KEYS).write_bytes(keys[178:] + keys[:178])
    assert Agreed(folders[1]).digest != agreed[0].digest
    with pytest.raises(StudyError, match=r"another key than the one of site-0 .* renew"):
        site_of(Agreed(folders[1]))
    (folders[1] / KEYS).write_bytes(b"-----BEGIN PUBLIC KEY-----\nx\n-----END PUBLIC KEY-----\n")
    with pytest.raises(StudyError, match="cannot be read"):
        Agreed(folders[1])
    assert "keys.pem" not in {p.name for p in federate("synchronous").laid.server.iterdir()}


def test_the_plan_of_joining_says_what_the_server_sees(federate: Makes) -> None:
    told = {}
    for fewest in (3, 4):
        changes = ["privacy.honest=2", f"privacy.fewest={fewest}"]
        kit_, data = federate("shared", changes, clients=4).laid.sites[0]
        told[fewest] = "\n".join(promised(JoinOptions(kit=kit_, data=data)))
        assert f"the sum of {fewest} sites or more, once in a round" in told[fewest]
        assert "Against whom: This holds even" in told[fewest]
        assert f"no sum of fewer than {fewest} of the 4 clients" in told[fewest]
    assert "even if one of the other sites helps it." in told[3]
    assert "even if 2 other sites help it." in told[4]
    kit_, data = federate("shared", clients=2).laid.sites[0]
    assert "off nothing else." in "\n".join(promised(JoinOptions(kit=kit_, data=data)))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (["privacy.honest=2"], "together must be more than 4"),
        (["privacy.honest=1", "privacy.fewest=3"], "together must be more than 4"),
    ],
)
def test_sums_that_a_server_could_split_are_refused(
    changes: list[str], why: str, federate: Makes
) -> None:
    with pytest.raises(StudyError, match=why):
        federate("shared", changes, clients=4)
    federate("shared", ["privacy.honest=2", "privacy.fewest=3"], clients=4)


def test_whether_a_site_is_drawn_does_not_show_in_its_work(
    federate: Makes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server sees how long an answer takes: every site works in every round."""
    seen, trained, train = Seen(monkeypatch), set[tuple[int, int]](), SummedLocalClient.train

    def trains(own: SummedLocalClient, asked: Train) -> Any:
        trained.add((own.index, asked.round))
        return train(own, asked)

    monkeypatch.setattr(SummedLocalClient, "train", trains)
    found = federate("shared-client", [*FOUR, "budget.rounds=20000"], clients=4)
    found.start()
    found.until(lambda: len(seen.sums) > 5)
    assert trained >= seen.parts.keys()


def test_a_site_that_forgot_its_answer_is_charged_for_another(tmp_path: Path) -> None:
    """Its ledger stayed and its outbox did not: the noise is drawn anew, and so is the charge."""
    changes = [*CLIENT, 'privacy.noise="shared"', "privacy.entropy=system"]
    study: Any = case_of(("synchronous", "dp-fedavg", changes), tmp_path)
    divided = replace(federation(examples(study)), remote=True)
    said, keys = [], []
    for booked in (True, False):  # the first life is told of the round before, as usual
        world: Any = of(study).assembled(study, divided, tmp_path, "run", None, mine=1).simulation
        rules = world.regime
        noise = rules.method.round_noise(rules.method.start(rules.terms), rules.terms, 1)
        weights = np.zeros(rules.terms.dimension, np.float32)
        asked = Train(1, 5, weights, clip=noise.clip, noise_multiplier=noise.noise_multiplier)
        permits: tuple[Permit, ...] = ()
        if booked:
            told = world.round_requests(1, Book(1, rules.priced(noise)))
            permits = world.ledgers.charge([each.charge for each in told], world.budget)
        requests = world.site_requests(1, asked, permits)
        permits += world.ledgers.charge([each.charge for each in requests], world.budget)
        said.append(world.answer(1, 1, asked, permits).values)
        keys.append([each.key for each in world.ledgers.ledger.entries()])
        world.ledgers.close()
    assert said[0] != said[1]
    assert [len(each) for each in keys] == [1, 2]
    assert keys[1][0] == keys[0][0]
