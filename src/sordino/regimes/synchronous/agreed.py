"""What a client holds against a task: what it asks for beyond the study."""

from __future__ import annotations

from sordino.base.errors import StudyError
from sordino.base.message import Train
from sordino.core.effect import Book
from sordino.mechanisms.gaussian import LARGEST, SMALLEST
from sordino.regimes.synchronous.protocol import Synchronous


def objection(rules: Synchronous, task: Train) -> str | None:
    """What a task asks for beyond the study, as far as a client can tell by itself; or None.

    A client knows the method and its public schedule. Where earlier releases decide about C or
    sigma, it accepts what it is told: the price follows sigma, and C does not change it.
    """
    method, terms, number = rules.method, rules.terms, task.round
    if not 1 <= number <= terms.rounds:
        return f"it is of round {number}, and the study has {terms.rounds}"
    most = terms.steps if method.fixed_tau is None else method.fixed_tau
    if rules.adder is not None and not rules.adder.whole:
        most = 1
    if not task.steps >= 1 or (most is not None and task.steps > most):
        # the budget may be a site's own, below that of the study
        own = method.fixed_tau is None and most == terms.steps
        bound = "this client's budget pays for" if own else "the study has"
        return f"it asks for {task.steps} local steps, and {bound} {most}"
    wants = rules.wants
    if task.wants_first != wants.first or (task.probe is not None and not wants.raw):
        return "it asks for more than the model after the local steps"
    loss = None if task.loss_bound is None else (task.loss_bound, task.loss_noise)
    if loss != wants.loss:
        return "it asks for the loss otherwise than the study does"
    if task.order != (terms.order if method.adapts_noise else None):
        return f"it fixes the Rényi order {task.order}, and the study another"
    if task.shape and rules.learner is None:
        return "it shapes the noise, and the study's mechanism has one shape"
    return _objection_to_noise(rules, task) or _objection_to_shape(rules, task)


def objection_to_round(rules: Synchronous, effect: Book) -> str | None:
    """What is wrong with the booking of a round, as far as a client can tell; or None."""
    if not rules.together:
        return "no round of this method is charged to everybody"
    if not 1 <= effect.number <= rules.terms.rounds:
        return f"it is of round {effect.number}, and the study has {rules.terms.rounds}"
    method, terms = rules.method, rules.terms
    noise = method.round_noise(method.start(terms), terms, effect.number)
    if not method.adapts_noise and effect.fact != rules.priced(noise):
        return f"round {effect.number} would release {effect.fact}, and the study says otherwise"
    return None


def _objection_to_shape(rules: Synchronous, task: Train) -> str | None:
    try:
        if rules.learner is not None:
            rules.learner.shaped(task.shape)
    except (StudyError, ArithmeticError, ValueError) as error:
        return f"no noise has the shape that it asks for ({error})"
    return None


def _objection_to_noise(rules: Synchronous, task: Train) -> str | None:
    method, terms = rules.method, rules.terms
    if (task.clip is None) != (task.noise_multiplier is None):
        return "it sets only one of the clip and the noise multiplier"
    first = method.round_noise(method.start(terms), terms, task.round)
    clip = terms.clip if task.clip is None else task.clip
    sigma = terms.sigma if task.noise_multiplier is None else task.noise_multiplier
    if not (SMALLEST <= clip <= LARGEST or (task.clip is None and not terms.sigma)):
        return f"its clip is {clip}"
    if not method.adapts_clip and clip != first.clip:
        return f"its clip is {clip}, and the study's is {first.clip}"
    if method.adapts_noise:
        return None if 0.0 < sigma <= terms.sigma else f"its noise multiplier is {sigma}"
    if sigma != first.noise_multiplier:
        return f"its noise multiplier is {sigma}, and the study's is {first.noise_multiplier}"
    return None
