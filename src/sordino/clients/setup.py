"""The common parts of a run of clients: the model's kernels, entropy, evaluation, records."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, TypeVar, Unpack

import msgspec
import numpy as np
import torch
from msgspec import UNSET

from sordino import data as datasets
from sordino.base.entropy import Entropy, System
from sordino.base.errors import StudyError
from sordino.base.fingerprints import joined, keyed
from sordino.base.message import Vector
from sordino.clients import records as kept
from sordino.clients.division import (
    Counts,
    Federation,
    evaluate,
    identified,
    loss_of,
    model,
    placed,
    records,
    tensors,
)
from sordino.clients.evaluation import PaidEvaluation, priced, told
from sordino.clients.study import HorizontalStudy, SampledPromise
from sordino.core.plan import Plan
from sordino.core.prepared import PUBLIC, UNIT, PreparedRun, named_parameters
from sordino.core.records import Facts, Metrics
from sordino.core.run.environment import charge_key_prefix, device, protective
from sordino.core.world import Simulation, Snapshot
from sordino.data.dataset import Span
from sordino.privacy import LedgerSession
from sordino.privacy.records import Records
from sordino.privacy.records.group import SAMPLE
from sordino.training.client import Examples, ModelKernels
from sordino.training.evaluate import Evaluator
from sordino.training.flat import Flat
from sordino.training.models import digest_of
from sordino.training.perexample import ClippedSum, MeanGradient
from sordino.training.perexample.clipping import summable

Tensors = tuple[torch.Tensor, torch.Tensor]
F = TypeVar("F", bound=kept.Horizontal)


class RegimeParts(TypedDict):
    """A regime's own part of a :class:`PreparedRun`."""

    facts: Facts
    paid: str
    remedy: str
    evaluation: PaidEvaluation | None


@dataclass(frozen=True, slots=True, eq=False)
class SharedSetup:
    """The common parts of the clients of one process, and the rows that models are measured on.

    Attributes:
        kernels: model and kernels.
        place: the device.
        test: (n, ...) and (n,), pixels still bytes.
        validation: (n, ...) and (n,), as model input; empty where there is none.
        sizes, counts, classes: of the clients' data.
        fingerprints: of each client's data.
        records: who is in each client's data, where a ledger asks; nobody otherwise.
        shaping: of all that bears on what is released: the clients' data, the test and validation
            sets, what a front end of one's own gives, and the model's first weights.
        evaluator: accuracy and loss of the kernels's model.
        names: of the clients, where they have any.
        span: low and high of labels that are numbers.
        owners: whose each test row is, (n,), and what they are called, where the file says so.
        remote: whether some clients' data lies elsewhere.
        mine: the client whose site this is; None where one process serves all.
        life: of this process, where noise is drawn anew in each.
        secret: rows that models are measured on at a price, and their fingerprint; then ``test`` is
            empty.
    """

    kernels: ModelKernels
    place: torch.device
    test: Tensors
    validation: Tensors
    sizes: tuple[int, ...]
    counts: Counts
    classes: tuple[str, ...]
    fingerprints: tuple[str, ...]
    records: tuple[Records, ...]
    shaping: tuple[str, ...]
    evaluator: Evaluator
    names: tuple[str, ...] = ()
    span: Span | None = None
    owners: tuple[datasets.Labels, tuple[str, ...]] | None = None
    remote: bool = False
    mine: int | None = None
    life: str = field(default_factory=lambda: secrets.token_hex(8))
    secret: tuple[Tensors, str] | None = None

    @classmethod
    def of(cls, study: HorizontalStudy, divided: Federation) -> SharedSetup:
        """Everything but the clients' own data."""
        torch.set_num_threads(study.execution.threads)
        place, classes = device(study), divided.test.classes
        flat = Flat(model(study, divided.test.shape, divided.test.outputs).to(place))
        loss = loss_of(study)
        rate = study.privacy.sampling_rate if isinstance(study.privacy, SampledPromise) else 0.0
        summable(rate * max(divided.sizes) if study.privacy.unit == "sample" else 0.0)
        test = placed(divided.test.x, place), torch.from_numpy(divided.test.y).to(place)
        paid = study.data.testing == "private share"
        prints = divided.prints or tuple(part.fingerprint() for part in divided.parts)
        return cls(
            kernels=ModelKernels(flat, ClippedSum(flat, loss), MeanGradient(flat, loss)),
            place=place,
            test=(test[0][:0], test[1][:0]) if paid else test,
            validation=tensors(divided.validation, place),
            sizes=divided.sizes,
            counts=divided.counts,
            classes=classes,
            fingerprints=prints,
            records=known_records(study, divided, paid=paid),
            shaping=(
                *(divided.shaping or _shaping(study, divided, prints)),
                digest_of_model(study, flat, divided.test.shape),
            ),
            evaluator=Evaluator(flat, loss),
            names=divided.names,
            span=divided.test.span,
            owners=None
            if paid or divided.test.client is None
            else (divided.test.client, divided.test.owners),
            remote=divided.remote,
            secret=(test, divided.test.fingerprint()) if paid else None,
        )

    def entropy(self, study: HorizontalStudy, run: str, folder: Path) -> Entropy:
        """Where batches and noise come from; see :func:`~sordino.core.run.environment.protective`.

        At a site, the operating system's entropy is drawn anew in each life of its process, and no
        key is kept: the site repeats answers from its disk, never by computing them again. So a
        folder that is put back from a copy cannot be made to use the same noise twice.
        """
        if self._anew(study):
            return System()
        return protective(study, run, self.shaping, folder)

    def charge_key_prefix(self, study: HorizontalStudy, run: str) -> str:
        """Return the beginning of the keys of charges that pay for this entropy's noise.

        A charge is booked once for each key, so the same key must mean the same bytes. Where noise
        is drawn anew, what is computed again is another release, and is booked again.
        """
        found = charge_key_prefix(study, run)
        return f"{found}/{self.life}" if self._anew(study) else found

    def _anew(self, study: HorizontalStudy) -> bool:
        """Return whether noise is drawn anew in each life of the process."""
        return self.mine is not None and study.privacy.entropy == "system"

    @property
    def rows(self) -> int:
        """The number of examples that models are measured on."""
        return len((self.test if self.secret is None else self.secret[0])[1])

    def units(self, fingerprints: Mapping[str, str]) -> dict[str, str]:
        """The ledger's units with their data's fingerprints: clients, and test rows that pay."""
        own = f"client:{self.mine}"
        known = fingerprints if self.mine is None else {own: fingerprints[own]}
        return {**known, **({} if self.secret is None else {UNIT: self.secret[1]})}

    def labels(self, units: Sequence[str]) -> dict[str, str]:
        """Return what the clients' units are called, for people; none unnamed or with a shared
        unit.
        """
        return (
            dict(zip(units, self.names, strict=True))
            if self.names and len(set(units)) == len(self.names) and self.mine is None
            else {}
        )

    def evaluation(
        self,
        study: HorizontalStudy,
        ledgers: LedgerSession,
        entropy: Entropy,
        charge_key_prefix: str,
    ) -> PaidEvaluation | None:
        """Return the evaluation of models on private rows; None where there are none."""
        if self.secret is None:
            return None
        (x, y), _ = self.secret
        mechanism, most, planned = priced(study)

        def right(weights: Vector) -> int:
            self.kernels.flat.load(torch.from_numpy(weights).to(self.kernels.flat.weights))
            return round(self.evaluator(x, y, private=True).accuracy * len(y))

        return PaidEvaluation(
            right=right,
            rows=len(y),
            mechanism=mechanism,
            planned=planned,
            ledgers=ledgers,
            budget=most,
            entropy=entropy,
            method=study.method.name,
            charge_key_prefix=charge_key_prefix,
        )

    def measured(self, paid: PaidEvaluation | None) -> Callable[[Vector], Mapping[str, float]]:
        """Return what is measured of a model: on public rows as it is, on private ones at their
        price.
        """
        return (
            self.evaluate
            if paid is None
            else lambda weights: {**self.evaluate(weights), **paid(weights)}
        )

    def evaluate(self, weights: Vector) -> Mapping[str, float]:
        """Accuracy and loss of a model."""
        return evaluate(
            self.kernels.flat, self.evaluator, self.test, self.validation, weights, self.span
        )

    def metrics(self, study: HorizontalStudy, weights: Vector) -> Metrics | None:
        """Return how good a model is on public test rows; None where there are none."""
        x, y = self.test
        if not len(y):
            return None
        from sordino.clients import metrics  # scikit-learn takes a second to import

        self.kernels.flat.load(torch.from_numpy(weights).to(self.kernels.flat.weights))
        scores, labels = self.evaluator.scores(x).numpy(), y.cpu().numpy()
        loss = self.evaluator(x, y).loss
        if self.span is not None:
            found = metrics.of_numbers(scores, labels, self.span, loss=loss)
        else:
            probable = study.model.name != "svm"
            found = metrics.of_classes(scores, labels, self.classes, loss=loss, probable=probable)
        served = None
        if self.owners is not None:
            served = metrics.by_rows(scores, labels, *self.owners, self.span)
        elif self.span is None and self.counted(study):
            served = metrics.by_labels(found, self.counts, self.names)
        return found if served is None else msgspec.structs.replace(found, clients=served)

    def counted(self, study: HorizontalStudy) -> bool:
        """Return whether it is public how often each client has each label."""
        return not self.remote and (study.data.published or study.privacy.unit == "none")

    def published(self, study: HorizontalStudy) -> bool:
        """Return whether all rows that this process has fingerprints of are published.

        A server has nobody's rows; a site has its own, whatever data set the study names.
        """
        return self.mine is None if self.remote else study.data.published

    def examples(self, part: datasets.Dataset) -> Examples:
        """One client's data, on the device."""
        return Examples(placed(part.x, self.place), torch.from_numpy(part.y).to(self.place))

    def built(
        self,
        study: HorizontalStudy,
        plan: Plan,
        simulation: Simulation[Any],
        first: Snapshot,
        **told: Unpack[RegimeParts],
    ) -> PreparedRun:
        """Everything that a run needs."""
        model, parameters = study.model.name, partial(named_parameters, self.kernels.flat)
        return PreparedRun(
            study=study,
            plan=plan,
            simulation=simulation,
            first=first,
            metrics=partial(self.metrics, study),
            model=model,
            named=parameters,
            **told,
        )

    def first(self) -> Vector:
        """The initial model, (d,)."""
        weights: Vector = self.kernels.flat.weights.cpu().numpy().copy()
        return weights


def digest_of_model(study: HorizontalStudy, flat: Flat, shape: tuple[int, ...]) -> str:
    """Return the digest of a model: of its first weights, and the operations of one's own."""
    weights = digest_of(flat.module)
    if ":" not in study.model.name:
        return weights
    return joined((weights, flat.graphs.digest(flat.weights.new_zeros((1, *shape)))))


def _shaping(study: HorizontalStudy, divided: Federation, prints: Sequence[str]) -> tuple[str, ...]:
    sets = [divided.test, *([] if divided.validation is None else [divided.validation])]
    # the same examples have other features by other code, and by a map that another machine learned
    parts = divided.parts if study.data.features is not None else ()
    features = (hashlib.sha256(np.ascontiguousarray(part.x).data).hexdigest() for part in parts)
    return (*prints, *(each.fingerprint() for each in sets), *features)


def known_records(
    study: HorizontalStudy, divided: Federation, *, paid: bool
) -> tuple[Records, ...]:
    """The records in each client's data, in a test set that is paid for, and in what is declared
    public to a ledger of the data.
    """
    if not identified(study):
        return ()
    found = [
        records(part, f"client:{i}", SAMPLE, study.data.person_rows)
        for i, part in enumerate(divided.parts)
        if part.words is not None or not divided.remote
    ]
    if paid:
        found.append(records(divided.test, UNIT, SAMPLE))
    if study.privacy.ledger == "run" or study.data.published:
        return tuple(found)
    aside = [
        divided.validation,
        None if study.data.testing == "private share" else divided.test,
    ]
    shown = [
        records(part, PUBLIC, SAMPLE, len(part)) for part in aside if part is not None and len(part)
    ]
    if not shown:
        return tuple(found)
    public = shown[0] if len(shown) == 1 else _together(shown)
    _refuse_alike(study, public, found)
    return (*found, public)


def _together(parts: Sequence[Records]) -> Records:
    people = [part.people for part in parts if part.people is not None]
    return replace(
        parts[0],
        rows=np.concatenate([part.rows for part in parts]),
        people=np.concatenate(people) if people else None,
    )


def _refuse_alike(study: HorizontalStudy, public: Records, others: Sequence[Records]) -> None:
    """A ledger of the data tells records apart by what stands in them.

    One of two that look the same cannot be public.

    Raises:
        StudyError: if a row that is declared public looks like one that is not, or is about the
            same person.
    """
    alike = 0
    for other in others:
        same = np.isin(other.rows[:, 0], public.rows[:, 0]) | np.isin(
            other.rows[:, 1], public.rows[:, 1]
        )
        if other.people is not None and public.people is not None:
            same |= np.isin(other.people, public.people)
        alike += int(same.sum())
    if alike:
        raise StudyError(
            f"{study.data.file or study.data.name}: {alike} rows that train, or test at a price, "
            "look the same as rows that are declared public, or are about the same people "
            f"(data.test = '{study.data.testing}', data.validation, data.client_validation), and "
            f"the ledger in {study.privacy.ledger} cannot distinguish them: all of them would be "
            "public forever. Set data.test = 'private share' or 'none', and no validation; or "
            "remove the rows that occur twice"
        )


def _examples_digest(examples: Tensors, *, public: bool) -> str | None:
    """Return a fingerprint of examples, (n, ...) and (n,); None of none."""
    if not len(examples[1]):
        return None
    found = hashlib.sha256(
        b"".join(each.cpu().contiguous().numpy().tobytes() for each in examples)
    ).hexdigest()
    return found if public else keyed(found)


def horizontal(
    kind: type[F],
    study: HorizontalStudy,
    setup: SharedSetup,
    plan: Plan,
    units: Sequence[str],
    clip: float,
) -> F:
    """Return what run.json says of clients and what they hold, the model's size, bounds, rates.

    Args:
        units: ledger unit of each client.
        clip: C, or S, of the first round.
    """
    privacy = study.privacy
    # Label counts are raw data, and so are sizes where whole clients are protected and weigh the
    # same.
    public = setup.counted(study)
    labels = public and setup.span is None
    sizes = public or setup.remote or not study.hides_sizes
    return kind(
        classes=tuple(setup.classes),
        span=UNSET if setup.span is None else setup.span,
        test=told(study, setup.rows),
        clients=tuple(
            kept.Holder(
                client=i,
                name=setup.names[i] if setup.names else None,
                unit=unit,
                examples=int(counts.sum()) if sizes else None,
                labels=tuple(counts.tolist()) if labels else (),
            )
            for i, (unit, counts) in enumerate(zip(units, setup.counts, strict=True))
        ),
        epsilons=study.given_epsilons,  # of each edge, where they differ
        dimension=setup.kernels.flat.dim,
        clip=clip if privacy.unit != "none" else None,
        noise_multipliers=study.given_multipliers,  # likewise
        sampling_rate=privacy.sampling_rate if isinstance(privacy, SampledPromise) else None,
        staleness=study.stalest,
        # rows that count as public: bounds and weights of noise may be chosen by them
        validation=_examples_digest(setup.validation, public=setup.published(study)),
        R_c=plan.steps if privacy.unit != "client" else None,  # there, rounds are what is charged
        stages=tuple(kept.Stage(**asdict(stage)) for stage in plan.stages),
    )
