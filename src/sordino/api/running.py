"""Runs from Python, and their folders."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sordino.api import shown
from sordino.api.study import Study
from sordino.base.errors import StudyError
from sordino.core import study as studies
from sordino.core.records import Row, known, plain
from sordino.core.run.reading import Run as Folder
from sordino.core.run.reading import load
from sordino.privacy.rounding import epsilon_text

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import polars
    import torch

    from sordino.api.given import Data
    from sordino.api.ledgers import Ledger
    from sordino.core.run.session import Outcome
    from sordino.core.run.verify import Verdict
    from sordino.live.track import Maker
    from sordino.report.page import Picture


class Run(shown.Tabular):
    """A run, as its folder tells it: what was promised, what was released, what was learned.

    A notebook shows its key numbers and figures. Everything is read from the folder, so a run of
    yesterday is the same as one of now: ``so.Run.open("runs/NAME-001")``.

    Attributes:
        folder: where it lies.
        name, method: of the study.
        unit: who is protected.
        done: whether the run has ended; :func:`resume` goes on with one that has not.
        ended: the reason of its end, in words.
        accuracy: of the final model on the test set, in [0, 1]; None where nothing was measured, or
            labels are numbers: ``metrics`` has their errors.
        metrics: of the final model on public test rows, by class and by client; None if it was
            measured on none.
        epsilon: the guaranteed one, a proven upper bound; infinite without privacy. Of a run that
            has not ended, as of the last row of its log: its ``ledger`` may have booked more since.
        spent: the ledger's epsilon, of the client that spent most.
        delta: of both.
        rounds: the rows of the log, typed.
        warnings: to read with the numbers.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder, about = folder, folder.about
        self.folder, self.name = folder.folder, folder.name
        self.method, self.unit = known(about.method) or "", about.protected
        self.done, self.ended = folder.done, folder.ended
        self.accuracy, self.metrics = folder.accuracy, folder.metrics
        self.epsilon, self.spent, self.delta = folder.guaranteed, folder.spent, known(about.delta)
        self.rounds, self.warnings = folder.rounds, tuple(known(about.warnings) or ())

    @classmethod
    def open(cls, folder: Path | str) -> Run:
        """The run in a folder, at any moment of its life.

        Raises:
            StudyError: if it is no run folder.
        """
        return cls(load(Path(folder)))

    @property
    def study(self) -> Study:
        """The study that it ran, calibrated."""
        return Study._of(studies.read_run(self.folder), None)

    @property
    def report(self) -> Path:
        """The page of the run, made where it is missing."""
        from sordino import report

        page = self.folder / report.page.PAGE
        return page if page.exists() else report.write(self.folder)

    @property
    def ledger(self) -> Ledger:
        """The ledger of its releases."""
        from sordino.api.ledgers import Ledger

        return Ledger.open(self.folder)

    def verify(self) -> Verdict:
        """Hold the folder against its ledger, link by link: study, log, model, result and epsilon.

        ``verdict.problems`` is empty if all is well.
        """
        from sordino.core.run import verify

        return verify.verify(self.folder)

    def weights(self) -> dict[str, npt.NDArray[np.float32]]:
        """The parameters of the model that is handed out, by name.

        Raises:
            StudyError: if the run has not ended.
        """
        from safetensors.numpy import load_file

        path = self.folder / "model.safetensors"
        if not path.exists():
            raise StudyError(f"{self.folder}: has no model yet; go on with so.resume(folder)")
        return dict(load_file(path))

    def model(self, example: npt.ArrayLike, classes: int) -> torch.nn.Module:
        """The model that is handed out, ready to predict.

        Args:
            example: one example as the model sees it, for its shape: (features,) or (channels,
                height, width), after the front end where the study has one.
            classes: how many classes there are, or scores of an example.

        Raises:
            StudyError: of a regime whose model lies at several parties, or if the shape does not
                fit.
        """
        import numpy as np
        import torch

        from sordino.base.entropy import Seeded
        from sordino.clients.study import HorizontalStudy
        from sordino.training import models

        study = self.study.checked
        if not isinstance(study, HorizontalStudy):
            raise StudyError("the parts of this model lie at several parties; take .weights()")
        shape = np.asarray(example).shape
        # what is not trained (frozen parameters, buffers) is not in the file: it is as it was made
        module = models.build(study.model.name, shape, classes, Seeded(study.seed).at("model"))
        held = {name: torch.from_numpy(each) for name, each in self.weights().items()}
        trained = {name for name, each in module.named_parameters() if each.requires_grad}
        try:
            module.load_state_dict(held, strict=trained != held.keys())
        except RuntimeError as error:
            raise StudyError(f"the model of {self.folder} does not fit: {error}") from None
        return module.eval()

    def to_polars(self) -> polars.DataFrame:
        """The rounds, a row each."""
        rows = map(plain, self.rounds)
        return shown.frame([{k: each[k] for k in each if k != "kind"} for each in rows])

    def figures(self) -> list[Picture]:
        """The figures of its report: title, SVG and how to read it."""
        from sordino.report.page import pictures

        return pictures(self._folder)

    def __repr__(self) -> str:
        from sordino.report import words

        held = self._folder
        return (
            f"<Run {self.folder}: {self.method}, {held.vocabulary.accuracy.told} "
            f"{words.measured(held, held.measured)}, epsilon "
            f"{epsilon_text(self.epsilon)}{'' if self.done else ', not finished'}>"
        )

    def _repr_html_(self) -> str:
        from sordino.report import words

        drawn = [
            shown.picture(each.title, str(each.svg), each.caption) for each in self.figures()[:2]
        ]
        where = f"Folder: {self.folder}. The whole report: {self.folder / 'report.html'}"
        return shown.page(
            self.name,
            shown.sentences([words.promise(self._folder).sentence]),
            shown.table(("", "", ""), words.key_numbers(self._folder)),
            *drawn,
            shown.sentences([where]),
        )


def run(
    study: Study | Path | str,
    data: Data | None = None,
    *,
    out: Path | str | None = None,
    on_row: Callable[[Row], None] | None = None,
    progress: bool | None = None,
    track: Sequence[str | Maker] = (),
    workers: int = 1,
) -> Run:
    """Train the model of a study, and write a run folder with its ledger and a report.

    >>> import sordino as so
    >>> study = so.Study(
    ...     data="digits",
    ...     model="logistic",
    ...     method=so.DpSgd(learning_rate=0.5, tau=1),
    ...     privacy=so.Privacy(unit="sample", epsilon=2.0, delta=1e-3, sampling_rate=0.1),
    ...     budget=so.Budget(rounds=2),
    ... )
    >>> run = so.run(study, out="first", progress=False)
    >>> run.unit, round(run.epsilon, 2), len(run.rounds)
    ('sample', 2.0, 2)

    Args:
        study: the study, or its file.
        data: data in memory to run it on, in place of the study's own; see :meth:`Study.on`.
        out: the folder to make; ``runs/NAME-001`` and so on unless given.
        on_row: is called with each row of the log.
        progress: whether it is shown on standard error; unless given, where a person is likely to
            look: on a terminal, and in a notebook.
        track: "tensorboard", "mlflow" or "wandb", or a class of one's own: a
            :class:`sordino.live.track.Tracker` that is made with the folder of its store.
        workers: processes that train; any number gives the same bytes.

    Raises:
        StudyError: if the study cannot be run; nothing was written or spent then.
        BudgetExceeded: if the budget does not pay for it.
    """
    from sordino.core.run import session
    from sordino.core.study.base import refuse_repeated

    asked = study if isinstance(study, Study) else Study.read(study)
    if data is not None:
        asked = asked.on(data)
    refuse_repeated(asked.checked.tuned)
    begin = partial(session.begin, asked.checked, None if out is None else Path(out))
    return _played(begin, on_row, progress, track, workers)


def resume(
    folder: Path | str,
    *,
    modules: Path | str | None = None,
    on_row: Callable[[Row], None] | None = None,
    progress: bool | None = None,
    track: Sequence[str | Maker] = (),
    workers: int = 1,
) -> Run:
    """Go on with a run that was stopped: the same result, bit for bit, on the same machine.

    A run that has ended stays as it is:

    >>> import sordino as so
    >>> study = so.Study(
    ...     data="digits",
    ...     model="logistic",
    ...     method=so.DpSgd(learning_rate=0.5, tau=1),
    ...     privacy=so.Privacy(unit="sample", epsilon=2.0, delta=1e-3, sampling_rate=0.1),
    ...     budget=so.Budget(rounds=2),
    ... )
    >>> run = so.run(study, out="first", progress=False)
    >>> so.resume("first", progress=False).accuracy == run.accuracy
    True

    Args:
        modules: where modules lie that the study names, if they are not installed.
        track: as for :func:`run`; the same stores go on.
        workers: as for :func:`run`; the number may be another.

    Raises:
        StudyError, ResumeError: if it cannot go on.
    """
    from sordino.core.run import session

    beside = None if modules is None else Path(modules)
    go_on = partial(session.resume, Path(folder), modules=beside)
    return _played(go_on, on_row, progress, track, workers)


def _played(
    play: Callable[..., Outcome],
    on_row: Callable[[Row], None] | None,
    progress: bool | None,
    track: Sequence[str | Maker],
    workers: int,
) -> Run:
    """Have ``play`` begin a run, or go on with it, where all that look on see it."""
    from sordino.clients.workers import workers as started
    from sordino.core.regimes import build
    from sordino.live.observers import observed
    from sordino.report import write

    with (
        started(workers) as group,
        observed(
            quiet=not (looked_at() if progress is None else progress),
            tell=lambda text: print(text, file=sys.stderr),  # noqa: T201
            warn=_warn,
            notice=_warn,
            track=track,
            on_row=on_row,
        ) as seen,
    ):
        outcome = play(
            seen.row,
            seen.begin,
            build=build if group is None else group.build,
            again="call so.resume with this folder",
        )
        seen.end(outcome)
    write(Path(outcome.run))
    return Run.open(outcome.run)


def looked_at() -> bool:
    """Return whether output is likely to be seen: on a terminal, or in a notebook."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules


def _warn(text: str) -> None:
    """As Python warns: a notebook shows it, and nothing of it is written to the run folder."""
    warnings.warn(text, stacklevel=2)
