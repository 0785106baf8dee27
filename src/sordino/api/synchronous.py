"""Tables of a study in rounds. Each is a class, so that an editor completes and checks its keys.

>>> Privacy(unit="sample", epsilon=2.0, delta=1e-5, sampling_rate=0.1).clip
1.0
"""

from sordino.core.study.base import Execution as Execution
from sordino.core.study.base import Model as Model
from sordino.core.study.base import World as World
from sordino.core.study.data import Data as Data
from sordino.data.partition import Column as Column
from sordino.data.partition import Dirichlet as Dirichlet
from sordino.data.partition import Iid as Iid
from sordino.data.partition import Shards as Shards
from sordino.regimes.synchronous.methods import AdapDpfl as AdapDpfl
from sordino.regimes.synchronous.methods import AliDpfl as AliDpfl
from sordino.regimes.synchronous.methods import AlsDpfl as AlsDpfl
from sordino.regimes.synchronous.methods import DpFedAvg as DpFedAvg
from sordino.regimes.synchronous.methods import DpSgd as DpSgd
from sordino.regimes.synchronous.methods import DynamicDpFedAvg as DynamicDpFedAvg
from sordino.regimes.synchronous.methods import DynamicDpSgd as DynamicDpSgd
from sordino.regimes.synchronous.methods import FedAvg as FedAvg
from sordino.regimes.synchronous.methods import PeDpfl as PeDpfl
from sordino.regimes.synchronous.study import Budget as Budget
from sordino.regimes.synchronous.study import Participation as Participation
from sordino.regimes.synchronous.study import Privacy as Privacy
