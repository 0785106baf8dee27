"""Special functions of SciPy, without the rest of ``scipy.special``.

A price needs four of them. To import the package for these costs half a second and 15 MB in every
process that charges a ledger, most of it for parts that nothing here uses; the compiled module that
holds them costs a millisecond. Where SciPy keeps it elsewhere, the package is imported as usual.

>>> round(float(functions().gammaln(5.0)), 6)  # log 4!
3.178054
"""

from __future__ import annotations

from functools import cache
from importlib import import_module, machinery, util
from pathlib import Path
from typing import Any

_NEEDED = ("erfcx", "gammaln", "log_ndtr", "ndtr")
_MODULE = "scipy.special._special_ufuncs"


@cache
def functions() -> Any:
    """Return the module with SciPy's ``erfcx``, ``gammaln``, ``log_ndtr`` and ``ndtr``, for
    arrays."""
    return _compiled() or import_module("scipy.special")


def _compiled() -> Any:
    """The compiled module by itself; None where this SciPy has no such module."""
    package = util.find_spec("scipy")
    if package is None or package.origin is None:
        return None
    folder = Path(package.origin).parent / "special"
    spec = machinery.PathFinder.find_spec(_MODULE, [str(folder)])
    if spec is None or not isinstance(spec.loader, machinery.ExtensionFileLoader):
        return None
    try:
        module = util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError:
        return None
    return module if all(hasattr(module, name) for name in _NEEDED) else None
