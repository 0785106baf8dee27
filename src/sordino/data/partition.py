r"""Partitions of examples among clients, divisions of features among parties.

Each way is a class: the ``data.partition`` table of a study, or the ``data.parts`` table.

**The problem.** Federated data is uneven: a client sees some classes often and others
never, and holds few examples or many. Published results depend on this more than on
anything else, so the deal must be exact and repeatable.

========== ===============================================================================
iid        a random permutation, cut into equal parts
dirichlet  class k goes to clients in proportions p_k ~ Dir(beta, ..., beta); the smaller
           beta, the fewer clients share a class [1]
shards     sort by label, cut into ``fragments``, deal ``each`` of them at random to every
           client [2]; 400 fragments of 40 to each of 10 clients is ALS-DPFL's setting
column     the file itself says whose each example is
========== ===============================================================================

**Dirichlet, in detail.** Classes are dealt one after another. A client that already holds
n/N examples or more (n examples, N clients) takes no further part, and the others'
proportions are renormalised. Renormalising a part of a Dirichlet vector gives a Dirichlet
vector again (its neutrality), so we draw straight from Dir(beta) over the clients that are
still open; that also avoids 0/0 when beta is tiny and all mass fell on closed clients.
The whole deal is drawn anew until the smallest client has ``minimum`` examples, at most
:data:`DRAWS` times. After that the last deal is kept and examples move from the largest
client to those below the minimum: with small beta and many clients a good deal would
practically never be drawn. Either way **the minimum is a guarantee**.

**Held-out examples** choose hyper-parameters, so that the test set is never asked. Choosing the
clipping norm or the learning rate by test accuracy reports a number that no new data would give.
:func:`hold_out` cuts a validation set from the *training* data once, before anything is
partitioned; :func:`per_client_validation` lets every client keep a part of its own examples back.
Neither makes the choice private: a hyper-parameter chosen by looking at held-out private examples
is a release as well. It is harmless only where the held-out part is public or its use is booked.

**Divisions** give each party slices of a vector, columns of a table, or regions of an image:
numbers of features, into the flat vector of an example. Parties share no feature. Slices and
regions leave none out; columns may.

**A way of your own** is a class with a registration, or ``kind = "package.module:Class"`` in a
study (docs/own-tables.md).

**Units and shapes.** ``split`` returns one sorted int64 index array a client, disjoint;
together they cover all examples (shards: those in dealt fragments). Ways of this program return
them as one array with bounds (:class:`Dealt`); a tuple of arrays will do.

>>> import numpy as np
>>> labels = np.repeat(np.arange(4), 25)
>>> parts = Dirichlet(beta=0.1, minimum=5).split(labels, 5, np.random.default_rng(0), None)
>>> sum(len(p) for p in parts), min(len(p) for p in parts) >= 5
(100, True)
>>> parts = Shards(fragments=20, each=4).split(labels, 5, np.random.default_rng(1), None)
>>> label_counts(labels, parts, 4)
array([[ 5,  0,  5, 10],
       [ 0,  5, 10,  5],
       [15,  0,  0,  5],
       [ 5, 15,  0,  0],
       [ 0,  5, 10,  5]])
>>> [list(map(int, part)) for part in Slices().parts((7,), None, 3)]
[[0, 1, 2], [3, 4], [5, 6]]
>>> [list(map(int, part)) for part in Regions(rows=2, columns=1).parts((1, 3, 2), None, 2)]
[[0, 1, 2, 3], [4, 5]]
>>> columns = Columns(groups=(("age", "dose"), (3,)))
>>> [list(map(int, part)) for part in columns.parts((4,), ("age", "height", "dose", "pulse"), 2)]
[[0, 2], [3]]

References:
    [1] Yurochkin et al. 2019, "Bayesian nonparametric federated learning of neural networks".
    [2] McMahan et al. 2017, "Communication-efficient learning of deep networks from
        decentralized data" (two shards a client; here the numbers are free).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.random import Generator
from pydantic import BeforeValidator, model_validator

from sordino.base.errors import StudyError, did_you_mean
from sordino.base.registry import AtLeastOne, Positive, Registry, Section
from sordino.data.dataset import Dataset, Indices, Labels, Names, Shape, listed

Parts = Sequence[Indices]
"""The numbers of each client's examples."""

DRAWS = 200
"""Deals that a Dirichlet partition draws before it evens out the last one."""

# a larger beta changes no proportion in float64, and its sum over clients could overflow
_ALIKE = 1e18


@dataclass(frozen=True, slots=True, eq=False)
class Dealt(Sequence[Indices]):
    """Numbers of examples, client after client; there may be millions of clients.

    Attributes:
        order: numbers of the examples, (n,).
        bounds: where each client's begin in it, and the end of the last one's, (clients + 1,).
    """

    order: Indices
    bounds: Indices

    @classmethod
    def of(cls, parts: Parts) -> Dealt:
        """Return the same numbers of the same clients."""
        if isinstance(parts, Dealt):
            return parts
        bounds = np.cumsum([0, *map(len, parts)], dtype=np.int64)
        return cls(np.concatenate([np.empty(0, np.int64), *parts]), bounds)

    @classmethod
    def by_owner(cls, owner: Labels, examples: Indices, clients: int) -> Dealt:
        """Return the parts of ``examples`` (n,) that belong to ``owner`` (n,), in their order."""
        order = np.argsort(owner, kind="stable")
        counts = np.bincount(owner, minlength=clients)
        return cls(examples[order], np.cumsum([0, *counts.tolist()], dtype=np.int64))

    @property
    def sizes(self) -> Labels:
        """n_i of every client, (clients,)."""
        return np.diff(self.bounds)

    def sorted(self) -> Dealt:
        """Return the parts, each in ascending order."""
        owner = np.repeat(np.arange(len(self)), self.sizes)
        return Dealt(self.order[np.lexsort((self.order, owner))], self.bounds)

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, client: Any) -> Any:
        if isinstance(client, slice):
            return tuple(self[i] for i in range(*client.indices(len(self))))
        number = range(len(self))[client]
        return self.order[self.bounds[number] : self.bounds[number + 1]]


class Partition(Section):
    """One way to deal examples, and the ``data.partition`` table of a study that asks for it.

    Its fields are the keys.
    """

    # whether it asks the file whose each example is; others would deal them anew
    by_column: ClassVar[bool] = False
    # whether who holds what follows from labels, which are private in a file of one's own
    by_label: ClassVar[bool] = True

    kind: str

    def split(
        self, labels: Labels, clients: int, rng: Generator, column: Labels | None = None
    ) -> Parts:
        """Deal examples to clients.

        Args:
            labels: class numbers, (n,); zeros unless it is ``by_label``.
            clients: how many.
            rng: the only source of randomness.
            column: whose each example is, by the file, (n,); None where it does not say.

        Returns:
            The numbers of each client's examples, sorted, int64; no example twice.

        Raises:
            StudyError: if these examples cannot be dealt so.
        """
        raise NotImplementedError


PARTITIONS = Registry(base=Partition, noun="partition", place="data.partition", needs=("split",))


@PARTITIONS.register
class Iid(Partition):
    """Equal random parts; sizes differ by at most one."""

    by_label: ClassVar[bool] = False

    kind: Literal["iid"] = "iid"

    def split(
        self, labels: Labels, clients: int, rng: Generator, column: Labels | None = None
    ) -> Parts:
        """Deal ``len(labels)`` examples to ``clients``."""
        order = rng.permutation(len(labels)).astype(np.int64)
        size, more = divmod(len(labels), clients)  # the first ones have one more
        cut = more * (size + 1)
        for part, width in ((order[:cut], size + 1), (order[cut:], size)):
            part.reshape(-1, width).sort(axis=1)
        sizes = np.repeat([size + 1, size], [more, clients - more])
        return Dealt(order, np.concatenate([[0], np.cumsum(sizes)]))


@PARTITIONS.register
class Dirichlet(Partition):
    """Uneven classes and sizes.

    Attributes:
        beta: concentration; 0.05 is very uneven, 1 mildly, above 100 nearly iid.
        minimum: examples that every client is sure to hold.
    """

    kind: Literal["dirichlet"] = "dirichlet"
    beta: Positive
    minimum: AtLeastOne = 10

    def split(
        self, labels: Labels, clients: int, rng: Generator, column: Labels | None = None
    ) -> Parts:
        """Deal ``len(labels)`` examples to ``clients``, each at least ``minimum``."""
        if clients * self.minimum > len(labels):
            raise StudyError(
                f"data.partition.minimum: {clients} clients with at least {self.minimum} examples "
                f"each need {clients * self.minimum}, there are {len(labels)}; use minimum <= "
                f"{len(labels) // clients} or at most {len(labels) // self.minimum} clients"
            )
        pools = [np.flatnonzero(labels == k) for k in np.unique(labels)]
        sizes = np.array([len(pool) for pool in pools], dtype=np.int64)
        for _ in range(DRAWS):
            counts = self._counts(sizes, clients, rng)
            if int(counts.sum(axis=0).min()) >= self.minimum:
                break
        dealt = np.concatenate([rng.permutation(pool) for pool in pools])
        owners = np.concatenate([np.repeat(np.arange(clients), row) for row in counts])
        parts = Dealt.by_owner(owners, dealt, clients)
        if int(parts.sizes.min()) < self.minimum:
            parts = Dealt.of(_evened_out(list(parts), self.minimum))
        return parts.sorted()

    def _counts(self, sizes: Labels, clients: int, rng: Generator) -> Labels:
        """One deal: how many examples of each class go to each client, (classes, clients)."""
        counts = np.zeros((len(sizes), clients), dtype=np.int64)
        total = np.zeros(clients, dtype=np.int64)
        full = int(sizes.sum()) / clients
        for k, size in enumerate(sizes):
            # Never empty: were every client full, all examples would have been dealt already.
            still_open = np.flatnonzero(total < full)
            proportions = rng.dirichlet(np.full(len(still_open), min(self.beta, _ALIKE)))
            cuts = np.floor(np.cumsum(proportions) * size + 1e-6).astype(np.int64)
            cuts[-1] = size
            counts[k, still_open] = np.diff(np.minimum(cuts, size), prepend=0)
            total += counts[k]
        return counts


def _evened_out(parts: list[Indices], minimum: int) -> list[Indices]:
    """Move examples from the largest clients to those below ``minimum``, deterministically."""
    largest = [(-len(part), client) for client, part in enumerate(parts) if len(part) > minimum]
    heapq.heapify(largest)
    for client in range(len(parts)):
        while len(parts[client]) < minimum:
            size, donor = heapq.heappop(largest)
            give = min(minimum - len(parts[client]), -size - minimum)
            parts[client] = np.concatenate([parts[client], parts[donor][-give:]])
            parts[donor] = parts[donor][:-give]
            if len(parts[donor]) > minimum:
                heapq.heappush(largest, (-len(parts[donor]), donor))
    return parts


@PARTITIONS.register
class Shards(Partition):
    """Few labels a client: label-sorted fragments, ``each`` of them to every client.

    Attributes:
        fragments: parts that the examples are cut into, in the order of their labels
        each: fragments of each client
    """

    kind: Literal["shards"] = "shards"
    fragments: AtLeastOne = 400
    each: AtLeastOne = 40

    def split(
        self, labels: Labels, clients: int, rng: Generator, column: Labels | None = None
    ) -> Parts:
        """Deal fragments; where clients * each < fragments, the rest stays unused."""
        if self.fragments < clients * self.each:
            raise StudyError(
                f"data.partition: {clients} clients with {self.each} fragments each need "
                f"{clients * self.each}, there are {self.fragments}; use each <= "
                f"{self.fragments // clients} or fragments >= {clients * self.each}"
            )
        if self.fragments > len(labels):
            raise StudyError(
                f"data.partition.fragments: {self.fragments} fragments of only {len(labels)} "
                "examples; use fewer"
            )
        pieces = np.array_split(np.argsort(labels, kind="stable").astype(np.int64), self.fragments)
        dealt = rng.permutation(self.fragments)[: clients * self.each].reshape(clients, self.each)
        return Dealt.of([np.concatenate([pieces[i] for i in row]) for row in dealt]).sorted()


@PARTITIONS.register
class Column(Partition):
    """The file's own client column; clients in the order of their numbers."""

    by_column: ClassVar[bool] = True
    by_label: ClassVar[bool] = False

    kind: Literal["column"] = "column"

    def split(
        self, labels: Labels, clients: int, rng: Generator, column: Labels | None = None
    ) -> Parts:
        """Group by ``column``; nothing is drawn from ``rng``."""
        if column is None:
            raise StudyError(
                "data.partition: kind = 'column' needs a file that says whose each example is; "
                "name the column in data.client_column (csv, parquet) or store an array 'client' "
                "(npz)"
            )
        names, first_to_last = np.unique(column, return_inverse=True)
        if len(names) != clients:
            raise StudyError(
                f"data.clients: the client column has {len(names)} clients, the study asks "
                f"for {clients}; set data.clients = {len(names)}"
            )
        return Dealt.by_owner(first_to_last, np.arange(len(labels)), clients)


def deal(
    partition: Partition, labels: Labels, clients: int, rng: Generator, column: Labels | None
) -> Dealt:
    """Return what a partition deals: every client holds something, and no example is dealt twice.

    Each client has a ledger of its own.

    Raises:
        StudyError: if not.
    """
    if clients > len(labels):
        raise StudyError(
            f"data.clients: {clients} clients, but only {len(labels)} training examples; use at "
            f"most {len(labels)} clients"
        )
    given: object = partition.split(labels, clients, rng, column=column)
    if not isinstance(given, Dealt):
        arrays = tuple(map(np.asarray, given)) if isinstance(given, tuple | list) else None
        if arrays is None or not all(
            part.ndim == 1 and (np.issubdtype(part.dtype, np.integer) or not len(part))
            for part in arrays
        ):
            raise StudyError(
                "data.partition must give one array of whole numbers (n_i,) for each client: the "
                "numbers of its examples"
            )
        given = Dealt.of(arrays)
    some = int(np.count_nonzero(given.sizes))
    if len(given) != clients or some < clients:
        raise StudyError(f"data.partition gave {some} clients examples; data.clients is {clients}")
    dealt = given.order
    if dealt.min() < 0 or dealt.max() >= len(labels) or int(np.bincount(dealt).max()) > 1:
        raise StudyError(
            f"data.partition must deal the examples 0 to {len(labels) - 1}, none of them twice"
        )
    return given


def label_counts(labels: Labels, parts: Sequence[Indices], classes: int) -> Labels:
    """Examples of each class at each client, (clients, classes): the picture of a partition."""
    dealt = Dealt.of(parts)
    owner = np.repeat(np.arange(len(dealt)), dealt.sizes)
    cells = np.bincount(owner * classes + labels[dealt.order], minlength=len(dealt) * classes)
    return cells.reshape(len(dealt), classes)


def hold_out(dataset: Dataset, count: int, rng: Generator) -> tuple[Dataset, Dataset]:
    """(the rest, ``count`` examples drawn at random), both in their original order."""
    if not 0 < count < len(dataset):
        raise StudyError(
            f"hold-out of {count} examples from {len(dataset)}: choose between 1 and "
            f"{len(dataset) - 1}"
        )
    order = rng.permutation(len(dataset))
    return dataset.take(np.sort(order[count:])), dataset.take(np.sort(order[:count]))


def per_client_validation(
    parts: Sequence[Indices], fraction: float, rng: Generator
) -> tuple[tuple[Indices, ...], tuple[Indices, ...]]:
    """Return training parts and validation parts, a ``fraction`` of each client, rounded down.

    >>> parts = (np.arange(10), np.arange(10, 14))
    >>> train, validation = per_client_validation(parts, 0.25, np.random.default_rng(0))
    >>> [len(p) for p in train], [len(p) for p in validation]
    ([8, 3], [2, 1])
    """
    train, validation = [], []
    for part in parts:
        order = rng.permutation(part)
        count = int(fraction * len(part))
        train.append(np.sort(order[count:]))
        validation.append(np.sort(order[:count]))
    return tuple(train), tuple(validation)


def _feature(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"a column is a name or a number from 0; got {value!r}")
    return value


Feature = Annotated[str | int, BeforeValidator(_feature)]


class Division(Section):
    """Which features each party holds: the ``data.parts`` table of a study; its name will do."""

    kind: str

    def parts(self, shape: Shape, columns: Names | None, parties: int) -> Parts:
        """The numbers of each party's features, of examples of this shape.

        Args:
            shape: of an example before it was made flat.
            columns: names of its features, if they have any.
            parties: how many.

        Raises:
            StudyError: if these examples cannot be divided so.
        """
        raise NotImplementedError

    def refused(self, parties: int) -> str | None:
        """Return why it is not for so many parties; None if it is."""
        return None


DIVISIONS = Registry(base=Division, noun="division", place="data.parts", needs=("parts",))


@DIVISIONS.register
class Slices(Division):
    """Consecutive features, as many for each party as can be; the first ones have one more."""

    kind: Literal["slices"] = "slices"

    def parts(self, shape: Shape, columns: Names | None, parties: int) -> Parts:
        features = math.prod(shape)
        if parties > features:
            raise StudyError(
                f"parties: {parties} parties cannot divide {features} features; each holds "
                "at least one"
            )
        return tuple(np.array_split(np.arange(features, dtype=np.int64), parties))


@DIVISIONS.register
class Regions(Division):
    """A grid of rectangles of an image, as large as can be, by rows; with all channels.

    Attributes:
        rows: regions of an image from top to bottom
        columns: regions of an image from left to right
    """

    kind: Literal["regions"] = "regions"
    rows: AtLeastOne
    columns: AtLeastOne

    def refused(self, parties: int) -> str | None:
        if self.rows * self.columns == parties:
            return None
        return f"parts has {self.rows} x {self.columns} regions; parties is {parties}"

    def parts(self, shape: Shape, columns: Names | None, parties: int) -> Parts:
        """In rising order."""
        if len(shape) != 3:
            raise StudyError(
                "regions: only images (channels, height, width) have regions, examples have "
                f"shape {shape}; use slices"
            )
        if self.rows > shape[1] or self.columns > shape[2]:
            raise StudyError(
                f"regions: a grid of {self.rows} x {self.columns} does not fit an image of "
                f"{shape[1]} x {shape[2]} pixels"
            )
        numbers = np.arange(math.prod(shape), dtype=np.int64).reshape(shape)
        bands = np.array_split(numbers, self.rows, axis=1)
        return tuple(
            part.reshape(-1)
            for band in bands
            for part in np.array_split(band, self.columns, axis=2)
        )


@DIVISIONS.register
class Columns(Division):
    """Features by name or number (from 0), a group for each party; the others stay unused.

    Attributes:
        groups: the columns of each party, by name or number
    """

    kind: Literal["columns"] = "columns"
    groups: tuple[tuple[Feature, ...], ...]

    @model_validator(mode="after")
    def _something_for_each(self) -> Columns:
        if not self.groups or not all(self.groups):
            raise ValueError(f"each party needs at least one feature, got the groups {self.groups}")
        return self

    def refused(self, parties: int) -> str | None:
        if len(self.groups) == parties:
            return None
        return (
            f"parts has {len(self.groups)} groups of columns; parties is {parties}: one group "
            "for each"
        )

    def parts(self, shape: Shape, columns: Names | None, parties: int) -> Parts:
        """In the order of a party's group."""
        count = math.prod(shape)
        return tuple(
            np.array([_number(feature, count, columns) for feature in group], dtype=np.int64)
            for group in self.groups
        )


def _number(feature: str | int, features: int, columns: Names | None) -> int:
    if isinstance(feature, int):
        if not 0 <= feature < features:
            raise StudyError(
                f"columns: there is no feature {feature}; features are numbered 0 to {features - 1}"
            )
        return feature
    if columns is None:
        raise StudyError(
            f"columns: {feature!r} is a name, but this data has no names of features; give "
            f"numbers, 0 to {features - 1}"
        )
    if feature not in columns:
        hint = did_you_mean(str(feature), columns) or "."
        raise StudyError(
            f"columns: there is no feature {feature!r}{hint} Features: {listed(columns, 40)}"
        )
    return columns.index(feature)
