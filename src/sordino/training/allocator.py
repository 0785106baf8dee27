r"""Tell the C library to keep its memory.

glibc hands every buffer above 128 kB back to the kernel when it is freed and gets it
again, page by page and zeroed, at the next step. A training step allocates the same
buffers thousands of times: per-example gradients of a CIFAR network took 381 ms with
glibc's defaults and 189 ms with these settings.

    M_MMAP_MAX        0         no private mappings: large buffers come from the heap
    M_TRIM_THRESHOLD  1 GB      do not shrink the heap until this much lies free
    M_TOP_PAD         64 MB     grow it in large strides

Only the entry points of the program call this, when the data has been loaded: what loading
needed for a moment would be kept, too. Importing this package changes nothing. Where the C
library is another one, nothing happens.
"""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4  # malloc.h
_SETTINGS = ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, 1 << 30), (_M_TOP_PAD, 64 << 20))


def tune() -> bool:
    """Apply the settings; may be called again. Returns whether the C library took them all."""
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018  (other C libraries have a mallopt of another meaning)
        mallopt = library.mallopt
    except (OSError, AttributeError, TypeError):
        return False
    mallopt.argtypes, mallopt.restype = (ctypes.c_int, ctypes.c_int), ctypes.c_int
    taken = [mallopt(option, value) == 1 for option, value in _SETTINGS]
    return all(taken)
