"""For a method of one's own (docs/own-method.md), and the contract that it must keep."""

from sordino.core.method import About as About
from sordino.core.method import ContractBroken as ContractBroken
from sordino.core.method import Method as Method
from sordino.core.method import check_method as check_method
from sordino.core.method import register as register
from sordino.regimes.asynchronous.method import AsynchronousMethod as AsynchronousMethod
from sordino.regimes.asynchronous.method import Stage as Stage
from sordino.regimes.synchronous.method import Choice as Choice
from sordino.regimes.synchronous.method import Released as Released
from sordino.regimes.synchronous.method import Remaining as Remaining
from sordino.regimes.synchronous.method import RoundNoise as RoundNoise
from sordino.regimes.synchronous.method import SynchronousMethod as SynchronousMethod
from sordino.regimes.synchronous.method import Terms as Terms
from sordino.regimes.vertical.method import OnlineMethod as OnlineMethod
from sordino.training.extra_releases import Wants as Wants
