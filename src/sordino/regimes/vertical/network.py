"""Studies of events on a network: sites have different columns of the same rows, and one more site
has the labels.

Rows are aligned: the k-th row of every file is about the same entity. Which event shows which row
follows from the study's seed, or is their order. The server and the sites at work:
:mod:`~sordino.regimes.vertical.federation`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from sordino.base import errors
from sordino.base.arrays import Array
from sordino.base.entropy import Seeded
from sordino.base.errors import DataError, StudyError
from sordino.core import network
from sordino.core.network import DemoFiles, NetworkRegime, Shape, Standing, stand_in
from sordino.core.plan import Disk, Plan
from sordino.core.prepared import Affordable, PreparedRun, open_ledgers
from sordino.core.run.environment import answering, protective
from sordino.data.dataset import Dataset, refuse_non_finite, single
from sordino.data.labels import encode
from sordino.data.stream.drift import NoDrift
from sordino.data.stream.opening import Rows
from sordino.data.table import columns_of, in_order, read_arrays
from sordino.privacy import LedgerSession
from sordino.privacy.rounding import epsilon_text
from sordino.regimes.vertical import regime as prices
from sordino.regimes.vertical.appearances import affordable
from sordino.regimes.vertical.federation import VerticalServer, VerticalSite
from sordino.regimes.vertical.messages import ServerModel
from sordino.regimes.vertical.models import Split, make_party, make_server, named
from sordino.regimes.vertical.stream import Arranged, parts, source, stream_of, whole
from sordino.regimes.vertical.study import VerticalStudy
from sordino.training.flat import Flat

HOLDER, DRAWN = "labels", "drawn"
"""Names of the site that has the labels, and of the data that was drawn, in a demo."""


class VerticalNetwork(NetworkRegime[VerticalStudy]):
    """A study in which every site is a party; the last one holds the labels."""

    others = "Each sees the derivatives that the server sends to it alone"
    data_ledger = False

    @classmethod
    def refuse(cls, study: VerticalStudy) -> None:
        """Refuse a study whose stream needs more than each site has."""
        data, kind, why = study.data, study.data.stream.kind, None
        if kind not in ("replay", "file"):
            why = f"data.stream = '{kind}' makes new examples of whole ones: use 'replay'"
        elif data.drift.kind != "none":
            why = f"data.drift = '{data.drift.kind}' changes whole examples: use 'none'"
        elif data.entity is not None:
            why = "data.entity: no site tells the others yet whose a row is. Leave it out"
        elif study.privacy.ledger != "run":
            why = "privacy.ledger: sites of events have a ledger of the run. Set it to 'run'"
        if why is not None:
            raise StudyError(f"{why}. Here each site has its own columns of the same rows")

    @cached_property
    def split(self) -> Split:
        """The network, cut for stand-ins of the agreed number, shape and classes."""
        rows = stand_in(min(self.agreement.sizes), self.agreement.data)
        return Split.of(self.study, stream_of(self.study, rows))

    def calibrated(self) -> VerticalStudy:
        """Fill in the study's noise for these sites; refuse a study that cannot run."""
        rows, parties = self.agreement.sizes, self.study.data.parties
        sites = len(rows)
        if not self.agreement.data.classes:
            raise StudyError("data.classes: name the classes in the agreement; they are public")
        if sites != parties + 1:
            raise StudyError(
                f"data.parties = {parties}, and the federation has {sites} sites: one "
                "for each party, and a last one that holds the labels"
            )
        if len(set(rows)) > 1:
            raise StudyError(f"sites have {min(rows)} to {max(rows)} rows, and must have the same")
        return prices.calibrate(network.with_secret_noise(self.agreement, self.study))

    def widest(self) -> int:
        """Return how many numbers the longest vector of a message has."""
        sizes = (flat.dim for flat in self.split.flats().values())
        return max(*self.split.numbers, *sizes)

    def server(
        self, folder: Path, run: str, steps: Affordable, test: Dataset | None
    ) -> PreparedRun:
        """Make the objects at the server, which has no data, with its ledger in ``folder``."""
        split, study, fingerprint = self.split, self.study, self._fingerprint("elsewhere")
        ledgers = self._ledgers(folder, run, prices.units(study), fingerprint, public=True)
        server = VerticalServer(
            split=split,
            run_id=run,
            engine=self._server_model,
            stream=Arranged(split.stream),
            entropy=partial(Seeded, study.seed),  # it estimates accuracy, and tells no labels
            affordable_steps=affordable(study, steps, ledgers),
            ledgers=ledgers,
        )
        mine = {"server": split.flats()["server"]}
        made, rows = server.prepared("messages"), min(self.agreement.sizes)
        planned = partial(server.appearances.planned, rows, ledgers.names)
        return replace(made, named=partial(named, mine), planned=planned)

    def site(
        self,
        index: int,
        data: Dataset,
        limited: VerticalStudy,
        folder: Path,
        run: str,
        steps: Affordable,
    ) -> PreparedRun:
        """Make the objects at site ``index``, whose data are its features (n, f), or the labels at
        the last site. What is released is as agreed; the site's own study only sets its limit.
        """
        split, study, party, flats = self.split, self.study, None, dict[str, Flat]()
        promised = study.privacy.unit != "none" and self.unbounded(index) is None
        if steps is None and promised and self.standing(index, limited, data).pays == 0:
            limit = epsilon_text(limited.privacy.epsilon)
            raise errors.BudgetExceeded(
                f"this site's own limit, epsilon = {limit}, does not pay for the first events, "
                "which are booked together: raise --epsilon-limit"
            )
        holder = index == study.data.parties
        own = prices.LABELS if holder else prices.party_unit(index)
        names = (prices.ENTITIES, own) if study.privacy.unit == "entity" else (own, prices.ENTITIES)
        fingerprint = self._fingerprint(data.fingerprint())
        ledgers = self._ledgers(folder, run, names, fingerprint, public=False)
        shape = split.shaping(fingerprint)
        if not holder:
            party = make_party(split, index, protective(study, run, shape, folder))
            flats = {f"party{index}": party.flat}
        work = VerticalSite(
            split=split,
            run_id=run,
            engine=self._server_model,
            stream=Arranged(stream_of(study, data)),
            entropy=partial(answering, study, run, shape, folder),
            affordable_steps=affordable(study, steps, ledgers),
            ledgers=ledgers,
            site=index,
            party=party,
            names=names,
            limit=limited.privacy.epsilon or math.inf,
        )
        planned = partial(work.appearances.planned, len(data), ledgers.names)
        made = work.prepared("messages")
        return replace(made, study=limited, named=partial(named, flats), planned=planned)

    def _server_model(self) -> ServerModel:
        """Return the server's half; it waits for a site to speak unasked, and for an answer to a
        query, for as many seconds as agreed.
        """
        rules = replace(self.split.rules, patience=self.agreement.patience)
        return ServerModel(rules, make_server(self.split))

    def _fingerprint(self, own: str) -> str:
        """Return the fingerprint of everybody's data in a rehearsal, else the ``own``."""
        return self.agreement.rehearsal[0] if self.agreement.rehearsal else own

    def _ledgers(
        self, folder: Path, run: str, names: Sequence[str], fingerprint: str, *, public: bool
    ) -> LedgerSession:
        """Return the ledger of one process, of what it releases of data with this fingerprint."""
        prints = {unit: f"{fingerprint}/{unit}" for unit in names}
        origins = [*self.split.shaping(fingerprint), *self.split.digests()]
        return open_ledgers(self.study, folder, run, prints, origins, public=public)

    def limited(self, index: int, ledger: Path | None, limit: float | None) -> VerticalStudy:
        """Return the agreed study with a site's own limit; ledgers are of the run only."""
        study = self.study
        network.refuse_limit(study, limit)
        if limit is not None and (why := self.unbounded(index)) is not None:
            raise StudyError(f"--epsilon-limit: no limit holds for what this site has: {why}")
        if ledger is not None:
            raise StudyError(
                "--ledger: sites of events have a ledger of the run only. Leave it out"
            )
        if limit is None or study.privacy.epsilon is None or limit >= study.privacy.epsilon:
            return study
        told = min(prices.label_epsilon(study), limit)  # is not used: releases are as agreed
        return study.with_privacy({"epsilon": limit, "label_epsilon": told})

    def read(self, path: Path, index: int, limited: VerticalStudy) -> Dataset:
        """Read a site's own file, as agreed: its columns, or the labels."""
        agreement, shape, held = self.agreement, self.agreement.data, self.split.held
        rows = agreement.site[index].examples
        y = np.zeros(rows, np.int64)
        if index == self.study.data.parties:
            labels = _column(path, self.study.data.label)
            x = np.zeros((len(labels), 1), np.float32)
            if len(labels) == rows:
                (given,), known = encode((labels,), str(path), "classes")  # 1.0, True are class 1
                y = network.numbered(Dataset(HOLDER, x, given, known), shape.classes, path)
        else:
            mine = [shape.columns[at] for at in held[index] if shape.columns]
            x = _features(path, shape.type, mine)
            if x.shape[1] != len(held[index]):
                raise DataError(
                    f"{path}: it has {x.shape[1]} columns; this party agreed to have "
                    f"{len(held[index])}"
                )
        if len(x) != rows:
            raise DataError(f"{path}: it has {len(x)} rows, and this site agreed to have {rows}")
        return Dataset(agreement.names[index], x, y, shape.classes)

    def test(self, path: Path | None) -> Dataset | None:
        """Refuse a test set: a stream has none."""
        if path is not None:
            raise StudyError(
                "--test: an example of a stream is predicted before it is learned from"
            )
        return None

    @classmethod
    def demo(cls, study: VerticalStudy) -> DemoFiles:
        """Divide the study's data into a file for each site. Examples that are made up, or change,
        are drawn here, from the study's seed: rows of a file, which sites then read in their order.
        Only who lays out a demo has whole examples that could be drawn from.
        """
        data, privacy = study.data, study.privacy
        drawn = data.stream.kind not in ("replay", "file") or data.drift.kind != "none"
        # rows that come again under a promise would count as other entities
        if drawn and (data.stream.invents or privacy.unit == "none") and data.entity is None:
            stream, fingerprint, _ = source(study, known=False)
            piece = stream.read(0, study.horizon * study.method.batch)
            x, y = piece.x, piece.y
            rows: dict[str, Any] = {
                "name": None,
                "file": Path(f"{DRAWN}.npz"),
                "classes": stream.classes,
            }
            rows |= {"stream": Rows(), "drift": NoDrift(), "scale": 1.0}
            study = study.model_copy(update={"data": data.model_copy(update=rows)})
            cls.refuse(study)
        else:
            cls.refuse(study)
            if data.scale != 1.0:
                raise StudyError(
                    "data.scale: let each site scale its own columns, and leave it out"
                )
            stream, fingerprint, _ = source(study, known=False)
            x, y = whole(study, stream)
        count = study.data.parties
        shape = Shape(
            shape=stream.shape,
            type="uint8" if x.dtype == np.uint8 else "float32",
            classes=stream.classes,
            columns=stream.columns or (),
        )
        features = ({"x": np.ascontiguousarray(x[:, part])} for part in parts(study, stream))
        return DemoFiles(
            shape=shape,
            names=(*["party"] * count, HOLDER),
            examples=(len(y),) * (count + 1),
            files=(*features, {"y": np.array(stream.classes)[y]}),
            prints=(fingerprint,),
            study=study,
        )

    def plan(self, index: int, limited: VerticalStudy) -> Plan:
        """Return what the study costs a site."""
        return prices.price(self.study)

    def standing(self, index: int, limited: VerticalStudy, data: Dataset) -> Standing:
        """Return what a new run's ledger leaves. Each row is an entity, and returns in every pass.
        Releases are as agreed; the site's own study only sets its limit.
        """
        privacy, batch, rows = self.study.privacy, self.study.method.batch, len(data)
        unit, asked = prices.promised(self.study), prices.schedule(self.study)
        budget = replace(asked.budgets[unit], epsilon=limited.privacy.epsilon or math.inf)
        asked = replace(asked, budgets={**asked.budgets, unit: budget})
        planned = min(-(-self.study.horizon * batch // rows), privacy.appearances)
        pays = asked.affordable(unit)
        first = min(-(-min(prices.BLOCK, self.study.horizon) * batch // rows), planned)
        if pays is not None and pays < first:  # a block of events is booked as a whole
            pays = 0
        most = planned if pays is None else min(pays, planned)
        return Standing(
            spent=0.0,
            pays=pays,
            planned=planned,
            charged="appearances of each row",
            rounds=min(most * rows // batch, self.study.horizon),
            total=asked.epsilon(unit, most),
            noise=self.plan(index, limited).noise_multiplier,
            turns="event",
        )

    def disk(self) -> Disk | None:
        held = [len(each) for each in self.split.held]
        return prices.disk(self.study, held, len(self.agreement.data.classes))

    def released(self, index: int) -> str:
        """Return what leaves a site each time that it is asked, for people."""
        privacy = self.study.privacy
        if index == self.study.data.parties:
            private = privacy.unit != "none"
            return f"the label of an event, {'by randomised response' if private else 'as it is'}"
        noise = "with noise on it" if privacy.embedding is not None else "WITHOUT any noise"
        return f"an embedding of its columns of an event, {noise}, and whether it is active"

    def unbounded(self, index: int) -> str | None:
        """Return why what a site releases has no finite price, where the study protects labels."""
        if self.study.privacy.unit != "label" or index == self.study.data.parties:
            return None
        return prices.unprotected(self.study) or "this study promises nothing about features"


def _features(path: Path, kind: str, wanted: Sequence[str]) -> Array:
    """All columns of a party's file, (n, f): those that are wanted, where columns have names."""
    columns: list[str] = []
    if path.suffix.lower() == ".npz":
        arrays, names = read_arrays(path, ("x",))
        if "x" not in arrays:
            raise DataError(f"{path}: no array 'x'; found {', '.join(names)}")
        x = arrays["x"]
    else:
        found = columns_of(path)
        columns = in_order(list(found), wanted, str(path), "the agreed ones")
        x = np.stack([found[name] for name in columns], axis=1)
    if x.ndim != 2 or x.dtype.kind not in "uif":
        raise DataError(f"{path}: features must be numbers, a row for each event")
    if kind == "uint8":
        if x.dtype != np.uint8:
            raise DataError(f"{path}: agreed are pixels (uint8), found {x.dtype}")
        return x
    found_x = single(x)
    refuse_non_finite(found_x, str(path), columns)
    return found_x


def _column(path: Path, label: str) -> Array:
    """The labels in a file, (n,)."""
    if path.suffix.lower() == ".npz":
        arrays, found = read_arrays(path, ("y",))
        wanted = "y"
    else:
        arrays = columns_of(path)
        found, wanted = list(arrays), label
    if wanted not in arrays:
        raise DataError(f"{path}: no {wanted!r} for the labels; found {', '.join(found)}")
    return arrays[wanted]
