"""A study's data as one process of a federation sees it: its own part, and stand-ins for the
others.

A stand-in has the agreed number of rows and no memory: one zero, seen many times. So the server and
every site build the same objects from the same study, and each computes only on what it has.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sordino import data as datasets
from sordino.base.errors import DataError, StudyError
from sordino.base.parsing import toml_of
from sordino.clients.division import Federation
from sordino.clients.regime import HorizontalRegime
from sordino.clients.study import HorizontalStudy
from sordino.core import regimes
from sordino.core import study as studies
from sordino.core.study.base import Study
from sordino.core.world import World
from sordino.data.dataset import Dataset
from sordino.data.features import featured
from sordino.data.identity import first_rows
from sordino.network.agreement import Agreement, Shape


def regime_of(study: Study) -> HorizontalRegime[HorizontalStudy]:
    """The regime of a study whose clients have examples of their own.

    Raises:
        StudyError: for one that a network cannot carry.
    """
    found = regimes.of(study)
    assert isinstance(found, HorizontalRegime)
    assert isinstance(study, HorizontalStudy)
    if study.data.testing in ("public share", "private share"):
        raise StudyError(
            f"data.test = '{study.data.testing}' sets rows of all clients aside, and here each "
            "site has its own. Set data.test = 'none', or 'file' for rows that the server has"
        )
    if study.data.validation or study.data.client_validation:
        raise StudyError(
            "data.validation and data.client_validation set rows of all clients aside, and here "
            "each site has its own. Leave them out"
        )
    if study.data.span is not None:
        raise StudyError(
            "data.target = 'number': an agreement names classes, and labels of a network are "
            "classes so far. Use `sordino run`"
        )
    if not study.data.encoding.plain:
        raise StudyError(
            "data.categories, data.ranges and data.missing: an agreement names the columns that "
            "sites train on, and each site encodes its own file. Encode the columns by the same "
            "public rules before, and leave the keys out"
        )
    return found


def stand_in(rows: int, shape: Shape) -> Dataset:
    """A client's data where it is not: its size, and nothing else."""
    return Dataset(
        "elsewhere",
        _zeros((rows, *shape.shape), shape.type),
        _zeros((rows,), "int64"),
        shape.classes,
    )


def _zeros(shape: tuple[int, ...], kind: str) -> Any:
    zero = np.zeros((), np.dtype(kind))
    return np.lib.stride_tricks.as_strided(zero, shape, (0,) * len(shape))


def divided(
    agreement: Agreement,
    study: HorizontalStudy,
    own: tuple[int, Dataset] | None = None,
    test: Dataset | None = None,
) -> Federation:
    """What a process of the federation has: of everybody stand-ins, but of client ``own[0]``.

    All are as the study's model sees them.
    """
    seen = agreement.data.model_copy(update={"shape": study.data.seen(agreement.data.shape)})
    parts = [stand_in(rows, seen) for rows in agreement.sizes]
    if own is not None:
        parts[own[0]] = own[1]
    counts = np.zeros((len(parts), len(agreement.data.classes)), np.int64)
    counts[:, 0] = agreement.sizes
    prints = agreement.rehearsal[: len(parts)] or tuple(
        own[1].fingerprint() if own is not None and own[0] == i else f"site:{name}"
        for i, name in enumerate(agreement.names)
    )
    return Federation(
        tuple(parts),
        stand_in(0, seen) if test is None else test,
        None,
        counts,
        agreement.names,
        prints,
        agreement.rehearsal,
        remote=True,
    )


def calibrated(agreement: Agreement, study: Study) -> HorizontalStudy:
    """The study with its noise filled in, for sites of these sizes.

    Raises:
        StudyError: if the agreement and the study do not fit.
    """
    regime = regime_of(study)
    assert isinstance(study, HorizontalStudy)
    if study.data.clients != len(agreement.site):
        raise StudyError(
            f"data.clients = {study.data.clients}, and the federation has "
            f"{len(agreement.site)} sites"
        )
    if study.privacy.ledger != "run":
        raise StudyError(
            f"privacy.ledger = '{study.privacy.ledger}': each site has a ledger of its own, which "
            "it names with `sordino join --ledger`. Leave the key out"
        )
    if not agreement.rehearsal and study.privacy.entropy != "system":
        study = study.model_copy(
            update={"privacy": study.privacy.model_copy(update={"entropy": "system"})}
        )
        studies.parse(
            toml_of(studies.write(study)), source="the study"
        )  # refuses what does not fit
    have = divided(agreement, study)
    return regime.calibrate(regime.sized(study, have), have.sizes)


def refuse_hopeless(agreement: Agreement, study: HorizontalStudy) -> None:
    """Make the study's objects once, in a folder that is thrown away: what cannot run is said here,
    before kits are handed out.

    Raises:
        SordinoError: whatever is wrong with it.
    """
    regime = regime_of(study)
    if (summing := regime.summing(study)) is not None:
        summing.refuse_splitting()
    with tempfile.TemporaryDirectory() as folder:
        built = regime.assembled(study, divided(agreement, study), Path(folder), "trial", None)
        built.simulation.vault.close()
    if type(built.simulation).objection is World.objection:  # type: ignore[attr-defined]
        raise StudyError(
            f"regime '{study.regime}' does not say what a site refuses (World.objection), so no "
            "network carries it yet. Use `sordino run`"
        )


def read_own(
    path: Path, agreement: Agreement, index: int, study: HorizontalStudy, *, identify: bool
) -> Dataset:
    """A site's own file, in the agreed shape, with the agreed classes, as the model sees it.

    Raises:
        DataError: naming what differs.
    """
    found = datasets.load(
        agreement.names[index],
        file=path,
        label=study.data.label,
        person=study.data.person,
        identify=identify,
        test_fraction=None,
        columns=agreement.data.columns,
        target="classes",  # the agreement names them
    ).train
    wanted, rows = agreement.data, agreement.site[index].examples
    if study.data.classes not in (None, wanted.classes):
        raise DataError(
            f"data.classes of the study is {list(study.data.classes or ())}, and agreed are "
            f"{list(wanted.classes)}: sites number them as agreed. Leave the key out of the study"
        )
    if found.shape != wanted.shape or found.x.dtype != np.dtype(wanted.type):
        raise DataError(
            f"{path}: its examples have shape {found.shape} and type {found.x.dtype}; agreed are "
            f"{wanted.shape} and {wanted.type}"
        )
    most = study.data.person_rows
    if (
        most is not None
        and found.words is not None
        and len(first_rows(found.words[:, 2], most)) < len(found)
    ):
        raise DataError(
            f"{path}: a person has more rows than the agreed data.person_rows = {most}, which is "
            "what everybody is priced at. Leave rows out of the file"
        )
    if len(found) != rows:
        raise DataError(
            f"{path}: it has {len(found)} examples, and this site agreed to have {rows}: sizes are "
            "public, and the noise follows from them. Agree anew, or choose the agreed rows"
        )
    own = replace(
        found, y=numbered(found, wanted.classes, path), classes=wanted.classes, client=None
    )
    return featured(own, study.data.features)


def numbered(
    found: Dataset, classes: Sequence[str], path: Path
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Labels as the federation numbers them.

    Raises:
        DataError: for a label that is none of the agreed classes.
    """
    where = {name: number for number, name in enumerate(classes)}
    # class numbers begin with 0 whether any row has it or not
    there = {found.classes[number] for number in np.unique(found.y)}
    if unknown := sorted(there - where.keys()):
        raise DataError(
            f"{path}: label {unknown[0]!r} is none of the agreed classes ({', '.join(classes)})"
        )
    y: datasets.Labels = found.y
    return np.array([where.get(name, -1) for name in found.classes], np.int64)[y]
