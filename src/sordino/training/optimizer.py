r"""Local optimizers, on gradients that are noisy or not.

With g_t the gradient of step t, eta the learning rate and everything else element by element:

    sgd      v <- m v + g_t,                       w <- w - eta v          (m the momentum)
    adagrad  s <- s + g_t^2,                       w <- w - eta g_t / (sqrt(s) + e)
    adam     a <- b1 a + (1 - b1) g_t,             s <- b2 s + (1 - b2) g_t^2,
             w <- w - eta a^ / (sqrt(s^) + e)      with a^ = a / (1 - b1^t), s^ = s / (1 - b2^t)

Noise n of variance v in g_t adds v to the expectation of g_t^2: where it is larger than the signal,
Adam divides by the noise and becomes momentum with another name. ``debias`` subtracts v from s^
and keeps the rest above a floor (Tang, Panisson, Lecuyer 2023, DP-AdamBC, equation 4). v is public.

All of them are functions of released gradients only, so they cost no privacy. Memory starts anew in
each round: a client has no other state than the model it is sent.

References:
    Kingma, Ba 2015, Adam. Duchi, Hazan, Singer 2011, AdaGrad.
    Tang, Panisson, Lecuyer 2023, DP-AdamBC: Your DP-Adam Is Actually DP-SGD (Unless You Apply Bias
    Correction).
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Literal, Protocol, Self

from pydantic import Field, model_validator

from sordino.base.modules import told_in_its_place
from sordino.base.registry import BelowOne, Registry, Section

if TYPE_CHECKING:  # whoever only reads a study does not wait for torch
    from torch import Tensor


class Steps(Protocol):
    """The steps of one round: an optimizer with its memory."""

    def take(self, weights: Tensor, gradient: Tensor, variance: float) -> None:
        """Change ``weights`` (d,) by one step; ``variance`` is the noise's in one coordinate."""


class Optimizer(Section):
    """A rule for local steps, and the ``method.optimizer`` table of a study that asks for it."""

    kind: str

    def begin(self, learning_rate: float, like: Tensor) -> Steps:
        """A round's steps, from no memory, for weights of the shape of ``like`` (d,)."""
        raise NotImplementedError

    @property
    def gain(self) -> float | None:
        """The largest weight of a round's gradients in its steps, in units of eta: steps are
        sums of gradients with weights from 0 to this. None where they are not.
        """
        return None

    @model_validator(mode="after")
    def _takes_steps(self) -> Self:
        """Try one of somebody's own, before anything is charged."""
        if type(self).__module__ != __name__:
            with told_in_its_place():
                self.tried()
        return self

    def tried(self) -> bytes:
        """Return the weights after a round of made-up steps: the same in every round, as memory of
        one client's gradients would reach the next client, and a resumed run has none.

        Raises:
            StudyError: if a second round ends elsewhere, or these are no steps.
        """
        import torch

        found = []
        for _ in range(2):
            weights = torch.zeros(2)
            steps: object = copy.deepcopy(self).begin(0.1, weights)
            if not callable(take := getattr(steps, "take", None)):
                raise OPTIMIZERS.wrong(self, "begin", steps, "an object with a method take")
            given = [take(weights, torch.full((2,), g), 0.0) for g in (1.0, 2.0, 3.0)]
            if any(each is not None for each in given) or weights.shape != (2,):
                wanted = "nothing, and change the weights in place"
                raise OPTIMIZERS.wrong(self, "take", given[0], wanted)
            found.append(weights.numpy().tobytes())
        if found[0] != found[1]:
            wanted = "the same in each round: memory is made anew in begin"
            raise OPTIMIZERS.wrong(self, "take", "other steps in a second round", wanted)
        return found[0]


OPTIMIZERS = Registry(base=Optimizer, noun="optimizer", place="method.optimizer", needs=("begin",))


@OPTIMIZERS.register
class Sgd(Optimizer):
    """Plain steps, with momentum m in [0, 1).

    Attributes:
        momentum: m, of the local steps
    """

    kind: Literal["sgd"] = "sgd"
    momentum: BelowOne = 0.0

    @property
    def gain(self) -> float:
        """1 / (1 - m)."""
        return 1.0 / (1.0 - self.momentum)

    def begin(self, learning_rate: float, like: Tensor) -> Steps:
        """A round's steps, from no memory."""
        return _Sgd(learning_rate, self.momentum)


@OPTIMIZERS.register
class AdaGrad(Optimizer):
    """Steps divided by the root of the sum of all squares so far.

    Attributes:
        floor: e, added to the root of the sum of squares
    """

    kind: Literal["adagrad"] = "adagrad"
    floor: float = Field(1e-10, gt=0)

    def begin(self, learning_rate: float, like: Tensor) -> Steps:
        """A round's steps, from no memory."""
        import torch

        return _AdaGrad(learning_rate, self.floor, torch.zeros_like(like))


@OPTIMIZERS.register
class Adam(Optimizer):
    """Averages of gradients and of their squares; ``debias`` takes the noise out of the squares.

    ``floor`` is added to the root; with ``debias`` it is the least value of the root itself.

    Attributes:
        beta1: decay of the mean of gradients
        beta2: decay of the mean of squares
        floor: e, below which the denominator never falls
        debias: whether the variance of the noise is subtracted from the mean of squares
    """

    kind: Literal["adam"] = "adam"
    beta1: BelowOne = 0.9
    beta2: BelowOne = 0.999
    floor: float = Field(1e-8, gt=0)
    debias: bool = False

    def begin(self, learning_rate: float, like: Tensor) -> Steps:
        """A round's steps, from no memory."""
        import torch

        return _Adam(learning_rate, self, torch.zeros_like(like), torch.zeros_like(like))


class _Sgd:
    def __init__(self, rate: float, momentum: float) -> None:
        self._rate, self._momentum = rate, momentum
        self._velocity: Tensor | None = None

    def take(self, weights: Tensor, gradient: Tensor, variance: float) -> None:
        if self._momentum:
            self._velocity = (
                gradient.clone()
                if self._velocity is None
                else self._velocity.mul_(self._momentum).add_(gradient)
            )
            gradient = self._velocity
        weights.sub_(gradient, alpha=self._rate)


class _AdaGrad:
    def __init__(self, rate: float, floor: float, squares: Tensor) -> None:
        self._rate, self._floor, self._squares = rate, floor, squares

    def take(self, weights: Tensor, gradient: Tensor, variance: float) -> None:
        self._squares.addcmul_(gradient, gradient)
        weights.addcdiv_(gradient, self._squares.sqrt().add_(self._floor), value=-self._rate)


class _Adam:
    def __init__(self, rate: float, terms: Adam, mean: Tensor, squares: Tensor) -> None:
        self._rate, self._terms, self._mean, self._squares = rate, terms, mean, squares
        self._step = 0

    def take(self, weights: Tensor, gradient: Tensor, variance: float) -> None:
        terms, self._step = self._terms, self._step + 1
        self._mean.lerp_(gradient, 1.0 - terms.beta1)
        self._squares.mul_(terms.beta2).addcmul_(gradient, gradient, value=1.0 - terms.beta2)
        squares = self._squares / (1.0 - terms.beta2**self._step)
        if terms.debias:
            scale = squares.sub_(variance).clamp_min_(terms.floor**2).sqrt_()
        else:
            scale = squares.sqrt_().add_(terms.floor)
        weights.addcdiv_(self._mean, scale, value=-self._rate / (1.0 - terms.beta1**self._step))
