"""MLflow: its file store.

See it with ``MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri RUN/tracking/mlflow``.
MLflow no longer develops this kind of store and asks for that variable; it is the one that needs no
data base and can be moved with the run folder.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from sordino.core.records import Round, known
from sordino.core.run.session import Going, Outcome
from sordino.live.track.base import constants, register, results, scalars, settle, step

EXPERIMENT = "sordino"
HELD = "round"
"""The metric that every row has: the last round of the store."""


@register("mlflow", "mlflow")
class MLflow:
    """Writes runs of MLflow into a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._client: Any = None
        self._run = ""

    def begin(self, going: Going) -> int:
        # Nothing of a run leaves this machine, usage reports of the package included.
        settle(MLFLOW_ALLOW_FILE_STORE="true", MLFLOW_DISABLE_TELEMETRY="true", DO_NOT_TRACK="true")
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient(tracking_uri=self._folder.resolve().as_uri())
        found = self._client.get_experiment_by_name(EXPERIMENT)
        place = self._client.create_experiment(EXPERIMENT) if found is None else found.experiment_id
        before = self._client.search_runs([place], max_results=1)
        if before:
            self._run = before[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
            held = self._client.get_metric_history(self._run, HELD)
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
        told = {**scalars(row), HELD: float(at)}
        self._client.log_batch(
            self._run, metrics=[Metric(key, value, now, at) for key, value in told.items()]
        )

    def end(self, outcome: Outcome | None) -> None:
        if outcome is not None and self._client.get_run(self._run).data.tags.get("why") is None:
            for key, value in results(outcome).items():
                self._client.log_metric(self._run, f"result.{key}", value, step=outcome.rounds)
            self._client.set_tag(self._run, "why", outcome.why)
        self._client.set_terminated(self._run, "KILLED" if outcome is None else "FINISHED")
