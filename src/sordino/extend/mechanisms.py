"""For a mechanism of one's own (docs/own-mechanism.md), and the contract that it must keep."""

from sordino.mechanisms import SHRINK as SHRINK
from sordino.mechanisms import Bounded as Bounded
from sordino.mechanisms import GaussianNoise as GaussianNoise
from sordino.mechanisms import Noise as Noise
from sordino.mechanisms import NoiseRequest as NoiseRequest
from sordino.mechanisms import Tailed as Tailed
from sordino.mechanisms import register as register
from sordino.mechanisms import shortened as shortened
from sordino.mechanisms.contract import check_noise as check_noise
from sordino.mechanisms.contract import check_pure_noise as check_pure_noise
from sordino.mechanisms.grid import add_gaussian as add_gaussian
from sordino.privacy.event import Gaussian as Gaussian
from sordino.privacy.event import Pure as Pure
