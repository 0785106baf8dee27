"""Machine code for loops in Python's syntax, compiled once on a machine and kept on its disk.

The compiler (numba, and LLVM below it) takes seconds and a hundred megabytes of each process. So
what it makes of a function is kept; a process that finds it loads a few kilobytes, and never loads
the compiler. The same bytes run either way.

    kernel     functions to call from Python
    emit       inner loops in LLVM's own language, for functions that are compiled
    meaning    what a function's machine code depends on, as a digest
    processor  the machine that code is compiled for
    build      the compiler: the only module that loads it, besides emit
    entry      the way from Python's objects to the function's arguments
    image      machine code as bytes, from the compiler's object file to a function in memory
    store      the folder on disk, and when it is trusted
"""

from sordino.native.kernel import Kernel, Tile, compiled, emitted

__all__ = ["Kernel", "Tile", "compiled", "emitted"]
