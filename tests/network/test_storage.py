"""What the server and a site keep on disk: a kill at any byte costs nothing that was acted on."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest

from sordino.base.entropy import Transcript
from sordino.base.errors import ResumeError
from sordino.network import storage
from sordino.network.storage import JOURNAL as NAME
from sordino.network.storage import OUTBOX as NAMES
from sordino.network.storage import STEP, AnswerStore, Input, Journal, ReplayGuard, SiteProgress

INPUTS = [
    Input(1, 0.5, "up", 0),
    Input(2, 0.75, "message", 1, b"body", 3),
    Input(3, 1.0, "woke", 0, b"round 1"),
]


def written(folder: Path) -> bytes:
    journal = Journal(folder, durable=True)
    for each in INPUTS:
        journal.append(each)
    journal.close()
    return (folder / NAME).read_bytes()


def test_a_journal_says_what_was_written_wherever_it_was_torn(tmp_path: Path) -> None:
    whole = written(tmp_path)
    for length in range(len(whole) + 1):
        (tmp_path / NAME).write_bytes(whole[:length])
        journal = Journal(tmp_path)
        found = journal.after(0)
        assert found == INPUTS[: len(found)]
        assert (len(found) == 3) == (length == len(whole))
        for each in INPUTS[len(found) :]:
            journal.append(each)
        journal.close()
        assert (tmp_path / NAME).read_bytes() == whole
    assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o600


def test_a_journal_with_a_changed_byte_ends_before_it(tmp_path: Path) -> None:
    whole = written(tmp_path)
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 0x40
        (tmp_path / NAME).write_bytes(changed)
        journal = Journal(tmp_path)
        found = journal.after(0)
        journal.close()
        assert found == INPUTS[: len(found)]
        assert len(found) < 3
        assert "bytes are damaged" in journal.damage


@pytest.mark.parametrize("content", [b"", bytes(200), None])
def test_a_journal_of_which_nothing_can_be_read_begins_another_history(
    content: bytes | None, tmp_path: Path
) -> None:
    """It is no journal of before, whose noise was drawn over none."""
    digests, lost = [], []
    for _ in range(2):
        if content is None:
            (tmp_path / NAME).unlink(missing_ok=True)
        else:
            (tmp_path / NAME).write_bytes(content)
        for _ in range(2):
            history = Transcript()
            journal = Journal(tmp_path, history=history, lost=lambda: lost.append(1))
            journal.enter(journal.before(0))
            journal.close()
            assert journal.history is history
            digests.append(history.digest)
    assert len(lost) == 2
    assert digests[0] == digests[1] != digests[2] == digests[3]
    assert b"" not in digests


def test_a_kill_leads_to_the_same_history(tmp_path: Path) -> None:
    digests = []
    for life in range(4):
        with closing(Journal(tmp_path, history=Transcript())) as journal:
            assert journal.history is not None
            journal.enter(journal.before(0 if life < 3 else 2))
            if life == 0:
                for each in INPUTS[:2]:
                    journal.append(each)
            journal.enter(INPUTS[:2] if life < 3 else journal.after(2))
            if life == 2:
                journal.cut(2, [])
            digests.append(journal.history.digest)
    with closing(Journal(tmp_path)) as journal, pytest.raises(ResumeError, match="2 is missing"):
        journal.after(1)  # of a checkpoint before
    assert digests == [digests[0]] * 4
    assert len(digests[0]) == 32


def test_a_journal_that_begins_anew_keeps_numbers_and_misses_nothing(tmp_path: Path) -> None:
    written(tmp_path)
    journal = Journal(tmp_path)
    assert journal.before(2) == INPUTS[:2]
    assert journal.after(2) == INPUTS[2:]
    there = Input(4, 1.0, "there", 1)
    journal.cut(there.seq - 1, [there])
    journal.append(Input(5, 2.0, "down", 1))
    journal.close()
    again = Journal(tmp_path)
    assert again.after(3) == [there, Input(5, 2.0, "down", 1)]
    assert again.after(9) == []
    with pytest.raises(ResumeError, match="input 2 is missing"):
        again.after(1)
    again.destroy()
    assert not (tmp_path / NAME).exists()


def kept(number: int) -> SiteProgress:
    return SiteProgress("run", number, "t" * 64, b"answer" * number, number)


def test_an_outbox_keeps_one_of_two_wherever_it_was_torn(tmp_path: Path) -> None:
    outbox = AnswerStore(tmp_path)
    for number in (1, 2, 3):
        outbox.save(kept(number))
    outbox.close()
    slots = [(tmp_path / name).read_bytes() for name in NAMES]
    for torn in (0, 1):
        for length in range(len(slots[torn])):
            (tmp_path / NAMES[1 - torn]).write_bytes(slots[1 - torn])
            (tmp_path / NAMES[torn]).write_bytes(slots[torn][:length])
            outbox = AnswerStore(tmp_path)
            assert outbox.progress == (kept(2) if torn == 1 else kept(3))
            outbox.save(kept(4))
            outbox.close()
            again = AnswerStore(tmp_path)
            assert again.progress == kept(4)
            again.close()


def test_a_slot_that_a_full_disk_takes_a_part_of_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = os.pwrite
    with closing(AnswerStore(tmp_path)) as outbox:
        outbox.save(kept(2))
        monkeypatch.setattr(os, "pwrite", lambda file, whole, at: writes(file, whole[:-1], at))
        with pytest.raises(OSError, match="No space left"):
            outbox.save(kept(3))
        assert outbox.progress == kept(2)
    with closing(AnswerStore(tmp_path)) as outbox:
        assert outbox.progress == kept(2)


def test_of_a_longer_answer_nothing_stays_in_a_slot(tmp_path: Path) -> None:
    outbox = AnswerStore(tmp_path)
    for number in (9, 9, 1, 1):
        outbox.save(kept(number))
    outbox.close()
    assert not any(b"answeranswer" in (tmp_path / name).read_bytes() for name in NAMES)
    assert all((tmp_path / name).stat().st_mode & 0o777 == 0o600 for name in NAMES)


def test_the_very_first_slot_may_be_torn_and_nothing_else(tmp_path: Path) -> None:
    outbox = AnswerStore(tmp_path)
    outbox.save(kept(1))
    outbox.close()
    content = (tmp_path / NAMES[1]).read_bytes()
    for length in range(len(content)):
        (tmp_path / NAMES[1]).write_bytes(content[:length])
        outbox = AnswerStore(tmp_path)
        assert outbox.progress == SiteProgress()
        outbox.close()
    (tmp_path / NAMES[1]).unlink()  # a site may be killed between making one and the other
    AnswerStore(tmp_path).close()
    for name in NAMES:
        (tmp_path / name).write_bytes(content[:20])
    with pytest.raises(ResumeError, match="what this site said last cannot be read"):
        AnswerStore(tmp_path)


def test_zeros_that_a_power_failure_left_end_a_journal(tmp_path: Path) -> None:
    whole = written(tmp_path)
    (tmp_path / NAME).write_bytes(whole + bytes(64))
    journal = Journal(tmp_path)
    assert journal.after(0) == INPUTS
    journal.close()
    assert (tmp_path / NAME).read_bytes() == whole


def test_what_was_answered_before_a_machine_failed_is_lost_up_to_the_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "boot").write_text("first")
    monkeypatch.setattr(storage, "_BOOT", tmp_path / "boot")
    assert ReplayGuard(tmp_path).lost == 0
    for number in (2, 3, 2 + STEP):
        ReplayGuard(tmp_path).note_before(number)
        assert ReplayGuard(tmp_path).lost == 0  # killed, and begun again
    (tmp_path / "boot").write_text("second")
    again = ReplayGuard(tmp_path)
    assert again.lost == 2 + STEP
    again.note_before(3 + STEP)
    assert ReplayGuard(tmp_path).lost == 0
    (tmp_path / "boot").unlink()  # a system that does not tell
    assert ReplayGuard(tmp_path).lost == 3 + 2 * STEP
    (tmp_path / storage.NOTE).write_bytes(b"{")
    with pytest.raises(ResumeError, match="Restore the folder"):
        ReplayGuard(tmp_path)
