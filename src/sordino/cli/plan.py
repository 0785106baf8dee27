"""``sordino plan`` and ``methods``: what there is, and what it will cost."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sordino.cli import say
from sordino.cli.run import AsJson, Set
from sordino.errors import StudyError

MOST_CLIENTS = 8

if TYPE_CHECKING:
    from sordino.engine.plan import Plan
    from sordino.engine.study.base import Study
    from sordino.regimes.asynchronous.method import Stage
    from sordino.regimes.asynchronous.study import AsynchronousStudy
    from sordino.regimes.synchronous.study import SynchronousStudy
    from sordino.regimes.vertical.study import VerticalStudy


def plan(
    study: Annotated[Path | None, typer.Argument(help="The study file; without one, give the options below.")] = None,
    change: Set = None,
    epsilon: Annotated[str | None, typer.Option(help="Target epsilon.")] = None,
    delta: Annotated[float | None, typer.Option(help="Target delta.")] = None,
    sampling_rate: Annotated[float | None, typer.Option(help="q of Poisson sampling.")] = None,
    noise_multiplier: Annotated[float | None, typer.Option(help="sigma; without it, give --steps.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps to calibrate the noise for.")] = None,
    accountant: Annotated[str, typer.Option(help="pld, rdp or rdp-classic.")] = "pld",
    advise: Annotated[bool, typer.Option("--advise", help="A grid of sampling rates and tau at the study's epsilon.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what a study will cost, before anything trains."""
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
        raise StudyError(f"{', '.join(extra)}: these are for a plan without a study. With one, use --set privacy.epsilon=… and so on")
    from sordino.engine import assemble as build
    from sordino.engine import study as studies

    read = studies.read(study, change or ())
    if advise:
        if not isinstance(read, studies.SynchronousStudy):
            raise StudyError("--advise weighs sampling rates and tau of methods that work in rounds; this one does not")
        _advise(build.sized(read), build.federation(read).sizes, as_json)
        return
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
    from sordino import plan as plans
    from sordino import privacy

    if epsilon is None or delta is None or rate is None or (sigma is None and steps is None):
        raise StudyError("give a study file, or --epsilon, --delta, --sampling-rate and one of --noise-multiplier and --steps")
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
        sigma = privacy.noise_multiplier(sampling_rate=rate, steps=steps, epsilon=target, delta=delta, accountant=accountant)
    event = plans.step_event(rate, sigma)
    most = plans.limits(event, target, delta, (accountant,) if as_json else plans.ACCOUNTANTS)
    taken = steps if steps is not None else most[accountant]
    spent = math.inf if taken is None else privacy.epsilon_after(event, [taken], delta=delta, accountant=accountant)[0]
    if as_json:
        say.machine({"steps": most[accountant], "epsilon": spent, "noise_multiplier": sigma, "delta": delta, "accountant": accountant})
        return
    say.people(f"noise multiplier {sigma:g}, sampling rate {rate:g}, delta {delta:g}")
    say.people(f"epsilon {say.bound(spent)} after {taken} steps ({accountant})")
    say.table("Most steps within the budget (R_c)", ["accountant", "steps"], [[name, say.number(n, 10)] for name, n in most.items()])


def _check(epsilon: float, delta: float, rate: float, sigma: float | None, steps: int | None) -> None:
    if not epsilon > 0:
        raise StudyError(f"--epsilon must be positive; got {epsilon}")
    if not 0 < delta < 1:
        raise StudyError(f"--delta must lie between 0 and 1, below one over the number of examples; got {delta:g}")
    if not 0 < rate <= 1:
        raise StudyError(f"--sampling-rate must lie in (0, 1]; got {rate:g}")
    if sigma is not None and not (sigma > 0 and math.isfinite(sigma)):
        raise StudyError(
            f"--noise-multiplier must be a positive number for a finite epsilon; got {sigma:g}. Leave it out and give --steps to calibrate"
        )
    if steps is not None and steps < 1:
        raise StudyError(f"--steps must be at least 1; got {steps}")


def _advise(study: SynchronousStudy, sizes: tuple[int, ...], as_json: bool) -> None:
    from sordino import plan as plans

    cells = plans.rounds.advise(study, sizes)
    if as_json:
        say.machine(cells)
        return
    rows = [
        [
            f"{c.sampling_rate:g}",
            str(c.tau),
            str(c.steps),
            f"{c.noise_multiplier:.3f}",
            f"{1e6 * c.relative_noise:.1f}",
            f"{c.compute:,.0f}",
        ]
        for c in cells
    ]
    head = ["q", "tau", "steps", "sigma", "sigma/(q n) x 1e6", "examples per client"]
    title = f"epsilon {say.bound(study.privacy.epsilon)} in {study.budget.rounds} rounds: what sampling rate and tau would give"
    say.table(title, head, rows)
    say.people("sigma/(q n) is the noise of an averaged step relative to the data: less is better, examples are what it costs.")


def _show(study: Study, priced: Plan, sizes: tuple[int, ...]) -> None:
    from sordino.regimes.asynchronous.study import AsynchronousStudy
    from sordino.regimes.synchronous.study import SynchronousStudy
    from sordino.regimes.vertical.study import VerticalStudy

    weighed = study.privacy.unit != "client" or getattr(study.method, "weights", "size") == "size"
    held = f", {len(sizes)} clients" + (f" of {min(sizes)} to {max(sizes)} examples" if weighed else "") if sizes else ""
    say.people(f"{study.name}: {study.method.name}{held}")
    for warning in priced.warnings:
        say.people(f"warning: {warning}")
    _show_test(study)
    _show_left(priced)
    if isinstance(study, AsynchronousStudy):
        _show_arrivals(study, priced)
    elif isinstance(study, SynchronousStudy):
        _show_rounds(study, priced)
    elif isinstance(study, VerticalStudy):
        _show_events(study, priced)
    if priced.gradients:
        say.people(f"gradients of single examples: {priced.gradients}")


def _show_test(study: Study) -> None:
    """What models are measured on, where that is a user's own file."""
    from sordino.engine.promise import remarks
    from sordino.federation.evaluations import evaluations, multiplier
    from sordino.federation.study import HorizontalStudy

    for remark in remarks(study):
        say.people(f"test: {remark}")
    if isinstance(study, HorizontalStudy) and study.data.testing == "private share":
        own = study.privacy.evaluation_epsilon
        most = say.bound(study.privacy.epsilon if own is None else own)
        say.people(
            f"      {evaluations(study)} evaluations within epsilon {most}: noise {multiplier(study):.4g} on the number of right answers"
        )


def _show_left(priced: Plan) -> None:
    """What the ledgers of the data have left, of those first that have least."""
    if not priced.left:
        return
    ordered = sorted(priced.left, key=lambda each: (math.inf if each.steps is None else each.steps, -each.spent))
    rows = [[each.called, say.bound(each.spent), say.number(each.steps, 10)] for each in ordered[:MOST_CLIENTS]]
    more = "" if len(ordered) <= MOST_CLIENTS else f"; {len(ordered) - MOST_CLIENTS} more have no less"
    say.table(f"What the data's ledgers have left{more}", ["client", "epsilon spent", "still pays for"], rows)


def _show_arrivals(study: AsynchronousStudy, priced: Plan) -> None:
    say.table(
        "Stages", ["stage", "updates", "length", "clip G", "learning rate", "P", "Delta_b"], [_stage(s, study) for s in priced.stages]
    )
    if not priced.most:
        say.people(f"no privacy: epsilon is infinite; {study.budget.updates} updates")
        return
    made = "calibrated" if priced.calibrated else "given"
    say.people(f"noise multiplier {priced.noise_multiplier:g} ({made}), expected batch {study.method.batch:g}, clip {study.privacy.clip:g}")
    rows = [[name + (" *" if name == study.privacy.accountant else ""), say.number(n, 10)] for name, n in priced.most.items()]
    title = (
        f"Most gradients of the edge that spends fastest, within epsilon {say.bound(study.privacy.epsilon)}, delta {study.privacy.delta:g}"
    )
    say.table(title, ["accountant", "gradients"], rows)
    say.people(f"signal to noise of one gradient: at most {priced.signal_to_noise:.3f}")
    say.people(f"fair share of an edge: {priced.used} gradients, epsilon {say.bound(priced.epsilon)}; a faster one sends more")


def _show_events(study: VerticalStudy, priced: Plan) -> None:
    data, method = study.data, study.method
    say.people(f"{study.budget.events} events, {data.parties} parties, activation {method.activation.kind}, window {method.window}")
    if study.privacy.unit == "none":
        say.people("no privacy: epsilon is infinite")
        return
    rows = [[unit, what, say.bound(epsilon)] for unit, what, epsilon in priced.releases]
    times = f"{priced.used} appearance{'s' if priced.used != 1 else ''}"
    title = f"What {times} of an entity release{'s' if priced.used == 1 else ''}, at delta {study.privacy.delta:g}"
    say.table(title, ["unit of the ledger", "released", f"epsilon ({study.privacy.accountant})"], rows)
    promise = f"promised, with unit '{study.privacy.unit}': epsilon {say.bound(study.privacy.epsilon)}"
    limit = "" if priced.steps is None else f"; it pays for {priced.steps} appearances of an entity"
    say.people(promise + limit)


def _stage(stage: Stage, study: AsynchronousStudy) -> list[str]:
    first = stage.start + 1
    last = min(stage.end, study.budget.updates)
    rate = f"{stage.rate:.4g}" if stage.rate is not None else "falls"
    clip = "-" if math.isinf(stage.clip) else f"{stage.clip:.4g}"
    return [str(stage.number), f"{first} to {last}", str(stage.length), clip, rate, f"{stage.slowing:.3g}", f"{stage.variance:.4g}"]


def _show_rounds(study: SynchronousStudy, priced: Plan) -> None:
    if math.isinf(priced.epsilon) and not priced.most:
        say.people(f"no privacy: epsilon is infinite; {priced.rounds} rounds")
        return
    made = "calibrated" if priced.calibrated else "given"
    say.people(
        f"noise multiplier {priced.noise_multiplier:g} ({made}), sampling rate {study.privacy.sampling_rate:g}, clip {study.privacy.clip:g}"
    )
    charged = "rounds" if study.privacy.unit == "client" else "local steps"
    rows = [[name + (" *" if name == study.privacy.accountant else ""), say.number(n, 10)] for name, n in priced.most.items()]
    say.table(
        f"R_c: most {charged} within epsilon {say.bound(study.privacy.epsilon)}, delta {study.privacy.delta:g}",
        ["accountant", charged],
        rows,
    )
    shown = sorted({0, len(priced.curve) // 4, len(priced.curve) // 2, 3 * len(priced.curve) // 4, len(priced.curve) - 1})
    what = "epsilon" if priced.claimed is None else "claimed epsilon"
    say.table(f"{what} after round, at the planned pace", ["round", what], [[str(k + 1), say.bound(priced.curve[k])] for k in shown])
    if priced.batches is not None and priced.signal_to_noise is not None and priced.relative_noise is not None:
        low, middle, high = priced.batches
        if study.privacy.unit == "client":
            say.people(f"expected cohort: {middle:.1f} clients; signal to noise of a round: at most {priced.signal_to_noise:.3f}")
        else:
            say.people(f"expected batch: {low:.1f} (smallest client), {middle:.1f} (median), {high:.1f} (largest)")
            say.people(f"signal to noise of one step at the median client: at most {priced.signal_to_noise:.3f}")
            say.people(f"noise of an averaged step relative to the data, sigma/(q n): {1e6 * priced.relative_noise:.1f}e-6")
    end = "the privacy budget" if priced.ends == "privacy" else "the round budget"
    say.people(
        f"{end} ends the run: {priced.used} {charged} in {len(priced.curve)} of {priced.rounds} rounds, epsilon {say.bound(priced.epsilon)}"
    )


def methods(as_json: AsJson = False) -> None:
    """List every method with its regime, paper and forms, and whether each form is sound."""
    from sordino.engine.methods import known

    listed = {name: kind.about for name, kind in known().items()}
    if as_json:
        say.machine(
            [
                {"name": name, "regime": about.regime, "paper": about.paper, "forms": dict(about.forms), "about": about.does}
                for name, about in listed.items()
            ]
        )
        return
    rows = [
        [
            name,
            about.regime,
            ", ".join(f"{form} ({'private' if sound else 'NOT private'})" for form, sound in about.forms.items()),
            about.does,
            about.paper,
        ]
        for name, about in listed.items()
    ]
    say.table("Methods", ["name", "regime", "forms", "what it does", "paper"], rows)
    say.table("Mechanisms of those that add noise (privacy.mechanism)", ["kind", "forms", "what it does"], _mechanisms())


def _mechanisms() -> list[list[str]]:
    import typing

    import sordino.mechanism.haar  # noqa: F401  (registers it)
    from sordino.mechanism import known

    rows = []
    for name, kind in known().items():
        forms = typing.get_args(kind.model_fields["form"].annotation)
        words = ", ".join(f"{form} ({'NOT private' if form == 'paper' else 'private'})" for form in forms)
        rows.append([name, words, (kind.__doc__ or "").strip().partition("\n")[0].rstrip(".")])
    return rows
