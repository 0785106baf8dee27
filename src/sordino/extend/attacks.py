"""Parts of an attack on single releases: models, per-example sums, mechanisms and prices."""

from sordino.audit.canaries import mechanism_of as mechanism_of
from sordino.audit.shadows import MODEL as MODEL
from sordino.audit.shadows import load_weights as load_weights
from sordino.base.entropy import Seeded as Seeded
from sordino.clients import regime as regime
from sordino.clients.division import Federation as Federation
from sordino.clients.division import federation as federation
from sordino.clients.division import loss_of as loss_of
from sordino.clients.division import model as model
from sordino.core.plan import Schedule as Schedule
from sordino.data import Dataset as Dataset
from sordino.data import Labels as Labels
from sordino.data import scaled as scaled
from sordino.mechanisms.gaussian import Bounded as Bounded
from sordino.mechanisms.knorm import exponential_norm as exponential_norm
from sordino.privacy import PoissonSampled as PoissonSampled
from sordino.privacy import accountant as accountant
from sordino.training.client import poisson as poisson
from sordino.training.dpsgd import bound_of as bound_of
from sordino.training.evaluate import Evaluator as Evaluator
from sordino.training.flat import Flat as Flat
from sordino.training.flat import Slot as Slot
from sordino.training.loss import Loss as Loss
from sordino.training.perexample import ClippedSum as ClippedSum
