"""The work of one process on a catalogue: a run, or an attack on gradients."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from shutil import copytree, rmtree
from tempfile import TemporaryDirectory

import msgspec

from sordino.extend.runs import ResumeError, StudyError, replace_file, there

ATTACK = "attack.json"
"""Findings of an attack, in the folder that stands for a run's."""


class Found(msgspec.Struct, frozen=True):
    """Quality of an attack's images: means, and its price. JSON has null where one is infinite."""

    correlation: float
    psnr: float | None
    once: float | None
    whole: float | None


def make(path: str, place: str, images: int | None, broker: str = "") -> None:
    """Make one run, or go on with it; or attack gradients.

    Args:
        path: the file of its study.
        place: the run's folder, which may exist half done.
        images: how many an attack tries to recover; None for a run.
        broker: how a run goes through an MQTT broker, as a series says; empty for a simulation.
    """
    from sordino.extend.runs import session
    from sordino.extend.runs import study as studies

    folder = Path(place)
    if images is not None:
        _attacked(Path(path), folder, images)
        return
    if broker:
        _through_broker(path, folder, broker == "scripted")
        return
    if there(folder, "run.json"):
        try:
            session.resume(folder, lambda row: None, lambda going: None)
            return
        except ResumeError:  # begun by another version, or elsewhere: nobody else has its bits
            rmtree(folder)
    session.begin(studies.read(Path(path)), folder, lambda row: None, lambda going: None)


def _through_broker(path: str, folder: Path, scripted: bool) -> None:
    """Run a study as docs/edge.md says, and keep the server's run."""
    with TemporaryDirectory(prefix="sordino-") as scratch:
        command = ["-m", "sordino", "network", "demo", path, "--transport", "mqtt"]
        command += ["--out", f"{scratch}/federation", *(["--scripted"] if scripted else [])]
        done = subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise StudyError(f"sordino network demo: {done.stderr[-1000:]}")
        rmtree(folder, ignore_errors=True)
        copytree(f"{scratch}/federation/kits/server/run", folder)


def _attacked(path: Path, folder: Path, images: int) -> None:
    """Attack one gradient at the initial weights, under the study's noise."""
    from sordino.extend.runs import HorizontalStudy
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
        sum(ratios) / len(ratios),
        max(attempt.level.once for attempt in attempts),
        max(attempt.level.whole for attempt in attempts),
    )
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / ATTACK, msgspec.json.encode(found))
