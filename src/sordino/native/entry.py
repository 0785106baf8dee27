"""The way from Python's objects to a compiled function's arguments, in LLVM's language.

An entry is a function of Python's own calling convention (METH_FASTCALL). It looks at the type of
each argument, reads the numbers where Python and NumPy keep them, and calls the function without
the interpreter's lock. Where an argument is not of the type that the function was compiled for, it
answers NotImplemented, and nothing has happened.

It reads Python's objects as CPython and NumPy lay them out on a 64-bit machine; whether they do,
:func:`sordino.native.image.laid_out` looks before the first entry is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.np.arrayobj import populate_array

TYPE, VALUE, COUNT, ITEMS = 8, 16, 16, 24
"""Bytes from the beginning of an object to its type, a number's value, a tuple's length, items."""
DATA, DIMENSIONS, SHAPE, STRIDES, KIND, FLAGS = 16, 24, 32, 40, 56, 64
"""Bytes from the beginning of an array to what it is made of."""
_C, _F, _ALIGNED, _WRITEABLE = 0x1, 0x2, 0x100, 0x400
_ORDERS = {"C": (_C, _C), "F": (_C | _F, _F), "A": (_C | _F, 0)}
_PYTHON = {"float64": "PyFloat_Type", "int64": "PyLong_Type", "bool": "PyBool_Type"}
_BYTE, _INT, _WORD = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_tools: Any = cgutils  # partly annotated, as are the next
_types: Any = types
_filled: Any = populate_array


def numba_type(kind: str) -> Any:
    """numba's type for a kind of argument, as :mod:`sordino.native.kernel` names them."""
    first, *rest = kind.split()
    if first == "tuple":
        return _types.UniTuple(_types.int64, int(rest[0]))
    number = getattr(types, {"bool": "boolean"}.get(first, first))
    if not rest:
        return number
    dimensions, order, access = rest
    return _types.Array(number, int(dimensions), order, readonly=access == "r")


class Entry:
    """Writes an entry named ``name`` into a module; ``kinds`` are those of the arguments."""

    def __init__(self, module: Any, name: str, context: Any) -> None:
        self._module, self._context = module, context
        kind = ir.FunctionType(_WORD, [_WORD] * 3)
        self._function = ir.Function(module, kind, name)
        self._builder = ir.IRBuilder(self._function.append_basic_block())
        self._unfit = self._function.append_basic_block()
        self._failed = self._function.append_basic_block()

    def write(self, callee: Any, signature: Any, kinds: Sequence[str]) -> None:
        """Check the arguments, call, and give back the result."""
        _, given, count = self._function.args
        self._require("==", count, len(kinds))
        values = [
            self._value(kind, self._read(given, 8 * i), of)
            for i, (kind, of) in enumerate(zip(kinds, signature.args, strict=True))
        ]
        builder = self._builder
        state = self._call("PyEval_SaveThread", [])
        status, result = self._context.call_conv.call_function(
            builder, callee, signature.return_type, signature.args, values, attrs=("noinline",)
        )
        self._call("PyEval_RestoreThread", [state])
        after = self._function.append_basic_block()
        builder.cbranch(status.is_error, self._failed, after)
        builder.position_at_end(after)
        builder.ret(self._result(signature.return_type, result))
        builder.position_at_end(self._unfit)
        builder.ret(self._shared("_Py_NotImplementedStruct"))
        builder.position_at_end(self._failed)
        self._fail()

    def _value(self, kind: str, given: Any, of: Any) -> Any:
        first, *rest = kind.split()
        if first == "tuple":
            return self._tuple(given, int(rest[0]))
        if rest:
            return self._array(given, kind, of)
        return self._number(given, kind)

    def _array(self, given: Any, kind: str, of: Any) -> Any:
        name, dimensions, order, access = kind.split()
        builder, count = self._builder, int(dimensions)
        self._require("==", self._read(given, TYPE), self._address("numpy:ndarray"))
        self._require("==", self._read(given, KIND), self._address(f"numpy:dtype:{name}"))
        self._require("==", self._read(given, DIMENSIONS, _INT), _INT(count))
        mask, wanted = _ORDERS[order]
        mask, wanted = mask | _ALIGNED | _WRITEABLE, wanted | _ALIGNED
        wanted |= _WRITEABLE if access == "w" else 0
        self._require("==", builder.and_(self._read(given, FLAGS, _INT), _INT(mask)), _INT(wanted))
        shape, strides = self._read(given, SHAPE), self._read(given, STRIDES)
        array = self._context.make_array(of)(self._context, builder)
        data = array.data.type
        _filled(
            array,
            builder.inttoptr(self._read(given, DATA), data),
            [self._read(shape, 8 * i) for i in range(count)],
            [self._read(strides, 8 * i) for i in range(count)],
            self._context.get_constant(
                types.intp, self._context.get_abi_sizeof(self._context.get_data_type(of.dtype))
            ),
            None,
        )
        return array._getvalue()

    def _number(self, given: Any, kind: str) -> Any:
        builder = self._builder
        own, numpy = self._read(given, TYPE), self._address(f"numpy:scalar:{kind}")
        if kind == "float32":
            self._require("==", own, numpy)
            return self._read(given, VALUE, ir.FloatType())
        python = self._address(_PYTHON[kind])
        is_python = builder.icmp_unsigned("==", own, python)
        is_numpy = builder.icmp_unsigned("==", own, numpy)
        if kind == "float64":  # NumPy's floats are Python's
            self._require_true(builder.or_(is_python, is_numpy))
            return self._read(given, VALUE, ir.DoubleType())
        self._require_true(builder.or_(is_python, is_numpy))
        place = _tools.alloca_once(builder, _WORD if kind == "int64" else _BYTE)
        with builder.if_else(is_python) as (then, otherwise):
            with then:
                builder.store(self._from_python(given, kind), place)
            with otherwise:
                builder.store(self._read(given, VALUE, place.type.pointee), place)
        value = builder.load(place)
        if kind == "int64":
            return value
        return builder.icmp_unsigned("!=", value, _BYTE(0))

    def _from_python(self, given: Any, kind: str) -> Any:
        builder = self._builder
        if kind == "int64":
            return self._whole(given)
        true = builder.icmp_unsigned("==", given, self._address("_Py_TrueStruct"))
        return builder.zext(true, _BYTE)

    def _whole(self, given: Any) -> Any:
        """Of a Python int; too large a one is what the function is not compiled for."""
        builder = self._builder
        over = _tools.alloca_once(builder, _INT)
        value = self._call("PyLong_AsLongLongAndOverflow", [given, builder.ptrtoint(over, _WORD)])
        self._require("==", builder.load(over), _INT(0))
        return value

    def _tuple(self, given: Any, count: int) -> Any:
        builder = self._builder
        self._require("==", self._read(given, TYPE), self._address("PyTuple_Type"))
        self._require("==", self._read(given, COUNT), count)
        values = []
        for i in range(count):
            item = self._read(given, ITEMS + 8 * i)
            self._require("==", self._read(item, TYPE), self._address("PyLong_Type"))
            values.append(self._whole(item))
        return _tools.pack_array(builder, values)

    def _result(self, of: Any, value: Any) -> Any:
        builder = self._builder
        of = _types.unliteral(of)
        if of == types.none:
            return self._shared("_Py_NoneStruct")
        if of == types.int64:
            return self._call("PyLong_FromLongLong", [value])
        if of == types.boolean:
            return self._call("PyBool_FromLong", [builder.zext(value, _WORD)])
        if of in (types.float64, types.float32):
            wide = value if of == types.float64 else builder.fpext(value, ir.DoubleType())
            return self._call("PyFloat_FromDouble", [wide])
        raise NotImplementedError(f"a result of type {of}")

    def _fail(self) -> None:
        """What numba would raise is not kept: no function of ours raises anything on purpose."""
        text = bytearray(b"compiled code failed: out of memory, or a bug in it\0")
        told = _tools.global_constant(
            self._module, "sordino_failed", ir.Constant(ir.ArrayType(_BYTE, len(text)), text)
        )
        error = self._read(self._address("PyExc_RuntimeError"), 0)
        self._call("PyErr_SetString", [error, self._builder.ptrtoint(told, _WORD)])
        self._builder.ret(_WORD(0))

    def _shared(self, name: str) -> Any:
        """One of Python's constants, with a reference to it."""
        found = self._address(name)
        self._call("Py_IncRef", [found], void=True)
        return found

    def _require(self, how: str, value: Any, wanted: Any) -> None:
        wanted = value.type(wanted) if isinstance(wanted, int) else wanted
        self._require_true(self._builder.icmp_unsigned(how, value, wanted))

    def _require_true(self, condition: Any) -> None:
        fit = self._builder.append_basic_block()
        self._builder.cbranch(condition, fit, self._unfit)
        self._builder.position_at_end(fit)

    def _read(self, start: Any, offset: int, kind: Any = _WORD) -> Any:
        place = self._builder.add(start, _WORD(offset))
        return self._builder.load(self._builder.inttoptr(place, kind.as_pointer()))

    def _address(self, name: str) -> Any:
        """Where something lies that is found when the code is loaded."""
        found = self._module.globals.get(name) or ir.GlobalVariable(self._module, _BYTE, name)
        return self._builder.ptrtoint(found, _WORD)

    def _call(self, name: str, arguments: list[Any], void: bool = False) -> Any:
        kind = ir.FunctionType(ir.VoidType() if void else _WORD, [each.type for each in arguments])
        found = _tools.get_or_insert_function(self._module, kind, name)
        return self._builder.call(found, arguments)


def memory(module: Any) -> None:
    """What compiled functions take memory with, from the C library's: numba's own is in a part of
    numba that is not loaded. A block begins with what numba's code reads of it.
    """
    pointer = _BYTE.as_pointer()
    block = ir.LiteralStructType([_WORD, pointer, pointer, pointer, _WORD])
    head = 64
    take = ir.Function(module, ir.FunctionType(pointer, [_WORD]), "malloc")
    give = ir.Function(module, ir.FunctionType(ir.VoidType(), [pointer]), "free")
    made = ir.Function(module, ir.FunctionType(pointer, [_WORD, _INT]), "NRT_MemInfo_alloc_aligned")
    size, align = made.args
    builder = ir.IRBuilder(made.append_basic_block())
    step = builder.zext(align, _WORD)
    found = builder.call(take, [builder.add(builder.add(size, step), _WORD(head))])
    with builder.if_then(builder.icmp_unsigned("==", found, pointer(None))):
        builder.ret(pointer(None))
    data = builder.add(builder.ptrtoint(found, _WORD), builder.add(step, _WORD(head - 1)))
    data = builder.sub(data, builder.urem(data, step))
    fields = (_WORD(1), pointer(None), pointer(None), builder.inttoptr(data, pointer), size)
    typed = builder.bitcast(found, block.as_pointer())
    for number, value in enumerate(fields):
        builder.store(value, builder.gep(typed, [_INT(0), _INT(number)]))
    builder.ret(found)
    gone = ir.Function(module, ir.FunctionType(ir.VoidType(), [pointer]), "NRT_MemInfo_call_dtor")
    builder = ir.IRBuilder(gone.append_basic_block())
    builder.call(give, [gone.args[0]])
    builder.ret_void()
