"""``sordino plan`` and ``methods``: what there is, and what it will cost."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sordino.base.errors import StudyError
from sordino.cli import say
from sordino.cli.run import AsJson, Set

MOST_CLIENTS = 8

if TYPE_CHECKING:
    from sordino.core.method import About
    from sordino.core.plan import Plan
    from sordino.core.statements import Paragraph
    from sordino.core.study.base import Study


@contextmanager
def _uncollected() -> Iterator[None]:
    """Python's search for cycles is off: in a command of a second it takes a sixth of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@_uncollected()
def plan(
    study: Annotated[
        Path | None,
        typer.Argument(help="The study file. Without a study file, give the options below."),
    ] = None,
    change: Set = None,
    epsilon: Annotated[str | None, typer.Option(help="Target epsilon.")] = None,
    delta: Annotated[float | None, typer.Option(help="Target delta.")] = None,
    sampling_rate: Annotated[float | None, typer.Option(help="q of Poisson sampling.")] = None,
    noise_multiplier: Annotated[
        float | None, typer.Option(help="Noise multiplier sigma. Without it, give --steps.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Steps to calibrate the noise for.")] = None,
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
        _advise(read, as_json)
        return
    with noticed(say.people):
        priced, sizes = build.plan(read)
    if as_json:
        say.machine(priced)
    else:
        _show(read, priced, sizes)


def _without_study(
    epsilon: str | None,
    delta: float | None,
    rate: float | None,
    sigma: float | None,
    steps: int | None,
    accountant: str,
    as_json: bool,
) -> None:
    from sordino import privacy
    from sordino.core import plan as plans

    if epsilon is None or delta is None or rate is None or (sigma is None and steps is None):
        raise StudyError(
            "give a study file, or --epsilon, --delta, --sampling-rate and one of "
            "--noise-multiplier and --steps"
        )
    try:
        target = float(epsilon)
    except ValueError:
        raise StudyError(f"--epsilon must be a number or 'inf'; got {epsilon!r}") from None
    _check(target, delta, rate, sigma, steps)
    privacy.accountant(accountant)  # an unknown name is said before anything is computed
    if sigma is None:
        assert steps is not None
        if math.isinf(target):
            raise StudyError("--epsilon inf needs no noise; give a finite epsilon to calibrate it")
        sigma = privacy.noise_multiplier(
            sampling_rate=rate, steps=steps, epsilon=target, delta=delta, accountant=accountant
        )
    event = plans.step_event(rate, sigma)
    most = plans.limits(event, target, delta, (accountant,) if as_json else plans.ACCOUNTANTS)
    taken = steps if steps is not None else most[accountant]
    spent = (
        math.inf
        if taken is None
        else privacy.epsilon_after(event, [taken], delta=delta, accountant=accountant)[0]
    )
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
    say.people(f"noise multiplier {sigma:g}, sampling rate {rate:g}, delta {delta:g}")
    say.people(f"epsilon {say.bound(spent)} after {taken} steps ({accountant})")
    say.table(
        "Most steps within the budget (R_c)",
        ["accountant", "steps"],
        [[name, say.number(n, 10)] for name, n in most.items()],
    )


def _check(
    epsilon: float, delta: float, rate: float, sigma: float | None, steps: int | None
) -> None:
    if not epsilon > 0:
        raise StudyError(f"--epsilon must be positive; got {epsilon}")
    if not 0 < delta < 1:
        raise StudyError(
            "--delta must lie between 0 and 1, below one over the number of examples; got "
            f"{delta:g}"
        )
    if not 0 < rate <= 1:
        raise StudyError(f"--sampling-rate must lie in (0, 1]; got {rate:g}")
    if sigma is not None and not (sigma > 0 and math.isfinite(sigma)):
        raise StudyError(
            "--noise-multiplier must be a positive number for a finite epsilon; got "
            f"{sigma:g}. Leave it out and give --steps to calibrate"
        )
    if steps is not None and steps < 1:
        raise StudyError(f"--steps must be at least 1; got {steps}")


def _advise(study: Study, as_json: bool) -> None:
    from sordino.core import regimes

    advice = regimes.of(study).advise(study, say.Waiting("settings weighed"))
    if as_json:
        say.machine(advice.cells)
    else:
        _tell(advice.told)


def _tell(paragraphs: Sequence[Paragraph]) -> None:
    """Sentences and tables, for people."""
    for each in paragraphs:
        if isinstance(each, str):
            say.people(each)
        else:
            say.table(each.title, each.head, each.rows)


def _show(study: Study, priced: Plan, sizes: tuple[int, ...]) -> None:
    from sordino.core import regimes
    from sordino.core.promise import uncovered

    held = (
        f", {len(sizes)} clients"
        + (
            ""
            if getattr(study, "hides_sizes", False)
            else f" of {min(sizes)} to {max(sizes)} examples"
        )
        if sizes
        else ""
    )
    say.people(f"{study.name}: {study.method.name}{held}")
    for warning in priced.warnings:
        say.people(f"warning: {warning}")
    for warning in uncovered(study):
        say.alarm(f"NOT COVERED: {warning}")
    if study.tuned is not None:
        from sordino.core.study.base import tuned_sentence

        say.people(f"tuned: {tuned_sentence(study.tuned, study.privacy.accountant)}")
    _show_test(study)
    _show_left(priced)
    _tell(regimes.of(study).told(study, priced))
    if priced.gradients:
        say.people(f"gradients of single examples: {priced.gradients}")


def _show_test(study: Study) -> None:
    """What models are measured on, where that is a user's own file."""
    from sordino.clients.evaluations import evaluations, multiplier
    from sordino.clients.study import HorizontalStudy
    from sordino.core.promise import remarks

    for remark in remarks(study):
        say.people(f"test: {remark}")
    if isinstance(study, HorizontalStudy) and study.data.testing == "private share":
        own = study.privacy.evaluation_epsilon
        most = say.bound(study.privacy.epsilon if own is None else own)
        say.people(
            f"      {evaluations(study)} evaluations within epsilon {most}: noise "
            f"{multiplier(study):.4g} on the number of right answers"
        )


def _show_left(priced: Plan) -> None:
    """What the ledgers of the data have left, of those first that have least."""
    if not priced.left:
        return
    ordered = sorted(
        priced.left, key=lambda each: (math.inf if each.steps is None else each.steps, -each.spent)
    )
    rows = [
        [each.called, say.bound(each.spent), say.number(each.steps, 10)]
        for each in ordered[:MOST_CLIENTS]
    ]
    more = (
        "" if len(ordered) <= MOST_CLIENTS else f"; {len(ordered) - MOST_CLIENTS} more have no less"
    )
    say.table(
        f"What the data's ledgers have left{more}",
        ["client", "epsilon spent", "still pays for"],
        rows,
    )


def methods(as_json: AsJson = False) -> None:
    """List every method with its regime, paper and forms, and whether each form is sound."""
    from sordino.core.method import known

    listed = {
        name: kind.about
        for name, kind in sorted(known().items(), key=lambda each: each[1].about.regime)
    }
    if as_json:
        say.machine(
            [
                {
                    "name": name,
                    "regime": about.regime,
                    "paper": about.paper,
                    "forms": dict(about.forms),
                    "units": list(about.units),
                    "about": about.does,
                }
                for name, about in listed.items()
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
        for name, about in listed.items()
    ]
    say.table("Methods", ["name", "regime", "forms", "what it does", "paper"], rows)
    say.table(
        "Mechanisms of those that add noise (privacy.mechanism)",
        ["kind", "forms", "what it does"],
        _mechanisms(),
    )
    say.table(
        "Whose noise (privacy.noise)", ["noise", "what it does"], [list(row) for row in NOISE]
    )
    say.table(
        "Front ends: what a model sees in the place of an example (data.features)",
        ["kind", "what it does"],
        _front_ends(),
    )


def _privacy(about: About, *, sound: bool) -> str:
    """Whether a form is private, and if it need not be, with which units it is."""
    units = [unit for unit in about.units if unit != "none"]
    if not sound or not units:
        return "NOT private"
    whose = " or ".join(f"'{unit}'" for unit in units)
    return f"private if privacy.unit is {whose}" if "none" in about.units else "private"


NOISE = (
    ("own", "each client (or the aggregator) adds all of the noise; every regime"),
    ("shared", "clients add parts of it, and only their sum is opened; rounds, kind gaussian"),
)


def _front_ends() -> list[list[str]]:
    from sordino.data.features import FRONT_ENDS

    return [
        [name, (kind.__doc__ or "").strip().partition("\n")[0].rstrip(".")]
        for name, kind in FRONT_ENDS.known().items()
    ]


def _mechanisms() -> list[list[str]]:
    import typing

    from sordino.mechanisms import known

    rows = []
    for name, kind in known().items():
        forms = typing.get_args(kind.model_fields["form"].annotation)
        words = ", ".join(
            f"{form} ({'NOT private' if form == 'paper' else 'private'})" for form in forms
        )
        rows.append([name, words, (kind.__doc__ or "").strip().partition("\n")[0].rstrip(".")])
    return rows
