"""Trackers that people already use: TensorBoard, MLflow, Weights & Biases, or one's own.

Each has a local store in the run folder, below ``tracking``. A tracker gets what the log has and
nothing else: numbers of rounds, and of ``run.json`` what was promised. What a simulation knows of
its clients (examples, labels) stands in ``run.json`` as well and is not handed on. A tracker that
fails is dropped with a warning and never stops the run.

>>> list(KNOWN)
['mlflow', 'tensorboard', 'wandb']
>>> scalars(Round(round=2, accuracy=0.5, epsilon=math.inf, extra={"tau": 2, "active": [1.0]}))
{'accuracy': 0.5, 'tau': 2.0}
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, cast

from sordino.base import modules
from sordino.base.errors import StudyError, did_you_mean
from sordino.base.files import KIB, folder_below, read_below
from sordino.core.files import replace_file
from sordino.core.records import About, Round, Row, known, number, plain
from sordino.core.run import folder as log
from sordino.core.run.session import Going, Outcome

STORE = "tracking"
"""The folder in a run folder that holds the stores."""
CONSTANTS = (
    "run",
    "name",
    "method",
    "form",
    "regime",
    "unit",
    "adjacency",
    "epsilon_budget",
    "delta",
    "accountant",
    "noise_multiplier",
    "learning_rate",
    "batch",
    "clip",
    "sampling_rate",
    "R_c",
    "R_s",
)
"""Keys of ``run.json`` that a tracker gets: constants of the study, no measurements of data."""


class Tracker(Protocol):
    """Is told how a run goes on, and stores it."""

    def begin(self, going: Going) -> int:
        """Open the store of this run.

        Returns:
            the last round that it holds already: 0 of a new one. No row up to it is told again.
        """

    def row(self, row: Round) -> None:
        """One row of the log, of a round that the store does not hold yet."""

    def end(self, outcome: Outcome | None) -> None:
        """Close the store; ``outcome`` is None where the run was interrupted or has failed."""


Maker = Callable[[Path], Tracker]
"""Makes the tracker whose store is a folder, which need not be there yet."""


def step(row: Round) -> int:
    """The number of a row's round, update or event."""
    return known(row.round) or 0


def scalars(row: Round) -> dict[str, float]:
    """The finite numbers of a row by key; an infinite epsilon is no number to draw."""
    return _finite({key: number(value) for key, value in plain(row).items() if key != "round"})


def constants(about: About) -> dict[str, str | float]:
    """Return the study's values of the keys in :data:`CONSTANTS`."""
    found = plain(about)
    return {
        key: value
        for key in CONSTANTS
        if isinstance(value := found.get(key), str | int | float) and not isinstance(value, bool)
    }


def results(outcome: Outcome) -> dict[str, float]:
    """The finite numbers of how a run ended: of the model that is handed out."""
    return _finite(
        {
            "final_accuracy": outcome.accuracy,
            "final_epsilon": outcome.epsilon,
            "rounds": float(outcome.rounds),
            "steps": float(outcome.steps),
        }
    )


def _finite(found: Mapping[str, float | None]) -> dict[str, float]:
    return {
        key: value for key, value in found.items() if value is not None and math.isfinite(value)
    }


class MLflow:
    """Writes runs of MLflow into a folder.

    See them with
    ``MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri RUN/tracking/mlflow``. MLflow no
    longer develops this kind of store and asks for that variable; it is the one that needs no data
    base and can be moved with the run folder.
    """

    NAME, LAST = "sordino", "round"  # and the metric that holds the last round of the store

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._client: Any = None
        self._run = ""

    def begin(self, going: Going) -> int:
        # Nothing of a run leaves this machine, usage reports of the package included.
        for name in ("MLFLOW_ALLOW_FILE_STORE", "MLFLOW_DISABLE_TELEMETRY", "DO_NOT_TRACK"):
            os.environ.setdefault(name, "true")
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient(tracking_uri=self._folder.resolve().as_uri())
        found = self._client.get_experiment_by_name(self.NAME)
        place = self._client.create_experiment(self.NAME) if found is None else found.experiment_id
        before = self._client.search_runs([place], max_results=1)
        if before:
            self._run = before[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
            held = self._client.get_metric_history(self._run, self.LAST)
            return max((each.step for each in held), default=0)
        self._run = self._client.create_run(
            place, run_name=known(going.about.name) or going.folder.name
        ).info.run_id
        for key, value in constants(going.about).items():
            self._client.log_param(self._run, key, value)
        return 0

    def row(self, row: Round) -> None:
        from mlflow.entities import Metric

        now, at = int(1000 * time.time()), step(row)
        told = {**scalars(row), self.LAST: float(at)}
        self._client.log_batch(
            self._run, metrics=[Metric(key, value, now, at) for key, value in told.items()]
        )

    def end(self, outcome: Outcome | None) -> None:
        if outcome is not None and self._client.get_run(self._run).data.tags.get("why") is None:
            for key, value in results(outcome).items():
                self._client.log_metric(self._run, f"result.{key}", value, step=outcome.rounds)
            self._client.set_tag(self._run, "why", outcome.why)
        self._client.set_terminated(self._run, "KILLED" if outcome is None else "FINISHED")


class TensorBoard:
    """Writes event files into a folder.

    See them with ``tensorboard --logdir RUN/tracking/tensorboard``.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Any = None

    def begin(self, going: Going) -> int:
        from torch.utils.tensorboard.writer import SummaryWriter

        before = any(self._folder.glob("events.out.*"))
        self._writer = SummaryWriter(
            str(self._folder), purge_step=going.rounds_done + 1 if before else None
        )
        if not before:
            told = "\n".join(
                f"| {key} | {value} |" for key, value in constants(going.about).items()
            )
            self._writer.add_text("study", f"| key | value |\n| --- | --- |\n{told}")
        return going.rounds_done if before else 0

    def row(self, row: Round) -> None:
        for key, value in scalars(row).items():
            self._writer.add_scalar(key, value, step(row))

    def end(self, outcome: Outcome | None) -> None:
        if outcome is not None:
            for key, value in results(outcome).items():
                self._writer.add_scalar(f"result/{key}", value, outcome.rounds)
            self._writer.add_text("ended", outcome.why, outcome.rounds)
        self._writer.close()


class WandB:
    """Writes offline runs of Weights & Biases into a folder.

    Nothing is sent, unless somebody calls ``wandb sync`` later. A run that goes on is a further
    folder of the same identifier; ``wandb sync --append`` joins them.
    """

    PROJECT, LAST = "sordino", "last-round.txt"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._run: Any = None

    def begin(self, going: Going) -> int:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        self._run = wandb.init(
            mode="offline",
            dir=str(self._folder),
            id=known(going.about.run) or going.folder.name,
            resume="allow",
            project=self.PROJECT,
            name=known(going.about.name) or going.folder.name,
            config=constants(going.about),
            settings=wandb.Settings(
                silent=True,
                console="off",
                disable_git=True,
                save_code=False,
                x_disable_meta=True,  # names of this machine and its user
                x_disable_stats=True,
            ),
        )
        try:
            return int(read_below(self._folder, self.LAST, most=KIB))
        except (FileNotFoundError, ValueError):
            return 0

    def row(self, row: Round) -> None:
        # Noted first: a kill between the two loses a row, and repeats none.
        replace_file(self._folder / self.LAST, str(step(row)).encode())
        self._run.log(scalars(row), step=step(row))

    def end(self, outcome: Outcome | None) -> None:
        if outcome is not None:
            self._run.summary.update({**results(outcome), "why": outcome.why})
        self._run.finish(exit_code=1 if outcome is None else 0)


KNOWN: Mapping[str, Maker] = {"mlflow": MLflow, "tensorboard": TensorBoard, "wandb": WandB}
"""Trackers of this program, each called as the package that it needs."""


def maker(name: str) -> Maker:
    """Return the maker of the tracker of this name, or at ``package.module:Class``.

    Raises:
        StudyError: if there is none, or the package that it needs is not installed.
    """
    if ":" in name:
        try:
            found: Any = modules.attribute(name)
        except Exception as error:  # a user's module may raise anything
            raise StudyError(f"--track {name}: {modules.told_of(error)}") from error
        return cast(Maker, found)
    if name not in KNOWN:
        hint = did_you_mean(name, KNOWN) or "."
        raise StudyError(
            f"--track {name}: this tracker is not known{hint} Known: {', '.join(KNOWN)}, "
            "or your own as package.module:Class"
        )
    if find_spec(name) is None:
        raise StudyError(
            f"--track {name}: the package {name} is not installed. Install it with: "
            "pip install 'sordino[track]'"
        )
    return KNOWN[name]


Say = Callable[[str], None]


class Tracking:
    """Hands a run on to trackers; ``begin`` and ``row`` fit :func:`sordino.core.run.session.begin`.

    ``end(None)`` closes what was not ended as interrupted.

    Args:
        names: of known trackers, or ``package.module:Class``, or the class itself.
        warn: is told once of a tracker that has failed; it gets no more rows then.

    Raises:
        StudyError: if a name is not known, a package is missing, or two have one name.
    """

    def __init__(self, names: Sequence[str | Maker] = (), warn: Say = lambda _: None) -> None:
        self._makers: dict[str, Maker] = {}
        for each in dict.fromkeys(names):
            if isinstance(each, str):
                name, made = each, maker(each)
            else:
                name, made = getattr(each, "__name__", type(each).__name__).strip("<>"), each
            if name in self._makers:
                raise StudyError(f"track: two trackers are called {name!r}, and so is their store")
            self._makers[name] = made
        self._warn = warn
        self._open: dict[str, tuple[Tracker, int]] = {}

    def begin(self, going: Going) -> None:
        """Open the stores, and tell each what the log of a resumed run has and it has not."""
        for name, made in self._makers.items():
            with self._guarded(name):
                # a folder of somebody else's, with a link in it, sends no store elsewhere
                tracker = made(folder_below(going.folder, STORE, name.replace(":", ".")))
                self._open[name] = tracker, int(tracker.begin(going))
        if self._open and going.rounds_done:  # later ones will be repeated
            for row in log.rows(going.folder, going.about.regime):
                if isinstance(row, Round) and step(row) <= going.rounds_done:
                    self.row(row)

    def row(self, row: Row) -> None:
        """One row of the log; trackers get those of rounds that they do not hold."""
        if not isinstance(row, Round):
            return
        for name, (tracker, last) in list(self._open.items()):
            if step(row) > last:
                with self._guarded(name):
                    tracker.row(row)
                    self._open[name] = tracker, step(row)

    def end(self, outcome: Outcome | None) -> None:
        """Close the stores."""
        for name, (tracker, _) in list(self._open.items()):
            with self._guarded(name):
                tracker.end(outcome)
        self._open.clear()

    @contextmanager
    def _guarded(self, name: str) -> Iterator[None]:
        """Drop a tracker that fails, with a warning."""
        try:
            yield
        except (Exception, SystemExit) as error:  # a package of others may raise anything
            self._open.pop(name, None)
            self._warn(
                f"--track {name} has failed and is left out from here on; the run goes on "
                f"({type(error).__name__}: {error})"
            )
