"""What the regime rests on: a public schedule that covers the run without gaps, and is the same
whenever it is asked for.
"""

from __future__ import annotations

import math

from sordino.core.method import ContractBroken, Method
from sordino.regimes.asynchronous.method import AsynchronousMethod, EdgeTerms

DIMENSION, CLIENTS = 8, 3


def check(method: Method) -> None:
    """Walk through a method's schedule; see :func:`~sordino.core.method.check_method`."""
    if not isinstance(method, AsynchronousMethod):
        raise ContractBroken(
            f"{method.name}: is no AsynchronousMethod, and its about says asynchronous"
        )
    terms = EdgeTerms(
        dimension=DIMENSION,
        edges=CLIENTS,
        batch=12.0,
        clip=1.0 if method.private else math.inf,
        noise=1.2 if method.private else 0.0,
        staleness=CLIENTS,
        updates=1000,
    )
    stages = method.stages(terms)
    if stages != method.stages(terms):
        raise ContractBroken(f"{method.name}: asked twice, its schedule differs")
    end = 0
    for stage in stages:
        if stage.start != end or stage.length < 1:
            raise ContractBroken(
                f"{method.name}: stage {stage.number} begins after {stage.start} updates and "
                f"lasts {stage.length}, after {end}"
            )
        if method.private and not 0 < stage.clip < math.inf:
            raise ContractBroken(f"{method.name}: stage {stage.number} has clip {stage.clip}")
        for number in (stage.start + 1, min(stage.end, terms.updates)):
            rate = method.rate(terms, stage, number)
            if not 0 < rate < math.inf or rate != method.rate(terms, stage, number):
                raise ContractBroken(f"{method.name}: update {number} has learning rate {rate}")
        end = stage.end
    if end < terms.updates:
        raise ContractBroken(
            f"{method.name}: its schedule ends after {end} of {terms.updates} updates"
        )
