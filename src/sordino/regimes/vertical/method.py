r"""Online vertical methods: the parties that an event activates, and how gradients are joined.

Parties hold different features of the same entity, the server its label (Wang, Wang, Gu and Ling
2025, section 3). At event t the active parties A_t send embeddings, the others answer a query, and

    w_0 <- w_0 - eta_0 grad_0 ,        w_m <- w_m - eta_m grad_m     for m in A_t

where the method says what grad is, from the gradients g^t of the events' losses f^t:

    ogd    g^t                                                      (Algorithms 2 and 4)
    dlr    (1/W) sum_{i<l} alpha^i g^{t-i},   W = sum_{i<l} alpha^i (Algorithm 1, Eqs. 4 and 5)
    slr    (1/l) sum_{i<l} grad f^{t-i}(w^t)                        (Algorithm 5)

with g_m^t = 0 where party m was passive. ``dlr`` keeps gradients taken at the weights of their own
time; ``slr`` asks for the last l examples again at the weights of now, and sends l times as much.
(Algorithm 1, line 18, writes v_m as the derivative of the window; only its newest term depends on
the newest embedding, and Eq. 5 weighs the others in the party's own buffer. Eq. 5 is what runs.
Algorithm 3 prints the same method without a buffer at the parties: they step by (1/W) g_m^t alone.
``buffer = "server"`` runs that.)

Symbols: M parties, l window, alpha attenuation, eta learning rates, Gamma threshold, p probability.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from sordino.base.arrays import Bools, Floats
from sordino.base.registry import AtLeastOne, Positive, Registry, Section
from sordino.core.method import About, Method, register

Uniform = Callable[[], Floats]
Means = Callable[[], NDArray[np.float32]]


class Activation(Section):
    """Activity an event activates: the ``method.activation`` table, whose name alone will do."""

    looks: ClassVar[bool] = False  # it looks at features, and so tells of them

    kind: str

    def active(self, shape: tuple[int, int], uniform: Uniform, means: Means) -> Bools:
        """Return the active parties of n events, (n, M).

        Args:
            shape: (n, M).
            uniform: gives numbers drawn from [0, 1), (n, M).
            means: gives the mean of each party's features, (n, M).
        """
        raise NotImplementedError

    def refused(self, parties: int) -> str | None:
        """Return why it is not for so many parties, after its place; None if it is."""
        return None


ACTIVATIONS = Registry(
    base=Activation, noun="activation", place="method.activation", needs=("active",)
)


@ACTIVATIONS.register
class Full(Activation):
    """Every event activates every party."""

    kind: Literal["full"] = "full"

    def active(self, shape: tuple[int, int], uniform: Uniform, means: Means) -> Bools:
        """Return the active parties (n, M)."""
        return np.ones(shape, bool)


@ACTIVATIONS.register
class Random(Activation):
    """Each party is active with probability p, by itself.

    Attributes:
        p: probability that a party is active in an event
    """

    kind: Literal["random"] = "random"
    p: float = Field(0.5, ge=0, le=1)

    def active(self, shape: tuple[int, int], uniform: Uniform, means: Means) -> Bools:
        """Return the active parties (n, M)."""
        return uniform() < self.p


@ACTIVATIONS.register
class Threshold(Activation):
    """A party is active where its features' mean is above Gamma, which tells that much of them.

    Gamma is in units of the features as they come. With ``mean`` and ``deviation``, public
    constants of one feature, it is in units of standardised features: what is compared with it is
    (mean of the features - mean) / deviation.

    Attributes:
        threshold: Gamma: a party is active where the mean of its features is above it
        mean: of a feature, a public constant: threshold counts from there; left out, 0
        deviation: of a feature, a public constant: threshold counts in such units; left out, 1
    """

    looks: ClassVar[bool] = True
    kind: Literal["event"] = "event"
    threshold: float = Field(0.0, ge=-math.inf)  # which NaN is not
    mean: float | None = Field(None, allow_inf_nan=False)
    deviation: Positive | None = None

    def active(self, shape: tuple[int, int], uniform: Uniform, means: Means) -> Bools:
        """Return the active parties (n, M)."""
        return means() > (self.mean or 0.0) + (self.deviation or 1.0) * self.threshold


@ACTIVATIONS.register
class Count(Activation):
    """k parties, drawn anew for every event.

    Attributes:
        k: how many parties are active in an event
    """

    kind: Literal["count"] = "count"
    k: int = Field(1, ge=0)

    def active(self, shape: tuple[int, int], uniform: Uniform, means: Means) -> Bools:
        """Return the active parties (n, M)."""
        return uniform().argsort(1).argsort(1) < self.k

    def refused(self, parties: int) -> str | None:
        """Return why there are too few parties; None if there are enough."""
        return f".k is {self.k}, but there are {parties} parties" if self.k > parties else None


class OnlineMethod(Method):
    """A method that learns from one event after another.

    Attributes:
        learning_rate: eta_m of every party, and of the server where ``server_learning_rate`` is
            left out.
        server_learning_rate: eta_0.
        learning_rates: eta_m of each party, where they differ.
        activation: whom an event activates; ``"full"`` for short.
        batch: examples in an event.
        schedule: ``"inverse-root"`` divides every learning rate by sqrt(t) at event t. That of
            Theorem 2 is D/(G sqrt(t)): ``learning_rate`` is D/G then, the diameter of the weights
            over the bound of a gradient. Left out: rates stay as they are.
    """

    learning_rate: Positive = 0.01
    server_learning_rate: Positive | None = None
    learning_rates: tuple[Positive, ...] | None = None
    activation: Annotated[Activation, ACTIVATIONS] = Full()
    batch: AtLeastOne = 1
    schedule: Literal["inverse-root"] | None = None

    @property
    def private(self) -> bool:
        """It can be private, and need not."""
        return True

    @property
    def window(self) -> int:
        """l: events that one update looks back on."""
        return 1

    @property
    def attenuation(self) -> float:
        """Weight of a gradient against the next newer one: alpha."""
        return 1.0

    @property
    def fades(self) -> bool:
        """Learning rates fall as 1/sqrt(t)."""
        return self.schedule is not None

    @property
    def buffered(self) -> bool:
        """Parties keep a window of their own."""
        return True

    @property
    def replays(self) -> bool:
        """The window holds examples, which are evaluated again, instead of gradients."""
        return False

    @property
    def resends(self) -> int:
        """Examples that a party sends the embeddings of in one event, for each in the event."""
        return self.window if self.replays else 1

    @property
    def title(self) -> str:
        """As tables of the paper name it, for example DLR-Random."""
        return f"{self.name.upper()}-{self.activation.kind.capitalize()}"


def _about(paper: str, does: str) -> About:
    forms: Mapping[str, bool] = {"sound": True}
    return About(
        regime="vertical", paper=paper, does=does, forms=forms, units=("entity", "label", "none")
    )


@register
class Ogd(OnlineMethod):
    """Online gradient descent."""

    about: ClassVar[About] = _about("Wang and Xu 2023; Zinkevich 2003", "the gradient of the event")

    name: Literal["ogd"] = "ogd"


@register
class Dlr(OnlineMethod):
    """Dynamic local regret: an exponentially weighted window of past gradients.

    Attributes:
        length: l.
        alpha: how much a gradient counts one event later.
        buffer: ``"server"`` keeps past gradients at the server alone, as Algorithm 3 is printed: a
            party's step is its newest gradient over W. Left out: parties keep them, too
            (Algorithm 1, Eq. 5).
    """

    about: ClassVar[About] = _about(
        "Wang, Wang, Gu and Ling 2025; Aydore et al. 2019", "a window of past gradients"
    )

    name: Literal["dlr"] = "dlr"
    length: AtLeastOne = 10
    alpha: float = Field(0.95, gt=0, le=1)
    buffer: Literal["server"] | None = None

    @property
    def buffered(self) -> bool:
        """Parties keep a window, unless the server alone is to."""
        return self.buffer is None

    @property
    def window(self) -> int:
        """Events that one update looks back on: l."""
        return self.length

    @property
    def attenuation(self) -> float:
        """Weight of a gradient against the next newer one: alpha."""
        return self.alpha


@register
class Slr(OnlineMethod):
    """Static local regret: the last examples, evaluated again at the weights of now.

    Attributes:
        length: l.
    """

    about: ClassVar[About] = _about(
        "Hazan et al. 2017; Wang, Wang, Gu and Ling 2025",
        "the last examples again, at the weights of now",
    )

    name: Literal["slr"] = "slr"
    length: AtLeastOne = 10

    @property
    def window(self) -> int:
        """Events that one update looks back on: l."""
        return self.length

    @property
    def replays(self) -> bool:
        """Examples are evaluated again."""
        return True
