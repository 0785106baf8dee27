"""Tables of a study in rounds. Each is a class, so that an editor completes and checks its keys.

>>> Privacy(unit="sample", epsilon=2.0, delta=1e-5, sampling_rate=0.1).clip
1.0
"""

from sordino.core.study.base import Execution, Model, World
from sordino.core.study.data import Data
from sordino.data.partition import Column, Dirichlet, Iid, Shards
from sordino.regimes.synchronous.methods.adap import AdapDpfl
from sordino.regimes.synchronous.methods.ali import AliDpfl
from sordino.regimes.synchronous.methods.als import AlsDpfl
from sordino.regimes.synchronous.methods.client_level import DpFedAvg, PeDpfl
from sordino.regimes.synchronous.methods.fixed import DpSgd, FedAvg
from sordino.regimes.synchronous.methods.schedule import DynamicDpFedAvg, DynamicDpSgd
from sordino.regimes.synchronous.study import Budget, Participation, Privacy

__all__ = [
    "AdapDpfl",
    "AliDpfl",
    "AlsDpfl",
    "Budget",
    "Column",
    "Data",
    "Dirichlet",
    "DpFedAvg",
    "DpSgd",
    "DynamicDpFedAvg",
    "DynamicDpSgd",
    "Execution",
    "FedAvg",
    "Iid",
    "Model",
    "Participation",
    "PeDpfl",
    "Privacy",
    "Shards",
    "World",
]
