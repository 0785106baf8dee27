"""A process that makes several runs, one after another: starting up costs more than a short run.

``python -c "from sordino_papers.worker import main; main()" BATCH``, where BATCH is a JSON
list of orders. Beside it, one file for each order says that it is done, or why it failed.
"""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from shutil import rmtree

import msgspec

from sordino.extend.runs import ResumeError, SordinoError, replace_file, there

ATTACK = "attack.json"
"""Findings of an attack, in the folder that stands for a run's."""


class Order(msgspec.Struct, frozen=True):
    """One run to make.

    Attributes:
        number: of the order, in the name of its answer.
        study: a file.
        folder: the run's, which may exist half done.
        images: how many an attack tries to recover; None for a run.
    """

    number: int
    study: str
    folder: str
    images: int | None = None


class Answer(msgspec.Struct, frozen=True):
    """End of an order: ``why`` it failed or None, and seconds of this process's core."""

    number: int
    why: str | None
    seconds: float


class Found(msgspec.Struct, frozen=True):
    """Quality of an attack's images: means, and its price; None where that is infinite."""

    correlation: float
    psnr: float | None
    once: float | None
    whole: float | None


def main() -> None:
    """Carry out the orders in the file that the last argument names."""
    batch = Path(sys.argv[-1])
    orders = msgspec.json.decode(batch.read_bytes(), type=list[Order])
    for order in orders:
        started, why = time.process_time(), None
        try:
            _carried_out(order)
        except SordinoError as error:
            why = str(error)
        except Exception as error:  # of one run: the others of this process go on
            why = f"{type(error).__name__}: {error}"
        answer = Answer(order.number, why, time.process_time() - started)
        replace_file(batch.parent / f"{order.number}.answer", msgspec.json.encode(answer))


def _carried_out(order: Order) -> None:
    from sordino.extend.runs import session
    from sordino.extend.runs import study as studies

    folder = Path(order.folder)
    if order.images is not None:
        _attacked(Path(order.study), folder, order.images)
    else:
        if there(folder, "run.json"):
            try:
                session.resume(folder, lambda row: None, lambda going: None)
                return
            except ResumeError:  # begun by another version, or elsewhere: nobody else has its bits
                rmtree(folder)
        study = studies.read(Path(order.study))
        session.begin(study, folder, lambda row: None, lambda going: None)


def _attacked(path: Path, folder: Path, images: int) -> None:
    """Attack one gradient at the initial weights, under the study's noise."""
    from sordino.extend.runs import HorizontalStudy, StudyError
    from sordino.extend.runs import study as studies
    from sordino_papers.inversion import scenes as inversion

    study = studies.read(path)
    if not isinstance(study, HorizontalStudy):
        raise StudyError(f"{path}: an attack on gradients needs a study whose clients send them")
    scenes = inversion.scenes(inversion.attacked(study, [inversion.NoiseLevel()]), images)
    attempts = [attempt for scene in scenes for attempt in scene.attempts]
    correlations = [value for attempt in attempts for value in attempt.correlations]
    ratios = [value for attempt in attempts for value in attempt.psnr]
    found = Found(
        sum(correlations) / len(correlations),
        _finite(sum(ratios) / len(ratios)),
        _finite(max(attempt.level.once for attempt in attempts)),
        _finite(max(attempt.level.whole for attempt in attempts)),
    )
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / ATTACK, msgspec.json.encode(found))


def _finite(value: float) -> float | None:
    """JSON has no infinity."""
    return value if math.isfinite(value) else None
