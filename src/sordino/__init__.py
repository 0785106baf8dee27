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
from typing import TYPE_CHECKING, Any

from sordino.base import VERSION

# An operation of torch that warns from C++ prints a line for each batch, past Python's filters: the
# lines would count batches that are not empty. Torch reads this when it is imported; where it was
# imported before, sordino.training.graph tells it.
os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"

if TYPE_CHECKING:
    from sordino import privacy
    from sordino.api import asynchronous, synchronous, vertical
    from sordino.api.comparing import Comparison, compare
    from sordino.api.given import Arrays, arrays
    from sordino.api.ledgers import Ledger, fingerprint, mechanism
    from sordino.api.planning import Plan, methods, plan
    from sordino.api.recording import record
    from sordino.api.running import Run, resume, run
    from sordino.api.study import Study
    from sordino.api.synchronous import (
        AdapDpfl,
        AliDpfl,
        AlsDpfl,
        Budget,
        Column,
        Data,
        Dirichlet,
        DpFedAvg,
        DpSgd,
        Execution,
        FedAvg,
        Iid,
        Model,
        Participation,
        PeDpfl,
        Privacy,
        Shards,
        World,
    )
    from sordino.base.errors import (
        BudgetExceeded,
        DataError,
        LedgerError,
        ResumeError,
        SordinoError,
        StudyError,
    )

__version__ = VERSION

_PLACES = {
    "api.comparing": ("Comparison", "compare"),
    "api.given": ("Arrays", "arrays"),
    "api.ledgers": ("Ledger", "fingerprint", "mechanism"),
    "api.planning": ("Plan", "methods", "plan"),
    "api.recording": ("record",),
    "api.running": ("Run", "resume", "run"),
    "api.study": ("Study",),
    "base.errors": (
        "BudgetExceeded",
        "DataError",
        "LedgerError",
        "ResumeError",
        "SordinoError",
        "StudyError",
    ),
}
_MODULES = {
    "privacy": "privacy",
    "synchronous": "api.synchronous",
    "asynchronous": "api.asynchronous",
    "vertical": "api.vertical",
}
_WHERE = {name: place for place, names in _PLACES.items() for name in names}

__all__ = [
    "AdapDpfl",
    "AliDpfl",
    "AlsDpfl",
    "Arrays",
    "Budget",
    "BudgetExceeded",
    "Column",
    "Comparison",
    "Data",
    "DataError",
    "Dirichlet",
    "DpFedAvg",
    "DpSgd",
    "Execution",
    "FedAvg",
    "Iid",
    "Ledger",
    "LedgerError",
    "Model",
    "Participation",
    "PeDpfl",
    "Plan",
    "Privacy",
    "ResumeError",
    "Run",
    "Shards",
    "SordinoError",
    "Study",
    "StudyError",
    "World",
    "__version__",
    "arrays",
    "asynchronous",
    "compare",
    "fingerprint",
    "mechanism",
    "methods",
    "plan",
    "privacy",
    "record",
    "resume",
    "run",
    "synchronous",
    "vertical",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        found: Any = importlib.import_module(f"{__name__}.{_MODULES[name]}")
    elif name in __all__:
        # the tables of studies in rounds are at hand here, too
        place = _WHERE.get(name, "api.synchronous")
        found = getattr(importlib.import_module(f"{__name__}.{place}"), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
