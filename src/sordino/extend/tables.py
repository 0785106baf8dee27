"""For other tables of a study (docs/own-tables.md, docs/own-data.md): classes by name."""

from sordino.core.study.base import LATENCIES as LATENCIES
from sordino.core.study.base import Latency as Latency
from sordino.data import PARTITIONS as PARTITIONS
from sordino.data import PUBLISHED as PUBLISHED
from sordino.data import Partition as Partition
from sordino.data import Published as Published
from sordino.data import register as register
from sordino.data.features import FRONT_ENDS as FRONT_ENDS
from sordino.data.features import FrontEnd as FrontEnd
from sordino.data.partition import Division as Division
from sordino.data.stream import Drift as Drift
from sordino.data.stream import Streaming as Streaming
from sordino.regimes.vertical.method import Activation as Activation
from sordino.training.optimizer import OPTIMIZERS as OPTIMIZERS
from sordino.training.optimizer import Optimizer as Optimizer
