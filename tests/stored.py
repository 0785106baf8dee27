"""Run folders and ``--json`` output that this program wrote once, kept as tests of its formats.

``python tests/stored.py`` writes them anew under ``golden/folders``: for a format that is added. A
change of a format that older folders have needs a reader of both instead.

Folders lie in one archive a case: ``ended`` is a run that ended, ``killed`` the same one stopped
behind a checkpoint. Each has a folder ``kept`` where the ledger belongs to the data.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import torch

from cases import ARRIVAL, EVENTS, NOISY, SAMPLE, Case, study_of
from command import paint, sordino
from sordino.base import NUMERICS, processes
from sordino.base.errors import SordinoError
from sordino.core import study as studies
from sordino.core.records import Environment
from sordino.core.run import environment, session
from sordino.core.run.verify import verify

FOLDERS = Path(__file__).parent / "golden" / "folders"
OFTEN = "execution.checkpoint_every=1"
KEPT = 'privacy.ledger="~/kept"'
LONG = [OFTEN, "budget.events=1100", "execution.evaluate_every=100"]
CASES: Mapping[str, Case] = {
    "dp-sgd": (
        "synchronous",
        "dp-sgd",
        [*SAMPLE, OFTEN, "budget.rounds=4", "budget.steps=8", 'privacy.entropy="system"'],
    ),
    "ali-dpfl": ("synchronous", "ali-dpfl", [*SAMPLE, OFTEN, "budget.rounds=4", KEPT]),
    "dp-fedavg": (
        "synchronous",
        "dp-fedavg",
        [*SAMPLE, OFTEN, "budget.rounds=4", "privacy.unit=client", "privacy.sampling_rate=0.5"],
    ),
    "audp": ("asynchronous", "audp", [*ARRIVAL, OFTEN, "execution.evaluate_every=3"]),
    "mapa": (
        "asynchronous",
        "mapa",
        [
            *ARRIVAL,
            OFTEN,
            "execution.evaluate_every=3",
            "world.dropout=0.2",
            "participation.buffer=2",
            'world.latency={kind="pareto", shape=1.5}',
        ],
    ),
    "dlr, labels": ("vertical", "dlr", [*EVENTS, *LONG, "privacy.unit=label", "model.name=linear"]),
    "slr, entities": (
        "vertical",
        "slr",
        [
            *EVENTS,
            *LONG,
            "model.name=linear",
            "privacy.unit=entity",
            "privacy.epsilon=100",
            NOISY,
            "privacy.updates=frozen",
        ],
    ),
}
REFUSED = ("dp-sgd", "slr, entities")
"""Cases whose files are changed, one at a time."""
TAMPERED = (
    "study.toml",
    "environment.json",
    "rounds.jsonl",
    "metrics.json",
    "model.safetensors",
    "run.json",
    "checkpoints/latest.safetensors",
    "ledger.sqlite",
    "entropy.key",
)
TOLD = (
    ("ledger", "show", "run", "--last", "3", "--json"),
    ("ledger", "epsilon", "run", "--json"),
    ("ledger", "epsilon", "run", "--delta", "1e-3", "--accountant", "rdp", "--json"),
    ("ledger", "verify", "run", "--json"),
    ("report", "run", "--json"),
)
FRESH = (
    ("methods", "--json"),
    ("keys", "privacy", "--json"),
    ("plan", "study.toml", "--json"),
    ("plan", "study.toml", "--advise", "--json"),
    ("plan", "--epsilon=2", "--delta=1e-5", "--sampling-rate=0.01", "--steps=100", "--json"),
    ("run", "study.toml", "--out", "new", "-q", "--json"),
    ("run", "--resume", "new", "-q", "--json"),
    (
        "compare",
        "study.toml",
        "--vary=method.learning_rate=0.1,0.2",
        "--seeds=2",
        "--out=compared",
        "-q",
        "--json",
    ),
)
MEASURED = frozenset(
    {"accuracy", "rmse", "seconds", "mean", "sd", "interval", "differences", "verdict"}
)
"""Keys whose numbers follow from drawn noise, or from a clock."""


class Stopped(Exception):
    """A kill, in these tests."""


def quiet(shown: object) -> None:
    """Show nothing."""


def killed(asked: studies.Study, folder: Path) -> None:
    """Begin a run and stop it while it shows the second row after a checkpoint."""
    rows = 0

    def show(row: object) -> None:
        nonlocal rows
        rows += (folder / "checkpoints" / "latest.safetensors").exists()
        if rows > 1:
            raise Stopped

    try:
        session.begin(asked, folder, show, quiet)
    except Stopped:
        return
    raise AssertionError(f"{folder}: it ended before it could be stopped")


@contextmanager
def at_home(folder: Path) -> Iterator[None]:
    """Let ``~`` be this folder."""
    with mock.patch.dict(os.environ, HOME=str(folder)):
        yield


@contextmanager
def as_then(run: Path) -> Iterator[None]:
    """Compute in the environment that a run began in, as far as the program asks for it."""
    noted = msgspec.json.decode((run / "environment.json").read_bytes(), type=Environment)
    then = msgspec.structs.replace(noted, companions=msgspec.UNSET)  # which are noted nowhere else
    with (
        mock.patch.object(environment, "surrounded", return_value=then),
        mock.patch.object(environment, "numerics", return_value=then.numerics),
    ):
        yield


def unpacked(name: str, to: Path) -> Path:
    """The folders of a case, laid out in a folder."""
    with tarfile.open(FOLDERS / f"{name.replace(', ', '-')}.tar.xz") as archive:
        archive.extractall(to, filter="data")
    return to


def tampered(run: Path, name: str, how: str) -> bool:
    """Change a file of a run folder; say if there is one to change."""
    path = run / name
    if not path.exists():
        return False
    log = path.with_name(f"{path.name}-wal")
    if how == "missing":
        for each in path.parent.glob(f"{path.name}*"):
            each.unlink()
        return True
    if log.exists():
        log.write_bytes(bytes(each ^ 1 for each in log.read_bytes()))
        return True
    content = path.read_bytes()
    match name:
        case "study.toml":
            content = content.replace(b"seed = 0", b"seed = 1")
        case "environment.json":
            content = content.replace(b'"threads": 1', b'"threads": 2')
        case "run.json":
            content = content.replace(b'"delta": 1e-05', b'"delta": 1e-09')
        case "rounds.jsonl":
            content = content[:-30] + content[-30:].replace(b"e", b"a")
        case "ledger.sqlite":
            content = content.replace(b'"label":', b'"lapel":').replace(b'"count":', b'"cound":')
            content = content[:-2000] + bytes(each ^ 1 for each in content[-2000:])
        case _:
            middle = len(content) // 2
            content = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    path.write_bytes(content)
    return True


def refusals(place: Path, state: str) -> dict[str, Any]:
    """What verifying says of each changed file of a run, and what resuming refuses it with."""
    found: dict[str, Any] = {}
    for name in TAMPERED:
        for how in ("changed", "missing"):
            with tempfile.TemporaryDirectory() as copied:
                home = Path(shutil.copytree(place / state, Path(copied) / state))
                with at_home(home), as_then(home / "run"):
                    if tampered(home / "run", name, how):
                        found[f"{name}, {how}"] = _refused(home)
    return found


def _refused(home: Path) -> dict[str, Any]:
    verdict = verify(home / "run")
    try:
        session.resume(home / "run", quiet, quiet)
        said = "resumed"
    except SordinoError as error:
        said = f"{type(error).__name__}: {error}"
    told = {"verify": verdict.problems, "resume": said}
    found: dict[str, Any] = placeless(told, home)
    return found


def placeless(value: Any, home: Path) -> Any:
    """A value as it is in every folder, at any time and with any noise."""
    if isinstance(value, str):
        text = value.replace(str(home.resolve()), "HOME").replace(str(home), "HOME")
        return re.sub(r"\b(?=\w*\d)[0-9a-f]{16,64}\b", "DIGEST", text)
    if isinstance(value, Mapping):
        return {
            placeless(key, home): "MEASURED" if key in MEASURED else placeless(each, home)
            for key, each in value.items()
        }
    return [placeless(each, home) for each in value] if isinstance(value, list) else value


def told(home: Path, commands: Sequence[Sequence[str]]) -> dict[str, Any]:
    """What commands write for machines."""
    found: dict[str, Any] = {}
    paint(False)
    with at_home(home):
        for command in commands:
            done = sordino(home, *command)
            if done.returncode:
                raise AssertionError(f"{command}: {done.stderr}")
            found[" ".join(command)] = placeless(json.loads(done.stdout), home)
    return found


def fresh(home: Path) -> dict[str, Any]:
    """What commands write for machines of a study that is run anew."""
    case = ("synchronous", "dp-sgd", [*SAMPLE, 'privacy.entropy="seed"'])
    (home / "study.toml").write_text(studies.write(study_of(case, home)))
    return told(home, FRESH)


def _archive(name: str, place: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:xz", preset=9) as archive:
        for path in sorted(place.rglob("*")):
            inside = path.relative_to(place)
            if inside.parts[1:2] not in (("run",), ("kept",)) or not path.is_file():
                continue
            if path.name in ("report.html", ".lock"):
                continue
            info = tarfile.TarInfo(inside.as_posix())
            info.size, info.mode = path.stat().st_size, 0o600
            with path.open("rb") as file:
                archive.addfile(info, file)
    (FOLDERS / f"{name.replace(', ', '-')}.tar.xz").write_bytes(buffer.getvalue())


def _store(names: Sequence[str]) -> None:
    import warm
    from test_same_bits import probe

    torch.set_num_threads(1)
    FOLDERS.mkdir(exist_ok=True)
    index = FOLDERS / "told.json"
    found = json.loads(index.read_text()) if index.exists() else {"runs": {}}
    found |= {"probe": probe(), "numerics": NUMERICS}
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder).resolve()
            for state, make in (("ended", session.begin), ("killed", None)):
                home = place / state
                home.mkdir()
                with at_home(home):
                    asked = study_of(CASES[name], home)
                    (home / "study.toml").unlink()
                    if make is None:
                        killed(asked, home / "run")
                    else:
                        make(asked, home / "run", quiet, quiet)
            _archive(name, place)
        with tempfile.TemporaryDirectory() as folder:
            place = unpacked(name, Path(folder).resolve())
            found["runs"][name] = {
                "told": {state: told(place / state, TOLD) for state in ("ended", "killed")},
                "refusals": {state: refusals(place, state) for state in ("ended", "killed")}
                if name in REFUSED
                else {},
            }
    faster = mock.patch.object(processes, "subprocess", warm)
    with tempfile.TemporaryDirectory() as folder, faster:
        found["fresh"] = fresh(Path(folder).resolve())
    index.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    _store(sys.argv[1:] or list(CASES))
