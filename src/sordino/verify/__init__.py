"""Whether a ledger is whole, and whether a run folder says what its ledger says.

A ledger file is walked link by link, and every unit in it is priced. A run folder is held against
its ledger: what it promised when it began, how it ended, the study, the log, the model, and the
epsilon that the charges add up to, which is computed here and not taken from any file. What does
not fit is one line: the file, the key, what stands there, and what the ledger gives.

Nothing that is read here is trusted, or taken as code: files have a largest size, and everything
together so many seconds.
"""

from __future__ import annotations

from pathlib import Path

from sordino.base.errors import StudyError
from sordino.privacy import Ledger
from sordino.privacy.chain import BEGIN
from sordino.privacy.storage import SECONDS, Clock, seen_by_others
from sordino.verify.check import Check
from sordino.verify.found import Kept, Terms, Unit, Verdict
from sordino.verify.places import ABOUT, places, terms_of

__all__ = ["Kept", "Terms", "Unit", "Verdict", "places", "priced", "verify"]


def verify(path: Path, *, digest: str | None = None, seconds: float = SECONDS) -> Verdict:
    """Look at a ledger file, a run folder, or a folder of ledgers, for ``seconds`` at most.

    ``digest`` is one that was noted elsewhere, which must still stand in a ledger.

    Raises:
        StudyError: if there is nothing of the kind.
    """
    check = Check(Clock(seconds), digest)
    if (path / ABOUT).exists():
        check.run(path)
    else:
        for file in places(path):
            check.ledger(file)
        if path.is_dir() and (warning := seen_by_others(path)) is not None:
            check.verdict.remarks.append(warning)
        known = [
            unit.epsilon
            for kept in check.verdict.ledgers
            for unit in kept.units
            if unit.epsilon is not None
        ]
        check.verdict.epsilon = max(known, default=None)
        check.verdict.terms = next(
            (kept.terms for kept in check.verdict.ledgers if kept.terms is not None), None
        )
    if digest is not None and not check.found:
        check.verdict.problems.append(
            f"{path}: no link of the chain has the digest {digest[:64]}: entries were cut "
            "off, or it is another ledger"
        )
    return check.verdict


def priced(
    path: Path, delta: float | None, name: str | None, seconds: float = SECONDS
) -> list[Kept]:
    """Every unit of the ledgers at a path, at another delta or by another accountant if given.

    Raises:
        StudyError: if nobody says at which delta.
        LedgerError: if a ledger is not whole.
    """
    check = Check(Clock(seconds))
    for file in places(path):
        with Ledger.open(file, readonly=True, seconds=check.left()) as ledger:
            begins = ledger.notes(BEGIN)
            terms = terms_of(begins[-1])[1] if begins else None
            if terms is None and delta is None:
                raise StudyError(
                    f"{file}: give --delta: no run that states one began in this ledger"
                )
            own = Terms(delta or 0.0, "pld") if terms is None else terms
            check.walk(ledger, Terms(delta or own.delta, name or own.accountant))
    return check.verdict.ledgers
