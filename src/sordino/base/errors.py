"""Everything that Sordino raises on purpose.

::

    SordinoError
    ├── StudyError              your input: names the place, the value and the remedy
    │   └── DataError           a data file: missing, corrupt, of the wrong shape
    ├── BudgetExceeded          refused before anything was released
    ├── LedgerError             the ledger was tampered with, or belongs to other data
    │   └── LedgerUnavailable   it cannot be used for the moment: locked, or a full disk
    ├── ProtocolError
    │   ├── LocalProtocolError  our own code misused a state machine: a bug
    │   └── RemoteProtocolError a peer sent what it must not: dropped, the run goes on
    ├── CutShort                a run between sites that ended early; its folder is whole
    ├── Interrupted             a command that was stopped from the keyboard, or by SIGTERM
    ├── DiskFull                no space is left; what was written before stands
    └── ResumeError             ledger and checkpoint disagree: we refuse to guess

Exit statuses of the command line hang on these classes. With 2 ends what another try does not
change: StudyError and what is below it, LedgerError, ResumeError; with 3 BudgetExceeded, with 4
CutShort, with 130 Interrupted; with 1 the rest, and LedgerUnavailable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

LONGEST = 2_000
"""Characters of a text of which a peer chose a part."""


def printable(text: str, most: int = LONGEST) -> str:
    r"""A text of which a peer may have chosen a part, so that it controls no terminal.

    >>> printable("\x1b[2J\r\nverified")
    '?[2J  verified'
    """
    return "".join(
        each if each.isprintable() else " " if each.isspace() else "?" for each in text[:most]
    )


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint at the closest of the known words, or nothing."""
    import difflib  # takes a while, and most words are known

    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean '{close[0]}'?" if close else ""


class SordinoError(Exception):
    """Base of all errors that are raised on purpose."""


class StudyError(SordinoError):
    """Input that cannot be run: a study file, an option, an output folder."""


class DataError(StudyError):
    """A data file that is missing, corrupt or does not fit."""


class BudgetExceeded(SordinoError):
    """A release would pass the privacy budget. Nothing was released or booked."""


class HeldBack(BudgetExceeded):
    """A release would break the promise of another run, which has not ended yet."""


class LedgerError(SordinoError):
    """A ledger whose chain is broken, or that was kept for other data."""


class LedgerUnavailable(LedgerError):
    """A ledger that cannot be used for the moment."""


class ProtocolError(SordinoError):
    """A message or a call that the protocol does not allow."""


class LocalProtocolError(ProtocolError):
    """Our side broke the protocol: a bug in this program."""


class RemoteProtocolError(ProtocolError):
    """The other side broke the protocol; the message, which may quote it, controls no terminal.

    Attributes:
        what: a word or two for the kind of it, for logs.
    """

    def __init__(self, message: str, what: str = "protocol") -> None:
        super().__init__(printable(message))
        self.what = what


class CutShort(SordinoError):
    """A run between sites that ended before its time. Its folder is whole, and says why."""


class WorkerGone(SordinoError):
    """A worker of a run has ended before the run. What the run has saved is whole."""


class Interrupted(SordinoError):
    """A command that was stopped; says how to go on."""


class DiskFull(SordinoError):
    """A file that could not be written for want of space.

    Attributes:
        place: the file.
    """

    def __init__(self, place: object, remedy: str = "give the command again") -> None:
        """Say what to do once there is space."""
        super().__init__(
            f"{place}: no space left on the disk; what stood there is as it was. Free some space, "
            f"then {remedy}"
        )
        self.place = place


class ContractBroken(AssertionError):
    """A method or a mechanism that does not do what the program rests on."""


class ResumeError(SordinoError):
    """A run folder whose parts do not belong together."""


@contextmanager
def passing_over() -> Iterator[None]:
    """Pass over whatever a user's code raises on a record, a panic of Rust too, which is no
    ``Exception``; but for an interrupt.
    """
    try:
        yield
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException:  # it would tell of the record
        pass


def no_memory(error: BaseException) -> bool:
    """Tell whether an error says that this machine has no memory left: torch's have no type of
    their own on a processor. No record has caused it, so it is not passed over as a record's is.
    """
    words = ("out of memory", "DefaultCPUAllocator")
    torch_says = isinstance(error, RuntimeError) and any(each in str(error) for each in words)
    return isinstance(error, MemoryError) or torch_says
