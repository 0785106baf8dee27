"""The study file: everything that a run depends on, frozen, complete, with nothing hidden.

TOML in, one :class:`Study` out; all mistakes are reported at once, each with its place, its
value and a remedy. Unknown keys are mistakes. ``unit``, ``epsilon`` and ``delta`` have no
default: whoever runs a study says what is protected, or that nothing is.

What stands under ``[execution]`` cannot change privacy or the meaning of results, so a
reviewer may skip it.

    base       a study, the tables that every one has, and where constants come from
    data       where examples come from: labels and columns
    parse      from and to TOML; every key, with its default and its words

Each regime adds the class of its own studies.
"""

from sordino.core.study.base import Execution as Execution
from sordino.core.study.base import Reported as Reported
from sordino.core.study.base import Study as Study
from sordino.core.study.parse import named_modules as named_modules
from sordino.core.study.parse import of_table as of_table
from sordino.core.study.parse import parse as parse
from sordino.core.study.parse import read as read
from sordino.core.study.parse import read_run as read_run
from sordino.core.study.parse import write as write
