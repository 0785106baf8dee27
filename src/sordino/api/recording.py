"""The auditor's record of a run or a federation; see :mod:`sordino.deployment`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from sordino.base.errors import StudyError
from sordino.base.modules import nothing_new
from sordino.core.files import said_clearly
from sordino.deployment import document, facts
from sordino.network import proof as proofs
from sordino.network.kit import AGREEMENT, Agreed

NAME, PAGE = "record.yaml", "record.html"


def record(
    folder: Path | str,
    *,
    answers: Path | str | None = None,
    kit: Path | str | None = None,
    proofs_of: Sequence[Path | str] = (),
    audit: Path | str | None = None,
    out: Path | str | None = None,
    modules: Path | str | None = None,
) -> document.Record:
    """Write ``record.yaml`` and ``record.html``: what a run released, and what that rests on.

    >>> import sordino as so
    >>> record = so.record("runs/digits")  # doctest: +SKIP
    >>> record.epsilon  # doctest: +SKIP
    4.0

    Args:
        folder: of a run that has ended, at a server, at a site, or of a simulation.
        answers: a TOML file with what no program knows (:func:`.document.blank_answers`).
        kit: of the server or the site whose run this is. Its key signs the record. Default: the
            folder around ``folder``, where that is a kit.
        proofs_of: folders with the ``proof.json`` of sites. Default: those that the server's run
            folder keeps (``sordino network proof --keep``).
        audit: what ``sordino audit --json`` printed.
        out: where both files go; the run folder unless given.
        modules: where modules lie that the study names; their code is run then. Without it, no code
            is run that a folder names.

    Raises:
        StudyError: if something is missing or cannot be read.
        LedgerError: if the run has not ended, or a proof does not hold.
    """
    run, where, code = Path(folder), Path(out or folder), None if modules is None else Path(modules)
    with nullcontext() if code is not None else nothing_new():
        home = Path(kit) if kit is not None else run.resolve().parent
        agreed = Agreed(home) if kit is not None or (home / AGREEMENT).is_file() else None
        if proofs_of and agreed is None:
            raise StudyError(
                f"{run}: proofs belong to a federation: give --kit, the server's or the site's"
            )
        given = [Path(each) for each in proofs_of]
        if agreed is not None and not given:
            given = [run] if (run / proofs.NAME).is_file() else proofs.saved(run)
        authority = home / "authority.pem"
        proved = [(each, proofs.read(each), proofs.verify(each, authority)) for each in given]
        said = document.Answers() if answers is None else document.read_answers(Path(answers))
        attacks = () if audit is None else facts.read_attacks(Path(audit))
        made = facts.made(run, said, proved, agreed, code, attacks)
        if agreed is not None:
            kind = "server" if (home / "server.pem").is_file() else "site"
            made = document.signed(made, home, kind)
            document.check(made, run / NAME, authority)
    with said_clearly(where):
        where.mkdir(parents=True, exist_ok=True)
    document.write(made, where / NAME)
    document.write_page(made, where / PAGE)
    return made
