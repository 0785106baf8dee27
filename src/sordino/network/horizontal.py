"""Studies whose clients have examples of their own, on a network."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino import data as datasets
from sordino.base.errors import StudyError
from sordino.clients.division import examples, federation, model
from sordino.clients.study import HorizontalStudy
from sordino.core import regimes
from sordino.core.built import Built
from sordino.core.plan import Plan
from sordino.core.promise import Own
from sordino.core.study.base import Study
from sordino.data.dataset import Dataset
from sordino.data.features import featured
from sordino.network import parts
from sordino.network.agreement import Agreed, Agreement, Shape
from sordino.network.carrier import Carrier, Division, Joined, refuse_limit
from sordino.network.parts import divided, numbered, regime_of

WHAT = {
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


def _own(study: Study) -> HorizontalStudy:
    assert isinstance(study, HorizontalStudy)
    return study


class Horizontal(Carrier):
    """Every site is a client."""

    others = "They see the models that the server sends to everybody"

    def calibrated(self, agreement: Agreement, study: Study) -> Study:
        """See :class:`~sordino.network.carrier.Carrier`."""
        return parts.calibrated(agreement, study)

    def refuse_hopeless(self, agreement: Agreement, study: Study) -> None:
        """See :class:`~sordino.network.carrier.Carrier`."""
        parts.refuse_hopeless(agreement, _own(study))

    def widest(self, agreement: Agreement, study: Study) -> int:
        """See :class:`~sordino.network.carrier.Carrier`."""
        own = _own(study)
        made = model(own, own.data.seen(agreement.data.shape), len(agreement.data.classes))
        return sum(each.numel() for each in made.parameters())

    def served(
        self,
        agreed: Agreed,
        study: Study,
        folder: Path,
        run: str,
        payable: Sequence[int] | None,
        test: Dataset | None,
    ) -> Built:
        """See :class:`~sordino.network.carrier.Carrier`."""
        have = divided(agreed.agreement, _own(study), test=test)
        return regime_of(study).assembled(_own(study), have, folder, run, payable)

    def joined(
        self,
        agreed: Agreed,
        index: int,
        own: Dataset,
        study: Study,
        folder: Path,
        run: str,
        payable: Sequence[int] | None,
    ) -> Joined:
        """See :class:`~sordino.network.carrier.Carrier`."""
        have = divided(agreed.agreement, _own(study), (index, own))
        built = regime_of(study).assembled(_own(study), have, folder, run, payable, mine=index)
        inner: Any = built.simulation
        budgets = getattr(inner, "budgets", None)
        return Joined(built, inner, inner.budget if budgets is None else budgets[index])

    def own_study(
        self, agreed: Agreed, index: int, ledger: Path | None, limit: float | None
    ) -> Study:
        """See :class:`~sordino.network.carrier.Carrier`."""
        study = _own(agreed.study)
        privacy = study.privacy
        refuse_limit(study, limit)
        changed: dict[str, Any] = {}
        if ledger is not None:
            changed["ledger"] = str(ledger.expanduser().resolve())
        if limit is not None:
            each = getattr(privacy, "epsilons", None)
            if each is not None:
                changed["epsilons"] = tuple(
                    min(limit, epsilon) if i == index else epsilon for i, epsilon in enumerate(each)
                )
            elif privacy.epsilon is None or limit < privacy.epsilon:
                changed["epsilon"] = limit
        return study.model_copy(update={"privacy": privacy.model_copy(update=changed)})

    def read_own(self, path: Path, agreement: Agreement, index: int, study: Study) -> Dataset:
        """See :class:`~sordino.network.carrier.Carrier`."""
        own = _own(study)
        identify = own.privacy.ledger != "run" or own.data.person is not None
        return parts.read_own(path, agreement, index, own, identify=identify)

    def test(self, agreed: Agreed, path: Path | None) -> Dataset | None:
        """See :class:`~sordino.network.carrier.Carrier`."""
        study, shape = _own(agreed.study), agreed.agreement.data
        if path is None:
            if study.data.testing != "published":
                return None
            found = datasets.load(study.data.name or "").test
        else:
            found = datasets.load(
                "test",
                file=path,
                label=study.data.label,
                test_fraction=None,
                columns=shape.columns,
                target="classes",
            ).train
            labels = numbered(found, shape.classes, path)
            found = replace(found, y=labels, classes=shape.classes)
        if found.shape != shape.shape or found.classes != shape.classes:
            raise StudyError(
                f"{path or study.data.name}: the test set has examples of shape {found.shape} and "
                f"{len(found.classes)} classes; agreed are {shape.shape} and {len(shape.classes)}"
            )
        return featured(found, study.data.features)

    def divided(self, study: Study) -> Division:
        """See :class:`~sordino.network.carrier.Carrier`."""
        regime_of(study)
        # sites read examples as they are, and apply the front end themselves
        found = federation(examples(_own(study)))
        classes = found.test.classes
        return Division(
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

    def plan(self, agreed: Agreed, study: Study, index: int) -> Plan:
        """See :class:`~sordino.network.carrier.Carrier`."""
        own = _own(study)
        changed = own.privacy.model_copy(update={"ledger": "run", "entropy": "seed"})
        with tempfile.TemporaryDirectory() as folder:
            built = regime_of(study).assembled(
                own.model_copy(update={"privacy": changed}),
                divided(agreed.agreement, own),
                Path(folder),
                "plan",
                None,
                mine=index,
            )
            built.simulation.vault.close()
        return built.plan

    def own(self, study: Study, index: int) -> Own:
        """See :class:`~sordino.network.carrier.Carrier`. An update has no noise yet."""
        if regimes.of(study).summing(study) is not None:
            return Own("Every opened sum that this site has a part in")
        if study.privacy.unit != "client":
            return super().own(study, index)
        return Own("Everything that the aggregator publishes of this site's updates")

    def released(self, study: Study, index: int) -> str:
        """See :class:`~sordino.network.carrier.Carrier`."""
        if (own := regimes.of(study).summing(study)) is not None:
            told = {"bits": own.bits, "least": own.fewest, "help": _help(own.dishonest)}
            return WHAT["shared"].format(**told)
        return WHAT[study.privacy.unit]


def _help(dishonest: int) -> str:
    if not dishonest:
        return ""
    who = "one of the other sites helps" if dishonest == 1 else f"{dishonest} other sites help"
    return f", even if {who} it"


def _arrays(part: Dataset, classes: Sequence[str]) -> dict[str, NDArray[Any]]:
    return {"x": part.x, "y": np.array(classes)[part.y]}
