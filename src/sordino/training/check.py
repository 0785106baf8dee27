"""Whether a module's examples can be bounded one by one, said before anything trains."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from sordino.base import modules
from sordino.base.errors import StudyError
from sordino.training.settings import own_code

_MIXING = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_TRACKING = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
_RANDOM = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
    nn.RReLU,
)


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
        if isinstance(layer, _MIXING):
            raise StudyError(
                f"{place} mixes the examples of a batch, so no example's gradient can be "
                "bounded alone; use torch.nn.GroupNorm"
            )
        if isinstance(layer, _TRACKING) and layer.track_running_stats:
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
    """Refuse parameters and buffers that nobody initialised, which are NaN by then: the memory that
    they got could hold rows (:mod:`sordino.training.settings`).

    Raises:
        StudyError: naming the parameter.
    """
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if bool(tensor.isnan().any()):
            raise StudyError(
                f"{place}: {name!r} has values that nobody initialised, or NaN; initialise it, as "
                "with torch.zeros instead of torch.empty, or with torch.nn.init"
            )


def _try_out(module: nn.Module, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    like = next(module.parameters())
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
    held = dict([*module.named_parameters(), *module.named_buffers()])
    tensors = {name: each.detach().clone() for name, each in held.items()}
    try:
        with torch.no_grad(), own_code():
            first, second, again = (
                functional_call(module, tensors, (x.clone(),)) for x in (batch, other, batch)
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
