"""The study file: everything that a run depends on, frozen, complete, with nothing hidden.

TOML in, one :class:`Study` out; all mistakes are reported at once, each with its place, its
value and a remedy. Unknown keys are mistakes. ``unit``, ``epsilon`` and ``delta`` have no
default: whoever runs a study says what is protected, or that nothing is.

What stands under ``[execution]`` cannot change privacy or the meaning of results, so a
reviewer may skip it.

    sections       tables that every study has
    synchronous    studies in rounds
    asynchronous   studies in which gradients are applied as they arrive
    horizontal     what these two share: clients with examples of their own
    streams        where their examples come from: streams, drift, parts
    vertical       studies in which parties hold different features of the same entities
    parse          from and to TOML
"""

from sordino.engine.study.base import Study
from sordino.engine.study.parse import named_modules, parse, read, read_run, write
from sordino.engine.study.sections import Execution, Reported
from sordino.federation.study import HorizontalStudy
from sordino.regimes.asynchronous.study import AsynchronousStudy
from sordino.regimes.synchronous.study import SynchronousStudy
from sordino.regimes.vertical.study import VerticalStudy

__all__ = [
    "AsynchronousStudy",
    "Execution",
    "HorizontalStudy",
    "Reported",
    "Study",
    "SynchronousStudy",
    "VerticalStudy",
    "named_modules",
    "parse",
    "read",
    "read_run",
    "write",
]
