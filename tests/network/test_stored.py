"""Everything that a program of protocol 1 said over a network or kept of it: every later version
that speaks this protocol reads it, and writes the same bytes.

``python tests/network/test_stored.py`` stores it anew below ``tests/golden``: for a new protocol,
beside what is there.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np
import pytest

from federations import read_incidents
from sordino.base import PROTOCOL
from sordino.base import message as base
from sordino.base.errors import LedgerError, RemoteProtocolError
from sordino.base.message import Message
from sordino.live import federation as states
from sordino.mechanisms.secure import messages as secure
from sordino.network import certificates, frames, kit, storage
from sordino.network import proof as proofs

STORED = Path(__file__).parents[1] / "golden" / f"protocol-{PROTOCOL}"
SITE: list[frames.FromSite] = [
    frames.Hello(1, "a" * 64, "0123456789abcdef", 7, 3, (9, b"seal"), (2, b"")),
    frames.Say(7, b"answer"),
    frames.Booked(3),
    frames.Stepped(3, 1, b"keys"),
    frames.Refuse(7, "no budget is left"),
    frames.Done(),
]
SERVER: list[frames.FromServer] = [
    frames.Welcome("run-1"),
    frames.Ask(7, b"task", b"seal", b"shares"),
    frames.Book(3, "event", b"seal"),
    frames.Step(3, 1, b"keys"),
    frames.Reject("it has agreed to something else"),
    frames.Bye("the study has ended", b"\0\0\x80\x3f"),
]
W = np.array([1.0, -0.5, 0.25], np.float32)
MESSAGES: list[Message] = [
    base.Train(1, 2, W),
    base.Train(2, 3, W, True, W, 1.5, 0.75, 8.0, (0.5, 2.0), 4.0, 0.125),
    base.Update(1, 2, 3, W),
    base.Update(
        *(1, 2, 3, W, base.Statistics(1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 0.5, 0.25), W),
        raw=base.Raw(0.5, 0.25, W),
    ),
    base.Contribution(0, 4, 2, W, True),
    base.Masked(2, 4, b"\1\2\3"),
    base.Compute(9, 8, W),
    base.Compute(9, 8, W, 1.25),
    base.Gradient(0, 9, 8, W),
    base.Query(5),
    base.Embedding(1, 5, True, 32, W.tobytes()),
    base.Derivative(1, 5, 16, b"\0\x3c"),
    base.Labels(5, (0, 2)),
    base.Turn(6),
    base.Turn(6, True, base.Derivative(1, 5, 16, b"\0\x3c"), True),
    base.Passive(2, 5),
    base.TrainInOrder(1, 2, W, taken=3),
]
KEYS = secure.Keys(1, 7, b"e" * 32, b"m" * 32, b"c" * 32, b"signature")
SUMS: list[secure.Message] = [
    secure.Invitation(7),
    KEYS,
    secure.KeyList(7, (KEYS, KEYS)),
    secure.Shares(1, 7, (b"sealed",), (b"p" * 64, b"q" * 64)),
    secure.Delivered(7, (0, 2), (b"zero", b"two")),
    secure.MaskedInput(1, 7, b"\1\2\3"),
    secure.Included(7, (0, 1, 2)),
    secure.Signed(1, 7, b"signature"),
    secure.Signatures(7, (0, 1), (b"a", b"b")),
    secure.Revealed(1, 7, (b"mask",), ((2, b"key"),)),
    secure.Unopened(1, 7, (0, 2)),
]
INPUTS = [
    storage.Input(1, 0.0, "up", 0),
    storage.Input(2, 0.5, "booked", 0, number=1),
    storage.Input(3, 0.75, "message", 0, b"body", 1),
    storage.Input(4, 1.0, "step", 1, b"", 1),
    storage.Input(5, 1.5, "down", 1),
    storage.Input(6, 2.0, "there", 1),
    storage.Input(7, 2.5, "refused", 1, b"no budget", 2),
    storage.Input(8, 3.0, "woke", 0, b"round 2"),
    storage.Input(9, 3.5, "ahead", 0, number=12),
    storage.Input(10, 4.0, "stop", 0, b"the run was stopped"),
]
KEPT = [
    storage.SiteProgress("run-1", 7, "b" * 64, None, 6, 3, (7, b"seal"), (3, b"due"), 2),
    storage.SiteProgress("run-1", 7, "b" * 64, b"answer", 7, 3, (7, b"seal"), (3, b"due"), 2),
]
STATUS = states.Status(
    *(1, "trial", "run-1", 2, 8, 1.5, 1),
    (
        states.SiteStatus("north", True, 2, 0.5, 1.25, 4.0, 100, 200, {"a reason": 1}),
        states.SiteStatus("south", False, None, None, None, None, 0, 0, {}, "out", 2, "long"),
    ),
    {"somebody: why": 3},
    None,
    "waiting for 1 more site; away: south",
)
STATEMENT = proofs.Statement("d" * 64, "run-1", "site-0", 7, 9, "e" * 64, 1.25, 1e-3, "rdp")


def told() -> dict[str, dict[str, list[str]]]:
    return {
        "frames.json": {
            "to server": [frames.encode(each).hex() for each in SITE],
            "to site": [frames.encode(each).hex() for each in SERVER],
        },
        "messages.json": {
            "of tasks": [base.encode(each).hex() for each in MESSAGES],
            "of sums": [secure.encode(each).hex() for each in SUMS],
        },
    }


def write_journal(folder: Path) -> None:
    own = storage.Journal(folder)
    for each in INPUTS:
        own.append(each)
    own.close()


def write_outbox(folder: Path) -> None:
    own = storage.AnswerStore(folder)
    for each in KEPT:
        own.save(each)
    own.close()


def store() -> None:
    """Store everything; of two kits all but the private keys, which nobody reads here."""
    from federations import STUDIES
    from sordino.core import study as studies
    from sordino.network import demo

    STORED.mkdir(parents=True)
    for name, found in told().items():
        (STORED / name).write_text(json.dumps(found, indent=1) + "\n")
    with TemporaryDirectory() as name:
        text = STUDIES["shared"].replace('file = "DATA"', 'name = "digits"')
        text = text.replace('test = "none"', "")
        path = Path(name, "study.toml")
        path.write_text(text.replace("CLIENTS", "3"))
        laid = demo.lay_out(studies.read(path), Path(name, "laid"), scripted=False)
        kits = laid.server.parent
        pair = certificates.read_pair(kits / "site-0", "site")
        for name_ in ("server", "site-0"):
            ignored = shutil.ignore_patterns("*.key")
            shutil.copytree(kits / name_, STORED / "kits" / name_, ignore=ignored)
        with (STORED / "kits" / "digest").open("w") as file:
            file.write(kit.Agreed(kits / "server").digest + "\n")
    run = STORED / "run"
    run.mkdir()
    content = msgspec.json.encode(STATEMENT)
    signature = certificates.signed(pair, content)
    write_proof(run, content, pair.pem()[0], signature)
    write_journal(run)
    write_outbox(run)
    (run / "seals.key").write_bytes(bytes(range(32)))
    (run / "ahead.json").write_bytes(b'{"number":512,"boot":"another"}')
    (run / "status.json").write_bytes(msgspec.json.encode(STATUS))
    (run / "incidents.jsonl").write_bytes(
        b'{"time":"2026-01-01T00:00:00+00:00","site":"north","what":"norm","detail":"d","times":4}\n'
    )


def write_proof(run: Path, content: bytes, certificate: bytes, signature: bytes) -> None:
    import base64

    made = proofs.Proof(
        content.decode(), certificate.decode(), base64.b64encode(signature).decode()
    )
    (run / proofs.NAME).write_bytes(msgspec.json.format(msgspec.json.encode(made)))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A copy of the run folder: what opens it may write there."""
    return Path(shutil.copytree(STORED / "run", tmp_path / "run"))


def stored(name: str) -> Any:
    return json.loads((STORED / name).read_text())


def test_stored_frames_are_read_and_written_as_they_were() -> None:
    found = stored("frames.json")
    assert PROTOCOL == 1, "store what the new protocol says beside this"
    assert told()["frames.json"] == found
    assert [frames.to_server(bytes.fromhex(each)) for each in found["to server"]] == SITE
    assert [frames.to_site(bytes.fromhex(each)) for each in found["to site"]] == SERVER


def test_stored_messages_are_read_and_written_as_they_were() -> None:
    found = stored("messages.json")
    assert told()["messages.json"] == found
    assert [base.decode(bytes.fromhex(e), dimension=3) for e in found["of tasks"]] == MESSAGES
    assert [secure.decode(bytes.fromhex(each)) for each in found["of sums"]] == SUMS


def test_each_kind_is_stored() -> None:
    """A new kind of frame or message is stored as well."""
    for kinds, found in (
        (frames.FromSite | frames.FromServer, [*SITE, *SERVER]),
        (Message, MESSAGES),
        (secure.Message, SUMS),
    ):
        assert set(kinds.__args__) == {type(each) for each in found}


def test_a_stored_kit_is_read_and_its_agreement_has_the_same_digest() -> None:
    agreed = [kit.Agreed(STORED / "kits" / name) for name in ("server", "site-0")]
    assert {each.digest for each in agreed} == {(STORED / "kits" / "digest").read_text().strip()}
    assert agreed[0].agreement.names == ("site-0", "site-1", "site-2")
    for name in (kit.AGREEMENT, kit.STUDY):
        assert (STORED / "kits" / "server" / name).exists()
    again = kit.agreement_bytes(agreed[0].agreement)
    assert again == (STORED / "kits/server/agreement.toml").read_bytes()
    assert len(agreed[0].keys) == 3
    trusted = certificates.read_certificate(STORED / "kits" / "server", "authority.pem")
    empty: frozenset[int] = frozenset()
    assert certificates.read_revoked(STORED / "kits/server", trusted) == empty


def test_a_stored_proof_holds(run: Path) -> None:
    authority = STORED / "kits" / "server" / "authority.pem"
    assert proofs.verify(run, authority) == STATEMENT
    path = run / proofs.NAME
    path.write_text(path.read_text().replace('\\"answers\\":7', '\\"answers\\":8'))
    with pytest.raises(LedgerError, match="the signature is not of a site"):
        proofs.verify(run, authority)


def test_a_stored_journal_and_outbox_are_read_and_written_as_they_were(
    run: Path, tmp_path: Path
) -> None:
    own = storage.Journal(run)
    assert own.after(0) == INPUTS
    own.close()
    box = storage.AnswerStore(run)
    assert box.progress == KEPT[-1]
    box.close()
    write_journal(tmp_path)
    write_outbox(tmp_path)
    for name in (storage.JOURNAL, *storage.OUTBOX):
        assert (tmp_path / name).read_bytes() == (STORED / "run" / name).read_bytes(), name


def test_what_else_a_run_kept_is_read(run: Path) -> None:
    seals = storage.load_tokens(run, "run-1")
    assert seals.of("task", "north", 7).hex() == "d4b822e4b165cdb612c9e9fd4da6117f"
    assert storage.ReplayGuard(run).lost == 512
    assert states.read(run) == STATUS
    (line,) = read_incidents(run)
    assert (line.site, line.times) == ("north", 4)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    store()


@pytest.mark.parametrize(
    "frame",
    [
        frames.Ask(number=-1, body=b""),
        frames.Book(number=-1, event=""),
        frames.Step(number=1, phase=-1, body=b""),
        frames.Ask(number=2**60, body=b""),
    ],
    ids=["task", "round", "phase", "large"],
)
def test_a_number_that_no_log_can_hold_is_refused_where_the_frame_is_read(
    frame: frames.FromServer,
) -> None:
    """The site refused the task, wrote its number, and could read its own log no more."""
    with pytest.raises(RemoteProtocolError, match="Expected `int`"):
        frames.to_site(frames.encode(frame))
