"""The files in which the server and its sites write down what they must not forget.

The **journal**: everything that reached the server, written down before it is acted on. A server
that was killed reads its checkpoint, steps through the journal again, and stands where it stood. A
record is a header (length and CRC-32, 4 bytes each, the lowest first) and an :class:`Input` in
MessagePack. A last record that was torn by the kill is cut off: nobody has acted on it. When a
checkpoint was saved, the journal begins anew; a long one asks for a checkpoint. Where whole clients
are protected, it holds their updates without noise, as the server's memory does: it is readable by
its owner alone, and removed when the run is over. Inputs are numbered from 1 over the whole run,
and a checkpoint counts those that it holds. So a kill between checkpoint and cut does no harm: what
the checkpoint holds already is skipped.

The **answer store**: a site's last task and its answer, kept before it is sent. A site books a
task, computes, keeps the answer, and then sends it. Asked the same again, it says the same bytes
again; asked for something else under the same number or an earlier one, it refuses: two answers
under one charge, and under the same noise, would tell what the noise hides. Two slots are written
in turn, each with a counter and a CRC-32: a kill tears one of them at the most, and the other one
holds what stood before. A slot that says what was *taken* is written before the answer is computed,
one with the *answer* before it is sent. An answer may be without noise, where others protect it:
only its owner can read a slot, and when the run is over no answer is left.

The **replay guard**: a site's note of how far it may have answered, where its noise is numbered.

The **task block note**: what the next life of a process needs, where a site books tasks in blocks.

**Progress tokens**: proof of how far a server has gone, kept by its sites.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import hmac
import os
import secrets
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, NoReturn

import msgspec

from sordino.base.entropy import Transcript
from sordino.base.errors import ResumeError
from sordino.base.files import (
    KIB,
    append_below,
    open_below,
    own_folder,
    read_below,
    readable,
    there,
)
from sordino.base.frozen import Frozen
from sordino.core.files import replace_file
from sordino.core.plan import INPUTS
from sordino.core.plan import JOURNAL as JOURNAL_BYTES
from sordino.network.frames import Hello

JOURNAL = "journal.bin"
MOST_INPUTS, MOST_BYTES = INPUTS, JOURNAL_BYTES
"""A journal that holds more is to begin anew: a server steps through all of it when it is started
again.
"""
OUTBOX = ("outbox.0", "outbox.1")
NOTE, STEP = "ahead.json", 256
"""The file of the replay guard, and tasks between two notes."""
TOKENS, TOKEN_KEY = "seals.key", 32
_RECORD, _SLOT = struct.Struct("<II"), struct.Struct("<QII")
_MOST = 1 << 30
_TOKEN = 16
_BOOT = Path("/proc/sys/kernel/random/boot_id")
MEMORY = Path("/dev/shm")
"""Where files lie in memory."""
_encoder = msgspec.msgpack.Encoder()


Kind = Literal[
    "message",
    "step",
    "up",
    "down",
    "late",
    "there",
    "booked",
    "refused",
    "woke",
    "stop",
    "ahead",
    "history",
    "answered",
]


class Input(Frozen, forbid_unknown_fields=True, array_like=True):
    """Something that reached the server.

    Attributes:
        seq: its number, from 1.
        time: seconds since the run began.
        kind: a message of a site; its step in a secure sum, empty where it takes part in it no
            more; a site that has come, or is gone, or is left out for a while; one that was there
            when the journal began anew; one that has booked a round; one that refused a task; an
            alarm; that too few sites are left; that tasks were forgotten; the digest of what came
            before; the last task that a site had answered when the journal began anew.
        site: which, from 0; 0 for an alarm and the end.
        body: the message, the alarm's tag, or the reason (UTF-8); of a site that has come, the
            serial number of its certificate, where it is known; empty otherwise.
        number: of the round or the task; 0 otherwise.
    """

    seq: int
    time: float
    kind: Kind
    site: int = 0
    body: bytes = b""
    number: int = 0


_inputs = msgspec.msgpack.Decoder(Input)


def _packed(each: Input) -> bytes:
    body = _encoder.encode(each)
    return _RECORD.pack(len(body), zlib.crc32(body)) + body


def there_after(inputs: Sequence[Input]) -> set[int]:
    """Return the sites that are there after these inputs."""
    found: set[int] = set()
    for each in inputs:
        if each.kind in ("up", "there"):
            found.add(each.site)
        elif each.kind in ("down", "late", "refused"):
            found.discard(each.site)
    return found


class Journal:
    """The journal of a run folder.

    Args:
        durable: whether each input waits for the disk, so that it also outlives a power failure. A
            killed process loses none in either case.
        history: takes in every input that is acted on, and so is the same after a kill.
        lost: called before anything is written where inputs may be missing that were acted on:
            there are none, or some are damaged.

    Attributes:
        size: bytes of what is in it.
        damage: what was left out, in words: a record that a kill or the disk has damaged, and all
            that followed; empty where nothing was.
    """

    def __init__(
        self,
        folder: Path,
        *,
        durable: bool = False,
        history: Transcript | None = None,
        lost: Callable[[], object] | None = None,
    ) -> None:
        self.folder, self.durable, self.history = folder, durable, history
        self._intact = 0
        self._before = list(self._read())
        self._file = append_below(folder, JOURNAL)
        os.fchmod(self._file.fileno(), 0o600)
        left = os.fstat(self._file.fileno()).st_size - self._intact
        self.damage = f"its last {left} bytes are damaged, and left out" if left else ""
        if lost is not None and (left or not self._before):
            lost()
        self._file.truncate(self._intact)
        self._count, self.size = len(self._before), self._intact
        if history is not None and not self._before:
            self._begin(0, ())
            self._before = list(self._read())

    @property
    def large(self) -> bool:
        """True where a checkpoint is due, so that it can begin anew."""
        return self._count >= MOST_INPUTS or self.size >= MOST_BYTES

    def before(self, count: int) -> list[Input]:
        """The inputs up to number ``count`` that are still there: a kill came before the cut."""
        return [each for each in self._before if each.seq <= count]

    def after(self, count: int) -> list[Input]:
        """The inputs that came after the first ``count``, in order.

        Raises:
            ResumeError: if one is missing between.
        """
        found = [each for each in self._before if each.seq > count]
        for expected, each in enumerate(found, start=count + 1):
            if each.seq != expected or each.kind == "history":  # which is of what came before it
                raise ResumeError(
                    f"{self.folder / JOURNAL}: input {expected} is missing (found {each.seq}). "
                    "Restore the run folder from a copy"
                )
        return found

    def refuse_older(self, booked: int, number: int) -> NoReturn:
        """Refuse to go on: the ledger knows of a round that the journal does not lead to. A server
        that adds the noise numbers it by rounds: one that was released must not be released again
        with other answers in it.

        Raises:
            ResumeError: saying so.
        """
        raise ResumeError(
            f"{self.folder}: its ledger knows of round {booked}, and its journal leads to round "
            f"{number}: it is older, or a part of it is missing. What was released since would be "
            "released again with the same noise. Put back the journal that belongs to the ledger, "
            "or begin a new run"
        )

    def enter(self, inputs: Iterable[Input]) -> None:
        """Have the history take in inputs that are acted on now, for the first time or again."""
        if self.history is not None:
            for each in inputs:
                if each.kind == "history":
                    self.history.digest = each.body
                else:
                    self.history.add(_packed(each))

    def append(self, each: Input) -> None:
        """Write an input down."""
        body = _encoder.encode(each)  # may be long: it is not copied once more
        self._file.write(_RECORD.pack(len(body), zlib.crc32(body)))
        self._file.write(body)
        self._file.flush()
        self._count, self.size = self._count + 1, self.size + _RECORD.size + len(body)
        if self.durable:
            os.fdatasync(self._file.fileno())

    def cut(self, count: int, first: Sequence[Input]) -> None:
        """Begin anew with these inputs: a checkpoint holds everything up to number ``count``, but
        the history, which stands before them.
        """
        self._before = []
        self._begin(count, first)

    def _begin(self, count: int, first: Sequence[Input]) -> None:
        """Write a new file. A history that nothing was added to yet begins with a random number:
        inputs that are lost were not a part of it.
        """
        self._file.close()
        before = []
        if self.history is not None:
            self.history.digest = self.history.digest or secrets.token_bytes(32)
            before = [Input(count, 0.0, "history", body=self.history.digest)]
        packed = [_packed(each) for each in (*before, *first)]
        replace_file(self.folder / JOURNAL, *packed)
        self._count, self.size = len(packed), sum(map(len, packed))
        self._file = append_below(self.folder, JOURNAL)
        os.fchmod(self._file.fileno(), 0o600)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def destroy(self) -> None:
        """Close and remove the file: the run is over."""
        self._file.close()
        (self.folder / JOURNAL).unlink(missing_ok=True)

    def _read(self) -> Iterator[Input]:
        if not there(self.folder, JOURNAL):
            return
        with open_below(self.folder, JOURNAL) as file:
            while len(header := file.read(_RECORD.size)) == _RECORD.size:
                length, check = _RECORD.unpack(header)
                body = file.read(length) if length < _MOST else b""
                # a file system may leave zeros where a power failure lost what was written
                if not length or len(body) < length or zlib.crc32(body) != check:
                    return
                try:
                    found = _inputs.decode(body)
                except msgspec.MsgspecError as error:
                    raise ResumeError(
                        f"{self.folder / JOURNAL}: an input cannot be read ({error}). Restore the "
                        "run folder from a copy"
                    ) from error
                self._intact = file.tell()
                yield found


class SiteProgress(Frozen):
    """A site's knowledge of its last task. A field of an older version, such as the secrets of a
    secure sum (``sum``) or a digest of all answers (``chain``), is passed over.

    Attributes:
        run: the federation's run; empty before the first welcome.
        number: of the task; 0 before the first.
        task: SHA-256 (hex) of the task's bytes.
        answer: the answer's bytes; None while it is not computed.
        sent: how many answers there were, this one included; None where that is a secret.
        booked: the last round that was charged to everybody.
        asked, due: a task that was asked and a round that was to be booked, the last ones, with the
            server's tokens.
        begun: round of the last secure sum that it has sent keys for. Its secrets are in memory
            alone (:mod:`~sordino.network.secure_client`).
        unpaid: how often it has refused what its budget does not pay for, if it has.
        lost: how many lives in a row have ended between a task and its answer, if any.
    """

    run: str = ""
    number: int = 0
    task: str = ""
    answer: bytes | None = None
    sent: int | None = 0
    booked: int = 0
    asked: tuple[int, bytes] = (0, b"")
    due: tuple[int, bytes] = (0, b"")
    begun: int = 0
    unpaid: int | msgspec.UnsetType = msgspec.UNSET
    lost: int | msgspec.UnsetType = msgspec.UNSET

    @property
    def refusals(self) -> int:
        """The number of tasks that it has refused, because its budget does not pay for them."""
        return self.unpaid or 0

    def with_answer(self, number: int, task: str, answer: bytes) -> SiteProgress:
        """Return the progress once a task, with this digest, is answered."""
        told = {"number": number, "task": task, "answer": answer, "sent": (self.sent or 0) + 1}
        return msgspec.structs.replace(self, **told, lost=msgspec.UNSET)


_progress = msgspec.msgpack.Decoder(SiteProgress)


def digest(data: bytes) -> str:
    """SHA-256 (hex)."""
    return hashlib.sha256(data).hexdigest()


class AnswerStore:
    """The two slots of a site's folder.

    Args:
        durable: whether each slot waits for the disk, so that it also outlives a power failure.
            Without, an answer that was forgotten is booked again when it is computed again: its
            noise is drawn anew. Where noise is numbered, see :class:`ReplayGuard`.
    """

    def __init__(self, folder: Path, *, durable: bool = False) -> None:
        self._durable = durable
        found = [slot for name in OUTBOX if (slot := _read(folder, name))]
        if not found:
            here = (name for name in OUTBOX if there(folder, name))
            written = [name for name in here if (folder / name).stat().st_size]
            if written and written != [OUTBOX[1]]:  # that slot alone: the very first was torn
                raise ResumeError(
                    f"{folder / written[0]}: what this site said last cannot be read. Restore the "
                    "folder from a copy"
                )
        nothing = 0, SiteProgress()
        self._count, self.progress = max(found, key=lambda each: each[0], default=nothing)
        self._files = [append_below(folder, name) for name in OUTBOX]
        for file in self._files:
            fcntl.fcntl(file, fcntl.F_SETFL, 0)  # so that positioned writes are not put at the end
            os.fchmod(file.fileno(), 0o600)
        self._sizes = [os.fstat(file.fileno()).st_size for file in self._files]

    def save(self, progress: SiteProgress) -> None:
        """Write this beside what stood before."""
        body = _encoder.encode(progress)
        self._count += 1
        check = zlib.crc32(self._count.to_bytes(8, "little"), zlib.crc32(body))
        whole = _SLOT.pack(self._count, len(body), check) + body
        slot = self._count % 2
        handle = self._files[slot].fileno()
        if os.pwrite(handle, whole, 0) < len(whole):  # a disk that becomes full takes a part
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if len(whole) < self._sizes[slot]:
            os.ftruncate(handle, len(whole))  # of a longer one, nothing stays
        self._sizes[slot] = len(whole)
        if self._durable:
            os.fdatasync(handle)
        self.progress = progress

    def set_unsaved(self, progress: SiteProgress) -> None:
        """Have this stand in memory: a journal tells what came since the last :meth:`save`."""
        self.progress = progress

    def end(self, *, secret: bool = False) -> None:
        """The run is over: no answer is asked for again, and none is left on the disk; nor, where
        it is a ``secret`` who takes part, which task was the last one, or how often was written.
        """
        own = msgspec.structs.replace(self.progress, answer=None, unpaid=msgspec.UNSET)
        if secret:  # a task of any booked round is past now
            number = max(own.number, own.booked)
            own = msgspec.structs.replace(own, number=number, task="", asked=(0, b""), sent=None)
            self._count = 0
        for _ in OUTBOX:
            self.save(own)

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()


def _read(folder: Path, name: str) -> tuple[int, SiteProgress] | None:
    """Counter and content of a slot; None if it was torn or never written."""
    if not there(folder, name):
        return None
    with open_below(folder, name) as file:
        head = file.read(_SLOT.size)
        if len(head) < _SLOT.size:
            return None
        count, length, check = _SLOT.unpack(head)
        body = file.read(length) if length < _MOST else b""
    if len(body) < length or zlib.crc32(body + count.to_bytes(8, "little")) != check:
        return None
    try:
        return count, _progress.decode(body)
    except msgspec.MsgspecError:
        return None


class _Noted(Frozen, forbid_unknown_fields=True):
    """No task above ``number`` was answered before the system with this ``boot`` ended."""

    number: int = 0
    boot: str = ""


def _boot() -> str:
    """Return an identifier of this start of the system; empty where that is not told."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""


class ReplayGuard:
    """The note in a site's folder.

    Attributes:
        lost: tasks up to this number may have been answered and forgotten; 0 where nothing is.

    Raises:
        ResumeError: if the note cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._boot = folder, _boot()
        found = _Noted()
        if there(folder, NOTE):
            with readable(folder / NOTE, ResumeError, "Restore the folder from a copy"):
                found = msgspec.json.decode(read_below(folder, NOTE, most=KIB), type=_Noted)
        self._number = found.number
        self.lost = 0 if self._boot and found.boot == self._boot else found.number

    def forget(self, count: int) -> None:
        """Count all tasks up to the note as lost, now and until a later one is answered: of those
        after the first ``count`` nothing is known.

        Raises:
            ResumeError: if there were tasks, and no note says how far they went.
        """
        if count and not self._number:
            raise ResumeError(
                f"{self._folder}: {JOURNAL} is lost or damaged, and {NOTE} is missing: nobody "
                "knows what this site has answered. Restore the folder from a copy"
            )
        if self._number:
            self.lost = self._number
            replace_file(self._folder / NOTE, msgspec.json.encode(_Noted(self._number)))

    def note_before(self, number: int) -> None:
        """Call before a task with this number is answered."""
        if number > self._number:
            self._number = number + STEP
            noted = _Noted(self._number, self._boot)
            replace_file(self._folder / NOTE, msgspec.json.encode(noted))


class TaskBlockNote:
    """The progress of a site, and the key of the block, or the pass, in its ledger that its next
    tasks are in. The next life of the process goes on with that, however this one ends.

    The note lies in the machine's memory and is changed there before each task: a write to the disk
    for each would cost what a block saves. No copy of a folder holds it, so that no older note can
    be put back and have tasks answered again under the same charge; nor does it outlive the start
    of the machine. It is of one ledger (the file itself), and one process at a time holds it. Where
    that cannot be, nothing is known of the life before, and the rest of its block is lost.

    Args:
        ledger: the file.
        run: whose set of records it is, in a ledger of the data.

    Attributes:
        key: of the block of the life before; empty if that is not known.
        before: tasks, or steps of a pass, up to this number may have been taken under it.
    """

    def __init__(self, ledger: Path, run: str) -> None:
        self.key, self.before, self._file, self._boot = "", 0, -1, _boot()
        about, self._folder = ledger.stat(), MEMORY / f"sordino-{os.geteuid()}"
        self._name = digest(f"{about.st_dev} {about.st_ino} {run}".encode())
        if not self._boot:
            return
        with suppress(OSError), own_folder(self._folder, make=True) as held:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            self._file = os.open(self._name, flags, 0o600, dir_fd=held)
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                boot, number, key, *_ = (
                    (os.pread(self._file, KIB, 0) + b"\n\n").decode().split("\n")
                )
                if boot == self._boot:
                    self.key, self.before = key, int(number)
                self.save(self.key, self.before)  # takes the memory that later notes need
            except (OSError, ValueError):  # held by another process, or damaged
                self.close()
                self.key, self.before = "", 0

    def save(self, key: str, number: int) -> None:
        """Call before a task that ends with this number is booked and answered."""
        if self._file >= 0:
            # another block is of this life; or the note was of a ledger that lay here before
            most = max(number, self.before) if key == self.key else number
            os.pwrite(self._file, f"{self._boot}\n{most}\n{key}\n".encode(), 0)

    def close(self, *, over: bool = False) -> None:
        """Let go of the note; remove it where the run is over."""
        if self._file >= 0:
            if over:
                (self._folder / self._name).unlink(missing_ok=True)
            os.close(self._file)
            self._file = -1


class ProgressTokens:
    """Proof of how far a server has gone, kept by its sites: one whose run folder was put back from
    an older copy does not know it, and would release rounds again.

    With each task and each booking the server sends a token, HMAC-SHA-256 under a key that it alone
    has. A site shows the last ones when it greets. So it proves what it was asked, and no site can
    say that without having been asked.

    Args:
        key: secret, of the run.
        run: identifier of the run.
    """

    def __init__(self, key: bytes, run: str) -> None:
        self._key, self._run = key, run

    def of(self, kind: Literal["task", "round"], site: str, number: int) -> bytes:
        """Return the token that a site was asked this task, or to book this round (16 bytes)."""
        said = f"{self._run}\n{kind}\n{site}\n{number}".encode()
        return hmac.digest(self._key, said, "sha256")[:_TOKEN]

    def prove_later(
        self, site: str, known: tuple[int, int], said: Hello, bridged: Callable[[], bool]
    ) -> bool:
        """Return whether a site proves by its greeting that this server has asked it a later task
        than its run folder leads to (``known``: the last task of a site, and the last round),
        and the run can go on after that task (``bridged``).

        Raises:
            ResumeError: if it proves that, and the run cannot go on.
        """
        kinds: tuple[tuple[Literal["task", "round"], tuple[int, bytes], int], ...] = (
            ("round", said.round, known[1]),
            ("task", said.task, known[0]),
        )
        for kind, (number, shown), led in kinds:
            if number <= led or not self.verify(kind, site, number, shown):
                continue
            if kind == "task" and bridged():
                return True
            raise ResumeError(
                f"site {site} proves that this server has asked it for {kind} {number}, and the "
                f"run folder leads to {kind} {led} only: it is an older copy, or a power failure "
                "has taken a part of its journal (`serve --durable` prevents that). Going on would "
                "release again what was released. Put back the newest copy of the run folder, or "
                "begin a new run"
            )
        return False

    def verify(self, kind: Literal["task", "round"], site: str, number: int, token: bytes) -> bool:
        """Return whether this token is right."""
        return number > 0 and hmac.compare_digest(self.of(kind, site, number), token)


def load_tokens(folder: Path, run: str) -> ProgressTokens:
    """Return the tokens of a run folder; its key is made when it first is served, and only its
    owner reads it.

    Raises:
        ResumeError: if the key cannot be read.
    """
    if not there(folder, TOKENS):
        replace_file(folder / TOKENS, secrets.token_bytes(TOKEN_KEY), mode=0o600)
    key = read_below(folder, TOKENS, most=KIB)
    if len(key) != TOKEN_KEY:
        raise ResumeError(f"{folder / TOKENS}: this is no key of seals. Restore it from a copy")
    return ProgressTokens(key, run)
