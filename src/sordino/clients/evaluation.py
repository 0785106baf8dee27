r"""The evaluation of models on private rows: what is measured, where the rows that they are
measured on are people.

Of a test set that is private, an evaluation of model w on m rows releases one number,

    c~ = #{rows that w gets right} + N(0, z^2),        accuracy = min(max(c~ / m, 0), 1),

and nothing else: no loss, no share of a class. One row's contribution, replaced by none, moves the
count by at most 1, and m is public, so this is a Gaussian mechanism of multiplier z (Dwork and Roth
2014, appendix A), without sampling. It is booked under a unit of its own, "test", before it leaves.
No row both trains and tests: a row's epsilon is that of its own unit, and the run's is the largest
over units (parallel composition, McSherry 2009). That w depends on training rows costs the test
rows nothing.

The same model is evaluated once: its digest is the key of the charge and the address of the noise,
so a run that is resumed says the same again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from sordino import data as datasets
from sordino.base.entropy import Entropy, over
from sordino.base.errors import BudgetExceeded, LocalProtocolError, StudyError
from sordino.base.message import Vector
from sordino.clients.records import TestSet
from sordino.clients.study import HorizontalStudy
from sordino.core.prepared import UNIT
from sordino.core.study.data import SHARE, Data
from sordino.data.dataset import Corpus, Dataset
from sordino.data.encoding import UNEVEN, uneven
from sordino.data.features import featured
from sordino.data.identity import at_one, first_rows
from sordino.data.labels import notice_classes, shown_name
from sordino.data.notices import listening, notice
from sordino.mechanisms.gaussian import Gaussian
from sordino.privacy import (
    Budget,
    Charge,
    LedgerSession,
    Permit,
    covers_round,
    noise_multiplier,
)
from sordino.privacy import accountant as accountant_of


def corpus(study: HorizontalStudy, *, identify: bool = False) -> Corpus:
    """A study's data, with the test set that it asks for, perhaps empty; ``identify`` its records.

    Raises:
        StudyError: where the file and the study do not fit.
    """
    wanted, testing = study.data, study.data.testing
    share = testing in ("public share", "private share")
    inside = (
        wanted.file is not None
        and wanted.file.suffix.lower() == ".npz"
        and has_test(str(wanted.file))
    )
    if share and inside:
        raise StudyError(
            f"{wanted.file}: it has a test set of its own (x_test), and data.test = "
            f"'{testing}' would set rows aside: use 'file'"
        )
    if testing == "file" and wanted.test_file is None and not inside:
        raise StudyError(
            f"{wanted.file}: data.test = 'file', and it holds no x_test and y_test: add "
            "them, or give data.test_file"
        )
    found = datasets.load(
        wanted.name or "",
        file=wanted.file,
        test_file=wanted.test_file,
        label=wanted.label,
        client_column=wanted.client_column,
        person=wanted.person,
        identify=identify or wanted.person_rows is not None,
        encoding=wanted.encoding,
        target=wanted.target,
        label_range=wanted.label_range,
        classes=wanted.classes,
        test_fraction=(SHARE if wanted.test_share is None else wanted.test_share)
        if share
        else None,
    )
    if wanted.person_rows is not None:
        found = replace(found, train=_capped(found.train, wanted.person_rows))
    _notice_sizes(wanted, found.train)
    if study.privacy.unit != "none" and wanted.reads_classes:
        notice_classes(found.train.classes)
    if testing == "none":
        found = replace(found, test=found.test.take([]))
    if found.train.client is not None and not wanted.partition.by_column:
        raise StudyError(
            f"{wanted.file}: its array 'client' says whose each example is, and "
            f"data.partition kind '{wanted.partition.kind}' would deal them to others: set "
            'data.partition = { kind = "column" } with data.client_column = "client", or leave the '
            "array out"
        )
    if wanted.features is None:
        return found
    public = wanted.published
    return Corpus(
        featured(found.train, wanted.features, public=public),
        featured(found.test, wanted.features, public=public),
    )


def _capped(train: Dataset, most: int) -> Dataset:
    """The first rows of each person at one client; which, depends on that person's rows alone.

    The number of clients that a person is at would otherwise be a part of the price.
    """
    assert train.words is not None
    who, kept = train.words[:, 2], np.arange(len(train))
    if train.client is not None and most > 1:
        kept = np.flatnonzero(at_one(who, train.client) == train.client)
    kept = kept[first_rows(who[kept], most)]
    if len(kept) < len(train):
        notice(
            f"note, from private rows, kept nowhere: {len(train) - len(kept)} of {len(train)} "
            "rows are left out, of "
            f"persons with more than data.person_rows = {most}, or with rows at several clients"
        )
    return train.take(kept)


def _notice_sizes(wanted: Data, train: Dataset) -> None:
    """Tell the owner of a table, and nobody else, that its columns differ in size."""
    if wanted.file is None or not train.columns or not listening():
        return
    if (pair := uneven(train.x, train.columns)) is not None:
        most, least = map(shown_name, pair)
        notice(
            f"note, from private rows, kept nowhere: values of {most!r} are more than {UNEVEN:g} "
            f"times those of {least!r}, and a clipped gradient then learns from the large ones "
            "only. Give public low and high of columns, known without looking at "
            f"the data: data.ranges = {{ {most!r} = [low, high], ... }}"
        )


def has_test(path: str) -> bool:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return "x_test" in archive.files
    except Exception:  # whatever is wrong with the file, its reader says it better
        return False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PaidEvaluation:
    """Noisy accuracy on private rows, booked before it is told.

    Attributes:
        right: how many rows a model (d,) gets right, exactly: raw data.
        rows: m, public.
        mechanism: of sensitivity 1.
        planned: evaluations that it was calibrated for.
        ledgers, budget: where it is charged, under :data:`UNIT`, and what may be spent there.
        entropy: of the noise.
        method, charge_key_prefix: as in other charges.
    """

    right: Callable[[Vector], int]
    rows: int
    mechanism: Gaussian
    planned: int
    ledgers: LedgerSession
    budget: Budget
    entropy: Entropy
    method: str
    charge_key_prefix: str

    def __call__(self, weights: Vector) -> Mapping[str, float]:
        """The row of an evaluation: accuracy, if the test rows can pay, and what they spent."""
        digest = hashlib.sha256(np.ascontiguousarray(weights).tobytes()).hexdigest()
        charge = Charge(
            unit=UNIT,
            event=self.mechanism.event(),
            count=1,
            why="an evaluation on rows that are private",
            method=self.method,
            round=0,
            key=f"{self.charge_key_prefix}/evaluation {digest}",
        )
        try:
            (permit,) = self.ledgers.charge([charge], self.budget)
        except BudgetExceeded:
            return {}
        accuracy = self.release(weights, digest, permit)
        return {
            "accuracy": accuracy,
            "test_epsilon": self.ledgers.check(UNIT, self.budget, permit.seq),
        }

    def release(self, weights: Vector, digest: str, permit: Permit) -> float:
        """The noisy accuracy of a model; ``permit`` is of one evaluation, by the model's digest.

        Raises:
            LocalProtocolError: without that permit; nothing has been computed then.
        """
        covers_round(UNIT, [permit], [(self.mechanism.event(), 1)], 0)
        if not permit.key.endswith(digest):
            raise LocalProtocolError(
                f"the permit is for {permit.unit}, {permit.key}, and not for this evaluation"
            )
        import torch

        exact = torch.tensor([float(self.right(weights))], dtype=torch.float64)
        hidden = repr((float(exact), self.mechanism)).encode()
        draws = over(self.entropy, hidden, "evaluation", digest)
        noisy, _ = self.mechanism.release_counted(exact, 0.0, draws)
        return min(max(float(noisy[0]) / self.rows, 0.0), 1.0)

    def spent(self) -> float:
        """Epsilon of the test rows so far."""
        return self.ledgers.epsilon(UNIT, self.budget.delta, self.budget.accountant)


def priced(study: HorizontalStudy) -> tuple[Gaussian, Budget, int]:
    """Noise, budget and number of evaluations of a private test share."""
    privacy = study.privacy
    epsilon = privacy.epsilon if privacy.evaluation_epsilon is None else privacy.evaluation_epsilon
    if epsilon is None or privacy.delta is None:
        raise StudyError("data.test = 'private share' needs privacy.epsilon and privacy.delta")
    return (
        Gaussian(clip=1.0, noise_multiplier=multiplier(study)),
        Budget(epsilon=epsilon, delta=privacy.delta, accountant=privacy.accountant),
        evaluations(study),
    )


def tested(study: HorizontalStudy) -> float:
    """Return epsilon of the rows of a private test share, if models are measured as planned."""
    mechanism, budget, times = priced(study)
    return accountant_of(budget.accountant).epsilon([(mechanism.event(), times)], budget.delta)


def described(study: HorizontalStudy, rows: int) -> TestSet:
    """Return what run.json says of the test set."""
    kind = study.data.testing
    if kind != "private share":
        return TestSet(kind=kind, rows=rows)
    mechanism, budget, times = priced(study)
    return TestSet(
        kind=kind,
        rows=rows,
        unit=UNIT,
        epsilon=budget.epsilon,
        noise_multiplier=mechanism.noise_multiplier,
        evaluations=times,
    )


def evaluations(study: HorizontalStudy) -> int:
    """Return how often models are measured at most: every so many rounds or updates, and at the
    end.
    """
    return study.horizon // study.stride + 1


def multiplier(study: HorizontalStudy) -> float:
    """z of the noise on a count of right answers, for :func:`evaluations` within test epsilon."""
    privacy = study.privacy
    epsilon = privacy.epsilon if privacy.evaluation_epsilon is None else privacy.evaluation_epsilon
    assert epsilon is not None
    assert privacy.delta is not None
    return _multiplier(evaluations(study), epsilon, privacy.delta, privacy.accountant)


@lru_cache(maxsize=64)
def _multiplier(times: int, epsilon: float, delta: float, accountant: str) -> float:
    return noise_multiplier(
        sampling_rate=1.0,
        steps=times,
        epsilon=epsilon,
        delta=delta,
        accountant=accountant,
        release=lambda sigma: Gaussian(clip=1.0, noise_multiplier=sigma).event(),
    )
