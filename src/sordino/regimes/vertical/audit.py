r"""Canaries in a stream: labels that a coin flips, and entities whose every row a coin replaces.

The run is the study's own, by its kernel and engine and with its ledger; the adversary sees what
leaves owners and parties. The adjacency is replace-one, so a coin chooses between two rows.

    label     the own label y, or y + 1 modulo K. An answer of the second speaks for the coin, one
              of the first against it, and any other says nothing. Without delta, a guess is right
              with probability e^epsilon / (1 + e^epsilon) at most, whatever else was guessed, so
              who abstains pays nothing (Steinke, Nasr, Jagielski 2023).
    entity    the label likewise, and at every party an embedding at one end of the ball, or at the
              other. With y the first number of what is released of it, c how far the ends are from
              zero and s the noise's deviation, an appearance has the log-likelihood ratio 2 y c /
              s^2, and an answer epsilon or -epsilon; all of them add up.

An entity is in the stream for each event of its own. Its features are nobody's: what a party
computes from them is replaced where it would be cut to length.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from sordino.audit.bounds import Scores, one_run
from sordino.audit.canaries import Coins, Promised
from sordino.audit.intervals import Interval, Row, alone, played
from sordino.base.arrays import Ints
from sordino.base.entropy import Seeded
from sordino.base.errors import StudyError
from sordino.mechanisms.gaussian import Single
from sordino.privacy import Allowance
from sordino.regimes.vertical.halves import Engine
from sordino.regimes.vertical.messages import Messages
from sordino.regimes.vertical.regime import calibrate, label_epsilon, promised, unprotected
from sordino.regimes.vertical.run import Events, build
from sordino.regimes.vertical.stream import LabelRandomizer
from sordino.regimes.vertical.study import VerticalStudy


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Flipped(LabelRandomizer):
    """Answers about labels that coins may have flipped.

    Attributes:
        classes: K.
        coins: (m,), whether an entity's label is flipped; entities from m on are no canaries.
        seen: (m,), answers that speak for a coin, less those that speak against it.
    """

    classes: int
    coins: Coins
    seen: Scores

    def __call__(self, labels: Ints, entities: Ints, places: Ints, paid: Allowance) -> Ints:
        """Answer about labels, some of them flipped."""
        canary = np.flatnonzero(entities < len(self.coins))
        who = entities[canary]
        flipped = (labels + 1) % self.classes
        own = labels.copy()
        own[canary] = np.where(self.coins[who], flipped[canary], labels[canary])
        found = LabelRandomizer.__call__(self, own, entities, places, paid)
        speaks = (found == flipped).astype(np.float64) - (found == labels)
        if self.memoised:  # the same answer again says nothing more
            self.seen[who] = speaks[canary]
        else:
            np.add.at(self.seen, who, speaks[canary])
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaced(Single):
    """Rows at either end of the ball, one entity after another.

    Attributes:
        coins: (m,), at which end a row is.
        seen: first numbers of what was released, in order.
    """

    coins: Coins
    seen: list[float]

    def release_rows(self, rows: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
        """Release rows at the ends of the ball that coins say."""
        start = len(self.seen)
        ends = torch.zeros_like(rows)
        mine = self.coins[start : start + len(rows)]
        signs = torch.from_numpy(np.where(mine, 1.0, -1.0)).to(rows)
        ends[: len(mine), 0] = signs * 1e3 * self.clip
        found = Single.release_rows(self, ends, rng)
        self.seen.extend(found[:, 0].double().tolist())
        return found


def rows(study: VerticalStudy, canaries: int, name: str) -> Sequence[Row]:
    """Return the rows of an audit with canaries."""
    full = calibrate(study)
    if full.privacy.unit == "none":
        raise StudyError("privacy.unit = 'none': nothing is promised that canaries could refute")
    if full.privacy.unit == "entity":
        _refuse(full)
    m = min(canaries, full.horizon * full.method.batch)
    return [lambda alpha: stream(full, m, alpha, name)]


def _refuse(study: VerticalStudy) -> None:
    method, privacy = study.method, study.privacy
    if (reason := unprotected(study)) is not None:
        raise StudyError(f"privacy: {reason}: no epsilon is promised that canaries could refute")
    if privacy.updates == "noisy" or method.resends > 1 or study.world.dropout:
        raise StudyError(
            "--attack canaries looks at entities whose embeddings are sent once by every party: "
            "set privacy.updates = 'frozen', no dropout, and another method than slr"
        )
    if method.activation.kind != "full" or study.data.repeats:
        raise StudyError(
            "--attack canaries looks at entities that take part in one event, with all parties: "
            "set activation = 'full', and a stream that repeats nobody"
        )


def stream(study: VerticalStudy, m: int, alpha: float, name: str) -> Interval:
    """One run over a stream with canaries, by an adversary who sees all that leaves an owner."""
    study = alone(study)
    privacy = study.privacy
    coins: Coins = Seeded(study.seed).at("audit", "stream", "coins").random(m) < 0.5
    answers, covers = np.zeros(m), dict[int, Replaced]()
    with tempfile.TemporaryDirectory() as folder:
        built = build(study, Path(folder), "audit", None)
        simulation = built.simulation
        assert isinstance(simulation, Events)
        own = simulation.randomizer
        assert own.mechanism is not None
        simulation.randomizer = Flipped(
            mechanism=own.mechanism,
            key=own.key,
            memoised=own.memoised,
            required=own.required,
            classes=own.mechanism.classes,
            coins=coins,
            seen=answers,
        )
        if privacy.unit == "entity":
            make = simulation.engine
            simulation.engine = lambda: _covered(make(), coins, covers)
        played(built)
        spent = simulation.ledgers.spent(promised(study))
        simulation.ledgers.close()
    told = Promised(
        name=f"{name}, every {'answer' if privacy.unit == 'label' else 'message'} seen",
        unit=privacy.unit,
        how="one run, white box",
        spent=spent,
        delta=0.0 if privacy.unit == "label" else privacy.delta or 1e-5,
        accountant=privacy.accountant,
    )
    if privacy.unit == "label":  # guesses where an answer speaks; both bounds are the same one
        speaks = answers != 0.0
        right = int(((answers > 0.0) == coins)[speaks].sum())
        low = one_run(m, int(speaks.sum()), right, 0.0, alpha)
        return told.told(low, low, m)
    scores = label_epsilon(study) * answers
    for each in covers.values():
        longest = float(each.bounded(torch.tensor([[1e3 * each.clip]]))[0, 0])
        scores += 2.0 * longest / each.deviation**2 * np.array(each.seen[:m])
    return told.interval(scores, coins, alpha)


def _covered(engine: Engine, coins: Coins, covers: dict[int, Replaced]) -> Engine:
    """Return the engine with canaries at every party; ``covers`` has what its releases showed."""
    assert isinstance(engine, Messages)
    for party in engine.parties:
        noise = party.noise.embedding
        assert noise is not None
        covers[party.index] = Replaced(
            clip=noise.clip, noise_multiplier=noise.noise_multiplier, coins=coins, seen=[]
        )
        party.noise = replace(party.noise, embedding=covers[party.index])
    return engine


ROWS = rows
