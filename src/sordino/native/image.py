"""Machine code as bytes: from the compiler's object file to a function in memory.

An object file (ELF, of x86-64) is laid out once, when it is made: what is left for a process that
loads it is to write addresses into it, its own and those of names outside, and to let it run. It
is never writable and executable at once.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec
import numpy as np

_ABSOLUTE, _RELATIVE, _FAR = 1, 2, 24  # R_X86_64_64, R_X86_64_PC32, R_X86_64_PC64
_NEAR_CALL = 4  # R_X86_64_PLT32
_BITS, _NOBITS, _SYMBOLS, _ADDENDS = 1, 8, 2, 4  # SHT_PROGBITS, _NOBITS, _SYMTAB, _RELA
_WRITE, _ALLOC = 1, 2  # SHF_
_COMMON, _RESERVED = 0xFFF2, 0xFF00  # SHN_
_LARGEST_ALIGNMENT = 4096


class Unfit(Exception):
    """Code that cannot be kept."""


class Image(msgspec.Struct, frozen=True, array_like=True):
    """Machine code.

    Attributes:
        code: the bytes.
        entry: where the function begins.
        inner: offset, and the offset in the code whose address stands there.
        outer: offset, and the name whose address stands there.
    """

    code: bytes
    entry: int
    inner: tuple[tuple[int, int], ...]
    outer: tuple[tuple[int, str], ...]


class _Section(msgspec.Struct, frozen=True):
    name: str
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    align: int


class _Symbol(msgspec.Struct, frozen=True):
    name: str
    section: int
    value: int
    size: int


def _sections(raw: bytes) -> list[_Section]:
    if raw[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<HH", raw, 16) != (1, 62):
        raise Unfit("no object file of x86-64")
    start, count, names = *struct.unpack_from("<Q", raw, 40), *struct.unpack_from("<HH", raw, 60)
    rows = [struct.unpack_from("<IIQQQQIIQQ", raw, start + 64 * i) for i in range(count)]
    return [
        _Section(_text(raw, rows[names][4] + name), kind, flags, at, size, link, info, align)
        for name, kind, flags, _, at, size, link, info, align, _ in rows
    ]


def _text(raw: bytes, at: int) -> str:
    return raw[at : raw.index(b"\0", at)].decode()


def _symbols(raw: bytes, sections: list[_Section]) -> list[_Symbol]:
    table = next(each for each in sections if each.kind == _SYMBOLS)
    names = sections[table.link].offset
    found = []
    for at in range(table.offset, table.offset + table.size, 24):
        name, _, _, section, value, size = struct.unpack_from("<IBBHQQ", raw, at)
        found.append(_Symbol(_text(raw, names + name), section, value, size))
    return found


def _is_code_or_data(section: _Section) -> bool:
    """Whether it is loaded; tables for unwinding are not, as no exception passes."""
    return bool(section.flags & _ALLOC) and section.kind in (_BITS, _NOBITS) and bool(section.size)


def linked(raw: bytes, entry: str) -> Image:
    """The image of an object file, whose function ``entry`` is what is called.

    Raises:
        Unfit: if it needs what an image does not have.
    """
    sections = _sections(raw)
    symbols = _symbols(raw, sections)
    code, places = bytearray(), {}
    for number, section in enumerate(sections):
        if not _is_code_or_data(section) or section.name == ".eh_frame":
            continue
        if section.flags & _WRITE and ".rel.ro" not in section.name:
            raise Unfit(f"{section.name} is written to")
        if section.align > _LARGEST_ALIGNMENT:
            raise Unfit(f"{section.name} is aligned to {section.align}")
        code.extend(bytes(-len(code) % max(section.align, 1)))
        places[number] = len(code)
        body = raw[section.offset : section.offset + section.size]
        code.extend(body if section.kind == _BITS else bytes(section.size))
    homes: dict[int, int] = {}
    for number, symbol in enumerate(symbols):
        if symbol.section == _COMMON:
            code.extend(bytes(-len(code) % 16))
            homes[number] = len(code)
            code.extend(bytes(symbol.size))
        elif symbol.section in places:
            homes[number] = places[symbol.section] + symbol.value
    start = next(homes[i] for i, each in enumerate(symbols) if each.name == entry)
    inner: list[tuple[int, int]] = []
    outer: list[tuple[int, str]] = []
    for section in sections:
        if section.kind != _ADDENDS or section.info not in places:
            continue
        for at in range(section.offset, section.offset + section.size, 24):
            where, info, addend = struct.unpack_from("<QQq", raw, at)
            number, kind, there = info >> 32, info & 0xFFFFFFFF, places[section.info] + where
            if number in homes:
                _settle(code, inner, kind, there, homes[number] + addend)
            elif kind == _ABSOLUTE and not addend and symbols[number].section < _RESERVED:
                outer.append((there, symbols[number].name))
            else:
                raise Unfit(f"{symbols[number].name}: relocation {kind}")
    if missing := sorted({name for _, name in outer if address(name) is None}):
        raise Unfit(f"nothing is called {missing}")
    return Image(bytes(code), start, tuple(inner), tuple(outer))


def _settle(
    code: bytearray, inner: list[tuple[int, int]], kind: int, there: int, target: int
) -> None:
    """Write a place inside the image, or leave it to who loads it."""
    match kind:
        case 1:
            inner.append((there, target))
        case 24:
            struct.pack_into("<q", code, there, target - there)
        case 2 | 4:
            struct.pack_into("<i", code, there, target - there)
        case _:
            raise Unfit(f"relocation {kind}")


@cache
def address(name: str) -> int | None:
    """Where something outside lies: of NumPy's objects, of Python, of the C library."""
    if name.startswith("numpy:"):
        _, *path = name.split(":")
        return id(_numpy(path))
    try:
        return ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, name))
    except ValueError:
        return None


def _numpy(path: list[str]) -> Any:
    match path:
        case ["ndarray"]:
            return np.ndarray
        case ["dtype", kind]:
            return np.dtype(kind)
        case _:
            return np.bool_ if path[1] == "bool" else getattr(np, path[1])


class _Method(ctypes.Structure):
    """PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("call", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_FAST = 0x80  # METH_FASTCALL
_KEPT: list[Any] = []  # what a function in memory needs as long as the process runs


def loaded(image: Image) -> Callable[..., Any]:
    """The function in memory.

    Raises:
        OSError: if the system lets nothing run that was written.
    """
    room = mmap.mmap(-1, max(len(image.code), 1))
    start = ctypes.addressof(ctypes.c_char.from_buffer(room))
    room[: len(image.code)] = image.code
    for there, target in image.inner:
        struct.pack_into("<Q", room, there, start + target)
    for there, name in image.outer:
        found = address(name)
        if found is None:
            raise OSError(f"nothing is called {name}")
        struct.pack_into("<Q", room, there, found)
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    if protect(start, len(room), mmap.PROT_READ | mmap.PROT_EXEC):
        raise OSError(ctypes.get_errno(), "mprotect")
    method = _Method(b"compiled", start + image.entry, _FAST, None)
    _KEPT.append((room, method))
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p,) * 3
    function: Callable[..., Any] = make(ctypes.addressof(method), None, None)
    return function


@cache
def laid_out() -> bool:
    """Whether Python's and NumPy's objects lie in memory as entries read them."""

    def word(at: int) -> int:
        return ctypes.c_int64.from_address(at).value

    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    at, view = id(array), array.__array_interface__
    flags = ctypes.c_int.from_address(at + 64).value
    numbers: list[tuple[Any, Any]] = [
        (1.5, ctypes.c_double),
        (np.float64(1.5), ctypes.c_double),
        (np.float32(1.5), ctypes.c_float),
        (np.int64(-7), ctypes.c_int64),
        (np.True_, ctypes.c_bool),
    ]
    items = (10**9, 3)
    return (
        word(at + 8) == id(np.ndarray)
        and word(at + 16) == view["data"][0]
        and ctypes.c_int.from_address(at + 24).value == 2
        and [word(word(at + 32) + 8 * i) for i in (0, 1)] == [2, 3]
        and [word(word(at + 40) + 8 * i) for i in (0, 1)] == [12, 4]
        and word(at + 56) == id(np.dtype("float32"))
        and flags & 0x503 == 0x501
        and np.dtype("float32") is array.dtype
        and all(kind.from_address(id(each) + 16).value == each for each, kind in numbers)
        and [word(id(items) + 16 + 8 * i) for i in range(3)] == [2, id(items[0]), id(items[1])]
    )
