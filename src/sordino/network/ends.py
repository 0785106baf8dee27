"""When a run between sites cannot go on, and what is said then.

A site is *out* once it has refused a task or a booking, has sent an answer that cannot be used, or
has lost its certificate: nothing that the server does brings it back. It may connect again, and is
then asked again. A site that is merely absent may come back, and is waited for; so is one that was
turned away at its greeting, unless nobody else is left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sordino.network.courier import Courier

STOPPED = "the run was stopped: "
LONGEST = 160
"""Characters of one site's reason in what everybody is told."""


def hopeless(
    courier: Courier, minimum: int, indispensable: Callable[[int], bool], *, secret: bool
) -> str | None:
    """Why too few sites are left, who is out, and why; None while there are enough.

    Args:
        minimum: sites that must take part.
        indispensable: whether nothing goes on without a site.
        secret: whether nobody may know who takes part; then only the status names sites.
    """
    out = {i: each.out for i, each in enumerate(courier.sites) if each.out}
    left = len(courier.sites) - len(out)
    turned = {
        i: each.turned for i, each in enumerate(courier.sites) if each.turned and not each.out
    }
    lacks = [courier.names[i] for i in out if indispensable(i)]
    if left < minimum:
        what = f"{left} of {len(courier.sites)} sites are left, and {minimum} must take part"
    elif left == len(turned):
        what, out = "every site is out", out | turned
    elif lacks and not secret:
        what = f"nothing goes on without {lacks[0]}"
    else:
        return None
    who = "; ".join(f"{courier.names[i]}: {why[:LONGEST]}" for i, why in sorted(out.items()))
    return f"{STOPPED}{what}. " + ("The server's status names who is out" if secret else who)


def cut_short(why: str) -> bool:
    """Whether a run that ended for this reason ended before its time."""
    return why.startswith(STOPPED)
