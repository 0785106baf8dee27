r"""Membership inference with shadow runs: the likelihood-ratio attack, LiRA (Carlini et al. 2022).

Runs of one study are made over random halves of its records. What is looked at in a final model is
how sure it is of a record's own label y, on a scale where it is about Gaussian,

    phi  =  log( p_y / (1 - p_y) )  =  s_y - log sum over k != y of exp(s_k),

with s the model's scores and p their softmax. From shadow runs, whose halves the attacker knows,
come the mean of phi for every record in runs with it (mu_1) and in runs without it (mu_0), and one
deviation each (s_1, s_0) for all records together: a few shadow runs do not tell a deviation for
each. The score of a record in a run whose half is not known is

    online     log N(phi; mu_1, s_1) - log N(phi; mu_0, s_0)
    offline    (phi - mu_0) / s_0,   from shadow runs without the record alone.

Two bounds of epsilon follow, from runs that served no other score and no threshold:

* Clopper and Pearson's (:mod:`sordino.audit.bounds`) at one threshold, chosen on the shadow runs,
  each scored by the others. It counts guesses about records of one run as if they were independent,
  which one model's noise makes them only nearly.
* that of one run (:func:`sordino.audit.bounds.one_run`), which needs no such thing: every coin is
  fair and of its own, and what is guessed follows from the models. Several runs are one: a coin
  bears on one of them only.

Shapes: phi and coins (runs, records).

References:
    Carlini, Chien, Nasr, Song, Terzis, Tramer 2022, Membership Inference Attacks From First
    Principles. Steinke, Nasr, Jagielski 2023, Privacy Auditing with One (1) Training Run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from sordino.audit.bounds import Scores, best_threshold, counted, guessed, one_run
from sordino.base.arrays import Bools, Floats, Ints
from sordino.base.errors import StudyError

Form = Literal["online", "offline"]
FORMS: tuple[Form, ...] = ("online", "offline")
RATES = (0.01, 0.001)
"""Rates of false alarms at which the rate of hits is told."""
SHARES = (0.01, 0.05)
"""Shares of the records that are guessed for the bound of one run."""
FEWEST = 4
"""Shadow runs: with fewer, no run is left to score another by."""


@dataclass(frozen=True, slots=True, eq=False)
class Observed:
    """Observations of records in runs.

    Attributes:
        phi: (runs, records), of the final models.
        coins: (runs, records), whether a record was in a run; fair and independent.
    """

    phi: Scores
    coins: Bools

    def take(self, runs: Ints | slice) -> Observed:
        """Some of the runs."""
        return Observed(self.phi[runs], self.coins[runs])


@dataclass(frozen=True, slots=True, kw_only=True)
class Inferred:
    """The outcome of an attack.

    Attributes:
        form: of the score.
        hits: rate of hits at each of :data:`RATES`.
        area: under the curve of hits over false alarms; 1/2 tells nothing.
        low: lower bound of epsilon at delta from the rates at one threshold.
        low_run: lower bound that does not count guesses as independent.
        guesses: about how many coins.
        curve: points (false alarms, hits), from (0, 0) to (1, 1).
    """

    form: Form
    hits: tuple[float, ...]
    area: float
    low: float
    low_run: float
    guesses: int
    curve: tuple[tuple[float, float], ...]


def confidence(scores: Floats, labels: Ints) -> Scores:
    """phi (n,) of scores (n, K) and labels (n,), K from 2.

    >>> confidence(np.log([[0.8, 0.2]]), np.array([0])).round(4)  # log 4
    array([1.3863])
    """
    rows = np.arange(len(labels))
    others = scores.astype(np.float64).copy()
    others[rows, labels] = -np.inf
    top = others.max(1)
    rest = top + np.log(np.exp(others - top[:, None]).sum(1))
    found: Scores = scores[rows, labels] - rest
    return found


def _of(shadows: Observed, there: bool) -> tuple[Scores, float]:
    """Means (records,) over runs with the records, or without, and the deviation from them.

    A record that no run has, or that all have, takes the other kind's mean, moved by the mean
    difference of both kinds.
    """
    mask = shadows.coins if there else ~shadows.coins
    count = mask.sum(0)
    mean = np.where(mask, shadows.phi, 0.0).sum(0) / np.maximum(count, 1)
    if not count.all():
        other = np.where(mask, 0.0, shadows.phi).sum(0) / np.maximum(len(mask) - count, 1)
        both = (count > 0) & (count < len(mask))
        move = float((mean - other)[both].mean()) if both.any() else 0.0
        mean = np.where(count > 0, mean, other + move)
    # each record's mean takes one degree of freedom
    free = max(int(np.maximum(count - 1, 0).sum()), 1)
    rest = np.where(mask & (count > 1), shadows.phi - mean, 0.0)
    return mean, max(float(np.sqrt(np.square(rest).sum() / free)), 1e-12)


def scored(shadows: Observed, phi: Scores, form: Form) -> Scores:
    """Scores (records,) of one run's phi (records,); higher where a record seems to be in."""
    out, spread_out = _of(shadows, there=False)
    far = (phi - out) / spread_out
    if form == "offline":
        return far
    inside, spread_in = _of(shadows, there=True)
    near = (phi - inside) / spread_in
    found: Scores = 0.5 * (far**2 - near**2) + np.log(spread_out / spread_in)
    return found


def curve_of(inside: Scores, outside: Scores) -> tuple[Floats, Floats]:
    """Rates of false alarms and of hits (k,) over all thresholds, from none to all."""
    both = np.concatenate([inside, outside])
    order = np.argsort(-both, kind="stable")
    member = np.concatenate([np.ones(len(inside)), np.zeros(len(outside))])[order]
    # equal scores lie on one side of every threshold
    ends = np.append(np.flatnonzero(np.diff(both[order])), len(both) - 1)
    hits, alarms = np.cumsum(member)[ends], np.cumsum(1.0 - member)[ends]
    zero = np.zeros(1)
    return (
        np.concatenate([zero, alarms / max(len(outside), 1)]),
        np.concatenate([zero, hits / max(len(inside), 1)]),
    )


def hits_at(alarms: Floats, hits: Floats, rate: float) -> float:
    """The highest rate of hits with at most this rate of false alarms."""
    return float(hits[alarms <= rate].max())


def inferred(
    shadows: Observed, targets: Observed, form: Form, delta: float, alpha: float
) -> Inferred:
    """An attack on runs, by shadow runs.

    Args:
        shadows: runs whose coins the attacker knows.
        targets: runs whose coins are guessed; they are looked at last and once.
        form: of the score.
        delta: at which epsilons are told.
        alpha: either bound is wrong with at most this probability.

    Raises:
        StudyError: for fewer than :data:`FEWEST` shadow runs, or no run to attack.
    """
    if len(shadows.phi) < FEWEST or not len(targets.phi):
        raise StudyError(
            f"an attack with shadow runs needs at least {FEWEST} of them, and a run to attack; got "
            f"{len(shadows.phi)} and {len(targets.phi)}"
        )
    runs = np.arange(len(shadows.phi))
    own = np.stack(
        [scored(shadows.take(runs[runs != s]), shadows.phi[s], form) for s in runs.tolist()]
    )
    threshold = best_threshold(own[shadows.coins], own[~shadows.coins], "any", delta, alpha / 2.0)
    scores = np.stack([scored(shadows, phi, form) for phi in targets.phi])
    inside, outside = scores[targets.coins], scores[~targets.coins]
    alarms, hits = curve_of(inside, outside)
    flat, coins = scores.ravel(), targets.coins.ravel()
    numbers = [max(int(share * len(flat)), 1) for share in SHARES]
    part = alpha / 2.0 / len(SHARES)
    return Inferred(
        form=form,
        hits=tuple(hits_at(alarms, hits, rate) for rate in RATES),
        area=float(np.trapezoid(hits, alarms)),
        low=counted(inside, outside, threshold).bound("any", delta, alpha / 2.0),
        low_run=max(one_run(len(flat), r, guessed(flat, coins, r), delta, part) for r in numbers),
        guesses=len(flat),
        curve=_thinned(alarms, hits),
    )


def _thinned(alarms: Floats, hits: Floats) -> tuple[tuple[float, float], ...]:
    """Some 200 points of a curve, close together where there are few false alarms."""
    at = np.unique(np.geomspace(1, len(alarms), 200).astype(np.int64) - 1)
    return tuple(zip(alarms[at].tolist(), hits[at].tolist(), strict=True))
