"""The page of a comparison over seeds: means with bands, a table, the paired differences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sordino.core.run.reading import Run
from sordino.core.vocabulary import shared
from sordino.report import costs, sweep, together, words
from sordino.report.album import Picture, markup
from sordino.report.page import template

CAPTIONS = {
    "round": "{curve_is}, mean over the seeds{below}. A band reaches from the lowest to the "
    "highest seed; a curve ends where its first seed ends.{estimated}",
    "epsilon": "{same} over the epsilon that was spent for it. Studies are at equal privacy where "
    "they stand above the same point. A study without privacy is a level: it stands nowhere on "
    "this axis.",
    "claimed": "{same} over the epsilon that is claimed for it. A single dot is a claim for the "
    "end of a run alone. What the banner names is not private at that epsilon.",
}
BELOW = " (above), and epsilon spent (below; dashed: budgets)"
TITLES = {"round": "Over {rounds}", "epsilon": "Over epsilon", "claimed": "Over claimed epsilon"}


@dataclass(frozen=True, slots=True)
class Table:
    """A head, and rows of as many cells."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What the page says.

    Attributes:
        sub: one line below the title.
        labels, groups: the studies, and the runs of each.
        claimed: whether they stand at the epsilon that is claimed.
        banner: which studies are not private as claimed.
        failures, warnings: what to know first.
        studies, reported, differences, runs: the tables; of what publications report, empty where
            no study says.
        against: the title of the differences.
        verdicts: what each difference means, and what makes it unequal.
        remarks: what all differences have in common.
        sweep: a picture over a key that the studies differ in, or None.
    """

    sub: str
    labels: Sequence[str]
    groups: Sequence[Sequence[Run]]
    claimed: bool
    banner: Sequence[str]
    failures: Sequence[str]
    warnings: Sequence[str]
    studies: Table
    against: str
    reported: Table
    differences: Table
    verdicts: Sequence[tuple[str, str]]
    remarks: Sequence[str]
    runs: Table
    sweep: sweep.Sweep | None = None


def render_studies(content: Content) -> str:
    """Several studies, each with its seeds, on one page."""
    promises = [
        (label, words.promise(max(runs, key=lambda run: run.spent or 0.0)))
        for label, runs in zip(content.labels, content.groups, strict=True)
        if runs
    ]
    html: str = template("comparison.html").render(
        title=f"{len(content.labels)} {'study' if len(content.labels) == 1 else 'studies'} "
        "compared",
        sub=content.sub,
        banner=content.banner,
        failures=content.failures,
        without=[label for label, promise in promises if not promise.private],
        notes=content.warnings,
        head=content.studies.head,
        rows=content.studies.rows,
        against=content.against,
        reported=content.reported,
        differences=content.differences,
        verdicts=content.verdicts,
        remarks=content.remarks,
        runs=content.runs,
        pictures=figures(content),
        promises=promises,
    )
    return html


def figures(content: Content) -> list[Picture]:
    """The pictures of the page."""
    drawn = []
    if content.sweep is not None and (picture := sweep.draw(content.sweep)) is not None:
        drawn.append(
            Picture(sweep.title(content.sweep), markup(picture), sweep.caption(content.sweep))
        )
    spoken = shared(run.vocabulary for runs in content.groups for run in runs)
    measured = spoken.accuracy
    below = BELOW if together.rising(run for runs in content.groups for run in runs) else ""
    told = {
        "round": spoken.round,
        "rounds": spoken.rounds,
        "below": below,
        "curve_is": measured.curve_is.format(round=spoken.round),
        "estimated": words.estimated(run for runs in content.groups for run in runs),
        "same": f"{measured.final}," if measured.streamed else "The same accuracy",
    }
    for over, name in (
        ("round", "round"),
        ("epsilon", "claimed" if content.claimed else "epsilon"),
    ):
        picture = together.together(content.groups, content.labels, over, claimed=content.claimed)
        if picture is not None:
            drawn.append(
                Picture(TITLES[name].format(**told), markup(picture), CAPTIONS[name].format(**told))
            )
    if (picture := costs.costs(content.groups, content.labels)) is not None:
        drawn.append(Picture(costs.TITLE, markup(picture), costs.CAPTION.format(mean=costs.MEAN)))
    return drawn
