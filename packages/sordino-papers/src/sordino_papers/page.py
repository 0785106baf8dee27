"""The page of a reproduction: every entry with its tables, pictures and verdicts, in one file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sordino.extend.runs import Picture, Table, template
from sordino_papers import figures, tables
from sordino_papers.markdown import TITLES, counted, verdict
from sordino_papers.results import EntryOf, Results
from sordino_papers.tables import Named

HOME = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Judgement:
    """A claim as the page shows it."""

    text: str
    where: str
    verdict: str
    forms: Sequence[tuple[str, str, Sequence[str]]]


@dataclass(frozen=True, slots=True)
class Section:
    """An entry as the page shows it."""

    said: EntryOf
    paper: str
    data: str
    claims: Sequence[Judgement]
    tables: Sequence[Named]
    paid: Table
    pictures: Sequence[Picture]


def render(found: Sequence[tuple[Results, EntryOf]]) -> str:
    """The page as HTML."""
    sections = [_section(results, said) for results, said in found]
    overview = [
        (f"{each.paper}, {each.said.item}", each.said.name, each.said.title, each.data,
         counted(each.said.claims))
        for each in sections
    ]  # fmt: skip
    html: str = template("reproduction.html", HOME).render(sections=sections, overview=overview)
    return html


def _section(results: Results, said: EntryOf) -> Section:
    claims = []
    for claim, asked in zip(said.claims, results.grid.entry.claim, strict=True):
        forms = [
            (
                form.form,
                form.said,
                tables.statistics(form, asked.measure.percent),
            )
            for form in claim.forms
        ]
        claims.append(Judgement(claim.text, claim.where, verdict(claim), forms))
    return Section(
        said,
        TITLES[said.paper],
        tables.data_of(results.grid),
        claims,
        tables.tables(results),
        tables.epsilons(results),
        figures.pictures(results),
    )
