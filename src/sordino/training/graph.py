r"""A module of one's own as graphs of torch operations, recorded on made-up inputs.

Theory of operation. Code of somebody's own may keep what it sees: in an attribute, a class, a
cache, a global name, a setting of torch. So it never sees data. For each kind of use (an example's
gradient, the scores of a batch) it is called once on tensors that have a shape and no numbers
(``FakeTensor``). What torch is asked to do meanwhile, forward and backward, is the graph. Data goes
through the graph alone. It holds nothing but operations of torch whose results depend on their
inputs:

* A branch on a number, ``item``, ``float(x)``, ``x[mask]``: there is no number, so recording fails,
  and the module is refused.
* Writing in place becomes a new tensor (``functionalize``). Writes to parameters and buffers would
  come last; they are left out. Any other operation that writes makes the module unfit, and so do
  random numbers and operations that are not torch's own.
* Memory that nobody initialises (``empty``) is filled with NaN, or zeros for integers.
* Weights, buffers and constants are torch's own tensors: a class of somebody's own (a quantised
  weight) has code that torch would call with data.

What is recorded is what the module did in that one call: it must do the same in each. To find
numbers that it counted or drew itself, and what the graph does otherwise, the graph must give what
the module gives on made-up inputs, with its weights as they are and with made-up ones: weights of
zero would hide what lies behind them.

A shape may come late: that of a client that is drawn in round 9. What a module keeps may not tell
of it, nor of the weights by then. So each graph is recorded with the weights of the first one, and
the module must still give what its first graph gives.

How tensors lie in memory is no part of a graph, and some kernels of torch take it for granted. So
a graph is given tensors that lie row by row, and kernels of normalisation are, too, and
convolutions of one channel.

The graph of one example is carried out for many by ``vmap``. Not all rules of vmap keep examples
apart: a table that is made from the example is laid beside the others', and an index past its end
finds theirs. So that is done only where each operation is on a list; else the graph takes examples
one after another.

Weights that are trained are no part of a graph. They are given to it, so the vector that is trained
and released (:class:`~sordino.training.flat.Flat`) is out of the module's reach.

>>> module = nn.Linear(2, 1)
>>> weights = {"weight": torch.ones(1, 2), "bias": torch.zeros(1)}
>>> x = torch.ones(3, 2)
>>> Graphs(module, lambda: weights).of("scores", scores_of, x)(x).flatten().tolist()
[2.0, 2.0, 2.0]
"""

from __future__ import annotations

import ctypes
import hashlib
import operator
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from sordino.base import modules
from sordino.base.errors import StudyError, no_memory
from sordino.base.settings import filled_memory, own_code

_LISTED = """
abs acos acosh add addcdiv addcmul addmm addmv alias all amax amin any arange asin asinh atan
atan2 atanh avg_pool1d avg_pool2d avg_pool2d_backward avg_pool3d baddbmm bmm cat ceil clamp
clamp_max clamp_min clone constant_pad_nd convolution convolution_backward copysign cos cosh
cumsum detach diagonal div dot elu elu_backward eq erf erfc exp exp2 expand expm1 eye fill flip
floor full full_like ge gelu gelu_backward glu glu_backward gt hardsigmoid
hardsigmoid_backward hardswish hardswish_backward hardtanh hardtanh_backward hypot isfinite isinf
isnan le leaky_relu leaky_relu_backward lift_fresh_copy linalg_vector_norm log log10 log1p log2
log_sigmoid_backward log_sigmoid_forward logaddexp logical_and logical_not logical_or logical_xor
logsumexp lt masked_fill max maximum mean min minimum mm mse_loss
mse_loss_backward mul mv native_group_norm native_group_norm_backward native_layer_norm
native_layer_norm_backward ne neg new_full new_ones new_zeros nll_loss_backward nll_loss_forward
ones ones_like permute pow prod reciprocal relu repeat reshape rsqrt rsub scalar_tensor
select select_backward select_scatter sgn sigmoid sigmoid_backward sign silu silu_backward sin
sinh slice slice_backward slice_scatter softplus softplus_backward softshrink softshrink_backward
split split_with_sizes sqrt squeeze stack std sub sum t tan tanh tanh_backward threshold
threshold_backward transpose tril triu trunc unbind unsafe_split unsqueeze upsample_nearest2d
upsample_nearest2d_backward var var_mean view where zeros zeros_like _log_softmax
_log_softmax_backward_data _prelu_kernel _prelu_kernel_backward _reshape_alias _safe_softmax
_softmax _softmax_backward_data _to_copy _unsafe_view max_pool2d_with_indices
max_pool2d_with_indices_backward _adaptive_avg_pool2d _adaptive_avg_pool2d_backward
"""
_APART = frozenset(_LISTED.split())
"""Operations that ``vmap`` carries out for many examples without letting them meet."""

_ONE_BY_ONE = """
adaptive_max_pool2d adaptive_max_pool2d_backward adaptive_max_pool3d adaptive_max_pool3d_backward
argmax argmin avg_pool3d_backward bitwise_and bitwise_not bitwise_or bitwise_xor celu
channel_shuffle col2im copy cummax cumprod diag_embed digamma embedding embedding_dense_backward
embedding_renorm empty empty_like erfinv floor_divide fmax fmin fmod frac gather hardshrink
hardshrink_backward im2col index index_add index_put index_select isneginf isposinf lerp lgamma
linspace logcumsumexp logit logit_backward max_pool3d_with_indices max_pool3d_with_indices_backward
mish mish_backward nan_to_num native_batch_norm native_batch_norm_backward new_empty
new_empty_strided pixel_shuffle pixel_unshuffle reflection_pad1d reflection_pad1d_backward
reflection_pad2d reflection_pad2d_backward reflection_pad3d reflection_pad3d_backward remainder
replication_pad1d replication_pad1d_backward replication_pad2d replication_pad2d_backward
replication_pad3d replication_pad3d_backward roll rot90 round scatter scatter_add sinc sort std_mean
topk unfold unfold_backward upsample_bilinear2d upsample_bilinear2d_backward upsample_linear1d
upsample_linear1d_backward upsample_nearest1d upsample_nearest1d_backward upsample_nearest3d
upsample_nearest3d_backward upsample_trilinear3d upsample_trilinear3d_backward vdot xlogy
_adaptive_avg_pool3d _adaptive_avg_pool3d_backward _trilinear _weight_norm_interface
_weight_norm_interface_backward
"""
_INSIDE = _APART | frozenset(_ONE_BY_ONE.split())
"""Operations whose public functions read and write within their tensors, whatever numbers these
hold: what lies beside a tensor in memory may be other examples.
"""

_TRUSTING = "_backward", "native_batch_norm", "_weight_norm_interface"
"""Parts of the names of operations that take sizes and places in memory on trust (torch 2.13)."""
_BETWEEN = (
    *("torch._ops", "torch._compile", "torch._dynamo.eval_frame"),
    "torch.fx.experimental.proxy_tensor",
)
"""Modules of torch that pass a call on."""

SHOWN = 200


def _silent() -> None:
    """Let torch print no warnings from C++: lines would count batches that are not empty."""
    library = Path(torch.__file__).parent / "lib" / "libc10.so"
    with suppress(OSError, ValueError):  # another build; TORCH_CPP_LOG_LEVEL says the same
        level = ctypes.c_int.in_dll(ctypes.CDLL(str(library)), "FLAGS_caffe2_log_level")
        level.value = max(level.value, 2)


_silent()

Named = Mapping[str, Tensor]
Function = Callable[..., Any]
"""Of the module as a function of weights and inputs, of weights, and of tensors."""


class Graphs:
    """The graphs of one module, each recorded when it is first asked for.

    Args:
        module: it is called on made-up inputs alone.
        tensors: its parameters and buffers by name, as of now.
    """

    def __init__(self, module: nn.Module, tensors: Callable[[], Named]) -> None:
        self._module, self._tensors = module, tensors
        self._drawn = {name for name, each in module.named_parameters() if each.requires_grad}
        self._found: dict[tuple[object, ...], Graph] = {}
        self._first: Named = {}
        self._still: Callable[[], bool] = lambda: True

    def of(self, what: object, function: Function, *like: Tensor) -> Graph:
        """The graph of a function, known as ``what``, for inputs that are ``like`` these in shape,
        type and device.

        Raises:
            StudyError: where it has none.
        """
        key = what, *((tuple(each.shape), each.dtype) for each in like)
        if key not in self._found:
            self._found[key] = self._recorded(function, [each.contiguous() for each in like])
        return self._found[key]

    def digest(self, x: Tensor) -> str:
        """A digest (hex) of what the module computes for inputs like ``x``, and of its slopes: the
        operations, and numbers that it holds beside its tensors.

        Code that other modules of Python lend to it counts only by what it does here.
        """

        def slopes(module: Function, tensors: Named, x: Tensor) -> Any:
            leaves = trained(tensors, dict.fromkeys(self._drawn))
            with torch.enable_grad():
                scores = scores_of(module, leaves, x)
                return scores.detach(), pulled(scores.sum(), leaves)

        return self.of("digest", slopes, x).digest()

    def _recorded(self, function: Function, like: Sequence[Tensor]) -> Graph:
        def called(tensors: Named, *given: Tensor) -> Any:
            with ExitStack() as stack:  # until gradients are there: a checkpoint calls it again

                def module(own: Named, *inputs: Tensor) -> Any:
                    placed = {name: own[first] for name, first in places.items()}
                    stack.enter_context(_reparametrize_module(self._module, placed))
                    return self._module(*inputs)

                return function(module, tensors, *given)

        places = places_of(self._module)

        def tried(tensors: Named, made_up: Sequence[Tensor]) -> Any:
            with _plainly(), filled_memory():
                return called(_clones(tensors), *(each.clone() for each in made_up))

        def agrees(some: list[tuple[Named, list[Tensor]]]) -> bool:
            return all(_alike(tried(own, given), graph.run(own, *given)) for own, given in some)

        cases, failed = [], None
        for case in product((self._copies(), self._made_up()), _made_up(like)):
            try:
                tried(*case)
                cases.append(case)
            except StudyError:
                raise
            except Exception as error:  # a user's module may raise anything
                failed = error
        if not cases:
            raise StudyError(
                f"model: it fails on made-up input of shape {tuple(like[0].shape)} "
                f"({_told(failed)}); make it work for every input, and batches of every size"
            ) from failed
        try:
            with _plainly():
                graph = Graph(_traced(called, self._copies(), *like), self._tensors)
            # one case after another: the gradients of a large model are as large as the model
            same = agrees(cases) and self._still()
        except StudyError:
            raise
        except Exception as error:  # torch, or a user's module, may raise anything
            raise StudyError(
                f"model: it cannot be recorded as a graph of torch operations ({_told(error)}). A "
                "model of one's own is run once, without numbers, and data sees the recorded "
                "operations alone: leave out branches on values (torch.where instead of if), "
                ".item(), x[mask], numpy, random numbers and compiled parts"
            ) from error
        if not same:
            raise StudyError(
                "model: its recorded graph gives something else on made-up examples, so it keeps a "
                "state or draws random numbers; let it depend on its input alone"
            )
        if not self._found:
            self._still = partial(agrees, cases[:1])
        # which way examples go follows from shapes, whatever the weights are by now
        graph.apart = graph.apart and _maps(graph, self._made_up(), _made_up(like))
        return graph

    def _copies(self) -> Named:
        """As of the first graph."""
        self._first = self._first or _clones(self._tensors())
        return self._first

    def _made_up(self) -> Named:
        """Random weights, of shapes alone; buffers and whole numbers as they are."""
        generator, found = torch.Generator().manual_seed(0), {}
        for name, each in self._copies().items():
            drawn = 0.1 * torch.randn(each.shape, generator=generator, dtype=torch.float64)
            found[name] = drawn.to(each) if name in self._drawn else each
        return found


class Graph:
    """A function of a module's tensors and of inputs.

    Attributes:
        apart: whether vmap may carry it out for many examples.
        shape, dtype: of the first tensor that it gives.
    """

    def __init__(self, graph: torch.fx.GraphModule, tensors: Callable[[], Named]) -> None:
        self._tensors, self.apart = tensors, True
        first = _pytree.tree_leaves(graph.graph.output_node().args)[0]
        self.shape, self.dtype = tuple(first.meta["val"].shape), first.meta["val"].dtype
        for node in list(graph.graph.nodes):
            if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
                self._fit(graph, node)
            elif node.op == "get_attr":
                constant = getattr(graph, node.target)
                if not isinstance(constant, Tensor):
                    raise Unfit(f"{node.target} is no tensor")
                _refuse_classes("a constant", constant)
                if constant.requires_grad:
                    raise Unfit(
                        "it takes a parameter from a list, a closure or another place that is no "
                        "attribute of a module, where it would not be trained"
                    )
            elif node.op not in ("placeholder", "output") and node.target is not operator.getitem:
                raise Unfit(f"{node.target}")
        graph.graph.eliminate_dead_code()
        graph.recompile()
        self._graph = graph

    def digest(self) -> str:
        """A digest (hex) of its operations and constants."""
        found = hashlib.sha256(self._graph.code.encode())
        for node in self._graph.graph.nodes:
            if node.op == "get_attr":
                constant = getattr(self._graph, node.target).detach().cpu().contiguous()
                found.update(f"{node.target}:{constant.dtype}:{tuple(constant.shape)}:".encode())
                found.update(constant.reshape(-1).view(torch.uint8).numpy().tobytes())
        return found.hexdigest()

    def __call__(self, *given: Tensor) -> Any:
        """Return the function's results."""
        return self.run(self._tensors(), *given)

    def run(self, tensors: Named, *given: Tensor) -> Any:
        """Return its results with other tensors of the module."""
        return self._graph(_in_rows(tensors), *(each.contiguous() for each in given))

    def mapped(self, *given: Tensor, tensors: Named | None = None) -> Any:
        """Return its results for each example of inputs (n, ...), side by side."""
        run = torch.vmap(self._graph, in_dims=(None, *(0 for _ in given)))
        own = self._tensors() if tensors is None else tensors
        return run(_in_rows(own), *(each.contiguous() for each in given))

    def _fit(self, graph: torch.fx.GraphModule, node: torch.fx.Node) -> None:
        kind: Any = node.target
        name = kind._schema.name.removeprefix("aten::")
        if kind._schema.is_mutable:
            if name != "copy_" or node.args[0].op != "placeholder":  # type: ignore[union-attr]
                raise Unfit(f"{name} writes to what is not the module's")
            node.replace_all_uses_with(node.args[1])  # type: ignore[arg-type]
            graph.graph.erase_node(node)
            return
        if kind.namespace != "aten" or name in ("as_strided", "as_strided_scatter", "resize"):
            raise Unfit(name)
        if torch.Tag.nondeterministic_seeded in kind.tags:
            raise Unfit(f"{name} draws random numbers")
        if name not in _INSIDE:
            raise Unfit(f"{name} is not known to stay within its tensors, see docs/own-model.md")
        if why := _beyond(name, node):
            raise Unfit(f"{name} with {why}")
        if name in ("view", "_unsafe_view", "_reshape_alias"):
            node.target = torch.ops.aten.reshape.default  # strides may be others than recorded
            node.args = node.args[:2]
        elif (first := _first(name, node)) is not None:
            inputs = node.all_input_nodes
            for each in (one for one in inputs if isinstance(one.meta.get("val"), Tensor)):
                with graph.graph.inserting_before(node):
                    given = graph.graph.call_function(first, (each,))
                node.replace_input_with(each, given)
        if name.startswith(("empty", "new_empty")):
            number = torch.nan if node.meta["val"].is_floating_point() else 0
            with graph.graph.inserting_after(node):
                filled = graph.graph.call_function(torch.ops.aten.fill.Scalar, (node, number))
            node.replace_all_uses_with(filled)
            filled.args = (node, number)
        elif name not in _APART or _halved(node):
            self.apart = False


def _first(name: str, node: torch.fx.Node) -> Any:
    """Return the function that an operation's tensors go through before; None if there is none."""
    if name.startswith("native_") and "_norm" in name:
        return torch.ops.aten.contiguous.default
    if name.startswith("convolution"):
        weight: Any = node.args[2 if name.endswith("_backward") else 1]
        return _in_order if 1 in weight.meta["val"].shape[:2] else None
    return None


def _in_order(numbers: Tensor) -> Tensor:
    """Return a copy that lies row by row, sizes of one included: of images of one channel with
    other strides oneDNN reads what lies behind them (:mod:`.perexample.plan`).
    """
    return numbers.clone(memory_format=torch.contiguous_format)


def _halved(node: torch.fx.Node) -> bool:
    """Return whether an operation gives numbers of half precision, whose vectors are longer."""
    made = _pytree.tree_leaves(node.meta["val"])
    kinds = (each.dtype for each in made if isinstance(each, Tensor))
    return any(kind.is_floating_point and kind.itemsize < 4 for kind in kinds)


class Unfit(Exception):
    """Something in a graph that is no function of its inputs."""


def pulled(value: Tensor, tensors: Named) -> dict[str, Tensor]:
    """The derivatives of a number by the tensors that require one; zeros where it has none."""
    wanted = {name: each for name, each in tensors.items() if each.requires_grad}
    found = torch.autograd.grad(
        value, list(wanted.values()), allow_unused=True, materialize_grads=True
    )
    return dict(zip(wanted, found, strict=True))


def trained(tensors: Named, names: Mapping[str, object]) -> Named:
    """The same tensors, those of ``names`` as leaves of autograd."""
    return {
        name: each.detach().requires_grad_() if name in names else each
        for name, each in tensors.items()
    }


def scores_of(module: Function, tensors: Named, x: Tensor) -> Tensor:
    """Scores (n, classes) of x (n, ...), or an embedding (n, numbers).

    Raises:
        StudyError: for another shape.
    """
    found: Tensor = module(tensors, x)
    if found.ndim != 2 or len(found) != len(x):
        many = "a single example" if len(x) == 1 else f"{len(x)} examples"
        raise StudyError(
            f"model: of {many} it gives {str(found.dtype).removeprefix('torch.')} of shape "
            f"{tuple(found.shape)}; it must give ({len(x)}, numbers), as for batches of every "
            "size: .squeeze() and .flatten() need the number of a dimension"
        )
    return found


def one_by_one(graph: Graph, rows: Tensor, out: Tensor) -> Tensor:
    """Write what a graph of scores makes of each of ``rows`` (n, ...) to ``out`` (n, k); a row on
    which it fails is left as it is: an error would tell of it.
    """
    for i in range(len(rows)):
        with passed_over():
            out[i] = graph(rows[i : i + 1].clone())[0]
    return out


@contextmanager
def passed_over() -> Iterator[None]:
    """Pass over what an operation raises on a row, which may be anything: an error would tell of
    the row. That no memory is left tells of none, and is raised.
    """
    try:
        yield
    except Exception as error:
        if no_memory(error):
            raise


@contextmanager
def _plainly() -> Iterator[None]:
    """Attention and recurrent cells as operations for which vmap has rules; no warnings."""
    with own_code(), warnings.catch_warnings(), sdpa_kernel(SDPBackend.MATH):
        warnings.simplefilter("ignore")
        torch._C._set_mkldnn_enabled(False)
        torch._C._set_cudnn_enabled(False)
        yield


def _clones(tensors: Named) -> Named:
    return {
        name: each.detach().clone(memory_format=torch.contiguous_format)
        for name, each in tensors.items()
    }


def _in_rows(tensors: Named) -> Named:
    for name, each in tensors.items():
        _refuse_classes(name, each)
    return {name: each.contiguous() for name, each in tensors.items()}


def _refuse_classes(name: str, tensor: Tensor) -> None:
    """Refuse a tensor of a class of somebody's own: torch would call its code with data, and under
    vmap with several examples at once.
    """
    if type(tensor) not in (Tensor, nn.Parameter):
        raise Unfit(
            f"{name!r} is a {type(tensor).__name__}, whose own code would see data; make it a "
            "plain tensor"
        )


def places_of(module: nn.Module) -> dict[str, str]:
    """Every name of a tensor, and the first name of the same one: weights may be tied. A module
    that stands in two places has one name.
    """
    first: dict[int, str] = {}
    return {
        f"{prefix}.{own}".lstrip("."): first.setdefault(id(tensor), f"{prefix}.{own}".lstrip("."))
        for kind in ("_parameters", "_buffers")  # in this order: a buffer may be a parameter, too
        for prefix, each in module.named_modules()
        for own, tensor in getattr(each, kind).items()
        if tensor is not None
    }


def _beyond(name: str, node: torch.fx.Node) -> str:
    """Return with which settings an operation of torch 2.13 may write behind its tensors, into the
    next example; empty where it may not.

    A window of a max pool with padding and dilation may lie outside of a narrow image. It has the
    place behind the image then, and the backward writes there (4.99 C).
    """
    given: Any = node.args
    if name in ("max_pool2d_with_indices", "max_pool3d_with_indices") and len(given) > 4:
        return "both padding and dilation" if max(given[3]) > 0 and max(given[4]) > 1 else ""
    pads = name.startswith(("reflection_pad", "replication_pad"))
    return "a negative side" if pads and min(given[-1]) < 0 else ""


class _ByTorch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses slopes that autograd does not ask for, and a few kernels that a function of torch
    does not call: they do not look at the sizes and places that they are given.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name()
        if any(each in name for each in _TRUSTING):
            caller: Any = sys._getframe(1)
            while caller.f_globals["__name__"] in _BETWEEN:
                caller = caller.f_back
            place = torch.autograd.graph if "_backward" in name else torch
            if not f"{caller.f_globals['__name__']}.".startswith(f"{place.__name__}."):
                raise Unfit(f"own code calls {name} itself")
        return func(*args, **(kwargs or {}))


def _traced(function: Function, *given: Any) -> torch.fx.GraphModule:
    from torch.func import functionalize
    from torch.fx.experimental.proxy_tensor import make_fx  # takes a second to load

    def graph_of(each: Function) -> torch.fx.GraphModule:
        return make_fx(each, tracing_mode="fake", _allow_non_fake_inputs=True)(*given)

    def called(*given: Any) -> Any:
        # in this thread, whatever the device: who calls is looked for in its frames
        with torch.autograd.set_multithreading_enabled(False), _ByTorch():  # type: ignore[no-untyped-call]
            return function(*given)

    # autograd works in a plain trace alone; what writes in place is found in a second one
    with own_code():
        plain = graph_of(called)
    return graph_of(functionalize(plain)) if any(map(_writes, plain.graph.nodes)) else plain


def _writes(node: torch.fx.Node) -> bool:
    kind: Any = node.target
    if not isinstance(kind, torch._ops.OpOverload):
        return False
    return kind._schema.is_mutable or "batch_norm" in kind._schema.name


def _made_up(like: Sequence[Tensor]) -> list[list[Tensor]]:
    """Zeros, and random numbers where there are fractions."""
    generator = torch.Generator().manual_seed(0)
    zeros = [torch.zeros_like(each) for each in like]
    random = [
        torch.randn(each.shape, generator=generator).to(each) if each.is_floating_point() else each
        for each in zeros
    ]
    return [zeros, random]


def _alike(one: Any, other: Any) -> bool:
    pairs = zip(_pytree.tree_leaves(one), _pytree.tree_leaves(other), strict=True)
    return all(_close(each.detach(), again.detach()) for each, again in pairs)


def _close(one: Tensor, other: Tensor) -> bool:
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    if not (one.is_floating_point() or one.is_complex()) or not one.numel():
        return torch.equal(one, other)
    # sums of large numbers of both signs are small, and their rounding is not
    largest = other.abs().nan_to_num(nan=0.0, posinf=0.0).amax().item()
    return torch.allclose(one, other, rtol=1e-3, atol=1e-5 * (1.0 + largest), equal_nan=True)


def _maps(graph: Graph, tensors: Named, tried: list[list[Tensor]]) -> bool:
    """Return whether vmap has rules for all of it, and they give the same."""
    try:
        found = graph.mapped(*map(torch.stack, zip(*tried, strict=True)), tensors=tensors)
        alone = [_pytree.tree_leaves(graph.run(tensors, *made_up)) for made_up in tried]
    except Exception:  # no rule
        return False
    rows = ([each[i] for each in _pytree.tree_leaves(found)] for i in range(len(tried)))
    return all(_alike(row, other) for row, other in zip(rows, alone, strict=True))


def _told(error: BaseException | None) -> str:
    """The first words of an exception: torch adds advice for its own developers."""
    text = "" if error is None else modules.told_of(error)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
