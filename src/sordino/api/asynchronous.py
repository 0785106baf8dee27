"""Tables of a study in which gradients are applied as they arrive, as typed classes.

>>> Budget(updates=100).updates
100
"""

from sordino.core.study.base import Execution as Execution
from sordino.core.study.base import Model as Model
from sordino.core.study.base import World as World
from sordino.core.study.data import Data as Data
from sordino.data.partition import Column as Column
from sordino.data.partition import Dirichlet as Dirichlet
from sordino.data.partition import Iid as Iid
from sordino.data.partition import Shards as Shards
from sordino.regimes.asynchronous import study
from sordino.regimes.asynchronous.method import Asgd as Asgd
from sordino.regimes.asynchronous.method import Audp as Audp
from sordino.regimes.asynchronous.method import Csgd as Csgd
from sordino.regimes.asynchronous.method import Mapa as Mapa

Budget = study.Updates
Participation = study.Arrival
Privacy = study.EdgePrivacy
