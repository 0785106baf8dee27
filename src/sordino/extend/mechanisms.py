"""For a mechanism of one's own (docs/own-mechanism.md), and the contract that it must keep."""

from sordino.mechanisms.contract import check_noise as check_noise
from sordino.mechanisms.contract import check_pure_noise as check_pure_noise
from sordino.mechanisms.gaussian import SHRINK as SHRINK
from sordino.mechanisms.gaussian import Bounded as Bounded
from sordino.mechanisms.gaussian import Tailed as Tailed
from sordino.mechanisms.gaussian import shortened as shortened
from sordino.mechanisms.grid import add_gaussian as add_gaussian
from sordino.mechanisms.kinds import GaussianNoise as GaussianNoise
from sordino.mechanisms.kinds import Noise as Noise
from sordino.mechanisms.kinds import NoiseRequest as NoiseRequest
from sordino.mechanisms.kinds import register as register
from sordino.privacy.event import Gaussian as Gaussian
from sordino.privacy.event import Pure as Pure
