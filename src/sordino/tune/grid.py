"""The grid of a tuning: every combination of values that were fixed before anything ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sordino.base.errors import StudyError
from sordino.base.registry import below
from sordino.clients.study import HorizontalStudy
from sordino.comparison.schedule import title, variants
from sordino.core import study as studies

TUNABLE = (
    "method.",
    "model.",
    "data.features",
    "privacy.clip",
    "privacy.mechanism",
    "privacy.sampling_rate",
    "budget.rounds",
    "budget.steps",
    "budget.updates",
    "budget.tasks",
)
"""Keys, or beginnings of keys, that change how well a study learns and not what it promises."""

MOST = 10_000


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """One combination of values.

    Attributes:
        title: the values, for people.
        chosen: the same by key, as the study holds them.
        study: with these values.
    """

    title: str
    chosen: Mapping[str, Any]
    study: HorizontalStudy


def candidates(path: Path, changes: Sequence[str], vary: Sequence[str]) -> list[Candidate]:
    """The whole grid, checked; nothing of any data is read.

    Raises:
        StudyError: for a key that may not be tuned, a study that is none, labels that are numbers,
            or a grid of one.
    """
    for asked in vary:
        _refuse(asked.partition("=")[0].strip())
    found, wrong, grid = [], [], variants(vary)
    if len(grid) > MOST:
        raise StudyError(f"the grid has {len(grid):,} candidates, and at most {MOST:,} are tried")
    for varied in grid:
        try:
            study = horizontal(studies.read(path, [*changes, *varied]), path)
        except StudyError as error:
            wrong.append(str(error))
            continue
        if study.data.span is not None:
            raise StudyError(
                "data.target = 'number': candidates are told apart by accuracy, and labels are "
                "numbers. Compare runs by their error (`sordino report`), on public data"
            )
        keys, table = [each.partition("=")[0] for each in varied], study.as_table()
        chosen = {key: below(table, *key.split(".")) for key in keys}
        found.append(Candidate(title(varied), chosen, study))
    if wrong:
        raise StudyError("\n".join(dict.fromkeys(wrong)))
    if len({studies.write(each.study) for each in found}) < max(len(found), 2):
        raise StudyError(
            "the grid has one candidate only, so there is nothing to choose: give at least two "
            "values, for example --vary method.learning_rate=0.5,1,2"
            if len(found) < 2
            else "two candidates of the grid are the same study: give every value once"
        )
    return found


def _refuse(key: str) -> None:
    inside = (
        *(each for each in TUNABLE if each[-1] == "."),
        "privacy.mechanism.",
        "data.features.",
    )
    if key in TUNABLE or key.startswith(inside):
        return
    why = "changes the data" if key.startswith("data.") else "is none that can be tuned"
    if key.startswith("privacy."):
        why = "changes what is promised, and not only how well the study learns"
    raise StudyError(
        f"--vary {key}: it {why}. Keys that can be tuned: "
        f"{', '.join(known + '*' * (known[-1] == '.') for known in TUNABLE)}"
    )


def horizontal(study: studies.Study, path: Path) -> HorizontalStudy:
    """The study, if it is one that can be tuned.

    Raises:
        StudyError: if it is not.
    """
    if not isinstance(study, HorizontalStudy):
        raise StudyError(
            f"{path}: `sordino tune` is for studies whose clients have examples of their own, and "
            f"this one is {study.article} {study.kind} study"
        )
    if study.tuned is not None:
        raise StudyError(
            f"{path}: it was tuned already. Leave out its table [tuned] to tune it again"
        )
    if study.form != "sound":
        raise StudyError(
            f"{path}: a paper's literal form is not private, whatever its constants: use form "
            "'sound'"
        )
    return study


def again(study: HorizontalStudy, told: str, **sections: Mapping[str, Any]) -> HorizontalStudy:
    """The same study with keys of its sections changed (None: left out), checked as any study.

    Args:
        told: what a mistake is said of.
    """
    table = study.as_table()
    for name, changed in sections.items():
        table[name] = {**table.get(name, {}), **changed}
        table[name] = {key: each for key, each in table[name].items() if each is not None}
    found = studies.parse(table, source=told)
    assert isinstance(found, HorizontalStudy)
    return found


def tuned(candidate: Candidate, note: Mapping[str, Any]) -> studies.Study:
    """A candidate's study that says how its values were chosen."""
    chosen = {"chosen": dict(candidate.chosen)}
    return again(candidate.study, "the tuned study", tuned={**chosen, **note})
