"""Where a study's constants come from: what stands in the table ``[tuned]`` that `sordino tune`
writes, and what a promise says of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import Field

from sordino.base.errors import StudyError
from sordino.base.section import Section
from sordino.privacy.trials import expected, named

REPEATED = (
    "This study came out of a choice among trials on its own private data. Its price covers the "
    "one run that the tuning released, and another run would be another release. Use that run's "
    "model; or leave out [tuned], set privacy.accountant, and pay for a run of its own"
)


class Tuned(Section):
    """How constants were chosen.

    Attributes:
        source: "public", on data that is no study's private data; "private", on the study's own
            data by a random number of trials, which epsilon pays for; "rules", without trials.
        chosen: values by key, as they stand in the study.
        grid: what was tried, as ``KEY=V1,V2``.
        data: what it was tried on.
        measure: by what the best was chosen.
        seeds, trials: of a public choice, what was run.
    """

    source: Literal["public", "private", "rules"]
    chosen: dict[str, Any] = Field(min_length=1)
    grid: tuple[str, ...] = ()
    data: str | None = None
    measure: str | None = None
    seeds: tuple[int, ...] = ()
    trials: int | None = Field(None, ge=1)


def refuse_repeated(tuned: Tuned | None) -> None:
    """Refuse a run of a study that came out of a choice on private data.

    Raises:
        StudyError: saying what may be done with it.
    """
    if tuned is not None and tuned.source == "private":
        raise StudyError(REPEATED)


def changed(tuned: Tuned, study: Mapping[str, Any]) -> Iterator[str]:
    """What a study says otherwise than was chosen, in words.

    Args:
        study: as tables.
    """
    for key, value in tuned.chosen.items():
        found: object = study
        for part in key.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
        if found != value:
            yield f"{key} was chosen as {value!r}, and the study says {found!r}"


def told(tuned: Tuned, accountant: str) -> str:
    """The sentence of the promise, the plan and the report."""
    values = ", ".join(f"{key} = {_word(value)}" for key, value in tuned.chosen.items())
    among = f" Tried: {'; '.join(tuned.grid)}." if tuned.grid else ""
    if tuned.source == "rules":
        return f"No trial chose {values}: they follow rules from the plan (docs/tuning.md)."
    if tuned.source == "public":
        seeds = ", ".join(map(str, tuned.seeds))
        return (
            f"{values} {_were(tuned)} chosen on public data ({tuned.data}), which costs no "
            f"privacy: the best of {tuned.trials} trials by {tuned.measure} (seeds {seeds}).{among}"
        )
    of = named(accountant)
    times = "" if of is None else f", {expected(of[1]):g} expected"
    return (
        f"{values} {_were(tuned)} chosen on the private data itself, and epsilon includes the "
        f"choice: this run is the best of a random number of runs{times}, by {tuned.measure}. "
        f"Nothing of the other runs is released, nor how many there were.{among}"
    )


def _were(tuned: Tuned) -> str:
    return "was" if len(tuned.chosen) == 1 else "were"


def _word(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
