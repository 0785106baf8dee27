"""``sordino audit --attack mechanism|canaries|all``: lower bounds beside the ledger's epsilons."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sordino.cli import say
from sordino.errors import StudyError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sordino.audit.intervals import Interval
    from sordino.audit.mechanisms import Subject
    from sordino.engine.study.base import Study
    from sordino.federation.study import HorizontalStudy

ALPHA = 0.05
"""All lower bounds of a table hold together but for this chance."""
PICTURE = "audit.svg"
SCALES = ("quick", "full")
LONGEST_NAME = 24
NO_PROOF = (
    "A lower bound far below the ledger's epsilon proves nothing: another attack may reach further."
)
A_USE = (
    "These runs planted canaries among the study's own examples. With real data, their result "
    "is a release that no ledger has booked: do not publish it."
)


def show(
    attack: str,
    study: Study | None,
    *,
    canaries: int,
    scale: str,
    seed: int,
    picture: Path,
    as_json: bool,
) -> None:
    """Make the table and the picture.

    Raises:
        StudyError: if the attack cannot be made on this study.
        typer.Exit: with status 1 where a ledger is contradicted, or a false claim is not caught.
    """
    from sordino.engine.files import replace_file, said_clearly
    from sordino.report.intervals import intervals_figure

    _checked(attack, study, canaries, scale)
    found = intervals(attack, study, canaries=canaries, scale=scale, seed=seed)
    with said_clearly(picture):
        picture.parent.mkdir(parents=True, exist_ok=True)
    replace_file(picture, intervals_figure(found).encode())
    _tell(found, used=study is not None and attack != "mechanism")
    say.people(f"Picture: {picture}")
    if as_json:
        from sordino.audit.intervals import IntervalsTold

        say.machine(
            IntervalsTold(
                attack=attack,
                seed=seed,
                confidence=1.0 - ALPHA,
                picture=str(picture),
                intervals=tuple(found),
                verdicts=tuple(one.verdict for one in found),
            )
        )
    from sordino.audit.intervals import failed

    if wrong := failed(found):
        say.people(f"FAILED: {', '.join(one.name for one in wrong)}")
        raise typer.Exit(1)


def intervals(
    attack: str, study: Study | None, *, canaries: int, scale: str, seed: int
) -> list[Interval]:
    """All rows of an attack, which share the chance of error."""
    from sordino.audit import mechanisms

    chosen: list[mechanisms.Subject] = []
    if attack in ("mechanism", "all"):
        chosen = mechanisms.subjects() if study is None or attack == "all" else []
        if study is not None:
            chosen = [_own(study), *chosen]
    runs = attack in ("canaries", "all") and study is not None
    # Runs tell less than releases by the thousand: half of the chance of error is theirs.
    part = ALPHA / 2.0 if chosen and runs else ALPHA
    effort = mechanisms.Effort() if scale == "quick" else mechanisms.Effort.full()
    found = mechanisms.table(chosen, effort, seed, part) if chosen else []
    if runs and study is not None:
        found += _runs(study, canaries, part / 2.0)
    return found


def _own(study: Study) -> Subject:
    from sordino.federation.canaries import own_mechanism

    return own_mechanism(_horizontal(study))


def _runs(study: Study, canaries: int, alpha: float) -> list[Interval]:
    from sordino.federation.canaries import black_box, prepared, white_box

    ready = prepared(_horizontal(study))
    name = study.name if len(study.name) <= LONGEST_NAME else study.method.name
    return [attack(ready, canaries, alpha, name) for attack in (white_box, black_box)]


def _horizontal(study: Study) -> HorizontalStudy:
    from sordino.federation.study import HorizontalStudy

    if not isinstance(study, HorizontalStudy):
        raise StudyError(
            f"method.name = {study.method.name!r}: this attack is for studies whose clients hold "
            "examples. `sordino audit --attack mechanism` without a study looks at the mechanisms "
            "of the others too"
        )
    return study


def _checked(attack: str, study: Study | None, canaries: int, scale: str) -> None:
    if scale not in SCALES:
        raise StudyError(f"--scale {scale!r} is not known: one of {', '.join(SCALES)}")
    if canaries < 1:
        raise StudyError(f"--canaries must be from 1; got {canaries}")
    if study is None and attack != "mechanism":
        raise StudyError(
            f"--attack {attack} needs a study or a run folder; without one, --attack mechanism "
            "looks at all mechanisms"
        )


def _tell(found: Sequence[Interval], *, used: bool) -> None:
    from sordino.report.intervals import lower_text

    head = ["", "lower bound", "assuming nothing", "claimed", "ledger", "how", "verdict"]
    rows = [
        [
            one.name,
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
    say.people(
        f"All lower bounds hold together with {1.0 - ALPHA:.0%} confidence. 'lower bound' takes "
        "the trade-off between hits and false alarms to be of the kind that is claimed"
    )
    say.people(NO_PROOF)
    if used:
        say.people(f"warning: {A_USE}")
