"""The runs of a comparison: every study with the same seeds, each run in its own folder.

No files, no processes.

>>> slug("ALI-DPFL on digits"), slug("§")
('ali-dpfl-on-digits', 'study')
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TypeAlias

from sordino.base.errors import StudyError
from sordino.core.regimes import calibrated
from sordino.core.study.base import Study, refuse_repeated

Reads: TypeAlias = Callable[[Sequence[str]], Study]
"""A study with ``key=value`` changes applied."""


def sides_of(studies: Sequence[tuple[Path, Reads]], vary: Sequence[str]) -> list[Side]:
    """Every study in every variant, calibrated; all that are wrong are told at once.

    A parameter of one method is no variant of another: such a study stands there once.

    Args:
        studies: of each its file, and what reads it.
        vary: values by key, as ``KEY=V1,V2``.

    Raises:
        StudyError: if a study cannot be run, or cannot be told from another.
    """
    read, wrong = list[tuple[Path, Sequence[str], Study, Study]](), []
    asked = list(product(studies, variants(vary)))
    for (_, reads), changes in asked:
        with suppress(StudyError):  # which is told below, when all methods of one's own are known
            reads(changes)
    for (path, reads), changes in asked:
        try:
            study = reads(changes)
            refuse_repeated(study.tuned)
            fitting = [each for each in changes if _fits(each, study)]
            if len(fitting) == len(changes) or (path, fitting) not in [each[:2] for each in read]:
                read.append((path, fitting, study, calibrated(study)))
        except StudyError as error:
            wrong.append(str(error))
    if wrong:
        raise StudyError("\n".join(dict.fromkeys(wrong)))
    names = labels(
        [study.name for *_, study, _ in read],
        [path for path, *_ in read],
        [title(fitting) for _, fitting, *_ in read],
    )
    sides = [
        Side(name, slug(name), path, study, full)
        for name, (path, _, study, full) in zip(names, read, strict=True)
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


def variants(vary: Sequence[str]) -> list[tuple[str, ...]]:
    """Every combination of the values that were asked for, as ``key=value`` changes.

    >>> variants(["method.length=10,50", "seed=1"])
    [('method.length=10', 'seed=1'), ('method.length=50', 'seed=1')]

    Raises:
        StudyError: for what is not KEY=V1,V2.
    """
    choices = []
    for asked in vary:
        key, equals, text = asked.partition("=")
        if not equals or not key.strip() or not text.strip():
            raise StudyError(
                f"--vary {asked}: write it as section.key=value,value, for example --vary "
                "method.length=10,50"
            )
        choices.append([f"{key.strip()}={value}" for value in _values(text)])
    return list(product(*choices))


def title(changes: Sequence[str]) -> str:
    """Changes to a study in words; empty for the study as it is.

    >>> title(["method.name=dp-sgd", "method.tau=4"])
    'dp-sgd, tau 4'
    """
    pairs = [change.partition("=")[::2] for change in changes]
    last = [(key.rpartition(".")[2], value) for key, value in pairs]
    return ", ".join(value if key == "name" else f"{key} {value}" for key, value in last)


def _fits(change: str, study: Study) -> bool:
    """Return whether a change is none of another method's parameters."""
    section, _, key = change.partition("=")[0].rpartition(".")
    return section != "method" or key in {
        field.alias or name for name, field in type(study.method).model_fields.items()
    }


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


def labels(names: Sequence[str], paths: Sequence[Path], titles: Sequence[str]) -> list[str]:
    """Return labels of studies: their names, else their files; with the titles of variants.

    >>> files, titles = [Path("x.toml"), Path("y.toml")], ["", ""]
    >>> labels(["a", "b"], files, titles), labels(["a", "A"], files, titles)
    (['a', 'b'], ['x', 'y'])

    Raises:
        StudyError: if a file is given twice, or neither names nor files tell the studies apart.
    """
    given = [(path.resolve(), title) for path, title in zip(paths, titles, strict=True)]
    for i, path in enumerate(paths):
        if given[i] in given[:i]:
            raise StudyError(
                f"{path}: given twice. A study compared with itself shows nothing; raise "
                "--seeds to see how much seeds matter"
            )
    for plain in (list(names), [path.stem for path in paths]):
        tried = [_label(name, title) for name, title in zip(plain, titles, strict=True)]
        if len({slug(label) for label in tried}) == len(tried):
            return tried
    raise StudyError(
        f"{', '.join(map(str, paths))}: their names do not tell them apart. Give each study "
        "another name"
    )


def _label(name: str, title: str) -> str:
    """A name with what varies; a name that was made of the method's has that already.

    >>> _label("dp-sgd on digits", "dp-sgd, tau 4"), _label("mine", "tau 4")
    ('dp-sgd on digits, tau 4', 'mine, tau 4')
    """
    first, _, rest = title.partition(", ")
    told = rest if name.startswith(f"{first} on ") else title
    return ", ".join(filter(None, (name, told)))


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
