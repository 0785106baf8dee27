"""The names of the package, each with the module that has it."""

from sordino import privacy as privacy
from sordino.api import asynchronous as asynchronous
from sordino.api import synchronous as synchronous
from sordino.api import vertical as vertical
from sordino.api.comparing import Comparison as Comparison
from sordino.api.comparing import compare as compare
from sordino.api.given import Arrays as Arrays
from sordino.api.given import arrays as arrays
from sordino.api.ledgers import Ledger as Ledger
from sordino.api.ledgers import fingerprint as fingerprint
from sordino.api.ledgers import mechanism as mechanism
from sordino.api.planning import Plan as Plan
from sordino.api.planning import methods as methods
from sordino.api.planning import plan as plan
from sordino.api.recording import record as record
from sordino.api.running import Run as Run
from sordino.api.running import resume as resume
from sordino.api.running import run as run
from sordino.api.study import Study as Study
from sordino.api.synchronous import AdapDpfl as AdapDpfl
from sordino.api.synchronous import AliDpfl as AliDpfl
from sordino.api.synchronous import AlsDpfl as AlsDpfl
from sordino.api.synchronous import Budget as Budget
from sordino.api.synchronous import Column as Column
from sordino.api.synchronous import Data as Data
from sordino.api.synchronous import Dirichlet as Dirichlet
from sordino.api.synchronous import DpFedAvg as DpFedAvg
from sordino.api.synchronous import DpSgd as DpSgd
from sordino.api.synchronous import Execution as Execution
from sordino.api.synchronous import FedAvg as FedAvg
from sordino.api.synchronous import Iid as Iid
from sordino.api.synchronous import Model as Model
from sordino.api.synchronous import Participation as Participation
from sordino.api.synchronous import PeDpfl as PeDpfl
from sordino.api.synchronous import Privacy as Privacy
from sordino.api.synchronous import Shards as Shards
from sordino.api.synchronous import World as World
from sordino.base.errors import BudgetExceeded as BudgetExceeded
from sordino.base.errors import DataError as DataError
from sordino.base.errors import LedgerError as LedgerError
from sordino.base.errors import ResumeError as ResumeError
from sordino.base.errors import SordinoError as SordinoError
from sordino.base.errors import StudyError as StudyError

__all__: list[str]
__version__: str
