"""What the regime rests on: the same releases lead to the same choices, and what a method remembers
survives a checkpoint.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import msgspec
import numpy as np

from sordino.base.message import Raw, Statistics, Update
from sordino.core.method import ContractBroken, Method
from sordino.regimes.synchronous.method import Released, Remaining, SynchronousMethod, Terms

DIMENSION, ROUNDS, CLIENTS = 8, 12, 3


def check(method: Method) -> None:
    """Play some rounds with made-up releases; see :func:`~sordino.core.method.check_method`."""
    if not isinstance(method, SynchronousMethod):
        raise ContractBroken(
            f"{method.name}: is no SynchronousMethod, and its about says synchronous"
        )
    first, second = _play(method), _play(method)
    if first != second:
        raise ContractBroken(f"{method.name}: the same releases led to two different runs")


def _terms(method: SynchronousMethod) -> Terms:
    promised = method.private
    return Terms(
        dimension=DIMENSION,
        sizes=(100, 50, 10),
        weights=(0.6, 0.3, 0.1),
        sampling_rate=0.1,
        learning_rate=method.learning_rate,
        clip=1.0 if promised else math.inf,
        noise=1.2 if promised else 0.0,
        rounds=ROUNDS,
        steps=4 * ROUNDS if promised and method.about.units != ("client",) else None,
        sigma=1.2 if promised else 0.0,
        epsilon=3.0 if promised else math.inf,
        delta=1e-5,
        accountant="rdp@8" if method.adapts_noise else "rdp",
    )


def _play(method: SynchronousMethod) -> list[Any]:
    terms, told = _terms(method), []
    memory = method.start(terms)
    rng = np.random.default_rng(7)
    for number in range(1, ROUNDS + 1):
        left = Remaining(
            ROUNDS - number + 1, None if terms.steps is None else terms.steps - 2 * number + 2
        )
        choice = method.choose(memory, terms, left)
        contract = method.round_noise(memory, terms, number)
        if choice != method.choose(memory, terms, left) or contract != method.round_noise(
            memory, terms, number
        ):
            raise ContractBroken(f"{method.name}: asked twice, it answers differently")
        if not isinstance(choice.tau, int) or choice.tau < 0:
            raise ContractBroken(
                f"{method.name}: tau must be a whole number from 0; got {choice.tau!r}"
            )
        if choice.tau == 0:
            break
        if method.private and not (
            0 < contract.clip < math.inf and 0 < contract.noise_multiplier < math.inf
        ):
            raise ContractBroken(
                f"{method.name}: round {number} has clip {contract.clip} and noise "
                f"{contract.noise_multiplier}"
            )
        told += [choice, contract]
        memory = _after(method, memory, terms, number, choice.tau, rng)
        if not isinstance(memory, method.memory):
            raise ContractBroken(
                f"{method.name}: its memory is a {type(memory).__name__}, not the "
                f"{method.memory.__name__} it declares"
            )
        if msgspec.json.decode(msgspec.json.encode(memory), type=method.memory) != memory:
            raise ContractBroken(f"{method.name}: its memory does not survive a checkpoint")
        msgspec.json.encode(method.observed(memory))
    return told


def _after(
    method: SynchronousMethod,
    memory: Any,
    terms: Terms,
    number: int,
    tau: int,
    rng: np.random.Generator,
) -> Any:
    if method.about.units == ("client",):
        released = Released(
            mean=rng.standard_normal(DIMENSION).astype(np.float32), clipped=float(rng.random())
        )
        return method.learn(memory, terms, released)
    answers = [_answer(client, number, tau, rng, method) for client in range(CLIENTS)]
    kept = copy.deepcopy(answers)
    after = method.fold(memory, terms, answers)
    again = method.fold(memory, terms, copy.deepcopy(answers))
    if after != again:
        raise ContractBroken(f"{method.name}: the same answers were folded in two ways")
    if not all(a == b for a, b in zip(answers, kept, strict=True)):
        raise ContractBroken(f"{method.name}: it changed the answers that it was handed")
    if method.fold(memory, terms, []) is None:
        raise ContractBroken(f"{method.name}: a round without answers leaves no memory")
    return after


def _answer(
    client: int, number: int, tau: int, rng: np.random.Generator, method: SynchronousMethod
) -> Update:
    energy, first, change, moved = (float(x) for x in rng.uniform(0.5, 4.0, 4))
    statistics = Statistics(
        energy=energy,
        first=first,
        change=change,
        moved=moved,
        slope_first=-0.1,
        slope_last=0.05,
        clipped=0.4,
        loss=float(rng.random()) if method.wants.loss else None,
    )
    vector = rng.standard_normal(DIMENSION).astype(np.float32)
    raw = Raw(beta=1.0, rho=0.5, gradient=vector) if method.wants.raw and number > 1 else None
    first_gradient = vector if method.wants.first else None
    return Update(
        client=client,
        round=number,
        steps=tau,
        weights=vector,
        statistics=statistics,
        first=first_gradient,
        raw=raw,
    )
