"""The runs of a comparison: every study with the same seeds, each run in its own folder.

No files, no processes.

>>> slug("ALI-DPFL on digits"), slug("§")
('ali-dpfl-on-digits', 'study')
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from sordino.base.errors import StudyError
from sordino.core.regimes import calibrated
from sordino.core.study.base import Study, refuse_repeated

Reads: TypeAlias = Callable[[Sequence[str]], Study]
"""A study with ``key=value`` changes applied."""


def sides_of(studies: Sequence[tuple[Path, Reads]], variants: Sequence[Variant]) -> list[Side]:
    """Every study in every variant, calibrated; all that are wrong are told at once.

    Args:
        studies: of each its file, and what reads it.

    Raises:
        StudyError: if a study cannot be run, or cannot be told from another.
    """
    read, wrong = [], []
    for path, reads, variant in [(*study, variant) for study in studies for variant in variants]:
        try:
            study = reads(variant.changes)
            refuse_repeated(study.tuned)
            read.append((study, calibrated(study), path, variant))
        except StudyError as error:
            wrong.append(str(error))
    if wrong:
        raise StudyError("\n".join(dict.fromkeys(wrong)))
    names = labels(
        [study.name for study, *_ in read],
        [path for _, _, path, _ in read],
        [variant.title for *_, variant in read],
    )
    sides = [
        Side(name, slug(name), path, study, full)
        for name, (study, full, path, _) in zip(names, read, strict=True)
    ]
    refuse_shared(sides)
    return sides


LONGEST = 60


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """One study of a comparison.

    Attributes:
        label: what it is called in tables.
        slug: the same as the name of a folder.
        path: its file.
        study: as asked for, ``--set`` applied.
        full: with its noise calibrated.
    """

    label: str
    slug: str
    path: Path
    study: Study
    full: Study


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """One run: a study with a seed, and where it belongs."""

    side: Side
    seed: int
    folder: Path

    @property
    def study(self) -> Study:
        """The study that is given to ``sordino run``."""
        return self.side.study.model_copy(update={"seed": self.seed})

    @property
    def full(self) -> Study:
        """The study that the run folder's study.toml will hold."""
        return self.side.full.model_copy(update={"seed": self.seed})


def slug(text: str) -> str:
    """``text`` as the name of a folder."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:LONGEST].strip("-") or "study"


@dataclass(frozen=True, slots=True)
class Variant:
    """Changes to a study, and what they are called; none and "" for the study as it is."""

    changes: tuple[str, ...] = ()
    title: str = ""


def variants(vary: Sequence[str]) -> tuple[Variant, ...]:
    """Every combination of the values that were asked for.

    >>> [found.title for found in variants(["method.length=10,50", "seed=1"])]
    ['length 10, seed 1', 'length 50, seed 1']

    Raises:
        StudyError: for what is not KEY=V1,V2.
    """
    found: tuple[Variant, ...] = (Variant(),)
    for asked in vary:
        key, equals, text = asked.partition("=")
        if not equals or not key.strip() or not text.strip():
            raise StudyError(
                f"--vary {asked}: write it as section.key=value,value, for example --vary "
                "method.length=10,50"
            )
        last = key.strip().rpartition(".")[2]
        found = tuple(
            Variant(
                (*before.changes, f"{key.strip()}={value}"),
                ", ".join(filter(None, (before.title, f"{last} {value}"))),
            )
            for before in found
            for value in _values(text)
        )
    return found


def _values(text: str) -> list[str]:
    """The values of a TOML list: a comma inside a table or a string divides nothing."""
    depth, quoted, parts = 0, "", [""]
    for letter in text:
        if quoted:
            quoted = "" if letter == quoted else quoted
        elif letter in "\"'":
            quoted = letter
        else:
            depth += (letter in "[{") - (letter in "]}")
        if letter == "," and not depth and not quoted:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def labels(
    names: Sequence[str], paths: Sequence[Path], titles: Sequence[str] | None = None
) -> list[str]:
    """Return labels of studies: their names, else their files; with the titles of variants.

    >>> files = [Path("x.toml"), Path("y.toml")]
    >>> labels(["a", "b"], files), labels(["a", "A"], files)
    (['a', 'b'], ['x', 'y'])

    Raises:
        StudyError: if a file is given twice, or neither names nor files tell the studies apart.
    """
    titles = [""] * len(paths) if titles is None else titles
    given = [(path.resolve(), title) for path, title in zip(paths, titles, strict=True)]
    for i, path in enumerate(paths):
        if given[i] in given[:i]:
            raise StudyError(
                f"{path}: given twice. A study compared with itself shows nothing; raise "
                "--seeds to see how much seeds matter"
            )
    for plain in (list(names), [path.stem for path in paths]):
        tried = [", ".join(filter(None, both)) for both in zip(plain, titles, strict=True)]
        if len({slug(label) for label in tried}) == len(tried):
            return tried
    raise StudyError(
        f"{', '.join(map(str, paths))}: their names do not tell them apart. Give each study "
        "another name"
    )


def seeds_of(first: Study, count: int) -> tuple[int, ...]:
    """The seeds of every study: those of the first, since only equal seeds make pairs."""
    if count < 1:
        raise StudyError(f"--seeds must be at least 1; got {count}")
    return tuple(range(first.seed, first.seed + count))


def refuse_shared(sides: Sequence[Side]) -> None:
    """Runs that spend one budget together are no repetitions of each other."""
    for side in sides:
        if side.study.privacy.ledger != "run":
            raise StudyError(
                f"{side.path}: privacy.ledger = {side.study.privacy.ledger!r} is shared by runs, "
                "so each seed would lower the next budget. Compare with --set privacy.ledger=run"
            )


def tasks(sides: Sequence[Side], seeds: Sequence[int], out: Path) -> list[Task]:
    """Every run, seed by seed: a comparison that is stopped early has whole pairs."""
    return [Task(side, seed, out / side.slug / f"seed-{seed}") for seed in seeds for side in sides]


def usual_folder(sides: Sequence[Side]) -> Path:
    """Where a comparison goes if nothing is said: the same place for the same studies."""
    return Path("runs") / ("compare-" + "-and-".join(side.slug for side in sides))[
        : 2 * LONGEST
    ].strip("-")
