"""Data: from files to examples, and from examples to clients.

>>> import numpy as np
>>> corpus = load("digits")
>>> len(corpus.train), len(corpus.test), corpus.train.shape
(1437, 360, (1, 8, 8))
>>> parts = Dirichlet(beta=0.05).split(corpus.train.y, 10, np.random.default_rng(0), None)
>>> label_counts(corpus.train.y, parts, 10).sum()
np.int64(1437)
"""

from sordino.data.dataset import ByClient as ByClient
from sordino.data.dataset import Corpus as Corpus
from sordino.data.dataset import Dataset as Dataset
from sordino.data.dataset import Labels as Labels
from sordino.data.dataset import scaled as scaled
from sordino.data.partition import PARTITIONS as PARTITIONS
from sordino.data.partition import Dealt as Dealt
from sordino.data.partition import Dirichlet as Dirichlet
from sordino.data.partition import Partition as Partition
from sordino.data.partition import Parts as Parts
from sordino.data.partition import deal as deal
from sordino.data.partition import hold_out as hold_out
from sordino.data.partition import label_counts as label_counts
from sordino.data.partition import per_client_validation as per_client_validation
from sordino.data.readers import load as load
from sordino.data.readers import names as names
from sordino.data.sets import PUBLISHED as PUBLISHED
from sordino.data.sets import Published as Published
from sordino.data.sets import fetch as fetch
from sordino.data.sets import register as register
from sordino.data.sets import where as where
