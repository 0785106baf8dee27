"""Tables of a study in which gradients are applied as they arrive, as typed classes.

>>> Budget(updates=100).updates
100
"""

from sordino.core.study.base import Execution, Model, World
from sordino.core.study.data import Data
from sordino.data.partition import Column, Dirichlet, Iid, Shards
from sordino.regimes.asynchronous.method import Asgd, Audp, Csgd, Mapa
from sordino.regimes.asynchronous.study import Arrival as Participation
from sordino.regimes.asynchronous.study import EdgePrivacy as Privacy
from sordino.regimes.asynchronous.study import Updates as Budget

__all__ = [
    "Asgd",
    "Audp",
    "Budget",
    "Column",
    "Csgd",
    "Data",
    "Dirichlet",
    "Execution",
    "Iid",
    "Mapa",
    "Model",
    "Participation",
    "Privacy",
    "Shards",
    "World",
]
