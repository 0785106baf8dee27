"""The objects of a study whose clients have examples of their own: its price, its ledger, its
clients, what models are measured on, and the simulation that plays all of it.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cache, cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal

import msgspec
import numpy as np
import torch

from sordino.base.arrays import Array
from sordino.base.entropy import Seeded, System
from sordino.base.errors import StudyError
from sordino.base.fingerprints import Fingerprints, joined, keyed
from sordino.base.message import Train, Vector
from sordino.base.registry import foreign
from sordino.clients import records as files
from sordino.clients.division import Federation, known_records
from sordino.clients.evaluation import by_labels, by_rows, of_classes, of_numbers
from sordino.clients.pricing import Trial, affordable, priced, remedy, test_set_record, unit_like
from sordino.clients.regime import HorizontalRegime
from sordino.clients.study import H, HorizontalStudy, SampledMethod, SampledPromise, for_dimension
from sordino.clients.world import HorizontalWorld, Rules, Shared, round_trips
from sordino.core import prepared, regimes
from sordino.core.effect import Request
from sordino.core.prepared import Affordable, PaidEvaluation, PreparedRun, budget
from sordino.core.records import Metrics
from sordino.core.run.environment import charge_key_prefix, device, protective
from sordino.data.dataset import ByClient, Dataset, rows
from sordino.data.identity import by_person
from sordino.mechanisms.gaussian import Bounded
from sordino.mechanisms.kinds import behaviour
from sordino.privacy import LedgerSession
from sordino.privacy.event import History
from sordino.training import models
from sordino.training.client import ModelKernels, PlainClient, PrivateClient
from sordino.training.evaluate import Counted, Evaluation, Evaluator
from sordino.training.flat import Flat
from sordino.training.loss import Loss, loss_for
from sordino.training.optimizer import Optimizer
from sordino.training.passes import Passes
from sordino.training.perexample.clipping import summable
from sordino.training.perexample.sums import ClippedSum, Examples, MeanGradient, model_input

Tensors = tuple[torch.Tensor, torch.Tensor]
Rows = Literal["test", "validation"]
Elsewhere = Callable[[Rows, Vector], tuple[int, Callable[[], list[Counted]]]]
"""Lets workers evaluate a model (d,): in how many parts, the first of which is left, and what waits
for all others.
"""
STEP = 2.0
"""Examples whose gradients take about as long as the rest of a local step, with its noise."""
READY = 2**23
"""Numbers of test rows up to which they are kept as model input: scaling the bytes of each batch
takes as long as a small model.
"""
KEPT = 4096
"""Clients that are kept for the next time they are asked; the longest unasked is let go of."""


class Clients(Sequence[Any]):
    """The clients of a process, by number, each made when it is first asked for something: of a
    million, a round asks a thousand. At most ``kept`` are kept, or all: one that remembers nothing
    is the same when it is made again.
    """

    def __init__(self, count: int, made: Callable[[int], Any], kept: int | None) -> None:
        self._count, self._made = count, lru_cache(kept)(made)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, client: Any) -> Any:
        if isinstance(client, slice):
            return [self._made(i) for i in range(*client.indices(self._count))]
        return self._made(range(self._count)[client])


class Assembly(Generic[H]):
    """The objects of a calibrated study, made one after another.

    A regime whose clients are others, or are charged otherwise, has a subclass.

    Attributes:
        regime, study, folder, run: of the run.
        mine: the client whose site this is; None where one process serves all.
        kind: of the simulation.
        sizes, names: of the clients' data; ``remote`` where some of it lies elsewhere.
        divided: the clients' data, and what models are measured on.
        data_records: the records in that data, where a ledger asks; nobody otherwise.
        prints: fingerprint of each client's data.
        shaping: fingerprints of all that bears on what is released: the clients' data, the test and
            validation sets, what a front end of one's own gives, and the model's first weights.
        kernels: model and kernels; ``evaluator`` has accuracy and loss of that model.
        test: (n, ...) and (n,), pixels still bytes; ``classes`` and ``span`` are of its labels.
        secret: rows that models are measured on at a price, and their fingerprint; then ``test`` is
            empty.
        owners: whose each test row is, (n,), and what they are called, where the file says so.
        validation: (n, ...) and (n,), as model input; empty where there is none.
        life: of this process, where it draws noise anew: a part of charges' keys; else empty.
        entropy: where batches and noise are drawn from.
        rates: q of each client.
        plan: the study's price.
        noise: the mechanism; None without one.
        units: ledger unit of each client; ``fingerprints`` of each unit's data.
        budgets: what each client may spend in all.
        paid, usual: a charge in the singular, and what helps where none can be paid for.
        continuous: whether tasks follow each other without a moment at which nobody works.
    """

    kind: ClassVar[type[HorizontalWorld[Any]]] = HorizontalWorld
    paid: ClassVar[str] = "local step"
    continuous: ClassVar[bool] = False
    usual: ClassVar[str] = "Raise noise_multiplier or lower sampling_rate"

    def __init__(
        self,
        regime: HorizontalRegime[H],
        study: H,
        divided: Federation,
        folder: Path,
        run: str,
        mine: int | None = None,
        shared: Shared | None = None,
    ) -> None:
        torch.set_num_threads(study.execution.threads)
        self.regime, self.study, self.folder, self.run, self.mine = regime, study, folder, run, mine
        self.sizes, self.names, self.remote = divided.sizes, divided.names, divided.remote
        self.divided = divided
        self.prints = (
            Fingerprints(b"", tuple(divided.prints)) if divided.prints else divided.fingerprints
        )
        if shared is None:
            self.data_records = known_records(study, divided)
        test, place = divided.test, device(study)
        self.kernels = kernels_of(study, test, place)
        flat = self.kernels.flat
        self.evaluator = Evaluator(flat, loss_of(study))
        self.elsewhere: Elsewhere | None = None
        self.classes, self.span = test.classes, test.span
        rows = placed(test.x, place), torch.from_numpy(test.y).to(place)
        if rows[0].numel() <= READY and not self.remote:  # a server has little memory
            rows = model_input(rows[0]), rows[1]
        hidden = study.pays_to_test
        self.test = (rows[0][:0], rows[1][:0]) if hidden else rows
        self.secret = (rows, test.fingerprint()) if hidden else None
        self.owners = None if hidden or test.client is None else (test.client, test.owners)
        self.validation = tensors(divided.validation, place)
        self.rates = regime.rates(study, self.sizes)
        self.plan = regime.price(for_dimension(study, flat.dim), self.sizes, flat.dim)
        self.noise = None
        if study.privacy.unit != "none" and regime.bounded(study):
            if study.privacy.unit == "sample":
                summable(float((np.array(self.rates) * np.array(self.sizes)).max()))
            self.noise = regime.mechanism(
                study, self.sizes, Trial.of(self.kernels, self.validation)
            )
            self.plan = regime.announced(self.plan, study, self.noise, self.sizes)
        shaping = Fingerprints(b"", tuple(divided.shaping))
        if not divided.shaping:
            shaping = self.prints.and_others(
                *(each.fingerprint() for each in (test, divided.validation) if each is not None),
                # the same examples have other features by other code, and by a map that another
                # machine learned
                *(
                    hashlib.sha256(np.ascontiguousarray(part.x).data).hexdigest()
                    for part in (divided.parts if study.data.features is not None else ())
                ),
            )
        self.shaping = shaping.and_others(
            digest_of_model(study, flat, test.shape), *own_digests(study, self.noise, flat.dim)
        )
        if shared is not None:
            if shared.data != self.data:
                raise StudyError(
                    "the rows here are not those of process 0, whose ledger is charged: give every "
                    "machine the same files, and change none while the run starts or goes on"
                )
            self.entropy, self.units = shared.entropy, shared.units(len(self.sizes))
            return
        # A site draws the system's entropy anew in each life of its process and keeps no key: it
        # repeats answers from its disk, never by computing them again, so a folder that is put back
        # from a copy cannot be made to use the same noise twice.
        anew = mine is not None and study.privacy.entropy == "system"
        self.life = f"/{secrets.token_hex(8)}" if anew else ""
        self.entropy = System() if anew else protective(study, run, self.shaping, folder)
        self.units, self.fingerprints = self.named()
        own = cache(partial(budget, study))
        self.budgets = list(map(own, study.epsilons[: len(self.sizes)]))

    @cached_property
    def paper(self) -> bool:
        """The run is a paper's literal form."""
        return self.study.form == "paper"

    @property
    def data(self) -> str:
        """Digest of ``shaping``, and of whose the clients' rows are."""
        parts = self.divided.parts
        whole = [parts.whole] if isinstance(parts, ByClient) else parts
        people = [each.people[:, 0] for each in whole if each.people is not None]
        whose = [hashlib.sha256(np.ascontiguousarray(each).data).hexdigest() for each in people]
        return joined([*self.shaping, *whose])

    def named(self) -> tuple[list[str], dict[str, str]]:
        """Return each client's unit in the ledger, and the fingerprint of each unit's data."""
        units = [f"client:{i}" for i in range(len(self.prints))]
        return units, dict(zip(units, self.prints, strict=True))

    def clients(self) -> Sequence[Any]:
        """Return the clients."""
        place = self.kernels.flat.weights.device
        orders = self.regime.passes(self.study, self.sizes)

        def made(index: int) -> Any:
            (x, y, people), starts = rows(self.divided.parts, index), None
            if self.study.clips_persons and people is not None:
                order, firsts = by_person(people[:, 0])
                x, y, people = x[order], y[order], people[order]
                starts = torch.from_numpy(firsts).to(place)
            common = {
                "index": index,
                "unit": self.units[index],
                "examples": Examples(placed(x, place), torch.from_numpy(y).to(place), starts),
                "sampling_rate": self.rates[index],
                "kernels": self.kernels,
                "entropy": self.entropy,
            }
            if (batches := orders[index]) is not None:
                together = self.study.rows_at_once
                who = None if together == 1 or people is None else people[:, 0]
                common["passes"] = Passes(batches, who, together)
            return self.client(index, common)

        # who takes batches in an order keeps how far it has come
        remembered = any(each is not None for each in set(orders))
        return Clients(len(self.sizes), made, None if remembered else KEPT)

    def client(self, index: int, common: dict[str, Any]) -> Any:
        """Return a client, a private one where there is noise.

        Args:
            common: what all kinds of clients have.
        """
        method = self.study.method
        assert isinstance(method, SampledMethod)
        common |= {"learning_rate": method.learning_rate, "optimizer": method.optimizer}
        if self.noise is None:
            return PlainClient(**common)
        return PrivateClient(**common, mechanism=self.noise)

    def affordable(self, ledgers: LedgerSession) -> tuple[int, ...] | None:
        """Return the charges that each client can still pay for; None without a limit."""
        steps = self.plan.steps
        if steps is None:
            return None
        if not ledgers.run or self.paper:
            return (steps,) * len(dict.fromkeys(self.units))
        left = affordable(self.study, self.regime.schedule(self.study, self.sizes), ledgers)
        each = [left.get(unit) for unit in dict.fromkeys(self.units)]
        return tuple(steps if most is None else most for most in each)

    def rules(self, clients: Sequence[Any], pays: tuple[int, ...] | None) -> Rules[Any]:
        """Return the rules of clients that can pay for so many charges each."""
        return self.regime.protocol(self.study, self.sizes, pays)

    def played(self, rules: Any) -> Callable[..., HorizontalWorld[Any]]:
        """Return the kind of the simulation, which says what is charged for tasks."""
        return self.kind

    @property
    def shared(self) -> Shared:
        """Return what workers need."""
        alike = len(self.units) > 1 and len(set(self.units)) == 1
        return Shared(self.entropy, self.data, self.units[0] if alike else "")

    def work(self, client: int, task: Request) -> float:
        """Return how much work a task is, in examples: by it a cohort is divided among workers."""
        steps = task.steps if isinstance(task, Train) else 1
        return steps * (self.rates[client] * self.sizes[client] + STEP)

    def affordable_steps(self, pays: tuple[int, ...] | None) -> list[int] | None:
        """Return what a record of the run keeps of what clients can pay for."""
        return None if pays is None else list(pays)

    def trips(self) -> Any:
        """Return the virtual time that answers take."""
        return round_trips(self.study.world, Seeded(self.study.seed))

    @property
    def clip(self) -> float:
        """C, or S, of the first round."""
        return self.study.privacy.clip

    @property
    def key_prefix(self) -> str:
        """The beginning of the keys of charges that pay for this entropy's noise.

        A charge is booked once for each key, so the same key must mean the same bytes. Where noise
        is drawn anew, what is computed again is another release, and is booked again.
        """
        return charge_key_prefix(self.study, self.run) + self.life

    def built(self, affordable_steps: Affordable) -> PreparedRun:
        """Return everything that a run needs.

        Args:
            affordable_steps: what clients could pay for when the run began, if it has begun before.
        """
        study, flat = self.study, self.kernels.flat
        clients = self.clients()
        ledgers = self._ledgers()
        tested = self._tested(ledgers)
        pays = self.affordable(ledgers) if affordable_steps is None else tuple(affordable_steps)
        rules = self.rules(clients, pays)
        first: Vector = flat.weights.cpu().numpy().copy()
        simulation = self.played(rules)(
            regime=rules,
            clients=clients,
            units=self.units,
            ledgers=ledgers,
            budget=budget(study, study.privacy.epsilon),
            budgets=self.budgets,
            affordable_steps=self.affordable_steps(pays),
            trips=self.trips(),
            evaluate=partial(self._evaluated, tested),
            stride=study.stride,
            method=study.method.name,
            charge_key_prefix=self.key_prefix,
            continuous=self.continuous,
            objects=self,
        )
        return PreparedRun(
            study=study,
            plan=self.plan,
            simulation=simulation,
            first=simulation.first(first),
            facts=self.facts(),
            model=study.model.name,
            named=partial(prepared.named_parameters, flat),
            paid="round" if study.privacy.unit == "client" else self.paid,
            remedy=remedy(study, self.usual),
            evaluation=tested,
            metrics=self.metrics,
            moves=self.mine is None and not self.remote,
            planned=partial(self.planned, pays),
        )

    def planned(self, pays: tuple[int, ...] | None) -> dict[str, History]:
        """Return all charges of each unit that it can pay for, or the most of them; nothing where
        no number bounds them.
        """
        if (most := self.regime.planned(self.study)) is None:
            return {}
        asked = self.regime.schedule(self.study, self.sizes)
        first = {unit: i for i, unit in reversed([*enumerate(self.units)])}
        left = dict(zip(dict.fromkeys(self.units), pays or (), strict=False))
        found = {}
        for unit in first if self.mine is None else [self.units[self.mine]]:
            like, count = unit_like(asked, self.rates, first[unit]), min(most, left.get(unit, most))
            found[unit] = tuple(asked.spending(like, count))
            if self.noise is not None and self.paper:
                sigma = asked.multipliers[like]
                true = self.noise.scaled(self.noise.clip, sigma).event()
                found[unit] = tuple(asked.released(like, true, sigma, count))
        return found

    def _ledgers(self) -> LedgerSession:
        """Open the ledger of clients' units, one's own at a site, and of test rows that pay."""
        own = f"client:{self.mine}"
        units = self.fingerprints if self.mine is None else {own: self.fingerprints[own]}
        named = self.names and len(set(self.units)) == len(self.names) and self.mine is None
        return prepared.open_ledgers(
            self.study,
            self.folder,
            self.run,
            units if self.secret is None else {**units, prepared.UNIT: self.secret[1]},
            self.shaping,
            self.data_records,
            labels=dict(zip(self.units, self.names, strict=True)) if named else {},
            public=self._published,
            rows=dict.fromkeys(self.units, self.study.rows_at_once) if self.remote else {},
        )

    def _tested(self, ledgers: LedgerSession) -> PaidEvaluation | None:
        """Return the evaluation of models on private rows; None where there are none."""
        if self.secret is None:
            return None
        (x, y), _ = self.secret
        mechanism, most, _ = priced(self.study)

        def right(weights: Vector) -> int:
            self._load(weights)
            return sum(right for right, _, _ in self.evaluator.counted(x, y, private=True))

        return PaidEvaluation(
            right=right,
            rows=len(y),
            mechanism=mechanism,
            ledgers=ledgers,
            budget=most,
            entropy=self.entropy,
            method=self.study.method.name,
            charge_key_prefix=charge_key_prefix(self.study, self.run),
        )

    def _load(self, weights: Vector) -> None:
        self.kernels.flat.load(torch.from_numpy(weights).to(self.kernels.flat.weights))

    def _evaluated(self, paid: PaidEvaluation | None, weights: Vector) -> Mapping[str, float]:
        """Return the figures of a model (d,): on public rows accuracy, or the root mean squared
        error in the units of labels that lie in ``span``, and the mean loss; on private rows what
        they pay for.
        """
        self._load(weights)
        row = {}
        if len(self.test[1]):
            seen = self._seen("test", weights)
            if self.span is None:
                row = {"accuracy": seen.accuracy, "loss": seen.loss}
            else:  # the loss is half the squared error in units of half the range
                half = (self.span[1] - self.span[0]) / 2
                row = {"rmse": half * math.sqrt(2 * seen.loss), "loss": seen.loss}
        if len(self.validation[1]) and self.span is None:
            row["validation"] = self._seen("validation", weights).accuracy
        return row if paid is None else {**row, **paid(weights)}

    def _seen(self, rows: Rows, weights: Vector) -> Evaluation:
        """Evaluate a model (d,) that is loaded on public rows, with the help of workers."""
        parts, rest = (1, list) if self.elsewhere is None else self.elsewhere(rows, weights)
        return Evaluation.of(self.counted(rows, 0, parts) + rest())

    def counted(
        self, rows: Rows, part: int, parts: int, weights: Vector | None = None
    ) -> list[Counted]:
        """Count a part of the batches of public rows, for the model (d,) or the one at hand."""
        if weights is not None:
            self._load(weights)
        x, y = self.test if rows == "test" else self.validation
        return self.evaluator.counted(x, y, part, parts)

    def metrics(self, weights: Vector) -> Metrics | None:
        """Return how good a model is on public test rows; None where there are none."""
        x, y = self.test
        if not len(y):
            return None
        self._load(weights)
        scores, labels = self.evaluator.scores(x).numpy(), y.cpu().numpy()
        loss = Evaluation.of(self.counted("test", 0, 1)).loss
        if self.span is not None:
            found = of_numbers(scores, labels, self.span, loss=loss)
        else:
            probable = self.study.model.name != "svm"
            found = of_classes(scores, labels, self.classes, loss=loss, probable=probable)
        served = None
        if self.owners is not None:
            served = by_rows(scores, labels, *self.owners, self.span)
        elif self.span is None and self._counted:
            served = by_labels(found, self.divided.counts, self.names)
        return found if served is None else msgspec.structs.replace(found, clients=served)

    @property
    def _counted(self) -> bool:
        """True if it is public how often each client has each label."""
        return not self.remote and (self.study.data.published or self.study.privacy.unit == "none")

    @property
    def _published(self) -> bool:
        """True if all rows that this process has fingerprints of are published.

        A server has nobody's rows; a site has its own, whatever data set the study names.
        """
        return self.mine is None if self.remote else self.study.data.published

    def _clients_told(self, *, sizes: bool, labels: bool) -> dict[str, Any]:
        """Return what run.json says of the clients, with their ``sizes`` and ``labels`` or without:
        of each, or of all where they are many.
        """
        if len(self.sizes) > files.LISTED:
            told = (sum(self.sizes), min(self.sizes), max(self.sizes)) if sizes else (None,) * 3
            examples, least, most = told
            unit = self.units[0] if len(self.fingerprints) == 1 else None
            crowd = files.Crowd(
                clients=len(self.sizes), unit=unit, examples=examples, least=least, most=most
            )
            return {"crowd": crowd}
        counts = self.divided.counts if labels else np.zeros((len(self.sizes), 0), np.int64)
        members = zip(self.units, self.sizes, counts, strict=True)
        return {
            "clients": tuple(
                files.Holder(
                    client=i,
                    name=self.names[i] if self.names else None,
                    unit=unit,
                    examples=size if sizes else None,
                    labels=tuple(row.tolist()),
                )
                for i, (unit, size, row) in enumerate(members)
            )
        }

    def facts(self) -> files.Horizontal:
        """Return what run.json says of clients and what they hold, the model's size, bounds, rates.

        Label counts are raw data. So are numbers of rows where whole clients are protected and
        weigh the same, and where persons are drawn: nobody may learn how many rows somebody has.
        """
        study, privacy = self.study, self.study.privacy
        kind = regimes.facts(self.regime.name)
        assert issubclass(kind, files.Horizontal)
        labels = self._counted and self.span is None
        agreed = self.remote or not study.hides_sizes
        sizes = self._counted or (agreed and not study.clips_persons)
        rows = (self.test if self.secret is None else self.secret[0])[1]
        return kind(
            classes=tuple(self.classes),
            span=msgspec.UNSET if self.span is None else self.span,
            test=test_set_record(study, len(rows)),
            **self._clients_told(sizes=sizes, labels=labels),
            epsilons=study.given_epsilons,  # of each client, where they differ
            dimension=self.kernels.flat.dim,
            clip=self.clip if privacy.unit != "none" else None,
            noise_multipliers=study.given_multipliers,  # likewise
            sampling_rate=privacy.sampling_rate if isinstance(privacy, SampledPromise) else None,
            batches=msgspec.UNSET if study.batches is None else study.batches,
            staleness=study.stalest,
            # rows that count as public: bounds and weights of noise may be chosen by them
            validation=_examples_digest(self.validation, public=self._published),
            R_c=self.plan.steps if privacy.unit != "client" else None,  # rounds are charged there
            stages=tuple(files.Stage(**asdict(stage)) for stage in self.plan.stages),
        )


def own_digests(study: HorizontalStudy, noise: Bounded | None, dimension: int) -> list[str]:
    """Return digests of what tables of somebody's own do with made-up numbers: of numbers that they
    draw when they are imported, a run that goes on in another process would know nothing.
    """
    found, trips = list[bytes](), study.world.latency
    if noise is not None and foreign(noise):
        found.append(behaviour(noise, dimension))
    steps = getattr(study.method, "optimizer", None)
    if isinstance(steps, Optimizer) and foreign(steps):
        found.append(steps.tried())
    if foreign(trips) and not trips.reads:
        seconds = trips.tasks(Seeded(0), few := min(study.data.clients, 16))
        found.append(repr([seconds(client, 1) for client in range(few)]).encode())
    return [hashlib.sha256(each).hexdigest() for each in found]


def model(study: HorizontalStudy, shape: tuple[int, ...], classes: int) -> torch.nn.Module:
    """The study's model, initialised from its seed, checked to be trainable privately."""
    module = models.build(study.model.name, shape, classes, Seeded(study.seed).at("model"))
    if study.method.private:
        models.check_private(module, shape)
    return module


def loss_of(study: HorizontalStudy) -> Loss:
    """The loss that the study's model is trained with."""
    return loss_for(study.model.name, number=study.data.span is not None)


def kernels_of(study: HorizontalStudy, like: Dataset, place: torch.device) -> ModelKernels:
    """The study's model for such examples, and its kernels, on a device."""
    flat, loss = Flat(model(study, like.shape, like.outputs).to(place)), loss_of(study)
    return ModelKernels(flat, ClippedSum(flat, loss), MeanGradient(flat, loss))


def tensors(part: Dataset | None, place: torch.device) -> Tensors:
    """Examples as model input, and their labels; empty ones for none."""
    if part is None:
        return torch.empty(0), torch.empty(0, dtype=torch.int64)
    return model_input(placed(part.x, place)), torch.from_numpy(part.y).to(place)


def placed(x: Array, place: torch.device) -> torch.Tensor:
    """Examples on a device; pictures with their channels last."""
    found = torch.from_numpy(x).to(place)
    return found.contiguous(memory_format=torch.channels_last) if found.ndim == 4 else found


def digest_of_model(study: HorizontalStudy, flat: Flat, shape: tuple[int, ...]) -> str:
    """Return the digest of a model: of its first weights, and the operations of one's own."""
    weights = models.digest_of(flat.module)
    if ":" not in study.model.name:
        return weights
    return joined((weights, flat.graphs.digest(flat.weights.new_zeros((1, *shape)))))


def _examples_digest(examples: Tensors, *, public: bool) -> str | None:
    """Return a fingerprint of examples, (n, ...) and (n,); None of none."""
    if not len(examples[1]):
        return None
    found = hashlib.sha256(
        b"".join(each.cpu().contiguous().numpy().tobytes() for each in examples)
    ).hexdigest()
    return found if public else keyed(found)
