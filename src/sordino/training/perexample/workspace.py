"""Memory that is taken once and used at every step.

Giving a large buffer back to the operating system and faulting it in again costs more
than most kernels (measured: 5 against 10 ms for the same step). Poisson batches differ
in size from step to step, so a buffer is grown to the largest size seen and lent as a
view of its first numbers.

>>> import torch
>>> space = Workspace(torch.zeros(1))
>>> space.take("patches", (2, 3)).shape, space.take("patches", (1, 3)).shape
(torch.Size([2, 3]), torch.Size([1, 3]))
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


class Workspace:
    """Named buffers of one kernel, in the dtype and on the device of ``like``."""

    __slots__ = ("_buffers", "_views", "like")

    def __init__(self, like: Tensor) -> None:
        self.like = like
        self._buffers: dict[str, Tensor] = {}
        self._views: dict[str, Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], zero: bool = False) -> Tensor:
        """A contiguous tensor of this shape with arbitrary contents.

        With ``zero``, a fresh buffer starts at zero and keeps what is written to it: the
        border of a padded image is written once this way, provided that every request
        under this name differs in its first dimension only.
        """
        view = self._views.get(name)
        if view is not None and view.shape == shape:
            return view
        size = math.prod(shape)
        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() < size:
            # A little more than asked for: batches of a Poisson sample vary by a few square roots.
            make = torch.zeros if zero else torch.empty
            buffer = self._buffers[name] = make(
                size + size // 4, dtype=self.like.dtype, device=self.like.device
            )
        view = self._views[name] = buffer[:size].view(shape)
        return view
