"""A study's data, divided among its clients. Who only divides data does not wait for torch."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from sordino import data as datasets
from sordino.base.arrays import Ints
from sordino.base.entropy import Seeded
from sordino.base.errors import StudyError
from sordino.base.fingerprints import Fingerprints
from sordino.clients.study import H, HorizontalStudy
from sordino.core.prepared import PUBLIC, UNIT
from sordino.core.study.data import SHARE
from sordino.data import mapped
from sordino.data.dataset import ClientRanges, Corpus, Dataset, Words
from sordino.data.encoding import UNEVEN, uneven
from sordino.data.features import featured
from sordino.data.identity import at_one, first_rows
from sordino.data.labels import notice_classes, shown_name
from sordino.data.notices import listening, notice
from sordino.data.table import ReadOptions
from sordino.privacy.records import Records
from sordino.privacy.records.group import SAMPLE

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
    def counts(self) -> Ints:
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
    read = corpus(study, identify=identify or identified(study))
    train, validation = read.train, None
    if wanted.validation:
        train, validation = datasets.hold_out(train, wanted.validation, entropy.at("validation"))
    if (blocks := train.blocks) is not None and wanted.partition.by_column and not study.pooled:
        return _in_blocks(study, train, blocks, read.test)
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
    return Federation(held_by, read.test, validation, names, by_person=study.clips_persons)


def corpus(study: HorizontalStudy, *, identify: bool = False) -> Corpus:
    """A study's data, with the test set that it asks for, perhaps empty; ``identify`` its records.

    Raises:
        StudyError: where the file and the study do not fit.
    """
    wanted, testing = study.data, study.data.testing
    share = testing in ("public share", "private share")
    inside = wanted.file is not None and (
        mapped.has_test(wanted.file)
        if mapped.is_mapped(wanted.file)
        else wanted.file.suffix.lower() == ".npz" and has_test(str(wanted.file))
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
        how=ReadOptions(
            label=wanted.label,
            client_column=wanted.client_column,
            person=wanted.person,
            identify=identify or wanted.person_rows is not None,
            encoding=wanted.encoding,
            target=wanted.target,
            label_range=wanted.label_range,
            classes=wanted.classes,
        ),
        test_fraction=(SHARE if wanted.test_share is None else wanted.test_share)
        if share
        else None,
    )
    if wanted.person_rows is not None:
        train = _capped(found.train, wanted.person_rows)
        if found.train.blocks is not None and train is not found.train:
            raise StudyError(
                f"{wanted.file}: data.person_rows = {wanted.person_rows} leaves rows out, and "
                "mapped rows stay where they are. Set it when you convert the source, or raise it"
            )
        found = replace(found, train=train)
        if study.pays_to_test:  # a count of right answers changes by one for a person
            assert found.test.people is not None
            kept = first_rows(found.test.people[:, 0], 1)
            found = replace(found, test=found.test.take(kept))
    if wanted.file is not None and found.train.blocks is None:  # else it was said by the converter
        notice_sizes(found.train)
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
    assert train.people is not None
    who, kept = train.people[:, 0], np.arange(len(train))
    if train.client is not None and most > 1:
        kept = np.flatnonzero(at_one(who, train.client) == train.client)
    kept = kept[first_rows(who[kept], most)]
    if len(kept) == len(train):
        return train
    notice(
        f"note, from private rows, kept nowhere: {len(train) - len(kept)} of {len(train)} rows are "
        f"left out, of persons with more than data.person_rows = {most}, or with rows at several "
        "clients"
    )
    return train.take(kept)


def notice_sizes(train: Dataset) -> None:
    """Tell the owner of a table, and nobody else, that its columns differ in size."""
    if not train.columns or not listening():
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


def _in_blocks(
    study: HorizontalStudy, train: datasets.Dataset, blocks: ClientRanges, test: datasets.Dataset
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


def converted(study: HorizontalStudy, out: Path) -> tuple[int, list[str]]:
    """Write a study's data, divided among its clients, as a folder of mapped data; return how many
    clients there are, and what the table [data] of a study says.

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
    return len(parts), lines


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
