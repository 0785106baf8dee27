"""Several studies with the same seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sordino.api import given as given_data
from sordino.api import shown
from sordino.api.running import Run, looked_at
from sordino.api.study import Study, on_stored
from sordino.comparison import result, runner, tables
from sordino.comparison.schedule import slug
from sordino.core import study as studies

if TYPE_CHECKING:
    import polars


class Comparison(shown.Tabular):
    """Results of several studies with the same seeds: means, spreads, differences to the first.

    A notebook shows its tables and figures.

    Attributes:
        folder: where all runs lie.
        page: the whole page.
        members: each study with its runs by seed.
        differences: of each study to the first, with the same seed.
        failures: the failures, and their reasons.
    """

    def __init__(self, found: result.Comparison) -> None:
        self._found, self.folder, self.page = found, found.folder, found.folder / tables.PAGE
        self.members, self.differences = found.members, found.differences
        self.failures = found.failures

    def runs(self) -> dict[str, list[Run]]:
        """The runs of each study, by its name, in the order of the seeds."""
        return {
            member.side.label: [Run(each) for each in member.runs.values()]
            for member in self.members
        }

    def to_polars(self) -> polars.DataFrame:
        """A row for each run: study, seed, accuracy, epsilon (claimed and true), rounds."""
        return shown.frame(
            [
                {
                    "study": member.side.label,
                    "method": member.side.study.method.name,
                    "seed": seed,
                    member.measured.key: run.measured,
                    "epsilon": run.spent,
                    "epsilon_claimed": run.claimed,
                    "rounds": run.number,
                    "folder": str(run.folder),
                }
                for member in self.members
                for seed, run in member.runs.items()
            ]
        )

    def __repr__(self) -> str:
        told = ", ".join(
            f"{member.side.label}: {tables.measure(member)} ({len(member.runs)} runs)"
            for member in self.members
        )
        return f"<Comparison in {self.folder}: {told}>"

    def _repr_html_(self) -> str:
        from sordino.report.page import picture_of

        content = tables.content(self._found)
        parts = [
            shown.sentences([*content.banner, *content.first]),
            shown.table(content.final.head, content.final.rows),
            shown.sentences([f"warning: {each}" for each in content.warnings]),
        ]
        if content.differences.rows:
            parts += [
                shown.sentences([content.differences.title]),
                shown.table(content.differences.head, content.differences.rows),
                shown.sentences([" ".join(filter(None, each)) for each in content.verdicts]),
            ]
        parts += [
            shown.picture(each.title, str(each.svg), each.caption)
            for each in map(picture_of, content.figures)
        ]
        return shown.page("", *parts, shown.sentences([f"The whole page: {self.page}"]))


def compare(
    asked: Sequence[Study | Path | str],
    data: given_data.Data | None = None,
    *,
    seeds: int = 3,
    vary: Mapping[str, Sequence[Any]] | None = None,
    out: Path | str | None = None,
    workers: int | None = None,
    at: result.At = "true",
    modules: Path | str | None = None,
    progress: bool | None = None,
) -> Comparison:
    """Run several studies with the same seeds, and estimate their differences to the first.

    A comparison that was stopped goes on where it was: call it again with the same arguments.

    >>> import sordino as so
    >>> study = so.Study(
    ...     data="digits",
    ...     model="logistic",
    ...     method=so.DpSgd(learning_rate=0.5, tau=1),
    ...     privacy=so.Privacy(unit="sample", epsilon=2.0, delta=1e-3, sampling_rate=0.1),
    ...     budget=so.Budget(rounds=2),
    ... )
    >>> found = so.compare([study], vary={"method.tau": [1, 2]}, seeds=1, out="c", progress=False)
    >>> found.to_polars()["study"].to_list(), found.page.name
    (['dp-sgd on digits, tau 1', 'dp-sgd on digits, tau 2'], 'comparison.html')

    Args:
        asked: studies, or their files.
        data: data in memory for all of them, in place of their own; see :meth:`Study.on`.
        seeds: how many; they start at the first study's seed.
        vary: values by key with dots; every combination of them is a variant of each study.
        out: folder for all runs; made of their names unless given.
        workers: runs at a time; as many as there are cores unless given.
        at: which epsilon to show: the true one, or the one that a paper claims.
        modules: folder of the modules that study files name; that of the file unless given.
        progress: see :func:`sordino.run`.

    Raises:
        StudyError: if a study cannot be run, or cannot be told from another.
    """
    given = [
        each if isinstance(each, Study) else Study.read(each, modules=modules) for each in asked
    ]
    if data is not None:
        # once, so that its name is no difference between studies
        found = given_data.store(data, given_data.FOLDER, {})
        given = [on_stored(each, found, {}) for each in given]
    return Comparison(
        runner.compared(
            [  # modules are looked for beside this path
                (
                    (each.modules or Path()) / f"{slug(each.name)}-{number}.toml",
                    partial(_read, each),
                )
                for number, each in enumerate(given)
            ],
            [f"{key}={_values(values)}" for key, values in (vary or {}).items()],
            seeds=seeds,
            out=None if out is None else Path(out),
            workers=workers,
            at=at,
            quiet=not (looked_at() if progress is None else progress),
        )
    )


def _read(study: Study, changes: Sequence[str]) -> studies.Study:
    table = study.checked.model_dump(
        mode="json", by_alias=True, exclude_none=True, exclude_unset=True
    )
    if study._made:
        del table["name"]
    return studies.of_table(table, changes, source=study.name, modules=study.modules)


def _values(values: Sequence[Any]) -> str:
    """As on the command line: TOML values with commas between them."""
    import tomli_w

    return ",".join(tomli_w.dumps({"value": each}).partition("=")[2].strip() for each in values)
