r"""What the proofs leave out of delta: chances that something is not as the price assumes.

If a release has the distribution that is priced but for a chance of t, (epsilon, delta) becomes
(epsilon, delta + t (1 + e^epsilon)). Such chances are so small that no delta of use shows them; but
a study may ask for a smaller delta, or for an epsilon so large that e^epsilon makes up for it.

>>> left_out(1e-5, 8.0, numbers=1e9)
()
>>> left_out(1e-30, 8.0, numbers=1e9)[0][:60]
'privacy.delta = 1e-30 is finer than the proof: the sampler o'
"""

from __future__ import annotations

import math

from sordino.privacy.rounding import epsilon_text

SAMPLER = 2.0**-95
"""Of one number of noise; see :mod:`sordino.mechanisms.kernels.rounded`."""
SHOWN = 1e-3
"""Part of delta that is not worth a word."""


def left_out(
    delta: float | None, epsilon: float | None, *, numbers: float, more: float = 0.0
) -> tuple[str, ...]:
    """A warning where what is left out of delta is no small part of it.

    Args:
        numbers: of noise, in all releases that are priced together.
        more: other chances that are left out.
    """
    chance = SAMPLER * numbers + more
    if delta is None or epsilon is None or math.isinf(epsilon) or not chance:
        return ()
    beyond = math.exp(min(math.log(chance) + math.log1p(math.exp(min(epsilon, 700.0))), 700.0))
    if beyond <= SHOWN * delta:
        return ()
    bound = f"delta = {delta + beyond:.3g}" if delta + beyond < 1.0 else "no delta below 1"
    return (
        f"privacy.delta = {delta:g} is finer than the proof: the sampler of the noise, and what "
        f"else is left out of delta, may add {min(beyond, 1.0):.2g} at epsilon = "
        f"{epsilon_text(epsilon)}. What is proved is {bound} (docs/mathematics.md). Raise "
        "privacy.delta, or lower privacy.epsilon",
    )
