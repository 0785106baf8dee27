"""A site's or a server's folder that is copied at any step and put back: no two inputs under one
mask, no second set, no single input, and no noise under two contents.
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from federations import Hand, laid
from memory import Killed
from sordino.base import residues
from sordino.base.logs import log_to
from sordino.base.message import Contribution, Derivative, Masked, Train, Turn, decode, encode
from sordino.mechanisms.gaussian import Single
from sordino.mechanisms.secure.messages import Included, Invitation, Revealed, Signatures
from sordino.mechanisms.secure.messages import decode as said
from sordino.mechanisms.secure.messages import encode as packed
from sordino.mechanisms.secure.server import Sum
from sordino.network import demo, frames, secure_client, storage
from sordino.network.kit import Agreed
from sordino.network.secure_client import SecureSumClient, setting
from sordino.network.site import JoinOptions, opened, prepare_site
from sordino.network.site_session import SiteSession
from sordino.network.storage import AnswerStore
from sordino.privacy import Ledger
from sordino.privacy import encode as written

from .conftest import Makes
from .test_events_between_sites import ENTITY, read
from .test_machine_failures import lives, slope
from .test_restarts_of_rounds_and_arrivals import TASKS, Nobody, life

SITES, STEPS = 4, 6
ALL = frozenset(range(SITES))


class Lives:
    """Sites of one federation, on their own folders and on copies, and a server that is played by
    hand.

    Attributes:
        inputs: of each site, what went under masks and what came out, in each of its lives.
        opened: of whom shares of the private key were revealed.
    """

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        changes = ["privacy.honest=3", "privacy.epsilon=1e6"]
        self.laid = laid(folder, "shared", changes, clients=SITES, scripted=False)
        self.folder, self.open = folder, list[tuple[Any, AnswerStore]]()
        self.inputs: dict[int, list[tuple[Any, Any]]] = defaultdict(list)
        self.opened: set[int] = set()
        masked = SecureSumClient.masked

        def puts(own: SecureSumClient, kept: Any, answer: Any, shares: bytes) -> Any:
            found = masked(own, kept, answer, shares)
            (hidden,) = [each for each in found if isinstance(each, Masked)]
            raw, out = (residues.unpacked(m.values, own.dimension, 32) for m in (answer, hidden))
            self.inputs[own.index].append((raw, out))
            return found

        patch.setattr(SecureSumClient, "masked", puts)

    def life(self, site: int, copy: str = "own") -> SiteSession:
        """A process of a site."""
        kit, data = self.laid.sites[site]
        _, index, study, own = opened(JoinOptions(kit=kit, data=data))
        build = prepare_site(
            agreed=Agreed(kit),
            index=index,
            own=own,
            connects=_no_line,
            log=log_to(lambda text: None),
        )
        folder = self.at(site, copy)
        folder.mkdir(parents=True, exist_ok=True)
        built = build(study, folder, "run", None)
        first: Any = built.first
        outbox = AnswerStore(folder)
        self.open.append((built.simulation, outbox))
        desk = SiteSession(self.open[-1][0], first, Nobody(), outbox)
        assert list(desk.said(frames.encode(frames.Welcome("run")))) == []
        return desk

    def at(self, site: int, copy: str) -> Path:
        """A folder of a site."""
        return self.folder / copy / str(site)

    def copied(self, copy: str) -> None:
        """Copy the folders of all sites, as they stand."""
        shutil.copytree(self.folder / "own", self.folder / copy)

    def task(self, desk: SiteSession, value: float = 0.0) -> bytes:
        """The round's task, for a model of this number alone."""
        rules: Any = desk._world.regime
        noise = rules.method.round_noise(rules.method.start(rules.terms), rules.terms, 1)
        weights = np.full(desk.dimension, value, np.float32)
        asked = Train(1, 1, weights, clip=noise.clip, noise_multiplier=noise.noise_multiplier)
        return encode(asked)

    def step(self, desk: SiteSession, phase: int, message: Any) -> Any:
        """What a site says to a step; None where it declines."""
        (answer,) = desk.said(frames.encode(frames.Step(1, phase, packed(message))))
        assert isinstance(answer, frames.Stepped)
        found = said(answer.body) if answer.body and not answer.why else None
        if isinstance(found, Revealed):
            self.opened |= {each for each, _ in found.keys}
        return found

    def ask(self, desk: SiteSession, shares: Any, value: float = 0.0) -> Any:
        """What a site says to the task; None where it declines."""
        frame = frames.Ask(1, self.task(desk, value), b"", packed(shares))
        (answer,) = desk.said(frames.encode(frame))
        if not isinstance(answer, frames.Say):
            return None
        return decode(answer.body, dimension=desk.dimension)

    def bare(self) -> bool:
        """Whether two masked inputs of a site differ by what two inputs differ."""
        return any(
            (raw != other).any() and (hidden - behind == raw - other).all()
            for known in self.inputs.values()
            for raw, hidden in known
            for other, behind in known
        )

    def close(self) -> None:
        """End all processes."""
        for site, outbox in self.open:
            outbox.close()
            site.ledgers.close()


def _no_line(limit: int) -> Any:
    raise AssertionError("a desk knows no connection")


@pytest.fixture
def sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lives]:
    """Lives of four sites."""
    found = Lives(tmp_path, monkeypatch)
    yield found
    found.close()


def played(sites: Lives) -> list[dict[int, Any]]:
    """An honest sum of four sites, whose folders are copied after each step: what the server told
    each in each phase.
    """
    desks = [sites.life(i) for i in range(SITES)]
    agreed = desks[0]._site.agreed
    summing = agreed.summing
    assert summing is not None
    facts = setting(agreed, summing, desks[0].dimension, "run", 1)
    sums = Sum(facts, agreed.verify, waiting=ALL)
    told: dict[int, Any] = dict.fromkeys(ALL, Invitation(1))
    every = [told]
    sites.copied("copy 0")
    for phase in range(5):
        answers = [
            sites.ask(desk, told[i]) if phase == 2 else sites.step(desk, phase, told[i])
            for i, desk in enumerate(desks)
        ]
        sites.copied(f"copy {phase + 1}")
        if phase == 2:
            parts = [residues.unpacked(m.values, desks[0].dimension, 32) for m in answers]
            sums = sums.counted(tuple(ALL), np.sum(parts, axis=0, dtype=np.uint32))
        else:
            for each in answers:
                sums = sums.received(each)
        done = sums.closed()
        if isinstance(done, tuple):
            sums, told = done[0], dict(done[1])
            every.append(told)
    return every


def test_a_copy_of_any_step_neither_masks_nor_signs_nor_reveals_again(sites: Lives) -> None:
    """Everything that the server said is said again to a process on each copy, the task with
    another model.
    """
    told = played(sites)
    ((_, first),) = sites.inputs[0]
    for step in range(STEPS):
        site = sites.life(0, f"copy {step}")
        keys = sites.step(site, 0, told[0][0])
        assert (keys is None) == (step > 0)  # a copy that knows of no sum has other keys
        assert keys not in told[1][0].keys
        assert sites.step(site, 1, told[1][0]) is None
        assert sites.ask(site, told[2][0], 1.0) is None
        again = sites.ask(site, told[2][0])
        assert (again is None) == (step < 3)
        assert again is None or again.values == residues.packed(first, 32)
        assert sites.step(site, 3, Included(1, (0, 1, 2))) is None
        assert sites.step(site, 3, told[3][0]) is None
        assert sites.step(site, 4, told[4][0]) is None


def test_two_inputs_never_lie_under_one_mask(sites: Lives) -> None:
    """Copied after its shares were dealt, and asked with another model."""
    told = played(sites)
    for step in range(STEPS):
        sites.ask(sites.life(0, f"copy {step}"), told[2][0], 1.0)
    assert not sites.bare()


def test_copies_of_three_sites_do_not_open_the_input_of_the_fourth(sites: Lives) -> None:
    """All were put back after their inputs had arrived. The server says now that the last one had
    dropped out: with the shares of its key beside those of its own mask, its input would be bare.
    """
    played(sites)
    three = (0, 1, 2)
    backs = [sites.life(i, "copy 3") for i in three]
    signed = [sites.step(desk, 3, Included(1, three)) for desk in backs]
    if all(signed):
        every = Signatures(1, three, tuple(each.signature for each in signed))
        for desk in backs:
            sites.step(desk, 4, every)
    assert sites.opened == set()
    assert signed == [None] * 3


def test_nothing_of_the_secrets_is_written_down(
    sites: Lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has a copy of the folder and all that was sent takes no mask off."""
    seed = b"thirty-two bytes that are secret"
    monkeypatch.setattr(secure_client, "secrets", SimpleNamespace(token_bytes=lambda count: seed))
    played(sites)
    files = [each for each in sites.folder.rglob("*") if each.is_file()]
    assert len(files) > 50
    assert not [each for each in files if seed in each.read_bytes()]


def test_two_processes_of_one_kit_have_masks_of_their_own(sites: Lives) -> None:
    """Both were begun before the sum, on copies of one folder."""
    one = sites.life(0)
    sites.copied("twin")
    keys = [sites.step(each, 0, Invitation(1)) for each in (one, sites.life(0, "twin"))]
    assert keys[0].client == keys[1].client
    assert len({key for each in keys for key in (each.encrypt, each.mask)}) == 4


def test_two_processes_on_one_ledger_of_the_data_pay_for_two_releases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On copies of one folder, they are told to book a round at once: the other one does between
    the question of the first and its transaction.
    """
    changes = ["privacy.honest=2", "privacy.fewest=2"]
    kit, data = laid(tmp_path, "shared-client", changes, scripted=False).sites[0]
    _, index, study, own = opened(JoinOptions(kit=kit, data=data, ledger=tmp_path / "ledger"))
    build = prepare_site(
        agreed=Agreed(kit), index=index, own=own, connects=_no_line, log=log_to(lambda text: None)
    )
    desks, charged = [], SiteSession._charged
    for name in ("own", "copy"):
        (tmp_path / name).mkdir()
        built: Any = build(study, tmp_path / name, "run", None)
        desks.append(
            SiteSession(built.simulation, built.first, Nobody(), AnswerStore(tmp_path / name))
        )
        assert list(desks[-1].said(frames.encode(frames.Welcome("run")))) == []
    rules: Any = desks[0]._world.regime
    noise = rules.method.round_noise(rules.method.start(rules.terms), rules.terms, 1)
    book = frames.encode(frames.Book(1, written(rules.priced(noise))))
    weights = np.zeros(desks[0].dimension, np.float32)
    task = Train(1, 2, weights, clip=noise.clip, noise_multiplier=noise.noise_multiplier)

    def late(desk: SiteSession, requests: Any) -> Any:
        if desk is desks[0] and not desks[1].answers.progress.booked:
            assert list(desks[1].said(book)) == [frames.Booked(1)]
        return charged(desk, requests)

    monkeypatch.setattr(SiteSession, "_charged", late)
    assert list(desks[0].said(book)) == [frames.Booked(1)]
    for desk in desks:
        desk._pay(task)
        assert isinstance(desk._answered(task), Masked)
        desk.answers.close()
        desk._site.ledgers.close()
    with Ledger.open(tmp_path / "ledger" / "ledger.sqlite", readonly=True) as ledger:
        assert [each.round for each in ledger.entries()] == [1, 1]


@pytest.mark.parametrize("name", TASKS)
def test_a_copy_of_a_site_draws_noise_of_its_own(name: str, tmp_path: Path) -> None:
    """Asked for the same, a process on a copy from before says something else."""
    found = laid(tmp_path, name, scripted=False)
    said = []
    for folder in ("own", "copy"):
        (tmp_path / folder).mkdir()
        said.append(life(found, tmp_path / folder, name))
    assert said[0] != said[1]


def test_a_copy_of_a_party_covers_other_embeddings_with_other_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is put back after the first event and told another derivative; told the same one, it says
    the same bytes.
    """
    covered: list[tuple[Any, Any]] = []
    true = Single.release_rows

    def releases(own: Single, rows: torch.Tensor, draws: Any) -> torch.Tensor:
        found = true(own, rows, draws)
        covered.append((rows.clone(), found - rows))
        return found

    monkeypatch.setattr(Single, "release_rows", releases)
    found = demo.lay_out(read(tmp_path, [ENTITY]), tmp_path / "federation", scripted=False)
    run = found.sites[0][0] / "run"
    lives(found, Turn(1))
    shutil.copytree(run, tmp_path / "copy")
    answers, updates, embeddings = [], [], []
    for size in (1.0, 1.0, -1.0):
        shutil.rmtree(run)
        shutil.copytree(tmp_path / "copy", run)
        values = (np.frombuffer(slope(1).values, "<f4") * size).astype("<f4").tobytes()
        (answer,) = lives(found, Turn(2, derivative=Derivative(0, 1, 32, values)))
        answers.append(answer)
        updates.append(covered[-2])
        embeddings.append(covered[-1])
    assert answers[0] == answers[1] != answers[2]
    for (same, noise), (again, covers), (other, fresh) in (updates, embeddings):
        assert torch.equal(same, again)
        assert torch.equal(noise, covers)
        assert not torch.equal(same, other)
        assert float((noise - fresh).abs().max()) > 1e-2


def test_that_a_party_hides_the_same_again_is_not_seen(tmp_path: Path) -> None:
    """Put back and told another derivative, it has other noise, also where its embedding is the
    same, as that of a frozen half is: equal bytes would tell what a private row makes of it.
    """
    frozen = ENTITY.replace('updates="noisy"', 'updates="frozen"')
    found = demo.lay_out(read(tmp_path, [frozen]), tmp_path / "federation", scripted=False)
    run = found.sites[0][0] / "run"
    lives(found, Turn(1))
    shutil.copytree(run, tmp_path / "copy")
    answers = []
    for size in (1.0, 1.0, -1.0):
        shutil.rmtree(run)
        shutil.copytree(tmp_path / "copy", run)
        values = (np.frombuffer(slope(1).values, "<f4") * size).astype("<f4").tobytes()
        answers += lives(found, Turn(2, derivative=Derivative(0, 1, 32, values)))
    assert answers[0] == answers[1] != answers[2]


@pytest.mark.parametrize("content", [b"", bytes(200), None])
def test_a_party_whose_journal_is_lost_goes_on_with_another_history(
    content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers nothing that it may have answered, however often it is started; then a copy that
    is told something else has other noise.
    """
    monkeypatch.setattr(storage, "STEP", 2)
    frozen = ENTITY.replace('updates="noisy"', 'updates="frozen"')
    found = demo.lay_out(read(tmp_path, [frozen]), tmp_path / "federation", scripted=False)
    run = found.sites[0][0] / "run"
    lives(found, Turn(1))
    if content is None:
        (run / storage.JOURNAL).unlink()
    else:
        (run / storage.JOURNAL).write_bytes(content)
    for _ in range(2):
        assert lives(found, Turn(2, derivative=slope(1))) == [frames.Refuse(4, frames.FORGOTTEN)]
    assert isinstance(lives(found, Turn(3))[0], frames.Say)
    shutil.copytree(run, tmp_path / "copy")
    answers = []
    for size in (1.0, 1.0, -1.0):
        shutil.rmtree(run)
        shutil.copytree(tmp_path / "copy", run)
        values = (np.frombuffer(slope(3).values, "<f4") * size).astype("<f4").tobytes()
        told = Turn(4, derivative=Derivative(0, 3, 32, values))
        answers.append(lives(found, told, Turn(4, True))[-1])
    assert answers[0] == answers[1] != answers[2]


@pytest.mark.parametrize("again", [1e-3, 0.0])
def test_a_copy_of_a_server_covers_what_it_gets_again_with_other_noise(
    again: float, federate: Makes, tmp_path: Path
) -> None:
    """Its folder is put back from the middle of a round, and sites that hide what they know send
    other updates, or the same ones: neither the difference of two updates nor that nobody else was
    in the sum may be seen.
    """
    changes = ["privacy.sampling_rate=1.0", "privacy.epsilon=1e6", "execution.checkpoint_every=1"]
    found = federate("client", changes, minimum=3, scripted=False)
    back: list[bool] = []

    def told(kernel: Any) -> None:
        if back == [True]:
            back.append(False)
            shutil.rmtree(found.server)
            shutil.copytree(tmp_path / "copy", found.server)
            raise Killed

    found.told = told
    found.start("server")
    models: list[Any] = []
    for size in (0.0, again):
        found.until(lambda: found.net.listens)
        hands = [Hand(found, name) for name in found.names]
        for hand in hands:
            hand.hello()
        asks = list(_asked(hands))
        if not models:
            shutil.copytree(found.server, tmp_path / "copy")
        for hand, ask in zip(hands, asks, strict=True):
            reply = hand.reply(ask)
            assert isinstance(reply, Contribution)
            hand.answer(ask, delta=np.full_like(reply.delta, size))
        task = decode(next(_asked(hands)).body, dimension=21)
        assert isinstance(task, Train)
        models.append(task.weights)
        back.append(True)
        for hand in hands:
            hand.line.close()
        found.until(lambda: found.kills)
    assert float(np.abs(models[1] - models[0]).max()) > 0.05


def _asked(hands: Sequence[Hand]) -> Iterator[frames.Ask]:
    """The next task of each, once it has booked the round."""
    for hand in hands:
        hand.send(frames.Booked(hand.get(frames.Book).number))
    for hand in hands:
        yield hand.get(frames.Ask)
