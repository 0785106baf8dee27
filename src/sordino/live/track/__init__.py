"""Trackers that people already use: TensorBoard, MLflow, Weights & Biases, or one's own.

Each has a local store in the run folder, below ``tracking``. They get what the log has and nothing
raw. A tracker that fails is dropped with a warning and never stops the run.

>>> known_names()
('mlflow', 'tensorboard', 'wandb')
"""

from __future__ import annotations

from sordino.base.registry import register_all
from sordino.live.track.base import STORE, Tracker, Tracking, known_names, maker, register

register_all(__name__, __path__)

__all__ = ["STORE", "Tracker", "Tracking", "known_names", "maker", "register"]
