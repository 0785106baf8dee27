r"""A module of one's own as a graph of torch operations, recorded once on made-up inputs.

Theory of operation. Code of somebody's own may keep what it sees: in an attribute, a class, a
cache, a global name, a setting of torch. So it never sees data. It is called once, on tensors that
have a shape and no numbers (``FakeTensor``); what torch is asked to do meanwhile, forward and
backward, is the graph. Data then goes through the graph alone, which holds nothing but operations
of torch whose results depend on their inputs:

* A branch on a number, ``item``, ``float(x)``: there is no number, so recording fails.
* Writing in place becomes a new tensor (``functionalize``). Writes to parameters and buffers would
  come last; they are left out. Any other operation that writes makes the graph unfit, and so does
  one that is not torch's own.
* Memory that nobody initialises (``empty``) is filled with NaN, or zeros for integers.

What is recorded is what the module did in that one call: it must do the same in each. To find
numbers that it drew or counted itself, the graph must give what the module gives on two made-up
examples.

The graph of one example is carried out for many by ``vmap``. Not all rules of vmap keep examples
apart: a table that is made from the example is laid beside the others', and an index past its end
finds theirs. So that is done only where each operation is on a list; else the graph takes examples
one after another.

What has no graph is called example by example on throw-away copies
(:mod:`sordino.training.copies`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_LISTED = """
abs acos acosh add addcdiv addcmul addmm addmv alias all amax amin any arange asin asinh atan
atan2 atanh avg_pool1d avg_pool2d avg_pool2d_backward avg_pool3d baddbmm bmm cat ceil clamp
clamp_max clamp_min clone constant_pad_nd convolution convolution_backward copysign cos cosh
cumsum detach diagonal div dot elu elu_backward eq erf erfc exp exp2 expand expm1 eye fill flip
floor full full_like ge gelu gelu_backward glu glu_backward gt hardsigmoid
hardsigmoid_backward hardswish hardswish_backward hardtanh hardtanh_backward hypot isfinite isinf
isnan le leaky_relu leaky_relu_backward lift_fresh_copy linalg_vector_norm log log10 log1p log2
log_sigmoid_backward log_sigmoid_forward logaddexp logical_and logical_not logical_or logical_xor
logsumexp lt masked_fill max maximum mean min minimum mish mish_backward mm mse_loss
mse_loss_backward mul mv native_group_norm native_group_norm_backward native_layer_norm
native_layer_norm_backward ne neg new_full new_ones new_zeros nll_loss_backward nll_loss_forward
ones ones_like permute pow prod reciprocal relu repeat reshape rsqrt rsub scalar_tensor
select select_backward select_scatter sgn sigmoid sigmoid_backward sign silu silu_backward sin
sinh slice slice_backward slice_scatter softplus softplus_backward softshrink softshrink_backward
split split_with_sizes sqrt squeeze stack std sub sum t tan tanh tanh_backward threshold
threshold_backward transpose tril triu trunc unbind unsafe_split unsqueeze upsample_nearest2d
upsample_nearest2d_backward var var_mean view where zeros zeros_like _log_softmax
_log_softmax_backward_data _prelu_kernel _prelu_kernel_backward _reshape_alias _softmax
_softmax_backward_data _to_copy _unsafe_view max_pool2d_with_indices
max_pool2d_with_indices_backward _adaptive_avg_pool2d _adaptive_avg_pool2d_backward
"""
_APART = frozenset(_LISTED.split())
"""Operations that ``vmap`` carries out for many examples without letting them meet."""

Function = Callable[..., Any]


class Recording:
    """A function of tensors as a graph.

    Attributes:
        run: the graph; it takes what the function took, and gives what it gave.
        apart: whether vmap may carry it out for many examples.
        draws: whether it draws random numbers.
    """

    def __init__(self, graph: torch.fx.GraphModule) -> None:
        self.apart, self.draws = True, False
        for node in list(graph.graph.nodes):
            if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
                self._fitted(graph, node)
            elif node.op == "get_attr":
                constant = getattr(graph, node.target)
                if not isinstance(constant, Tensor):
                    raise Unfit(f"{node.target} is no tensor")
            elif node.op not in ("placeholder", "output") and node.target is not operator.getitem:
                raise Unfit(f"{node.target}")
        graph.graph.eliminate_dead_code()
        graph.recompile()
        self.run: Function = graph

    def _fitted(self, graph: torch.fx.GraphModule, node: torch.fx.Node) -> None:
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
        if name.startswith(("empty", "new_empty")):
            number = torch.nan if node.meta["val"].is_floating_point() else 0
            with graph.graph.inserting_after(node):
                filled = graph.graph.call_function(torch.ops.aten.fill.Scalar, (node, number))
            node.replace_all_uses_with(filled)
            filled.args = (node, number)
        elif name not in _APART:
            self.apart = False
        self.draws = self.draws or torch.Tag.nondeterministic_seeded in kind.tags


class Unfit(Exception):
    """Something in a graph that is no function of its inputs."""


def recorded(function: Function, *given: Any) -> Recording:
    """The graph of a function of (nested) tensors like those ``given``, whose numbers do not count.

    Raises:
        Exception: where it has none; torch, or the function, may raise anything.
    """
    from torch.func import functionalize
    from torch.fx.experimental.proxy_tensor import make_fx  # takes a second to load

    make = make_fx(functionalize(function), tracing_mode="fake", _allow_non_fake_inputs=True)
    return Recording(make(*given))
