"""A site's run: the objects of a study with its own data in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sordino.core.prepared import PreparedRun
from sordino.core.study.base import Study
from sordino.core.world import Summing
from sordino.data.dataset import Dataset
from sordino.network import certificates
from sordino.network.agreement import Agreed
from sordino.network.moment import SiteMoment
from sordino.network.partner import Partner
from sordino.network.site import Site
from sordino.network.transport import Line

REMEDY = (
    "The study is agreed, and this site may not spend more: allow more with --epsilon-limit, if "
    "that is what bounds it, or do not join"
)
"""What a site can do that cannot pay for a single task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Joins:
    """Makes the objects of a study at a site; see :class:`sordino.core.run.session.Builds`.

    Attributes:
        own: the site's examples.
    """

    agreed: Agreed
    index: int
    own: Dataset
    connects: Callable[[int], Line]
    told: Callable[[str], None]

    def __call__(
        self, study: Study, folder: Path, run: str, payable: Sequence[int] | None = None, /
    ) -> PreparedRun:
        """The objects of a calibrated study, with this site's ledger."""
        part = self.agreed.network
        if not (folder / "run.json").exists():  # seeds of masks and single updates will be here
            folder.chmod(0o700)
        found = part.site(
            self.agreed.agreement,
            self.agreed.study,
            self.index,
            self.own,
            study,
            folder,
            run,
            payable,
        )
        world = found.world
        site = Site(
            agreed=self.agreed,
            index=self.index,
            inner=world,
            budget=found.budget,
            folder=folder,
            every=study.stride,
            connects=self.connects,
            told=self.told,
            partner=self._partner(world.summing, found.built.first.model.size),
        )
        first = SiteMoment(0, 0, world.model_of(self.index, found.built.first.model))
        own = part.own(study, self.index)
        return replace(
            found.built, simulation=site, first=first, own=own, remedy=REMEDY, agreed=True
        )

    def _partner(self, summing: Summing | None, dimension: int) -> Partner | None:
        if summing is None:
            return None
        pair = certificates.read_pair(self.agreed.folder, "site")
        return Partner(
            agreed=self.agreed, index=self.index, summing=summing, dimension=dimension, pair=pair
        )
