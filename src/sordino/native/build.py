"""The compiler: machine code of a function, as numba makes it."""

from __future__ import annotations

import types as python
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from numba import njit
from numba.core import cgutils
from numba.core.compiler_lock import global_compiler_lock

from sordino.native import entry
from sordino.native.image import Image, Unfit, linked

if TYPE_CHECKING:
    from sordino.native.kernel import Kernel

_tools: Any = cgutils  # partly annotated
ENTRY = "sordino_entry"


def plain(run: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, in whose place kernels and tiles stand as numba knows them."""
    found: Any = run
    names = {name for code in _codes(found.__code__) for name in code.co_names}
    world = {name: _known(found.__globals__[name]) for name in names & found.__globals__.keys()}
    world["__builtins__"] = found.__globals__.get("__builtins__", __builtins__)
    world["__name__"] = found.__module__
    cells = tuple(python.CellType(_known(cell.cell_contents)) for cell in found.__closure__ or ())
    made = python.FunctionType(found.__code__, world, found.__name__, found.__defaults__, cells)
    made.__qualname__, made.__module__ = found.__qualname__, found.__module__
    made.__kwdefaults__ = found.__kwdefaults__
    return made


def _codes(code: python.CodeType) -> list[python.CodeType]:
    inner = [each for each in code.co_consts if isinstance(each, python.CodeType)]
    return [code, *(found for each in inner for found in _codes(each))]


def _known(value: Any) -> Any:
    from sordino.native.kernel import Kernel, Tile

    return value.compiled if isinstance(value, Kernel | Tile) else value


def inside(run: Callable[..., Any], options: Mapping[str, Any]) -> Any:
    """The function for other compiled functions to call."""
    untold: Any = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, **options}
    return njit(nogil=True, **untold)(plain(run))


def outside(run: Callable[..., Any], options: Mapping[str, Any]) -> Any:
    """The function for Python to call, by numba's own way."""
    told: Any = options
    return njit(nogil=True, **told)(plain(run))


def image(kernel: Kernel, kinds: Sequence[str]) -> Image | None:
    """The machine code of a kernel for these types of arguments; None if it cannot be kept."""
    try:
        with global_compiler_lock:
            return linked(_compiled(kernel, kinds), ENTRY)
    except (Unfit, NotImplementedError):
        return None


def _compiled(kernel: Kernel, kinds: Sequence[str]) -> bytes:
    """An object file with the function and its entry."""
    from llvmlite import ir

    takes = tuple(entry.numba_type(kind) for kind in kinds)
    dispatcher = kernel.compiled
    dispatcher.compile(takes)
    made = dispatcher.overloads[takes]
    context, described = made.target_context, made.fndesc
    codegen = context.codegen()
    module = codegen.create_library(ENTRY).create_ir_module(ENTRY)
    callee = ir.Function(
        module,
        context.call_conv.get_function_type(described.restype, described.argtypes),
        described.llvm_func_name,
    )
    entry.Entry(module, ENTRY, context).write(callee, made.signature, kinds)
    entry.memory(module)
    return _object(codegen, module, made.library)


def _object(codegen: Any, module: Any, library: Any) -> bytes:
    """An object file of a module and what it calls. The latter is as numba would run it: it is not
    optimised once more, which might fuse other products. Nothing is given to numba's own linker,
    which ends the process at a name that it does not know.
    """
    from llvmlite import binding

    found = binding.parse_assembly(_tools.normalize_ir_text(str(module)))
    found.verify()
    codegen.create_library(ENTRY)._optimize_functions(found)
    found.link_in(library._get_module_for_linking(), preserve=True)
    return bytes(codegen._tm.emit_object(found))
