"""``sordino ledger``: what was released, whether the record is whole, and what it adds up to."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sordino.base.errors import LedgerError, StudyError
from sordino.cli import say
from sordino.cli.run import AsJson

if TYPE_CHECKING:
    from sordino.core.run.verify import EpsilonTerms, Verdict, VerifiedLedger

app = typer.Typer(help="Show, verify and price the releases in a ledger.", no_args_is_help=True)
Run = Annotated[
    Path,
    typer.Argument(
        help="A run folder, a ledger file, a folder of ledgers, or (verify) a record.yaml."
    ),
]
Seconds = Annotated[float, typer.Option(help="Time limit in seconds.", min=0.1)]

LONGEST = 120  # characters of a cell


def _short(text: str) -> str:
    """Text that anybody may have written, on one line of a table."""
    return " ".join((text if len(text) <= LONGEST else text[: LONGEST - 1] + "…").splitlines())


@app.command()
def show(
    run: Run,
    unit: Annotated[str | None, typer.Option(help="Only this unit, such as client:3.")] = None,
    last: Annotated[
        int, typer.Option(help="Number of entries to show, from the end. 0 shows all.", min=0)
    ] = 20,
    seconds: Seconds = 300.0,
    as_json: AsJson = False,
) -> None:
    """List the entries."""
    from sordino.api.ledgers import event_text
    from sordino.core.run.verify import entry_record, places
    from sordino.privacy import Ledger
    from sordino.privacy.chain import SHOWN_COLUMNS
    from sordino.privacy.records import open_runs  # arrays take a while to import

    columns = [name for name in SHOWN_COLUMNS if name not in ("method", "why", "key")]
    entries, known = list[dict[str, object]](), set[str]()
    for path in places(run):
        with Ledger.open(path, readonly=True, seconds=seconds) as ledger:
            known |= set(ledger.units())
            numbered = enumerate(ledger.entries(unit), start=1)
            pairs = deque(numbered, maxlen=last or None)  # entries may be more than memory holds
            labels = ledger.labels()
            held = [] if as_json else open_runs(ledger)
        if as_json:
            entries += [entry_record(entry, ledger.format.names) for _, entry in pairs]
            continue
        rows = []
        for _, e in pairs:
            cells = {name: getattr(e, name) for name in columns}
            cells |= {"event": event_text(e.event), "digest": e.digest[:12]}
            cells = {name: _short(str(cell)) for name, cell in cells.items()}
            rows.append([*(cells | {"unit": _named(e.unit, labels.get(e.unit))}).values()])
        head = ["times" if name == "count" else name for name in columns]
        say.table(f"{path}: {len(rows)} of {pairs[-1][0] if pairs else 0} charges", head, rows)
        for name in map(_short, held):
            say.result(
                f"Run {name} has not ended, and its promise limits other runs over its records. If "
                f"it will not go on, end it: sordino ledger end {path.parent} {name}"
            )
    if as_json:
        say.machine(entries)
    if unit is not None and unit not in known:
        more = ", ..." if len(known) > 10 else ""
        listed = ", ".join(_short(each) for each in sorted(known)[:10]) + more
        raise StudyError(
            f"--unit {_short(unit)}: no such unit is kept here; there are {listed or 'none'}"
        )


def _named(unit: str, label: str | None) -> str:
    """A unit by its name, and by what people call it where the study says so."""
    return _short(unit) if label is None else f"{_short(label)} ({_short(unit)})"


@app.command()
def verify(
    run: Run,
    digest: Annotated[
        str | None,
        typer.Option(
            help="A digest noted earlier, such as from a report. The chain must contain it."
        ),
    ] = None,
    authority: Annotated[
        Path | None, typer.Option(help="Of a record.yaml: the federation's authority.pem.")
    ] = None,
    seconds: Seconds = 300.0,
    as_json: AsJson = False,
) -> None:
    """Check the chain, price every unit, and compare a run's files with the ledger; or check the
    proofs and the signature of a record.yaml.
    """
    if run.suffix == ".yaml":
        _verify_record(run, authority, as_json)
        return
    from sordino.core.run import verify as verifying

    verdict = verifying.verify(run, digest=digest, seconds=seconds)
    if as_json:
        say.machine(verifying.verdict_record(verdict))
    else:
        _show_verdict(verdict)
    if verdict.problems:
        raise LedgerError(
            "\n".join(line for each in verdict.problems for line in each.splitlines()[:50])
        )


def _verify_record(path: Path, authority: Path | None, as_json: bool) -> None:
    from sordino.deployment.document import check, read, signer

    record = read(path)
    remarks = check(record, path, authority)
    by, proved = signer(record), sum(each.proof is not None for each in record.sites)
    if as_json:
        say.machine({"epsilon": record.epsilon, "signer": by, "proofs": proved, "remarks": remarks})
        return
    for remark in remarks:
        say.result(remark + ".")
    if by:
        say.result(f"Signed by {_short(by)}; {proved} proofs of sites hold.")
    say.result(
        f"The record states epsilon {say.bound(record.epsilon)} for run {_short(record.run)}. "
        "Answers of people and the page beside it are not judged."
    )


def _show_verdict(verdict: Verdict) -> None:
    for ledger in verdict.ledgers:
        say.result(f"{ledger.path}: {ledger.entries} charges, chain intact, digest {ledger.digest}")
        if ledger.terms is not None:
            _units(ledger, ledger.terms)
        elif ledger.units:
            say.result(
                f"{len(ledger.units)} units; no run began in this ledger, so price them with "
                "`sordino ledger epsilon --delta`"
            )
    for remark in verdict.remarks:
        say.result(remark + ".")
    if verdict.sealed and not verdict.problems:
        say.result(
            "The run ended and was sealed. Study, log, model, environment and result match "
            "the seal in the ledger."
        )
    if verdict.epsilon is not None and verdict.terms is not None:
        terms = verdict.terms
        say.result(
            f"epsilon {say.bound(verdict.epsilon)} at delta {say.number(terms.delta)} "
            f"({terms.accountant}), the maximum"
        )


def _units(ledger: VerifiedLedger, terms: EpsilonTerms) -> None:
    rows = [[_named(unit.name, unit.label), say.bound(unit.epsilon)] for unit in ledger.units]
    say.table(f"epsilon at delta {terms.delta:g} ({terms.accountant})", ["unit", "epsilon"], rows)


@app.command()
def end(
    folder: Annotated[
        Path, typer.Argument(help="The folder of a ledger of the data, as in privacy.ledger.")
    ],
    run: Annotated[str, typer.Argument(help="The run's name, 16 digits, as in its run.json.")],
) -> None:
    """End a run that will not go on: its promise no longer limits other runs over its records.

    What it has spent stays spent.
    """
    from sordino.privacy import Ledger
    from sordino.privacy.chain import BEGIN
    from sordino.privacy.records import close_sets
    from sordino.privacy.session import data_ledger

    path = data_ledger(folder)
    if not path.is_file():
        raise StudyError(f"{folder}: there is no data ledger here")
    with Ledger.open(path) as ledger:
        if not close_sets(ledger, _short(run)) and ledger.noted(BEGIN, _short(run)) is None:
            raise StudyError(f"{path}: no run {_short(run)} began in this ledger")
    say.result(f"Run {_short(run)} has ended in this ledger; what it has spent stays spent.")


@app.command()
def epsilon(
    run: Run,
    delta: Annotated[float | None, typer.Option(help="Another delta than the run's.")] = None,
    accountant: Annotated[
        str | None, typer.Option(help="Another accountant than the run's.")
    ] = None,
    seconds: Seconds = 300.0,
    as_json: AsJson = False,
) -> None:
    """Show the epsilon that every unit has spent."""
    from sordino.core.run.verify import priced, prices_record
    from sordino.privacy import accountant as known

    if delta is not None and not 0 < delta < 1:
        raise StudyError(f"--delta must lie between 0 and 1; got {delta:g}")
    ledgers = priced(run, delta, None if accountant is None else known(accountant).name, seconds)
    if as_json:
        terms = ledgers[0].terms
        assert terms is not None
        say.machine(prices_record(terms, ledgers))
        return
    for ledger in ledgers:
        assert ledger.terms is not None
        _units(ledger, ledger.terms)
