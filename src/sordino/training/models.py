"""The models of the papers, and anybody's own.

| name | what | loss |
|---|---|---|
| logistic | one linear layer | cross entropy |
| svm | one linear layer | multi-class hinge |
| linear | one linear layer, one score, for labels that are numbers | squares |
| mlp | 200 hidden units, ReLU | cross entropy |
| cnn | conv 16 k8 s2 p3, pool 2/1, conv 32 k4 s2, pool 2/1, fc 32, fc classes | cross entropy |
| cnn-large | conv 32 k5, pool 2, conv 64 k5, pool 2, fc 512, fc classes | cross entropy |
| cifar-cnn | three of (conv k3, pool 2), 32, 64, 128 channels, fc 192, fc classes | cross entropy |
| cnn-small | conv 10 k5, pool 2, conv 10 k5, pool 2, fc classes | cross entropy |
| package.module:factory | ``factory(shape, classes)``, any ``torch.nn.Module`` | cross entropy |

Where labels are numbers, every model has one score (``classes`` is 1) and its loss is squares;
logistic and svm are for classes alone.

Parameters: on images of 1x28x28 26 010 in ``cnn``, 582 026 in ``cnn-large`` (the ALI-DPFL authors')
and 4 380 in ``cnn-small`` (the MAPA authors'); on 3x32x32 488 586 in ``cifar-cnn``.

Initial weights are torch's own, drawn from the address that the caller gives; the global
generator is left as it was.

>>> import numpy as np
>>> sum(p.numel() for p in build("cnn", (1, 28, 28), 10, np.random.default_rng(0)).parameters())
26010
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.parameter import is_lazy

from sordino.base import modules
from sordino.base.errors import StudyError
from sordino.base.registry import not_known
from sordino.base.settings import filled_memory, own_code
from sordino.training.flat import GIVEN, tensors_of
from sordino.training.graph import places_of
from sordino.training.outline import DESIGNS, NAMES, Design

Shape = tuple[int, ...]


def build(name: str, shape: Shape, classes: int, rng: np.random.Generator) -> nn.Module:
    """A model for examples of ``shape`` and so many classes, with weights drawn from ``rng``.

    Raises:
        StudyError: for a name nobody knows, or a model that does not fit the shape.
    """
    place = f"model.name = {name!r}"
    make = factory(place, name, "(shape, classes)") if ":" in name else _known(name)
    if name in DESIGNS and not DESIGNS[name].fits(shape):
        least = DESIGNS[name].smallest
        raise StudyError(
            f"model.name = {name!r} needs images of at least {least}x{least} pixels; the data's "
            f"examples have shape {shape}. logistic, svm and mlp fit any shape"
        )
    what = f" for shape {shape} and {classes} classes"
    module = seeded_module(place, lambda: make(shape, classes), shape, rng, what)
    with own_code(), filled_memory():
        _fits(name, module, shape, classes)
    check_initialised(module, place)
    return module


def seeded_module(
    place: str,
    make: Callable[[], nn.Module],
    shape: Shape,
    rng: np.random.Generator,
    what: str = "",
) -> nn.Module:
    """Return the module that a function makes for rows of ``shape``, with weights drawn from
    ``rng``.

    Raises:
        StudyError: naming the ``place`` in a study, if it makes none.
    """
    with own_code(), filled_memory():
        # torch.manual_seed would format the whole stack for each kind of device that is not there
        cpu, everywhere = torch.default_generator.manual_seed, torch.manual_seed
        (everywhere if torch.cuda.is_available() else cpu)(int(rng.integers(2**63)))
        try:
            module: object = make()
            if isinstance(module, nn.Module) and any(map(is_lazy, module.parameters())):
                module(torch.zeros(2, *shape))  # draws its weights
        except Exception as error:  # a user's factory may raise anything
            raise StudyError(
                f"{place}: making it{what} failed: {modules.told_of(error)}"
            ) from error
    if not isinstance(module, nn.Module):
        raise StudyError(
            f"{place}: the factory returned {type(module).__name__}, not a torch.nn.Module"
        )
    if any(GIVEN.get(id(each)) is each for each in [*module.parameters(), *module.buffers()]):
        raise StudyError(
            f"{place}: the factory returned weights that it had returned before in this process. "
            "They hold what was trained since, and would carry it on; make new ones in each call, "
            "as with copy.deepcopy of a module that is loaded once"
        )
    GIVEN.update((id(each), each) for each in module.parameters() if each.requires_grad)
    return module


def digest_of(module: nn.Module) -> str:
    """A digest of a module's parameters and buffers, frozen ones too."""
    digest = hashlib.sha256()
    for name, each in tensors_of(module):
        digest.update(f"{name}:{each.dtype}:{tuple(each.shape)}:".encode())
        held = each.detach().cpu().contiguous().reshape(-1)
        digest.update(held.view(torch.uint8).numpy().tobytes())  # numpy has no bfloat16
    return digest.hexdigest()


def _known(name: str) -> Callable[[Shape, int], nn.Module]:
    if name not in NAMES:
        said = not_known(name, NAMES)
        raise StudyError(f"model.name = {said}, or package.module:factory for your own")
    return functools.partial(_designed, DESIGNS[name])


def _designed(design: Design, shape: Shape, classes: int) -> nn.Module:
    layers: list[nn.Module] = []
    channels = shape[0]
    for each in design.convolutions:
        size = each.kernel, each.stride, each.padding
        layers += [nn.Conv2d(channels, each.channels, *size), nn.ReLU(), nn.MaxPool2d(2, each.pool)]
        channels = each.channels
    layers.append(nn.Flatten())
    for inputs, outputs in itertools.pairwise(design.widths(shape, classes)):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def factory(place: str, path: str, takes: str) -> Callable[..., nn.Module]:
    """Return the function of modules that a study names.

    Raises:
        StudyError: naming the ``place`` in the study, if there is none.
    """
    try:
        with own_code(), filled_memory():
            found = modules.attribute(path)
    except Exception as error:  # a user's module may raise anything
        raise StudyError(
            f"{place}: {modules.told_of(error)}. Write package.module:factory, beside the study "
            "file or installed"
        ) from error
    if not callable(found):
        raise StudyError(
            f"{place}: {path.partition(':')[2]} is no function; it must take {takes} and return a "
            "torch.nn.Module"
        )
    return found


def forward_pass(module: nn.Module, batch: Tensor, complaint: str) -> object:
    """Return what a module makes of a batch.

    Raises:
        StudyError: beginning with the complaint, if it does not fit.
    """
    try:
        with torch.no_grad():
            return module(batch)
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        first = modules.raised(error) or str(error).partition("\n")[0] or type(error).__name__
        raise StudyError(f"{complaint}: {first}") from error


def _fits(name: str, module: nn.Module, shape: Shape, classes: int) -> None:
    complaint = f"model.name = {name!r} does not fit examples of shape {shape}"
    scores = forward_pass(module, torch.zeros(2, *shape), complaint)
    if not isinstance(scores, Tensor):
        raise StudyError(
            f"model.name = {name!r} gives {type(scores).__name__} for a batch; it must give a "
            f"tensor of scores (n, {classes})"
        )
    if tuple(scores.shape) != (2, classes):
        raise StudyError(
            f"model.name = {name!r} gives scores of shape {tuple(scores.shape)[1:]} for one "
            f"example; the data has {classes} classes, so it must give ({classes},)"
        )


_RANDOM = (nn.modules.dropout._DropoutNd, nn.RReLU)


def check_private(module: nn.Module, shape: tuple[int, ...]) -> None:
    """Refuse a module in which one example can touch another's loss, or the module itself.

    The guarantee does not rest on this: the graph of a module that is not known to keep examples
    apart gets one at a time (:mod:`sordino.training.perexample.general`), and holds no state
    (:mod:`sordino.training.graph`). But what is learned so is not what the module does on a batch,
    when it is measured or used. So layers known to mix examples are refused by name, and anything
    else is tried: changing one example of a batch must leave the others' scores as they were, and a
    forward pass must leave parameters and buffers as they were. Layers that draw random numbers are
    refused, too: they would draw from a global generator, so that a run could not be resumed to the
    same end.

    Args:
        module: to be trained.
        shape: of one example.

    Raises:
        StudyError: naming the layer and the remedy.
    """
    for name, layer in module.named_modules():
        place = f"model: layer {name!r} ({type(layer).__name__})"
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            raise StudyError(
                f"{place} mixes the examples of a batch, so no example's gradient can be "
                "bounded alone; use torch.nn.GroupNorm"
            )
        if isinstance(layer, nn.modules.instancenorm._InstanceNorm) and layer.track_running_stats:
            raise StudyError(
                f"{place} keeps statistics of the data in its buffers; set "
                "track_running_stats=False"
            )
        if isinstance(layer, _RANDOM) and getattr(layer, "p", 1.0) != 0.0:
            raise StudyError(
                f"{place} draws its own random numbers, so a resumed run would end "
                "differently; remove it"
            )
    _try_out(module, shape)


def check_initialised(module: nn.Module, place: str) -> None:
    """Refuse parameters and buffers that are no plain numbers, or that nobody initialised, which
    are NaN by then: the memory that they got could hold rows (:mod:`sordino.base.settings`).

    Raises:
        StudyError: naming the parameter.
    """
    for name, tensor in tensors_of(module):
        kinds = {
            f"has the layout {tensor.layout}": tensor.layout is not torch.strided,
            "is nested": tensor.is_nested,
            "is quantised": tensor.is_quantized,
            "is on the device 'meta'": tensor.is_meta,
            "is a conjugate view": tensor.is_conj(),
            "is complex and would be trained": tensor.is_complex() and tensor.requires_grad,
            "has fewer than 16 bits": tensor.is_floating_point() and tensor.dtype.itemsize < 2,
        }
        if kind := next((each for each, so in kinds.items() if so), None):
            raise StudyError(
                f"{place}: {name!r} ({tensor.dtype}) {kind}; make it a plain tensor of numbers, as "
                "with .to_dense(), .dequantize(), .resolve_conj(), torch.view_as_real or .float()"
            )
        if bool(tensor.isnan().any()):
            raise StudyError(
                f"{place}: {name!r} has values that nobody initialised, or NaN; initialise it, as "
                "with torch.zeros instead of torch.empty, or with torch.nn.init"
            )


def _try_out(module: nn.Module, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    numbers = (each for each in module.parameters() if each.is_floating_point())
    like = next(numbers, torch.zeros(()))  # quantised weights, which are frozen, may come first
    batch = torch.from_numpy(rng.standard_normal((3, *shape))).to(like)
    other = batch.clone()
    other[1] = torch.from_numpy(rng.standard_normal(shape)).to(like)
    tokens = [each.round().clamp(0, 1) for each in (batch, other)]
    for one, another in ((batch, other), tokens):  # some take their input for tokens
        try:
            return _compare(module, one, another)
        except IndexError as error:
            failed = error
    raise _fails(failed)


def _fails(error: BaseException) -> StudyError:
    return StudyError(
        f"model: it fails on three examples of random numbers ({modules.told_of(error)}); make it "
        "work for every input of its shape"
    )


def _compare(module: nn.Module, batch: Tensor, other: Tensor) -> None:
    held = dict(tensors_of(module))
    tensors = {name: each.detach().clone() for name, each in held.items()}
    placed = {name: tensors[known] for name, known in places_of(module).items()}
    try:
        with torch.no_grad(), own_code():
            first, second, again = (
                functional_call(module, placed, (x.clone(),), tie_weights=False)
                for x in (batch, other, batch)
            )
    except (StudyError, IndexError):
        raise
    except Exception as error:  # a user's module may raise anything
        raise _fails(error) from error
    for name, was in held.items():
        if not torch.equal(was.nan_to_num(), tensors[name].nan_to_num()):
            raise StudyError(
                f"model: a forward pass changes {name!r}, and what it changes is forgotten after "
                "each example, for it would carry raw data from step to step; make it constant"
            )
    if not torch.allclose(first, again, rtol=1e-4, atol=1e-6, equal_nan=True):
        raise StudyError(
            "model: two passes over the same batch differ, so it keeps a state or draws "
            "random numbers; let it depend on its input alone"
        )
    if not torch.allclose(first[[0, 2]], second[[0, 2]], rtol=1e-4, atol=1e-6):
        raise StudyError(
            "model: changing one example changes another's scores, so the model mixes examples"
            " and no example's gradient can be bounded alone; normalise within an example "
            "(torch.nn.GroupNorm)"
        )
