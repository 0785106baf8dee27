r"""A module and its parameters as one vector.

Clipping, noise, averaging and checkpoints all speak of one vector w in R^d; layers
speak of matrices. Copying between the two at every step costs as much as the noise, so
here the vector *is* the storage: every trainable parameter of the module becomes a view
into it, and an update of the vector is an update of the model.

Layers of known types work on these views (:mod:`sordino.training.perexample.plan`). Any other
module could write into them. So it is never called on data: its recorded graphs are
(:mod:`sordino.training.graph`).

Order of the vector. Parameters stand in the order of ``module.named_parameters()``,
each in row-major order of its shape, except that a 4-D convolution weight of shape
(out, in, height, width) is stored as (out, height, width, in): the channels-last order
in which a patch of a channels-last image is contiguous. The order is part of the file
formats; it does not depend on machine or device. Frozen parameters (``requires_grad``
False) are constants of the model and have no place in the vector.

Shapes: ``weights`` (d,). ``layout`` names every parameter, its shape and its offset.

>>> import torch
>>> layers = torch.nn.Conv2d(1, 4, 3), torch.nn.Flatten(), torch.nn.Linear(16, 2)
>>> flat = Flat(torch.nn.Sequential(*layers))
>>> flat.dim
74
>>> [(slot.name, slot.shape, slot.offset) for slot in flat.layout]
[('0.weight', (4, 1, 3, 3), 0), ('0.bias', (4,), 36), ('2.weight', (2, 16), 40), ('2.bias', (2,),
72)]
>>> _ = flat.load(torch.zeros(74))
>>> float(flat.module[0].weight.detach().abs().sum())
0.0
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sordino.base.errors import StudyError
from sordino.training.graph import Graphs

GIVEN: weakref.WeakValueDictionary[int, nn.Parameter] = weakref.WeakValueDictionary()
"""Weights of all modules that were made to be trained, as long as there are any."""


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of one parameter in the vector.

    Attributes:
        name: as ``named_parameters`` gives it.
        shape: the parameter's own shape.
        stored: shape of its stretch of the vector, row-major; differs for convolutions.
        offset: first index.
        size: how many numbers.
    """

    name: str
    shape: tuple[int, ...]
    stored: tuple[int, ...]
    offset: int
    size: int

    def of(self, vector: Tensor) -> Tensor:
        """This parameter's stretch of a vector (d,), in stored shape, as a view."""
        return self.flat(vector).view(self.stored)

    def flat(self, vector: Tensor) -> Tensor:
        """The same stretch as it lies there, (size,)."""
        return vector[self.offset : self.offset + self.size]

    def columns(self, rows: Tensor) -> Tensor:
        """The same stretch of every row (n, d), (n, size), as a view."""
        return rows[:, self.offset : self.offset + self.size]

    def logical(self, vector: Tensor) -> Tensor:
        """The same stretch in the parameter's own shape, as a view."""
        return self.of(vector).permute(0, 3, 1, 2) if len(self.shape) == 4 else self.of(vector)


def tensors_of(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Return the parameters and buffers of a module, with their names."""
    return [*module.named_parameters(), *module.named_buffers()]


def _slots(trainable: Iterable[tuple[str, Tensor]]) -> tuple[Slot, ...]:
    slots, offset = [], 0
    for name, parameter in trainable:
        shape = tuple(parameter.shape)
        stored = (shape[0], shape[2], shape[3], shape[1]) if len(shape) == 4 else shape
        slots.append(Slot(name, shape, stored, offset, parameter.numel()))
        offset += parameter.numel()
    return tuple(slots)


class Flat:
    """A module whose trainable parameters share one contiguous vector.

    The module is changed in place: its parameters become views. Moving it afterwards
    (``module.to``, ``module.double``) would tear them apart; move first, flatten then.

    Attributes:
        module: the module, in training mode; not to be called on data unless its layers are known.
        graphs: what is called on data instead.
        weights: the vector (d,), in the parameters' dtype and on their device.
        layout: the slots, in order.
    """

    def __init__(self, module: nn.Module) -> None:
        trainable = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        if not any(p.numel() for _, p in trainable):
            raise StudyError(
                "model: it has no trainable parameters, so there is nothing to learn; use a "
                "module with requires_grad"
            )
        kinds = {(p.dtype, p.device) for _, p in trainable}
        if len(kinds) > 1:
            raise StudyError(
                f"model: parameters of several types or devices {sorted(map(str, kinds))}; "
                "convert it with module.to(...) first"
            )
        dtype, device = kinds.pop()
        if dtype not in (torch.float32, torch.float64):
            raise StudyError(
                f"model: parameters of type {dtype}; only float32 and float64 keep the bound of a "
                "contribution: convert the model with module.float(). Its forward may compute in a "
                "shorter type inside"
            )
        self.module = module
        self.layout = _slots(trainable)
        self.weights = torch.empty(
            sum(slot.size for slot in self.layout), dtype=dtype, device=device
        )
        self._by_parameter: dict[int, Slot] = {}
        # once: a module's own code could answer otherwise, and see weights of one client
        self._tensors = {name: each.detach() for name, each in tensors_of(module)}
        self._tensors |= {slot.name: slot.logical(self.weights) for slot in self.layout}
        self.graphs = Graphs(module, self.tensors)
        for slot, (_, parameter) in zip(self.layout, trainable, strict=True):
            view = slot.logical(self.weights)
            view.copy_(parameter.data)
            parameter.data = view
            GIVEN[id(parameter)] = parameter
            self._by_parameter[id(parameter)] = slot

    @property
    def dim(self) -> int:
        """d, the number of trainable parameters."""
        return self.weights.numel()

    def load(self, vector: Tensor) -> Flat:
        """Overwrite all weights with ``vector`` (d,), which stays its owner's."""
        if vector.shape != self.weights.shape:
            raise StudyError(
                f"model: it has {self.dim} parameters, the vector has shape "
                f"{tuple(vector.shape)}; it belongs to another model"
            )
        self.weights.copy_(vector)
        return self

    def tensors(self) -> dict[str, Tensor]:
        """Parameters and buffers by name: views of the vector where they are trained."""
        return self._tensors

    def slot(self, parameter: Tensor | None) -> Slot | None:
        """Return the place of a parameter; None if it is frozen or not of this module, or none."""
        return self._by_parameter.get(id(parameter))
