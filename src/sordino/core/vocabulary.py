"""Vocabularies, in which each regime speaks of what it does: rounds of clients, updates by edges,
events.

The log calls what the server counts "round" and what privacy is paid for "steps", whatever the
regime. People should not have to: a run says in ``run.json`` which regime it is of, and pages,
panels and sentences take their nouns from its regime.

What "accuracy" is differs as well: of a model on a test set, or of predictions over a stream, each
made before its event was learned from.

>>> of("asynchronous").rounds, of("synchronous").rounds
('updates', 'rounds')
>>> shared([of("asynchronous"), of("synchronous")]).rounds
'rounds or updates'
>>> shared([of("vertical"), of("synchronous")]).accuracy.share
'Share of the test set, or of a stream, classified correctly'
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from sordino.core import regimes


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """The measure of a regime.

    Attributes:
        name: in a list of numbers.
        told: in a sentence or a table of final numbers.
        share: what it is a share of, the start of a caption.
        final: likewise, of a run that is over.
        curve: what is drawn over the course of a run: key of the rows, label of the axis.
        curve_is: likewise, the start of a caption; ``{round}`` stands for what is counted.
        streamed: whether it is of a stream, so that one number tells all of a run, and no row has a
            best one.
        key: of the rows and of the result.
        percent: whether it is a share.
        falling: whether less is better.
    """

    name: str
    told: str
    share: str
    final: str
    curve: tuple[str, str]
    curve_is: str
    streamed: bool = False
    key: str = "accuracy"
    percent: bool = True
    falling: bool = False


ON_TEST_SET = Accuracy(
    name="test accuracy",
    told="accuracy",
    share="Share of the test set classified correctly",
    final="Accuracy on the test set of the models handed out",
    curve=("accuracy", "accuracy (%)"),
    curve_is="Accuracy on the test set after each {round}",
)


OF_NUMBERS = Accuracy(
    name="test RMSE",
    told="RMSE",
    share="Root mean squared error on the test set, in units of the label",
    final="Root mean squared error on the test set of the models handed out",
    curve=("rmse", "RMSE"),
    curve_is="Root mean squared error on the test set after each {round}",
    key="rmse",
    percent=False,
    falling=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """The nouns of a regime.

    Attributes:
        regime: its name.
        round, rounds: what the server counts.
        closed: what has happened to one that counts.
        steps: what privacy is paid for.
        steps_of_one: the same, of the participant that did most: the label of an axis.
        client, a_client, clients: who takes part.
        told: what a line of progress takes from a row: key, format ("" for as it stands).
        trail: key whose last values a panel draws.
        counted: kinds of rows that are counted, and what they are called.
        lacking: key that a line of progress tells where it is not 0.
        steps_end: whether a run ends when the steps are used up.
        accuracy: what it measures.
    """

    regime: str
    round: str = "round"
    rounds: str = "rounds"
    closed: str = "closed"
    steps: str = "local steps"
    steps_of_one: str = "local steps of one client"
    client: str = "client"
    a_client: str = "a client"
    clients: str = "clients"
    told: tuple[tuple[str, str], ...] = (("steps", ""),)
    trail: str = "accuracy"
    counted: Mapping[str, str] = field(default_factory=dict)
    lacking: str = ""
    steps_end: bool = False
    accuracy: Accuracy = ON_TEST_SET

    def many(self, count: float) -> str:
        """So many rounds.

        >>> of("asynchronous").many(1), of("asynchronous").many(200)
        ('1 update', '200 updates')
        """
        return f"{count:.15g} {self.round if count == 1 else self.rounds}"


OF_EITHER = Accuracy(
    name="accuracy",
    told="accuracy",
    share="Share of the test set, or of a stream, classified correctly",
    final="Accuracy on the test set of the models handed out, or over the whole stream",
    curve=("accuracy", "accuracy (%)"),
    curve_is="Accuracy on the test set, or in the events of the last five rows of the log",
)


def of_numbers(words: Vocabulary) -> Vocabulary:
    """The same words for a run whose labels are numbers."""
    return replace(words, accuracy=OF_NUMBERS)


def of(regime: str | None) -> Vocabulary:
    """The words of a regime; those of the first where none is named."""
    return regimes.vocabulary(regime)


def shared(vocabularies: Iterable[Vocabulary]) -> Vocabulary:
    """Words for several runs on one page."""
    given = list(vocabularies)
    found = {each.regime: each for each in given}
    kinds = [found[name] for name in regimes.names() if name in found]
    measured = {each.accuracy.name for each in given}
    if len(kinds) < 2:
        return of(None) if not kinds else kinds[0] if len(measured) == 1 else of(kinds[0].regime)
    return replace(
        kinds[0],
        regime="mixed",
        round=_or(each.round for each in kinds),
        rounds=_or(each.rounds for each in kinds),
        steps=_or(each.steps for each in kinds),
        steps_of_one=_or((each.steps_of_one for each in kinds), ", or "),
        client=_or(each.client for each in kinds),
        a_client=_or(each.a_client for each in kinds),
        clients=_or(each.clients for each in kinds),
        accuracy=kinds[0].accuracy if len(measured) == 1 else OF_EITHER,
    )


def _or(words: Iterable[str], last: str = " or ") -> str:
    """
    >>> _or(["rounds", "updates", "events"])
    'rounds, updates or events'
    """
    *first, final = words
    return f"{', '.join(first)}{last}{final}" if first else final
