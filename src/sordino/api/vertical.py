"""Tables of a study of parties with different features, learning from events, as typed classes.

>>> Budget(events=20_000).events
20000
"""

from sordino.regimes.vertical.method import Count, Dlr, Full, Ogd, Random, Slr, Threshold
from sordino.regimes.vertical.study import EventExecution as Execution
from sordino.regimes.vertical.study import Events as Budget
from sordino.regimes.vertical.study import Missing as World
from sordino.regimes.vertical.study import Release
from sordino.regimes.vertical.study import SplitModel as Model
from sordino.regimes.vertical.study import VerticalData as Data
from sordino.regimes.vertical.study import VerticalPrivacy as Privacy

__all__ = [
    "Budget",
    "Count",
    "Data",
    "Dlr",
    "Execution",
    "Full",
    "Model",
    "Ogd",
    "Privacy",
    "Random",
    "Release",
    "Slr",
    "Threshold",
    "World",
]
