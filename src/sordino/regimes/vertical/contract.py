"""What the regime rests on: a window that can be."""

from __future__ import annotations

from sordino.core.method import ContractBroken, Method
from sordino.regimes.vertical.method import OnlineMethod


def check(method: Method) -> None:
    """Look at a method's window; see :func:`~sordino.core.method.check_method`."""
    if not isinstance(method, OnlineMethod):
        raise ContractBroken(f"{method.name}: is no OnlineMethod, and its about says vertical")
    if method.window < 1 or not 0.0 < method.attenuation <= 1.0:
        raise ContractBroken(
            f"{method.name}: a window of {method.window} events at attenuation {method.attenuation}"
        )
    if method.resends not in (1, method.window):
        raise ContractBroken(
            f"{method.name}: sends {method.resends} examples an event, and its window holds "
            f"{method.window}"
        )
    if method.resends > 1 and method.attenuation != 1.0:
        raise ContractBroken(
            f"{method.name}: examples that are evaluated again count alike; its attenuation "
            f"is {method.attenuation}"
        )
