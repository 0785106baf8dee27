r"""Losses, one number for each example, with their slopes by the scores.

A kernel that clips per example needs l_i and the vector dl_i/ds_i for every example i
alone, never a mean over the batch. With scores s (n, classes) and labels y (n,):

    cross entropy       l = -s_y + log sum_j exp(s_j)          dl/ds = softmax(s) - e_y
    multi-class hinge   l = max(0, 1 + max_{j != y} s_j - s_y) dl/ds = e_j* - e_y where l > 0
    squares             l = (s - y)^2 / 2                      dl/ds = s - y

The last has one score, and labels that are numbers. Nothing bounds its slope, and nothing has to:
what is released is clipped, whatever the loss.

The hinge is Crammer and Singer's (2001): its gradient touches two classes only, so the
squared norm of a linear model's gradient is at most 2 (|x|^2 + 1).

>>> import torch
>>> scores, labels = torch.tensor([[2.0, 0.5, 1.5]]), torch.tensor([0])
>>> float(multiclass_hinge(scores, labels))
0.5
>>> multiclass_hinge.slope(scores, labels)[1].tolist()
[[-1.0, 0.0, 1.0]]

References:
    Crammer, Singer 2001, On the Algorithmic Implementation of Multiclass Kernel-based
    Vector Machines, JMLR 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F


class Loss(Protocol):
    """A differentiable loss of each example by itself."""

    def __call__(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Losses (n,) of scores (n, ...) and labels (n, ...)."""

    def slope(self, scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Losses (n,) and their derivatives by the scores, shaped like the scores; no autograd."""

    def known(self, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
        """Which labels (n,) are valid, and labels that are."""

    def plain(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Losses (n,) of labels that are valid."""


class _OfClasses:
    """Losses of labels that are classes. An example whose label is none has a loss of NaN and no
    gradient, so it adds nothing; an error would tell of it.
    """

    __slots__ = ()

    def __call__(self, scores: Tensor, labels: Tensor) -> Tensor:
        there, labels = self.known(labels, scores.shape[1])
        return self.plain(scores, labels).masked_fill(~there, torch.nan)

    def plain(self, scores: Tensor, labels: Tensor) -> Tensor:
        raise NotImplementedError

    def known(self, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
        """Another class instead of what is none."""
        found = labels.clamp(0, classes - 1)
        return found == labels, found


@dataclass(frozen=True, slots=True)
class CrossEntropy(_OfClasses):
    def plain(self, scores: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(scores, labels, reduction="none")

    def slope(self, scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        there, labels = self.known(labels, scores.shape[1])
        log_share = torch.log_softmax(scores, 1)
        losses = F.nll_loss(log_share, labels, reduction="none")
        slopes, index = log_share.exp_(), labels.unsqueeze(1)
        slopes.scatter_add_(1, index, torch.full_like(index, -1, dtype=slopes.dtype))
        return _known(there, losses, slopes)


@dataclass(frozen=True, slots=True)
class MulticlassHinge(_OfClasses):
    """The multi-class hinge; it needs at least two classes."""

    def _margin(self, scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        index = labels.unsqueeze(1)
        rival, which = scores.scatter(1, index, -torch.inf).max(1, keepdim=True)
        return (1 + rival - scores.gather(1, index)).squeeze(1), which

    def plain(self, scores: Tensor, labels: Tensor) -> Tensor:
        return self._margin(scores, labels)[0].clamp_min(0)

    def slope(self, scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """At the kink itself the slope is zero."""
        there, labels = self.known(labels, scores.shape[1])
        margin, which = self._margin(scores, labels)
        inside = (margin > 0).to(scores.dtype).unsqueeze(1)
        slopes = torch.zeros_like(scores).scatter_(1, which, inside)
        slopes.scatter_(1, labels.unsqueeze(1), -inside)
        return _known(there, margin.clamp_min(0), slopes)


def _known(there: Tensor, losses: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor]:
    """Losses and slopes, NaN where the label is no class."""
    return losses.masked_fill(~there, torch.nan), slopes.masked_fill(~there.unsqueeze(1), torch.nan)


@dataclass(frozen=True, slots=True)
class Squares:
    def __call__(self, scores: Tensor, labels: Tensor) -> Tensor:
        return self.plain(scores, labels)

    def plain(self, scores: Tensor, labels: Tensor) -> Tensor:
        return (scores.squeeze(1) - labels).square() / 2

    def known(self, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
        """Every number is valid."""
        return torch.ones_like(labels, dtype=torch.bool), labels

    def slope(self, scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        slopes = scores - labels.unsqueeze(1)
        return slopes.squeeze(1).square() / 2, slopes


cross_entropy = CrossEntropy()
multiclass_hinge = MulticlassHinge()
squares = Squares()


def loss_for(model: str, *, number: bool = False) -> Loss:
    """The loss a model of this name is trained with: squares for labels that are a ``number``,
    hinge for ``svm``, else cross entropy.
    """
    if number:
        return squares
    return multiclass_hinge if model == "svm" else cross_entropy
