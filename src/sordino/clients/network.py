"""Studies whose clients have examples of their own, on a network: every site is a client.

A process of the federation has its own part of the data, and stand-ins for the others
(:func:`~sordino.core.network.stand_in`).
"""

from __future__ import annotations

import math
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sordino import data as datasets
from sordino.base.arrays import Array
from sordino.base.errors import DataError, StudyError
from sordino.clients import division
from sordino.clients.assemble import model
from sordino.clients.evaluation import in_units
from sordino.clients.pricing import affordable, planned_ledgers, unit_like
from sordino.clients.regime import HorizontalRegime
from sordino.clients.regime import of as regime_of
from sordino.clients.study import HorizontalStudy
from sordino.core import network
from sordino.core.network import Agreement, DemoFiles, NetworkRegime, Shape, Standing, stand_in
from sordino.core.plan import Disk, Plan, balances
from sordino.core.prepared import Affordable, PreparedRun
from sordino.core.statements import SiteScope, looked
from sordino.data.dataset import Dataset
from sordino.data.features import featured
from sordino.data.identity import first_rows
from sordino.data.table import ReadOptions
from sordino.privacy import Ledger
from sordino.privacy.records import recognised
from sordino.privacy.records.group import SAMPLE
from sordino.privacy.session import PLAN, data_ledger

FAIR = "gradients of its fair share (a faster site is asked for more)"
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
        if study.correlated == "blt" and regime_of(study).whole(study):
            raise StudyError(
                "privacy.correlation = 'blt' with whole clients: what a site has sent goes on "
                "showing a little in later rounds, and one that cannot pay any more, or has gone, "
                "does not book these. Set correlation = 'banded', where it does not, or use "
                "`sordino run`"
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
        self._refuse_other_form()
        study = network.with_secret_noise(agreement, study)
        have = divided(agreement, study)
        full: HorizontalStudy = self.regime.calibrate(self.regime.sized(study, have), have.sizes)
        if (summing := self.regime.summing(full)) is not None:
            summing.refuse_splitting()
        return full

    def _refuse_other_form(self) -> None:
        """Refuse an agreement about another kind of examples than the study has rules for.

        Raises:
            StudyError: naming the key.
        """
        shape, data = self.agreement.data, self.study.data
        if data.span is None and not shape.classes:
            raise StudyError("data.classes: name the classes in the agreement; they are public")
        if data.span is not None and shape.classes:
            raise StudyError(
                "data.classes: labels are numbers in this study (data.target = 'number'). Leave "
                "the key out of the agreement"
            )
        if not data.encoding.plain and (len(shape.shape) != 1 or shape.type != "float32"):
            raise StudyError(
                "data.categories, data.ranges and data.missing are rules for the columns of a "
                f"table, and agreed are examples of shape {shape.shape} and type {shape.type}"
            )

    def widest(self) -> int:
        like = stand_in(0, seen_shape(self.agreement, self.study), self.study.data.span)
        made = model(self.study, like.shape, like.outputs)
        return sum(each.numel() for each in made.parameters())

    def server(
        self, folder: Path, run: str, steps: Affordable, test: Dataset | None
    ) -> PreparedRun:
        have = divided(self.agreement, self.study, test=test)
        return self.regime.assembled(self.study, have, folder, run, steps)

    def site(
        self,
        index: int,
        data: Dataset,
        limited: HorizontalStudy,
        folder: Path,
        run: str,
        steps: Affordable,
    ) -> PreparedRun:
        have = divided(self.agreement, limited, (index, data))
        return self.regime.assembled(limited, have, folder, run, steps, mine=index)

    def limited(self, index: int, ledger: Path | None, limit: float | None) -> HorizontalStudy:
        study, privacy = self.study, self.study.privacy
        network.refuse_limit(study, limit)
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
        return study.with_privacy(changed)

    def read(self, path: Path, index: int, limited: HorizontalStudy) -> Dataset:
        """Read a site's own file: in the agreed shape, with the agreed classes, as the model sees
        it.
        """
        agreement, study = self.agreement, limited
        how = replace(self._how, person=study.data.person, identify=division.identified(study))
        found = datasets.load(agreement.names[index], file=path, test_fraction=None, how=how).train
        wanted, rows = agreement.data, agreement.site[index].examples
        if study.data.classes not in (None, wanted.classes):
            raise DataError(
                f"data.classes of the study is {list(study.data.classes or ())}, and agreed are "
                f"{list(wanted.classes)}: sites number them as agreed. Leave the key out of the "
                "study"
            )
        encoded = encoded_shape(agreement, study)
        if found.shape != encoded or found.x.dtype != np.dtype(wanted.type):
            raise DataError(
                f"{path}: its examples have shape {found.shape} and type {found.x.dtype}; agreed "
                f"are {encoded} and {wanted.type}"
            )
        most = study.data.person_rows
        if (
            most is not None
            and found.people is not None
            and len(first_rows(found.people[:, 0], most)) < len(found)
        ):
            raise DataError(
                f"{path}: a person has more rows than the agreed data.person_rows = {most}. Leave "
                "rows out of the file"
            )
        held, what = len(found), "examples"
        if study.clips_persons and found.people is not None:
            held, what = len(np.unique(found.people[:, 0])), "persons"
        if held != rows:
            raise DataError(
                f"{path}: it has {held} {what}, and this site agreed to have {rows}: sizes "
                "are public, and the noise follows from them. Agree anew, or choose the agreed rows"
            )
        division.notice_sizes(found)
        return featured(replace(self._numbered(found, path), client=None), study.data.features)

    @property
    def _how(self) -> ReadOptions:
        """The settings for reading a file: with the agreed columns and classes, and labels as the
        study says what they are.
        """
        data, agreed = self.study.data, self.agreement.data
        binary = data.target == "binary"
        return ReadOptions(
            label=data.label,
            columns=agreed.columns,
            encoding=data.encoding,
            target="number" if data.span is not None else "binary" if binary else "classes",
            label_range=data.span,
            classes=agreed.classes if binary else None,
        )

    def _numbered(self, found: Dataset, path: Path) -> Dataset:
        """Return examples with labels as the federation numbers them; numbers stay as they are."""
        if found.span is not None:
            return found
        classes = self.agreement.data.classes
        return replace(found, y=network.numbered(found, classes, path), classes=classes)

    def test(self, path: Path | None) -> Dataset | None:
        own, shape = self.study, self.agreement.data
        if path is None:
            if own.data.testing != "published":
                return None
            found = datasets.load(own.data.name or "").test
        else:
            # as a test set: numbers outside of their range stay as they are
            second = path if own.data.span is not None else None
            read = datasets.load(
                "test", file=path, test_file=second, test_fraction=None, how=self._how
            )
            found = self._numbered(read.train if second is None else read.test, path)
        encoded = encoded_shape(self.agreement, own)
        if found.shape != encoded or found.classes != shape.classes:
            raise StudyError(
                f"{path or own.data.name}: the test set has examples of shape {found.shape} and "
                f"{len(found.classes)} classes; agreed are {encoded} and {len(shape.classes)}"
            )
        return featured(found, own.data.features)

    @classmethod
    def demo(cls, study: HorizontalStudy) -> DemoFiles:
        cls.refuse(study)
        # sites read examples as they are, and apply the front end themselves; rules for columns are
        # applied here
        found = division.federation(division.examples(study))
        rules: dict[str, Any] = {"categories": {}, "ranges": {}, "missing": {}, "unknown": None}
        encoded = study.data.model_copy(update={} if study.data.encoding.plain else rules)
        return DemoFiles(
            shape=Shape(
                shape=found.test.shape,
                type="uint8" if found.test.x.dtype == np.uint8 else "float32",
                classes=found.test.classes,
                columns=found.test.columns,
            ),
            study=study.model_copy(update={"data": encoded}),
            names=tuple(found.names or [""] * len(found.parts)),
            examples=found.sizes,
            files=tuple(_arrays(part, study.data.person) for part in found.parts),
            prints=tuple(part.fingerprint() for part in (*found.parts, found.test)),
            test=_arrays(found.test) if len(found.test) else None,
        )

    def plan(self, index: int, limited: HorizontalStudy) -> Plan:
        trial = limited.with_privacy({"ledger": "run", "entropy": "seed"})
        have = divided(self.agreement, limited)
        with tempfile.TemporaryDirectory() as folder:
            built = self.regime.assembled(trial, have, Path(folder), "plan", None, mine=index)
            built.simulation.ledgers.close()
        return built.plan

    def disk(self) -> Disk:
        return self.regime.disk(self.study, self.widest())

    def standing(self, index: int, limited: HorizontalStudy, data: Dataset) -> Standing:
        sizes, privacy = self.agreement.sizes, limited.privacy
        asked = self.regime.schedule(limited, sizes)
        unit = unit_like(asked, self.regime.rates(limited, sizes), index)
        wanted, spent, refused = asked.wanted(unit), 0.0, ""
        if looked(limited):  # all that the budget pays for
            wanted = asked.affordable(unit) or wanted
        if data.words is None:
            pays = asked.affordable(unit)
            total = asked.epsilon(unit, wanted if pays is None else min(pays, wanted))
        else:
            own = [division.records(data, unit, *limited.recorded)]
            alone = asked.of(unit)
            with planned_ledgers(limited, own, alone) as ledgers:
                (left,) = balances(alone, ledgers, affordable(limited, alone, ledgers), wanted)
                try:
                    planned = self.regime.planned(limited) is not None
                    ledgers.refuse_choosing(PLAN, chosen=looked(limited) or not planned)
                except StudyError as refusal:
                    refused = str(refusal)
            spent, pays, total = left.spent, left.steps, left.total
        recognised, held = self.recognised(limited, data)
        tau = getattr(limited.method, "fixed_tau", None) or 1
        rounds = limited.horizon if pays is None else min(math.ceil(pays / tau), limited.horizon)
        return Standing(
            spent=spent,
            pays=pays,
            planned=wanted,
            charged=asked.charged if asked.charged != "gradients" else FAIR,
            rounds=rounds if asked.charged == "local steps" and privacy.unit == "sample" else None,
            total=total,
            noise=asked.multipliers[unit],
            refused=refused,
            known=recognised,
            held=held,
        )

    def recognised(self, limited: HorizontalStudy, data: Dataset) -> tuple[int, int]:
        if limited.privacy.ledger == "run" or data.words is None:
            return 0, 0
        path = data_ledger(Path(limited.privacy.ledger))
        if not path.exists():
            return 0, 0
        with Ledger.open(path, readonly=True) as ledger:
            return recognised(ledger, division.records(data, "", SAMPLE))

    def own(self, index: int) -> SiteScope:
        """An update has no noise yet."""
        if self.regime.summing(self.study) is not None:
            return SiteScope(index, "Every opened sum that this site has a part in")
        if self.study.privacy.unit != "client":
            return super().own(index)
        return SiteScope(index, "Everything that the aggregator publishes of this site's updates")

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
) -> division.Federation:
    """Return the data of a process of the federation: stand-ins, but for client ``own[0]``.

    All are as the study's model sees them.
    """
    seen, span = seen_shape(agreement, study), study.data.span
    parts = [stand_in(rows, seen, span) for rows in agreement.sizes]
    if own is not None:
        parts[own[0]] = own[1]
    prints = agreement.rehearsal[: len(parts)] or tuple(
        own[1].fingerprint() if own is not None and own[0] == i else f"site:{name}"
        for i, name in enumerate(agreement.names)
    )
    return division.Federation(
        tuple(parts),
        stand_in(0, seen, span) if test is None else test,
        None,
        agreement.names,
        prints,
        agreement.rehearsal,
        remote=True,
        by_person=study.clips_persons,
    )


def encoded_shape(agreement: Agreement, study: HorizontalStudy) -> tuple[int, ...]:
    """Return the shape of an agreed example once the study's rules for columns are applied.

    Raises:
        DataError: if a rule is about a column that nobody agreed to.
    """
    shape, rules = agreement.data.shape, study.data.encoding
    if rules.plain:
        return shape
    columns = agreement.data.columns or [*map(str, range(shape[0]))]
    rules.fits(columns, "data.columns of the agreement")
    return (sum(map(rules.width, columns)),)


def seen_shape(agreement: Agreement, study: HorizontalStudy) -> Shape:
    """Return the form of an agreed example as the study's model sees it."""
    shape = study.data.seen(encoded_shape(agreement, study))
    return agreement.data.model_copy(update={"shape": shape, "columns": ()})


def _arrays(part: Dataset, person: str | None = None) -> dict[str, Array]:
    """Return the arrays of a file with these examples; persons have other names there."""
    y = np.array(part.classes)[part.y] if part.span is None else in_units(part.y, part.span)
    found: dict[str, Array] = {"x": part.x, "y": y}
    if person is not None and part.people is not None:
        found[person] = part.people[:, 0].astype(str)
    return found
