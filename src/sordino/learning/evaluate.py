"""Accuracy and mean loss on a data set, by a forward pass that keeps nothing.

Training wants images channels last, for the patches that its gradients need. Evaluation has no
gradients, so on a processor its images stay in oneDNN's own blocked layout from the first
convolution to the last pool: there the papers' CNN takes two thirds of the time of channels-last
convolutions with pools by shifted slices (100 against 149 ms for 10 000 images; the
multiplications alone would take 85). Batches of 500 keep the activations within the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sordino.learning.flat import Flat
from sordino.learning.loss import Loss
from sordino.learning.perexample import conv, pool
from sordino.learning.perexample.plan import plain_layers, rectified_late

Forward = Callable[[Tensor], Tensor]
OVERFLOW = 1e37  # below it no sum of a convolution can have overflowed on the way


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Accuracy in [0, 1] and mean loss."""

    accuracy: float
    loss: float


class Evaluator:
    """Evaluates one module with whatever weights it has at the time."""

    def __init__(self, flat: Flat, loss: Loss, *, batch: int = 500) -> None:
        layers = plain_layers(flat.module)
        self._forward: Forward = _chained(layers) if layers is not None and _has_blocks(flat.weights) else flat.module
        self._loss, self._batch = loss, batch

    def __call__(self, x: Tensor, y: Tensor) -> Evaluation:
        """Accuracy and mean loss on examples x (n, ...), labels y (n,); n at least 1."""
        right, total = 0, 0.0
        with torch.inference_mode():
            for start in range(0, len(x), self._batch):
                labels = y[start : start + self._batch]
                scores = self._forward(x[start : start + self._batch])
                right += int((scores.argmax(1) == labels).sum())
                total += float(self._loss(scores, labels).sum())
        return Evaluation(right / len(x), total / len(x))


def _has_blocks(like: Tensor) -> bool:
    """Whether there is a blocked layout for tensors of this type and device."""
    return like.device.type == "cpu" and like.dtype == torch.float32 and bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]


def _chained(layers: list[nn.Module]) -> Forward:
    def forward(x: Tensor) -> Tensor:
        reach = torch.inf
        for layer in rectified_late(layers):
            if isinstance(layer, nn.Conv2d) and not x.is_mkldnn and x.ndim == 4 and x.dtype == torch.float32:
                reach = max(abs(float(bound)) for bound in torch.aminmax(x))
                if reach < OVERFLOW:
                    x = x.contiguous().to_mkldnn()
            if x.is_mkldnn:
                if isinstance(layer, nn.Conv2d):
                    reach = _grown(layer, reach)
                # oneDNN's rectifier and pool drop NaN, so where one could arise the layers run as torch has them.
                step = _blocked(layer, x) if reach < OVERFLOW else None
                x = layer(x.to_dense()) if step is None else step
            else:
                x = layer(x)
        return x.to_dense() if x.is_mkldnn else x

    return forward


def _grown(layer: nn.Conv2d, reach: float) -> float:
    """A bound on the size of a convolution's outputs, from one on its inputs; NaN where a weight is."""
    largest = float(layer.weight.abs().sum((1, 2, 3)).max()) * reach
    return largest if layer.bias is None else largest + float(layer.bias.abs().max())


def _blocked(layer: nn.Module, x: Tensor) -> Tensor | None:
    """``layer`` of an image in the blocked layout, in that layout; None if there is no such move. ``x`` may be overwritten."""
    kind = type(layer)
    if kind is nn.ReLU:
        return torch.relu_(x)  # always of a convolution's or pool's output: the first blocked tensor goes into a convolution
    if isinstance(layer, nn.MaxPool2d) and kind is nn.MaxPool2d:
        plain = pool.pair(layer.dilation) == (1, 1) and not layer.ceil_mode and not layer.return_indices
        return F.max_pool2d(x, layer.kernel_size, layer.stride, layer.padding) if plain else None
    if isinstance(layer, nn.Conv2d) and kind is nn.Conv2d:
        zeros = conv.padding(layer)
        if zeros is None or layer.padding_mode != "zeros":
            return None
        weight, bias = layer.weight.contiguous().to_mkldnn(), None if layer.bias is None else layer.bias.to_mkldnn()
        return torch.conv2d(x, weight, bias, layer.stride, zeros, layer.dilation, layer.groups)
    return None
