"""Operations that ``vmap`` carries out for many examples without letting them meet.

``vmap`` has a rule for each operation, and not all rules keep examples apart. A user's own
``autograd.Function`` may have a rule of its own, which gets the whole block. ``Tensor.resize_``
reads behind an example's end what belongs to the next. A table that is made from the example is
laid beside the others', and an index past its end finds theirs. So a module goes by vmap only if
every operation that its code calls is on this list; any other module sees examples one by one.

An operation is what Python calls: functions and methods of torch (``TorchFunctionMode``). Code that
runs outside of Python (``torch.jit``, extensions) does not pass there. So at the probe, kernels
that run while no listed operation is under way are seen, too (``TorchDispatchMode``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

_FUNCTIONS = """
abs absolute acos acosh add addcdiv addcmul addmm addmv addbmm baddbmm all amax amin aminmax any
arange arccos arcsin arctan arctan2 argmax argmin argsort asin asinh atan atan2 atanh atleast_1d
atleast_2d atleast_3d bilinear bitwise_and bitwise_not bitwise_or bitwise_xor bmm
broadcast_tensors broadcast_to cat ceil chunk clamp clamp_max clamp_min clip clone concat
concatenate contiguous conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d cos
cosh cosine_similarity cross cumprod cumsum deg2rad detach diag diag_embed diagonal diff div
divide dot double dsplit dstack einsum eq erf erfc exp exp2 expand expand_as expm1 eye flatten
flip float floor floor_divide fmax fmin fmod full full_like gather ge greater greater_equal
group_norm gru gru_cell gt half bfloat16 hstack hypot index_select inner int isclose isfinite
isinf isnan layer_norm le lerp less less_equal linspace log log10 log1p log2 logaddexp
logcumsumexp logical_and logical_not logical_or logical_xor logit logsumexp long lstm lstm_cell lt
mT masked_fill matmul max maximum mean meshgrid min minimum mm movedim moveaxis mse_loss mul
multiply mv nan_to_num nansum narrow ne neg negative new_full new_ones new_zeros norm not_equal
one_hot ones ones_like outer permute pixel_shuffle pixel_unshuffle positive pow prod ravel
reciprocal relu remainder repeat repeat_interleave reshape reshape_as rms_norm rnn_relu
rnn_relu_cell rnn_tanh rnn_tanh_cell roll rot90 round rsqrt rsub scatter scatter_add select selu
sgn sigmoid sign sin sinc sinh softmax log_softmax sort split sqrt square squeeze stack std
std_mean sub subtract sum swapaxes swapdims t take_along_dim tan tanh tensor_split tensordot
threshold tile to topk transpose tril triu true_divide trunc type_as unbind unflatten unfold
unsqueeze var var_mean vdot view view_as vsplit vstack where xlogy zeros zeros_like dropout
alpha_dropout feature_dropout adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d
adaptive_max_pool1d adaptive_max_pool2d avg_pool1d avg_pool2d avg_pool3d lp_pool1d lp_pool2d
max_pool1d max_pool2d batch_norm celu elu gelu glu hardshrink hardsigmoid hardswish hardtanh
instance_norm interpolate leaky_relu linear local_response_norm logsigmoid mish
multi_head_attention_forward normalize pad prelu relu6 scaled_dot_product_attention silu softmin
softplus softshrink softsign tanhshrink binary_cross_entropy binary_cross_entropy_with_logits
cross_entropy gaussian_nll_loss huber_loss kl_div l1_loss nll_loss poisson_nll_loss smooth_l1_loss
dim size numel nelement stride is_floating_point is_complex is_contiguous element_size ndimension
requires_grad_ __add__ __radd__ __iadd__ __sub__ __rsub__ __isub__ __mul__ __rmul__ __imul__
__div__ __rdiv__ __truediv__ __rtruediv__ __itruediv__ __floordiv__ __rfloordiv__ __mod__ __rmod__
__pow__ __rpow__ __ipow__ __matmul__ __rmatmul__ __neg__ __pos__ __abs__ __invert__ __and__ __or__
__xor__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __getitem__ __setitem__ __len__ __iter__
__hash__ __bool__ __float__ __int__ __index__ item copy_ zero_ fill_ tensor _weight_norm
"""

_ATTRIBUTES = "shape dtype device ndim layout requires_grad is_cuda is_leaf is_nested T mT"
_NOT_IN_PLACE = {"detach", "squeeze", "swapaxes", "swapdims", "t", "transpose", "unsqueeze"}
_PLACES = (torch, Tensor, F, torch._C._nn, torch.linalg, torch.special)
_RESHAPED = frozenset({Tensor.view})


def _listed() -> Iterator[object]:
    for name in _FUNCTIONS.split():
        for place in _PLACES:
            for each in (name,) if name in _NOT_IN_PLACE else (name, f"{name}_"):
                if (found := getattr(place, each, None)) is not None:
                    yield found
    for name in _ATTRIBUTES.split():
        yield getattr(Tensor, name).__get__
    # what vmap and grad themselves call
    yield from (torch._C._set_grad_enabled, torch.autograd.grad)
    yield from (torch.linalg.vector_norm, torch.functional.norm, torch.functional.split)


_LISTED = frozenset(_listed())


class MayMeet(Exception):
    """An operation that is not on the list."""


class _Operations(TorchFunctionMode):
    """Lets pass what is on the list alone."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = False

    def __torch_function__(
        self,
        operation: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if (
            not _keeps_apart(operation, args, kwargs)
            or kwargs.get("out") is not None
            or any(kind is not Tensor and kind is not nn.Parameter for kind in types)
        ):
            raise MayMeet(operation)
        self.inside = True
        try:
            return operation(*args, **kwargs)
        finally:
            self.inside = False


class _Kernels(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Lets pass what operations on the list start."""

    def __init__(self, operations: _Operations) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._operations = operations

    def __torch_dispatch__(
        self,
        kernel: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if not self._operations.inside:
            raise MayMeet(kernel)
        return kernel(*args, **(kwargs or {}))


@contextmanager
def apart(*, kernels: bool) -> Iterator[None]:
    """Stop at an operation that could let examples meet under vmap.

    ``kernels``: look at those that run outside of Python, too, which is slow.
    """
    with ExitStack() as stack:
        operations = _Operations()
        if kernels:
            stack.enter_context(_Kernels(operations))
        stack.enter_context(operations)
        yield


def _keeps_apart(operation: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if operation is F.embedding:
        table = args[1] if len(args) > 1 else kwargs.get("weight")
        norm = args[3] if len(args) > 3 else kwargs.get("max_norm")
        return norm is None and isinstance(table, Tensor) and not _mapped(table)
    if operation in _RESHAPED:  # bits of another type: of another size, too
        return not any(isinstance(each, torch.dtype) for each in (*args, *kwargs.values()))
    return operation in _LISTED


def _mapped(tensor: Tensor) -> bool:
    """Whether a tensor differs from example to example."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        if torch._C._functorch.is_batchedtensor(tensor):
            return True
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return False
