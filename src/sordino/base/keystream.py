"""AES-256 in counter mode as a NumPy bit generator.

The words are the key stream of the cipher (NIST SP 800-38A; by the ``cryptography`` library) under
a key that is used for nothing else, so the counter begins at 0. NumPy's own distributions ask for
one word at a time, through a call back into Python, at half a microsecond each; noise asks for many
at once (:mod:`sordino.mechanisms.grid`) and gets them at the cipher's speed.

>>> first, again = generator(bytes(32)), generator(bytes(32))
>>> bool((first.random(3) == again.random(3)).all())
True
"""

from __future__ import annotations

import ctypes
import threading

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

_WORD = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p)
_HALF = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_void_p)
_SHARE = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_void_p)

_AHEAD = 64  # words fetched at once for callers that want one


class _BitGenerator(ctypes.Structure):
    """The table that NumPy's Generator reads of a bit generator (``bitgen_t``,
    numpy/random/bitgen.h)."""

    _fields_ = [
        ("state", ctypes.c_void_p),
        ("next_uint64", _WORD),
        ("next_uint32", _HALF),
        ("next_double", _SHARE),
        ("next_raw", _WORD),
    ]


class KeyStream:
    """A bit generator for :class:`numpy.random.Generator`: AES-256-CTR under one key (32 bytes)."""

    key_stream = True

    def __init__(self, key: bytes) -> None:
        self._cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
        self._ahead: list[int] = []
        self.lock = threading.RLock()
        word = _WORD(lambda _: self._next())
        half = _HALF(lambda _: self._next() >> 32)
        share = _SHARE(lambda _: (self._next() >> 11) * 2.0**-53)
        self._table = _BitGenerator(None, word, half, share, word)  # kept: NumPy holds its address
        make = ctypes.pythonapi.PyCapsule_New
        make.restype = ctypes.py_object
        make.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        self.capsule = make(ctypes.addressof(self._table), b"BitGenerator", None)

    def random_raw(self, count: int) -> NDArray[np.uint64]:
        """The next words (count,)."""
        taken = self._ahead[-1 : -count - 1 : -1]
        self._ahead = self._ahead[: max(0, len(self._ahead) - count)]
        fresh = self._words(count - len(taken))
        return np.concatenate([np.array(taken, np.uint64), fresh]) if taken else fresh

    def _words(self, count: int) -> NDArray[np.uint64]:
        return np.frombuffer(self._cipher.update(bytes(8 * count)), "<u8").astype(
            np.uint64, copy=False
        )

    def _next(self) -> int:
        if not self._ahead:
            self._ahead = self._words(_AHEAD)[::-1].tolist()
        return self._ahead.pop()


def generator(key: bytes) -> np.random.Generator:
    """NumPy's generator over the words of this key (32 bytes)."""
    return np.random.Generator(KeyStream(key))  # type: ignore[arg-type]  # it has all that a bit generator is asked for
