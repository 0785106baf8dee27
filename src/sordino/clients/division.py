"""A study's data, divided among its clients."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sordino import data as datasets
from sordino.base.entropy import Seeded
from sordino.base.errors import StudyError
from sordino.base.fingerprints import Fingerprints
from sordino.clients import evaluation
from sordino.clients.study import H, HorizontalStudy
from sordino.core.prepared import PUBLIC, UNIT
from sordino.data import mapped
from sordino.data.dataset import Blocks, Words
from sordino.data.identity import at_one
from sordino.privacy.records import Records
from sordino.privacy.records.group import SAMPLE

if TYPE_CHECKING:  # whoever only divides data does not wait for torch
    import torch

    from sordino.training.client import ModelKernels
    from sordino.training.loss import Loss

Counts = np.ndarray[Any, np.dtype[np.int64]]
ANY = 1 << 31
"""Public rows of one person, at most: nothing prices them, so no key of a study bounds them."""


@dataclass(frozen=True, slots=True, eq=False)
class Federation:
    """A study's data, divided among its clients.

    Attributes:
        parts: the training set of each client; of many, none is taken before it is asked for.
        test: what models are measured on, for reporting only; empty where nothing is.
        validation: examples set aside to choose by, before partitioning or from each client, or
            None.
        names: of the clients, where the file has any.
        prints: what the ledger knows each client's data by, where that is not its fingerprint.
        shaping: fingerprints of all data that bears on what is released, where not all of it is
            here.
        remote: whether some parts lie elsewhere: their examples are stand-ins, and their labels
            are not known.
        by_person: whether persons are drawn, and sizes are theirs; else rows are.
    """

    parts: Sequence[datasets.Dataset]
    test: datasets.Dataset
    validation: datasets.Dataset | None
    names: tuple[str, ...] = ()
    prints: Sequence[str] = ()
    shaping: Sequence[str] = ()
    remote: bool = False
    by_person: bool = False

    @property
    def sizes(self) -> tuple[int, ...]:
        """n_i of every client: how many there are from whom batches are drawn."""
        if not self.by_person:
            return self.rows
        return tuple(
            len(part) if part.people is None else len(np.unique(part.people[:, 0]))
            for part in self.parts
        )

    @property
    def rows(self) -> tuple[int, ...]:
        """Examples of every client."""
        parts = self.parts
        return parts.sizes if isinstance(parts, datasets.ByClient) else tuple(map(len, parts))

    @property
    def fingerprints(self) -> Fingerprints:
        """The fingerprint of each client's data."""
        parts = self.parts
        if isinstance(parts, datasets.ByClient):
            return parts.fingerprints
        return Fingerprints(b"".join(bytes.fromhex(part.fingerprint()) for part in parts))

    @property
    def counts(self) -> Counts:
        """Label counts (clients, classes), which are raw data; sizes (clients, 1) where labels are
        numbers or lie elsewhere.
        """
        classes, parts = len(self.test.classes), self.parts
        if self.remote or self.test.span is not None:
            return np.array(self.rows, np.int64)[:, None]
        if not isinstance(parts, datasets.ByClient):
            return np.stack([np.bincount(part.y, minlength=classes) for part in parts])
        order = np.arange(len(parts.whole)) if parts.order is None else parts.order
        return datasets.label_counts(parts.whole.y, datasets.Dealt(order, parts.bounds), classes)


def federation(study: HorizontalStudy, *, identify: bool = False) -> Federation:
    """Load the data and divide it; ``identify`` records even where the study does not ask."""
    wanted, entropy = study.data, Seeded(study.seed)
    corpus = evaluation.corpus(study, identify=identify or identified(study))
    train, validation = corpus.train, None
    if wanted.validation:
        train, validation = datasets.hold_out(train, wanted.validation, entropy.at("validation"))
    if (blocks := train.blocks) is not None and wanted.partition.by_column and not study.pooled:
        return _in_blocks(study, train, blocks, corpus.test)
    if wanted.person is not None and wanted.person_rows != 1 and train.client is None:
        assert train.people is not None
        indices, held = _dealt_people(study, train.y, train.people[:, 0])
    else:
        indices, held = _dealt(study, train.y, train.client)
    if held:
        validation = train.take(np.sort(np.concatenate(held)))
    names = (
        tuple(train.owners[k] for k in np.unique(train.client))
        if train.client is not None and len(indices) > 1
        else ()
    )
    held_by = _held(train, datasets.Dealt.of(indices))
    return Federation(held_by, corpus.test, validation, names, by_person=study.clips_persons)


def _in_blocks(
    study: HorizontalStudy, train: datasets.Dataset, blocks: Blocks, test: datasets.Dataset
) -> Federation:
    """Return examples that lie client after client, as their clients'."""
    wanted, clients = study.data, len(blocks.bounds) - 1
    if clients != wanted.clients:
        raise StudyError(
            f"data.clients: {wanted.file} has {clients} clients, the study asks for "
            f"{wanted.clients}; set data.clients = {clients}"
        )
    if wanted.client_validation:
        raise StudyError(
            f"{wanted.file}: data.client_validation sets rows aside, and mapped rows stay where "
            "they are. Set it when you convert the source, or leave it out"
        )
    names = train.owners if clients > 1 else ()
    parts = datasets.ByClient(train, blocks.bounds)
    return Federation(parts, test, None, names, by_person=study.clips_persons)


def _held(train: datasets.Dataset, dealt: datasets.Dealt) -> datasets.ByClient:
    """Return each client's examples. Those in memory are put into the order of the clients, so that
    what a client holds is a piece of them and no copy.
    """
    order = dealt.order
    if len(order) == len(train) and bool((np.diff(order) == 1).all()):
        return datasets.ByClient(train, dealt.bounds)
    if isinstance(train.x, np.memmap):  # not in memory, and perhaps too large for it
        return datasets.ByClient(train, dealt.bounds, order)
    return datasets.ByClient(train.take(order), dealt.bounds)


class Converted(NamedTuple):
    """Mapped data that was written: how many clients, and what the table [data] of a study says."""

    clients: int
    lines: tuple[str, ...]


def converted(study: HorizontalStudy, out: Path) -> Converted:
    """Write a study's data, divided among its clients, as a folder of mapped data.

    Raises:
        StudyError: for a test set that pays for itself, and rows that are set aside.
    """
    wanted = study.data
    if wanted.validation or wanted.client_validation or study.pays_to_test:
        key = "test = 'private share'" if study.pays_to_test else "validation, client_validation"
        raise StudyError(
            f"data.{key}: mapped data holds rows that train, and public rows of a test set. Leave "
            "it out"
        )
    divided = federation(examples(study), identify=True)
    parts, test = divided.parts, divided.test
    assert isinstance(parts, datasets.ByClient)
    numbers = divided.names == tuple(map(str, range(len(parts))))  # which need not be written
    owners = () if numbers else divided.names
    mapped.write(out, parts, test, owners=owners, person=wanted.person)
    table = {
        "file": str(out),
        "clients": len(parts),
        "client_column": "client",
        "test": "file" if len(test) else None,
        "classes": wanted.classes,
        "person": wanted.person,
        "person_rows": wanted.person_rows,
        "target": None if wanted.span is None else "number",
        "label_range": wanted.span,
    }
    lines = [f"{key} = {json.dumps(value)}" for key, value in table.items() if value is not None]
    lines.insert(3, 'partition = { kind = "column" }')
    return Converted(len(parts), tuple(lines))


def _dealt_people(
    study: HorizontalStudy, y: datasets.Labels, who: Words
) -> tuple[datasets.Parts, datasets.Parts]:
    """Like :func:`_dealt`, with all rows of a person at one client. Persons are dealt and not rows:
    how many rows somebody has decides nothing of others. Where labels decide, rows are dealt, and
    a person is moved to the client of one of them.

    Raises:
        StudyError: if a client has none then.
    """
    if study.data.partition.by_label:
        parts, held = _dealt(study, y, None)
        client = np.full(len(who), -1)
        for i, part in enumerate(parts):
            client[part] = i
        dealt = np.flatnonzero(client >= 0)
        client[dealt] = at_one(who[dealt], client[dealt])
        found = tuple(np.flatnonzero(client == i) for i in range(len(parts)))
    else:
        names, person = np.unique(who, return_inverse=True)
        several = _dealt(study, np.zeros(len(names), y.dtype), None)
        found, held = (
            tuple(np.flatnonzero(np.isin(person.reshape(-1), part)) for part in parts)
            for parts in several
        )
    if not all(map(len, found)):
        raise StudyError(
            "data.person: all rows of a person are dealt to one client, and a client has no rows "
            "then. Give fewer data.clients, or person_rows = 1"
        )
    return found, held


def examples(study: H) -> H:
    """Return the study without its front end: examples are divided without features."""
    return study.model_copy(update={"data": study.data.model_copy(update={"features": None})})


def _dealt(
    study: HorizontalStudy, y: datasets.Labels, client: datasets.Labels | None
) -> tuple[datasets.Parts, datasets.Parts]:
    """The numbers of each client's examples, and of those that it sets aside, if any, by labels and
    owners (n,).
    """
    wanted, entropy = study.data, Seeded(study.seed)
    if study.pooled:
        indices: datasets.Parts = (np.arange(len(y)),)
    else:
        if not wanted.partition.by_label:
            y = np.zeros_like(y)
        elif wanted.deals_by_label and study.privacy.entropy == "system":
            raise StudyError(
                f"data.partition kind '{wanted.partition.kind}': it deals private rows by their "
                "labels, so the numbers of rows of clients, which are public, would tell labels. "
                "Use 'iid', 'column' with data.client_column, or a way of your own with by_label = "
                'False; or simulate with privacy.entropy = "seed"'
            )
        draws = entropy.at("partition")
        indices = datasets.deal(wanted.partition, y, wanted.clients, draws, client)
    if not wanted.client_validation:
        return indices, ()
    return datasets.per_client_validation(
        indices, wanted.client_validation, entropy.at("client validation")
    )


def identified(study: HorizontalStudy) -> bool:
    """Return whether records are to be recognised: by a lasting ledger, or for the persons behind
    them.
    """
    return study.privacy.ledger != "run" or study.data.person is not None


def model(study: HorizontalStudy, shape: tuple[int, ...], classes: int) -> torch.nn.Module:
    """The study's model, initialised from its seed, checked to be trainable privately."""
    from sordino.training import models
    from sordino.training.models import check_private

    module = models.build(study.model.name, shape, classes, Seeded(study.seed).at("model"))
    if study.method.private:
        check_private(module, shape)
    return module


def loss_of(study: HorizontalStudy) -> Loss:
    """The loss that the study's model is trained with."""
    from sordino.training.loss import loss_for

    return loss_for(study.model.name, number=study.data.span is not None)


def kernels_of(study: HorizontalStudy, like: datasets.Dataset, place: torch.device) -> ModelKernels:
    """The study's model for such examples, and its kernels, on a device."""
    from sordino.training.client import ModelKernels
    from sordino.training.flat import Flat
    from sordino.training.perexample.sums import ClippedSum, MeanGradient

    flat, loss = Flat(model(study, like.shape, like.outputs).to(place)), loss_of(study)
    return ModelKernels(flat, ClippedSum(flat, loss), MeanGradient(flat, loss))


def records(part: datasets.Dataset, unit: str, kind: str, most: int | None = None) -> Records:
    """The records in a client's data; ``most`` rows of each person, by data.person_rows."""
    if part.words is None:
        raise StudyError(
            f"{unit}: the data does not say what these examples are recognised by: convert its "
            "source again, or leave them out"
        )
    return Records(unit, kind, part.words, part.people, 1 if most is None else most)


def known_records(study: HorizontalStudy, divided: Federation) -> tuple[Records, ...]:
    """The records in each client's data, in a test set that is paid for, and in what is declared
    public to a ledger of the data.

    Raises:
        StudyError: for public rows that cannot be told from private ones (:func:`_refuse_alike`).
    """
    if not identified(study):
        return ()
    found = [
        replace(records(part, f"client:{i}", *study.recorded), summed=study.shared)
        for i, part in enumerate(divided.parts)
        if part.words is not None or not divided.remote
    ]
    if study.pays_to_test:
        found.append(replace(records(divided.test, UNIT, SAMPLE), aside=True))
    lasting = study.privacy.ledger != "run"
    promised = math.isfinite(study.least_epsilon or math.inf)
    if study.data.published or not (lasting or (promised and not divided.remote)):
        return tuple(found)
    aside = [divided.validation, None if study.pays_to_test else divided.test]
    shown = [records(part, PUBLIC, SAMPLE, ANY) for part in aside if part is not None and len(part)]
    if not shown:
        return tuple(found)
    public = Records.together(shown)
    _refuse_alike(study, public, found)
    return (*found, public) if lasting else tuple(found)


def _refuse_alike(study: HorizontalStudy, public: Records, others: Sequence[Records]) -> None:
    """A ledger of the data tells records apart by what stands in them: one of two that look the
    same cannot be public. Nor can one of a person's rows, whatever the ledger.

    Raises:
        StudyError: if a row that is declared public looks like one that is not, or is about the
            same person.
    """
    lasting = study.privacy.ledger != "run"
    alike = any(
        (lasting and np.isin(other.rows, public.rows).any())
        or (
            other.people is not None
            and (public.people is None or np.isin(other.people, public.people).any())
        )
        for other in others
    )
    if alike:  # how many would say more about private rows
        why = "models are measured on those exactly, so that nothing would protect these people"
        if lasting:
            why = (
                f"the ledger in {study.privacy.ledger} cannot distinguish them: all of them would "
                "be public forever"
            )
        raise StudyError(
            f"{study.data.file or study.data.name}: rows that train, or test at a price, look the "
            "same as rows that are declared public, or may be about the same people "
            f"(data.test = '{study.data.testing}', data.validation, data.client_validation), and "
            f"{why}. Set data.test = 'private share' or 'none', and no validation; or "
            "remove the rows that occur twice, and name data.person in public rows, too"
        )


def tensors(
    part: datasets.Dataset | None, place: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Examples as model input, and their labels; empty ones for none."""
    import torch

    from sordino.training.perexample.sums import model_input

    if part is None:
        return torch.empty(0), torch.empty(0, dtype=torch.int64)
    return model_input(placed(part.x, place)), torch.from_numpy(part.y).to(place)


def placed(x: np.ndarray[Any, Any], place: torch.device) -> torch.Tensor:
    import torch

    found = torch.from_numpy(x).to(place)
    return found.contiguous(memory_format=torch.channels_last) if found.ndim == 4 else found
