"""The division of a study's data among clients, as far as it is public."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sordino.base.errors import StudyError
from sordino.clients.division import examples, federation
from sordino.clients.report import division as figure_of
from sordino.clients.study import HorizontalStudy
from sordino.core import study as studies
from sordino.core.files import replace_file
from sordino.report.drawing import draw


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """Examples of each client.

    Attributes:
        names: of the clients.
        classes: names of the labels.
        counts: examples of each label (columns) at each client (rows); None where labels are
            private, or numbers.
        sizes: examples of each client, where labels are not counted; None where whole clients are
            protected and sizes are private, too.
        why: why labels are not counted.
    """

    names: Sequence[str]
    classes: Sequence[str]
    counts: Sequence[Sequence[int]] | None
    sizes: Sequence[int] | None
    why: str

    def draw(self, path: Path) -> None:
        """Write the figure of the division (SVG).

        Raises:
            StudyError: if the counts are private.
        """
        if self.counts is None:
            raise StudyError(
                "--out draws how many examples of each label a client has, which is private data. "
                "Leave --out out, or, if the data is public, set privacy.unit = 'none' with a "
                "method that adds no noise"
            )
        replace_file(path, draw(figure_of(self.counts, self.classes)).encode())

    def record(self) -> dict[str, object]:
        """Return the division for machines."""
        if self.counts is not None:
            return {"classes": self.classes, "counts": self.counts}
        sizes = None if self.sizes is None else list(self.sizes)
        return {"clients": list(self.names), "sizes": sizes}


def division(path: Path, changes: Sequence[str]) -> Division:
    """Return how a study in a file divides its data.

    Raises:
        StudyError: if its parties have no examples of their own.
    """
    study = studies.read(path, changes)
    if not isinstance(study, HorizontalStudy):
        raise StudyError(
            f"{path}: its parties hold different features of the same entities, and no "
            "examples of their own; see data.parts"
        )
    divided = federation(examples(study))
    private = not study.data.published and study.privacy.unit != "none"
    counted = not private and divided.test.span is None  # numbers are counted nowhere
    hidden = counted or (private and study.hides_sizes)
    return Division(
        names=divided.names or tuple(f"client {i}" for i in range(len(divided.parts))),
        classes=divided.test.classes,
        counts=divided.counts.tolist() if counted else None,
        sizes=None if hidden else divided.sizes,
        why="labels are private and not counted" if private else "labels are numbers",
    )
