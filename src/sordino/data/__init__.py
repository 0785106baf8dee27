"""Data: from files to examples, and from examples to clients.

>>> import numpy as np
>>> corpus = load("digits")
>>> len(corpus.train), len(corpus.test), corpus.train.shape
(1437, 360, (1, 8, 8))
>>> parts = Dirichlet(beta=0.05).split(corpus.train.y, 10, np.random.default_rng(0))
>>> label_counts(corpus.train.y, parts, 10).sum()
np.int64(1437)
"""

from sordino.data.dataset import Corpus, Dataset, Features, Indices, Labels, scaled
from sordino.data.partition import (
    PARTITIONS,
    Column,
    Dirichlet,
    Iid,
    Partition,
    Parts,
    Shards,
    checked,
    hold_out,
    label_counts,
    per_client_validation,
)
from sordino.data.readers import labels, load, names
from sordino.data.sets import PUBLISHED, Published, fetch, places, register, where

__all__ = [
    "PARTITIONS",
    "PUBLISHED",
    "Column",
    "Corpus",
    "Dataset",
    "Dirichlet",
    "Features",
    "Iid",
    "Indices",
    "Labels",
    "Partition",
    "Parts",
    "Published",
    "Shards",
    "checked",
    "fetch",
    "hold_out",
    "label_counts",
    "labels",
    "load",
    "names",
    "per_client_validation",
    "places",
    "register",
    "scaled",
    "where",
]
