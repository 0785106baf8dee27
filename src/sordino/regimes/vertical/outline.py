"""What a study of events will cost, and whether its data and models fit together."""

from __future__ import annotations

from dataclasses import replace

from sordino.core.plan import Plan
from sordino.regimes.vertical.plan import calibrate, price
from sordino.regimes.vertical.source import parts, source
from sordino.regimes.vertical.study import VerticalStudy


def plan(study: VerticalStudy) -> Plan:
    """See :meth:`sordino.core.regimes.Regime.plan`. Built-in models fit any data; others are made,
    and only they wait for torch.
    """
    full = calibrate(study)
    stream, *_ = source(full, known=False)
    if full.model.party is None and full.model.server is None:
        parts(full, stream)
    else:
        from sordino.regimes.vertical import assemble

        assemble.check(full, stream)
    return replace(price(full), calibrated=full != study)
