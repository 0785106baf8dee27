"""Studies whose clients have examples of their own, on a network: every site is a client.

A process of the federation has its own part of the data, and stand-ins for the others
(:func:`~sordino.core.network.stand_in`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino import data as datasets
from sordino.base.errors import DataError, StudyError
from sordino.clients.division import Federation, examples, federation, model
from sordino.clients.regime import HorizontalRegime
from sordino.clients.regime import of as regime_of
from sordino.clients.study import HorizontalStudy
from sordino.core.network import (
    Agreement,
    DemoFiles,
    NetworkRegime,
    Shape,
    numbered,
    refuse_limit,
    stand_in,
    with_secret_noise,
)
from sordino.core.plan import Plan
from sordino.core.prepared import PreparedRun
from sordino.core.statements import SiteScope
from sordino.data.dataset import Dataset
from sordino.data.features import featured
from sordino.data.identity import first_rows
from sordino.data.table import ReadOptions

RELEASED = {
    "sample": (
        "the model after its local steps, or a gradient, computed from its rows with noise on it; "
        "the noise is added here, before a message exists"
    ),
    "client": (
        "its update of the model, bounded but WITHOUT noise: the server adds the noise to the sum "
        "of all sites, so you have to trust the server with your single update"
    ),
    "shared": (
        "its part of a sum, with a part of the noise on it, modulo 2^{bits} and under masks. The "
        "server can take the masks off the sum of {least} sites or more, once in a round, and off "
        "nothing else{help}"
    ),
    "none": "the model after its local steps, or a gradient, WITHOUT any noise",
}


class HorizontalNetwork(NetworkRegime[HorizontalStudy]):
    """A study in which every site is a client."""

    others = "They see the models that the server sends to everybody"

    @property
    def regime(self) -> HorizontalRegime[Any]:
        """The regime of the study."""
        return regime_of(self.study)

    @classmethod
    def refuse(cls, study: HorizontalStudy) -> None:
        if not regime_of(study).carried:
            raise StudyError(
                f"regime '{study.regime}' does not say what a site refuses (Rules.objection), so "
                "no network carries it yet. Use `sordino run`"
            )
        if study.data.testing in ("public share", "private share"):
            raise StudyError(
                f"data.test = '{study.data.testing}' sets rows of all clients aside, and here each "
                "site has its own. Set data.test = 'none', or 'file' for rows that the server has"
            )
        if study.data.validation or study.data.client_validation:
            raise StudyError(
                "data.validation and data.client_validation set rows of all clients aside, and "
                "here each site has its own. Leave them out"
            )
        if study.data.span is not None:
            raise StudyError(
                "data.target = 'number': an agreement names classes, and labels of a network are "
                "classes so far. Use `sordino run`"
            )
        if not study.data.encoding.plain:
            raise StudyError(
                "data.categories, data.ranges and data.missing: an agreement names the columns "
                "that sites train on, and each site encodes its own file. Encode the columns by "
                "the same public rules before, and leave the keys out"
            )

    def calibrated(self) -> HorizontalStudy:
        agreement, study = self.agreement, self.study
        if study.data.clients != len(agreement.site):
            raise StudyError(
                f"data.clients = {study.data.clients}, and the federation has "
                f"{len(agreement.site)} sites"
            )
        if study.privacy.ledger != "run":
            raise StudyError(
                f"privacy.ledger = '{study.privacy.ledger}': each site has a ledger of its own, "
                "which it names with `sordino join --ledger`. Leave the key out"
            )
        study = with_secret_noise(agreement, study)
        have = divided(agreement, study)
        full: HorizontalStudy = self.regime.calibrate(self.regime.sized(study, have), have.sizes)
        if (summing := self.regime.summing(full)) is not None:
            summing.refuse_splitting()
        return full

    def widest(self) -> int:
        own, shape = self.study, self.agreement.data
        made = model(own, own.data.seen(shape.shape), len(shape.classes))
        return sum(each.numel() for each in made.parameters())

    def server(
        self, folder: Path, run: str, pays: Sequence[int] | None, test: Dataset | None
    ) -> PreparedRun:
        have = divided(self.agreement, self.study, test=test)
        return self.regime.assembled(self.study, have, folder, run, pays)

    def site(
        self,
        index: int,
        data: Dataset,
        limited: HorizontalStudy,
        folder: Path,
        run: str,
        pays: Sequence[int] | None,
    ) -> PreparedRun:
        have = divided(self.agreement, limited, (index, data))
        return self.regime.assembled(limited, have, folder, run, pays, mine=index)

    def limited(self, index: int, ledger: Path | None, limit: float | None) -> HorizontalStudy:
        study, privacy = self.study, self.study.privacy
        refuse_limit(study, limit)
        changed: dict[str, Any] = {}
        if ledger is not None:
            changed["ledger"] = str(ledger.expanduser().resolve())
        if limit is not None:
            if (each := study.given_epsilons) is not None:
                changed["epsilons"] = tuple(
                    min(limit, epsilon) if i == index else epsilon for i, epsilon in enumerate(each)
                )
            elif privacy.epsilon is None or limit < privacy.epsilon:
                changed["epsilon"] = limit
        return study.model_copy(update={"privacy": privacy.model_copy(update=changed)})

    def read(self, path: Path, index: int, limited: HorizontalStudy) -> Dataset:
        """It is in the agreed shape, with the
        agreed classes, as the model sees it.
        """
        agreement, study = self.agreement, limited
        identify = study.privacy.ledger != "run" or study.data.person is not None
        how = ReadOptions(
            label=study.data.label,
            person=study.data.person,
            identify=identify,
            columns=agreement.data.columns,
            target="classes",  # the agreement names them
        )
        found = datasets.load(agreement.names[index], file=path, test_fraction=None, how=how).train
        wanted, rows = agreement.data, agreement.site[index].examples
        if study.data.classes not in (None, wanted.classes):
            raise DataError(
                f"data.classes of the study is {list(study.data.classes or ())}, and agreed are "
                f"{list(wanted.classes)}: sites number them as agreed. Leave the key out of the "
                "study"
            )
        if found.shape != wanted.shape or found.x.dtype != np.dtype(wanted.type):
            raise DataError(
                f"{path}: its examples have shape {found.shape} and type {found.x.dtype}; agreed "
                f"are {wanted.shape} and {wanted.type}"
            )
        most = study.data.person_rows
        if (
            most is not None
            and found.people is not None
            and len(first_rows(found.people[:, 0], most)) < len(found)
        ):
            raise DataError(
                f"{path}: a person has more rows than the agreed data.person_rows = {most}, which "
                "is what everybody is priced at. Leave rows out of the file"
            )
        if len(found) != rows:
            raise DataError(
                f"{path}: it has {len(found)} examples, and this site agreed to have {rows}: sizes "
                "are public, and the noise follows from them. Agree anew, or choose the agreed rows"
            )
        own = replace(
            found, y=numbered(found, wanted.classes, path), classes=wanted.classes, client=None
        )
        return featured(own, study.data.features)

    def test(self, path: Path | None) -> Dataset | None:
        own, shape = self.study, self.agreement.data
        if path is None:
            if own.data.testing != "published":
                return None
            found = datasets.load(own.data.name or "").test
        else:
            how = ReadOptions(label=own.data.label, columns=shape.columns, target="classes")
            found = datasets.load("test", file=path, test_fraction=None, how=how).train
            labels = numbered(found, shape.classes, path)
            found = replace(found, y=labels, classes=shape.classes)
        if found.shape != shape.shape or found.classes != shape.classes:
            raise StudyError(
                f"{path or own.data.name}: the test set has examples of shape {found.shape} and "
                f"{len(found.classes)} classes; agreed are {shape.shape} and {len(shape.classes)}"
            )
        return featured(found, own.data.features)

    @classmethod
    def demo(cls, study: HorizontalStudy) -> DemoFiles:
        cls.refuse(study)
        # sites read examples as they are, and apply the front end themselves
        found = federation(examples(study))
        classes = found.test.classes
        return DemoFiles(
            shape=Shape(
                shape=found.test.shape,
                type="uint8" if found.test.x.dtype == np.uint8 else "float32",
                classes=classes,
                columns=found.test.columns,
            ),
            names=tuple(found.names or [""] * len(found.parts)),
            examples=tuple(len(part) for part in found.parts),
            files=tuple(_arrays(part, classes) for part in found.parts),
            prints=tuple(part.fingerprint() for part in (*found.parts, found.test)),
            test=_arrays(found.test, classes) if len(found.test) else None,
        )

    def plan(self, index: int, limited: HorizontalStudy) -> Plan:
        changed = limited.privacy.model_copy(update={"ledger": "run", "entropy": "seed"})
        trial, have = (
            limited.model_copy(update={"privacy": changed}),
            divided(self.agreement, limited),
        )
        with tempfile.TemporaryDirectory() as folder:
            built = self.regime.assembled(trial, have, Path(folder), "plan", None, mine=index)
            built.simulation.ledgers.close()
        return built.plan

    def own(self, index: int) -> SiteScope:
        """An update has no noise yet."""
        if self.regime.summing(self.study) is not None:
            return SiteScope("Every opened sum that this site has a part in")
        if self.study.privacy.unit != "client":
            return super().own(index)
        return SiteScope("Everything that the aggregator publishes of this site's updates")

    def released(self, index: int) -> str:
        if (own := self.regime.summing(self.study)) is not None:
            some, helped = own.dishonest, ""
            if some:
                who = "one of the other sites helps" if some == 1 else f"{some} other sites help"
                helped = f", even if {who} it"
            return RELEASED["shared"].format(bits=own.bits, least=own.fewest, help=helped)
        return RELEASED[self.study.privacy.unit]


def divided(
    agreement: Agreement,
    study: HorizontalStudy,
    own: tuple[int, Dataset] | None = None,
    test: Dataset | None = None,
) -> Federation:
    """Return the data of a process of the federation: stand-ins, but for client ``own[0]``.

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


def _arrays(part: Dataset, classes: Sequence[str]) -> dict[str, NDArray[Any]]:
    return {"x": part.x, "y": np.array(classes)[part.y]}
