"""The table of every item with its verdicts, in Markdown: ``docs/reproduction.md``."""

from __future__ import annotations

from collections.abc import Sequence

from sordino_papers import tables
from sordino_papers.entry import Claim
from sordino_papers.results import ClaimOf, EntryOf, Results

TITLES = {
    "ali-dpfl": "ALI-DPFL",
    "als-dpfl": "ALS-DPFL",
    "haar": "Haar wavelet noise",
    "mapa": "MAPA",
    "events": "Event-driven online vertical learning",
}
HEAD = """# Every table and figure of the five papers

`{command}` made this page: it runs the studies of a catalogue and judges each claim of
the papers' text by a rule.

* **holds**: in every comparison that the claim makes, the whole 95 % interval over seeds
  (Student's t, paired by seed, corrected for the number of comparisons) is on the claimed side.
* **does not hold**: the whole interval of at least one comparison is on the other side.
* **cannot be told**: neither, with so few seeds.
* **needs unpaid privacy**: it holds in the paper's own form at the epsilon that the paper claims,
  but the true epsilon of that form is larger, and in the sound form, whose epsilon is true, it does
  not hold or cannot be told.

Accuracies are in per cent, mean ± standard deviation over seeds.

The catalogue is data: a file for each table and figure in
`packages/sordino-papers/src/sordino_papers/catalogue`, and the module `sordino_papers.entry` says
what stands in it. `sordino reproduce LIST` shows what
runs here, and on which data.
"""
FEW = 3  # comparisons of a claim that are shown; the others stand in the JSON


def text(found: Sequence[tuple[Results, EntryOf]], command: str) -> str:
    """The page."""
    parts = [HEAD.format(command=command), _overview(found)]
    for paper, title in TITLES.items():
        mine = [pair for pair in found if pair[1].paper == paper]
        if mine:
            parts.append(f"## {title}\n")
            parts += [_entry(results, said) for results, said in mine]
    return "\n".join(parts).rstrip() + "\n"


def _overview(found: Sequence[tuple[Results, EntryOf]]) -> str:
    rows = [
        [
            f"{TITLES[said.paper]}, {said.item}",
            f"[{_plain(said.title)}](#{anchor(said)})",
            tables.data_of(results.grid) or "-",
            counted(said.claims) or "no claim to judge",
        ]
        for results, said in found
    ]
    return _table(("item", "what it shows", "data", "claims"), rows)


def counted(claims: Sequence[ClaimOf]) -> str:
    """Count the claims by verdict."""
    order = ("holds", "needs unpaid privacy", "cannot be told", "does not hold")
    numbers = {name: sum(claim.verdict == name for claim in claims) for name in order}
    return ", ".join(f"{count} {name}" for name, count in numbers.items() if count)


def verdict(claim: ClaimOf) -> str:
    """In words, with the reservation that other data stands in for the paper's."""
    return claim.verdict + (", on other data" if claim.on_other_data else "")


def anchor(said: EntryOf) -> str:
    """Of an entry's heading, as Markdown makes it."""
    kept = "".join(c for c in heading(said).lower() if c.isalnum() or c in " -")
    return kept.replace(" ", "-")


def heading(said: EntryOf) -> str:
    """Of an entry."""
    return f"{TITLES[said.paper]} {said.item}"


def _entry(results: Results, said: EntryOf) -> str:
    parts = [f"### {heading(said)}\n", f"{said.title}.\n"]
    facts = [
        f"Data: {tables.data_of(results.grid)}." if results.grid.data else "",
        f"Seeds: {', '.join(map(str, said.seeds))}; scale {said.scale}.",
        said.note,
    ]
    parts.append(" ".join(filter(None, facts)) + "\n")
    for each in tables.tables(results):
        parts += [f"{each.title[:1].upper()}{each.title[1:]}:\n", _table(each.head, each.rows)]
    paid = tables.epsilons(results)
    if paid.rows:
        parts.append(_table(paid.head, paid.rows))
    for claim, asked in zip(said.claims, results.grid.entry.claim, strict=True):
        parts.append(_claim(claim, asked))
    parts += [f"* Not run: {gap.what} ({gap.why})." for gap in said.not_run]
    parts += [f"* Not run: {each}." for each in said.left_out]
    parts += [f"* Failed: {_plain(each)}" for each in said.failures]
    return "\n".join(parts) + "\n"


def _claim(claim: ClaimOf, asked: Claim) -> str:
    """One line for each claim: a list in a list would be read as code by some readers."""
    told = []
    for form in claim.forms:
        shown = tables.statistics(form, asked.measure.percent)
        more = len(shown[FEW:])
        each = "; ".join(shown[:FEW])
        tail = f"; and {more} more" if more else ""
        name = f"{form.form} form: " if len(claim.forms) > 1 else ""
        said = f"{form.said}; " if len(claim.forms) > 1 else ""
        told.append(f"{name}{said}{each}{tail}")
    return f"* **{verdict(claim)}**: {claim.text} ({claim.where}). {'. '.join(told)}."


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [_row(head), _row(["---"] * len(head)), *(_row(row) for row in rows)]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_plain(cell) for cell in cells) + " |"


def _plain(told: str) -> str:
    return " ".join(told.replace("|", "\\|").split())
