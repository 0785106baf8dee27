"""``sordino ledger``: what was released, whether the record is whole, and what it adds up to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sordino.cli import link, say
from sordino.cli.run import AsJson
from sordino.errors import StudyError

if TYPE_CHECKING:
    from sordino.privacy import Ledger

app = typer.Typer(help="Show, verify and price what was released.", no_args_is_help=True)
app.command("link")(link.link)
Run = Annotated[Path, typer.Argument(help="A run folder, or a ledger file.")]


def _open(run: Path) -> tuple[Ledger, dict[str, Any]]:
    """The ledger of a run folder or file, read-only, and what the run promised."""
    from sordino.privacy import Ledger

    if not run.exists():
        raise StudyError(f"{run}: there is no such run folder or ledger file")
    about: dict[str, Any] = {}
    path = run
    if run.is_dir():
        path = run / "ledger.sqlite"
        if (run / "run.json").exists():
            about = json.loads((run / "run.json").read_text())
        if not path.exists():
            kept = (about.get("ledger") or {}).get("scope") == "data"
            where = "its ledgers are kept with the data: give one of those files" if kept else "it holds no ledger.sqlite"
            raise StudyError(f"{run}: {where}")
    return Ledger.open(path, readonly=True), about


@app.command()
def show(
    run: Run,
    unit: Annotated[str | None, typer.Option(help="Only this unit, such as client:3.")] = None,
    last: Annotated[int, typer.Option(help="How many entries from the end; 0 for all.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List the entries."""
    ledger, _ = _open(run)
    with ledger:
        entries = list(ledger.entries(unit))
    chosen = entries[-last:] if last else entries
    if as_json:
        from sordino.privacy import encode

        say.machine(
            [
                {
                    "seq": e.seq,
                    "unit": e.unit,
                    "event": json.loads(encode(e.event)),
                    "count": e.count,
                    "why": e.why,
                    "round": e.round,
                    "digest": e.digest,
                }
                for e in chosen
            ]
        )
        return
    rows = [[str(e.seq), e.unit, str(e.round), str(e.count), _words(e.event), e.digest[:12]] for e in chosen]
    say.table(f"{len(chosen)} of {len(entries)} entries", ["seq", "unit", "round", "times", "event", "digest"], rows)


def _words(event: object) -> str:
    from sordino.privacy import Chosen, Composed, Gaussian, NonPrivate, PoissonSampled, Pure, Repeated

    match event:
        case Repeated(event=inside, count=count):
            return f"{_words(inside)}, {count} times" if count > 1 else _words(inside)
        case Composed(events=(only,)):
            return _words(only)
        case Gaussian(noise_multiplier=sigma):
            return f"Gaussian, sigma {sigma:g}"
        case Pure(epsilon=epsilon):
            return f"pure, epsilon {epsilon:g}"
        case PoissonSampled(sampling_rate=q, event=inside):
            return f"{_words(inside)}, Poisson sampled at {q:g}"
        case Composed(events=events):
            return f"{' and '.join(map(_words, events))} together"
        case Chosen(order=order, event=inside):
            return f"{_words(inside)}, its noise chosen along the way (order {order:g})"
        case NonPrivate(reason=reason):
            return f"NOT private: {reason}"
        case _:
            return repr(event)


@app.command()
def verify(run: Run, as_json: AsJson = False) -> None:
    """Walk the chain of digests, recompute epsilon, and compare with what the run says."""
    ledger, about = _open(run)
    stated = about.get("ledger")
    with ledger:
        ledger.verify(expected_digest=stated["digest"] if stated else None)
        seq, digest = ledger.head()
        spent = {} if not about else {unit: _priced(ledger, unit, about) for unit in ledger.units()}
    worst = max(spent.values(), default=None)
    if as_json:
        say.machine({"ok": True, "entries": seq, "digest": digest, "epsilon": worst})
        return
    say.people(f"{seq} entries, chain whole, digest {digest}")
    if worst is not None:
        say.people(
            f"epsilon {say.bound(worst)} at delta {say.number(about['delta'])} ({about['accountant']}), the highest of {len(spent)} units"
        )


@app.command()
def epsilon(
    run: Run,
    delta: Annotated[float | None, typer.Option(help="Another delta than the run's.")] = None,
    accountant: Annotated[str | None, typer.Option(help="Another accountant than the run's.")] = None,
    as_json: AsJson = False,
) -> None:
    """Price what every unit has spent."""
    ledger, about = _open(run)
    if delta is None and about.get("delta") is None:
        raise StudyError("give --delta: this ledger belongs to no run that states one")
    at = float(about["delta"] if delta is None else delta)
    if not 0 < at < 1:
        raise StudyError(f"--delta must lie between 0 and 1; got {at:g}")
    asked: dict[str, Any] = {"delta": at, "accountant": accountant or about.get("accountant", "pld")}
    with ledger:
        spent = {unit: _priced(ledger, unit, asked) for unit in ledger.units()}
    if as_json:
        say.machine({"delta": asked["delta"], "accountant": asked["accountant"], "epsilon": spent})
        return
    rows = [[unit, say.bound(value)] for unit, value in spent.items()]
    say.table(f"epsilon at delta {asked['delta']:g} ({asked['accountant']})", ["unit", "epsilon"], rows)


def _priced(ledger: Ledger, unit: str, asked: dict[str, Any]) -> float:
    return float(ledger.epsilon(unit, asked["delta"] or 1e-5, asked["accountant"]))
