"""Differentially private federated learning with one privacy ledger.

>>> import sordino as so
>>> study = so.Study(
...     data={"name": "digits", "clients": 10},
...     model="logistic",
...     method=so.DpSgd(learning_rate=0.5, tau=1),
...     privacy=so.Privacy(unit="sample", epsilon=2.0, delta=1e-3, sampling_rate=0.1),
...     budget=so.Budget(rounds=20),
... )
>>> round(so.plan(study).epsilon, 2)
2.0

Names are imported when they are first used, so ``import sordino`` itself takes no time.
"""

from __future__ import annotations

import importlib
import os
from functools import cache
from pathlib import Path
from typing import Any

from sordino.base import VERSION

# An operation of torch that warns from C++ prints a line for each batch, past Python's filters: the
# lines would count batches that are not empty. Torch reads this when it is imported; where it was
# imported before, sordino.training.graph tells it.
os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"

__version__ = VERSION


@cache
def _places() -> dict[str, str]:
    """The module of each name, or the package whose module it is: ``__init__.pyi`` says it, to type
    checkers, too.
    """
    import ast

    stub = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    return {
        alias.name: str(line.module)
        for line in stub.body
        if isinstance(line, ast.ImportFrom)
        for alias in line.names
    }


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return sorted((*_places(), "__version__"))
    if name not in _places():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    place = importlib.import_module(_places()[name])
    inside = hasattr(place, "__path__")
    found: Any = (
        importlib.import_module(f"{place.__name__}.{name}") if inside else getattr(place, name)
    )
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_places()})
