"""``sordino audit``: attacks on what a study releases, run by who owns the data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sordino.base import companions
from sordino.base.errors import StudyError, did_you_mean
from sordino.cli import say
from sordino.cli.run import AsJson, Set, Workers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sordino.audit.intervals import Interval
    from sordino.core.study.base import Study

ATTACKS = {
    "inversion": "recover training images from a client's gradient, at several noise levels",
    "mechanism": "tell a record's presence from releases; without a study, of every mechanism",
    "canaries": "tell from one run which of many planted records were in it; without a study, of "
    "one small run for each unit",
    "lira": "tell by shadow runs which records a run was trained on",
    "all": "mechanism and canaries, and lira with --shadows or without a study",
}
NO_PROOF = (
    "A lower bound far below the ledger's epsilon proves nothing: another attack may reach further."
)
A_USE = (
    "These runs looked at the study's own examples, with canaries among them, or with some left "
    "out. With real data, their result is a release that is in no ledger: do not publish it."
)
ENTRY_POINTS = "sordino.attacks"
"""Attacks of packages beside this one: functions of :class:`AttackOptions`, by their names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackOptions:
    """The options of ``sordino audit`` for an attack that another package brings.

    Attributes:
        path: a study file or a run folder; None if none was given.
        images, noise, models: as given; None and empty for the attack's own.
        out: where its picture goes; None for the usual place.
        changes: of the study's keys.
        as_json: whether one JSON object ends the command.
    """

    path: Path | None
    images: int | None
    noise: str | None
    models: Sequence[str]
    out: Path | None
    changes: tuple[str, ...]
    as_json: bool

    def study(self, path: Path) -> Study:
        """Return the study in a file, or of a run folder.

        Raises:
            StudyError: if it is neither.
        """
        from sordino.base.files import there
        from sordino.core import study as studies
        from sordino.core.records import known
        from sordino.core.run.folder import about_of, study_of

        if not path.is_dir():
            return studies.read(path, self.changes)
        if missing := [name for name in ("run.json", "study.toml") if not there(path, name)]:
            raise StudyError(
                f"{path}: this is no run folder: it has no {missing[0]}. Give a study file, or a "
                "folder that `sordino run` made"
            )
        return study_of(path, known(about_of(path).modules) or {}, changes=self.changes)

    def place(self, name: str) -> Path:
        """Return where a picture goes: ``out``, or beside runs, in a folder called after ``path``.

        Raises:
            StudyError: if ``out`` is no place for an SVG file.
        """
        from sordino.comparison.schedule import slug

        if self.out is None:
            called = "audit"
            if self.path is not None:  # "." and ".." have names, too
                called += "-" + slug(self.path.resolve().name.removesuffix(".toml"))
            return Path("runs") / called / name
        if self.out.is_dir() or not (self.out.suffix or self.out.is_file()):
            return self.out / name
        if self.out.suffix != ".svg":
            raise StudyError(
                f"{self.out}: the picture is an SVG file; give --out a name that ends in .svg, or "
                "a folder"
            )
        return self.out


def audit(
    path: Annotated[
        Path | None,
        typer.Argument(
            metavar="STUDY|RUN",
            help="A study file (initial weights) or a run folder (trained model).",
        ),
    ] = None,
    attack: Annotated[str | None, typer.Option(help=f"One of: {', '.join(ATTACKS)}.")] = None,
    images: Annotated[
        int | None, typer.Option(help="Number of training images to attack. Default: 6.")
    ] = None,
    noise: Annotated[
        str | None,
        typer.Option(
            metavar="LEVELS",
            help="Noise multipliers; 'study' for the study's own, mapa@EPSILON for MAPA's noise. "
            "Default: 0,0.01,0.1,1,study.",
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="A model to use instead of the study's. May be repeated."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="A folder for what is made, or the name of the picture (inversion.svg, "
            "audit.svg). Default: runs/audit-STUDY."
        ),
    ] = None,
    canaries: Annotated[int, typer.Option(help="Most records to plant in a run.", min=1)] = 16_000,
    shadows: Annotated[
        int | None,
        typer.Option(
            help="Shadow runs of --attack lira; half as many runs are attacked. Finished runs are "
            "kept, and the same command continues."
        ),
    ] = None,
    workers: Workers = None,
    scale: Annotated[
        Literal["quick", "full"],
        typer.Option(help="full: more releases, and without a study longer runs."),
    ] = "quick",
    seed: Annotated[int, typer.Option(help="Of the releases of --attack mechanism.")] = 0,
    change: Set = None,
    as_json: AsJson = False,
) -> None:
    """Attack the releases of a study's clients, and show what the attack recovers."""
    name = _checked(attack)
    options = AttackOptions(
        path=path,
        images=images,
        noise=noise,
        models=model or (),
        out=out,
        changes=tuple(change or ()),
        as_json=as_json,
    )
    if name == "inversion":
        if shadows is not None:
            raise StudyError("--shadows does not go with --attack inversion; give --attack lira")
        for each in companions(ENTRY_POINTS):
            if each.name == name:
                each.load()(options)
                return
        raise StudyError(f"--attack {name} comes with another package: pip install sordino-papers")
    for option, value in (("--model", model), ("--images", images), ("--noise", noise)):
        if value is not None:
            raise StudyError(
                f"{option} does not go with --attack {name}; leave it out, or give --attack "
                "inversion"
            )
    from sordino.api import auditing
    from sordino.audit.intervals import FORMAT, failed
    from sordino.audit.lira import RATES

    study = None if path is None else options.study(path)
    picture = options.place(auditing.PICTURE)
    intervals, inferred = auditing.attacked(
        name,
        study,
        picture,
        canaries=canaries,
        scale=scale,
        seed=seed,
        shadows=shadows,
        workers=workers,
        modules=None if path is None or path.is_dir() else path.parent,
        progress=say.Waiting("runs are done"),
    )
    confidence, used = 1.0 - auditing.ALPHA, study is not None and name != "mechanism"
    _show_intervals(intervals, confidence, used=used)
    if inferred:
        head = ["", *(f"hits at {rate:.1%} false alarms" for rate in RATES), "area", "guesses"]
        rows = [
            [one.form, *(f"{rate:.2%}" for rate in one.hits), f"{one.area:.3f}", str(one.guesses)]
            for one in inferred
        ]
        say.table("membership of records in runs", head, rows)
    say.result(f"Picture: {picture}")
    if inferred:
        say.result(f"Picture of hits over false alarms: {picture.with_name(auditing.ROC)}")
    if as_json:
        say.machine(
            {
                "format": FORMAT,
                "attack": name,
                "seed": seed,
                "confidence": confidence,
                "own_examples": used,
                "picture": str(picture),
                "intervals": intervals,
                "verdicts": [one.verdict for one in intervals],
                "inferred": inferred,
            }
        )
    if wrong := failed(intervals):
        say.people(f"FAILED: {', '.join(one.name for one in wrong)}")
        raise typer.Exit(1)


def _checked(attack: str | None) -> str:
    listed = ", ".join(f"{name} ({does})" for name, does in ATTACKS.items())
    if attack is None:
        raise StudyError(f"--attack is missing: it says which one. Known: {listed}")
    if attack not in ATTACKS:
        raise StudyError(
            f"--attack {attack!r} is not known{did_you_mean(attack, ATTACKS) or '.'} Known: "
            f"{listed}"
        )
    return attack


def _show_intervals(found: Sequence[Interval], confidence: float, *, used: bool) -> None:
    from sordino.audit.intervals import lower_text

    head = ["", "unit", "lower bound", "assuming nothing", "claimed", "ledger", "how", "verdict"]
    rows = [
        [
            one.name,
            one.unit,
            lower_text(one.low),
            lower_text(one.plain),
            say.bound(one.claimed),
            say.bound(one.ledger),
            one.how,
            one.verdict,
        ]
        for one in found
    ]
    say.table("epsilon from below and from above", head, rows)
    say.result(
        f"All lower bounds hold together with {confidence:.0%} confidence. 'lower bound' takes "
        "the trade-off between hits and false alarms to be of the kind that is claimed"
    )
    if any(not one.binding for one in found):
        say.result(
            "With shadow runs it takes guesses about records of one run to be independent, and "
            "'assuming nothing' does not: only that decides the verdict"
        )
    say.result(NO_PROOF)
    if used:
        say.warn(A_USE)
