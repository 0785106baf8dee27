"""A run folder that somebody else made: links, pipes, names that can be foreseen, and JSON that
ends the parser.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pixels import pixels
from sordino.base.errors import SordinoError, StudyError
from sordino.base.files import refuse_odd
from sordino.cli import app
from sordino.core import files
from sordino.core import study as studies
from sordino.core.run import session
from sordino.regimes.synchronous.study import TEMPLATE as SYNCHRONOUS
from sordino.report import write

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links and pipes of POSIX")

SMALL = [
    "data.clients=3",
    "budget.rounds=4",
    "budget.steps=8",
    "privacy.accountant=rdp",
    "model.name=logistic",
]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("foreign")
    (folder / "study.toml").write_text(pixels(SYNCHRONOUS))  # which attacks read
    session.begin(
        studies.read(folder / "study.toml", SMALL), folder / "run", lambda _: None, lambda _: None
    )
    write(folder / "run")
    return folder / "run"


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def everything(run: Path) -> list[Callable[[], object]]:
    """Every command that reads or writes a run folder."""
    return [
        lambda: app(["report", str(run)], standalone_mode=False),
        lambda: app(["run", "--resume", str(run), "--quiet"], standalone_mode=False),
        lambda: app(["ledger", "verify", str(run)], standalone_mode=False),
        lambda: app(
            [
                "audit",
                str(run),
                "--attack",
                "inversion",
                "--images",
                "1",
                "--out",
                str(run.parent / "x.svg"),
            ],
            standalone_mode=False,
        ),
    ]


READ_BY = {  # which of these commands touch a file
    "run.json": (0, 1, 2, 3),
    "study.toml": (0, 1, 3),
    "environment.json": (0,),
    "rounds.jsonl": (0, 1),
    "ledger.sqlite": (1, 2),
    "ledger.sqlite-wal": (1, 2),
    "model.safetensors": (1, 3),
    "checkpoints/latest.safetensors": (1,),
    "checkpoints": (1,),
    "report.html": (0, 1),
}


@pytest.mark.parametrize("name", READ_BY)
def test_no_command_follows_a_link_in_a_run_folder(run: Path, name: str) -> None:
    place, outside = run / name, run.parent / "outside"
    if place.exists():
        place.rename(outside)
    else:
        outside.write_bytes(b"")
    place.symlink_to(outside)
    before = {path: path.read_bytes() for path in [outside, *outside.rglob("*")] if path.is_file()}
    commands = everything(run)
    for at in READ_BY[name]:
        with pytest.raises(
            SordinoError,
            match=f"{name.split('/')[-1]}.*a symbolic link stands where a (file|folder) belongs",
        ):
            commands[at]()
    assert {
        path: path.read_bytes() for path in [outside, *outside.rglob("*")] if path.is_file()
    } == before


@pytest.mark.parametrize(
    "name",
    ["run.json", "study.toml", "environment.json", "rounds.jsonl", "ledger.sqlite", "report.html"],
)
def test_a_pipe_in_a_run_folder_is_refused_and_not_waited_for(run: Path, name: str) -> None:
    (run / name).unlink()
    os.mkfifo(run / name)
    commands = everything(run)
    for at in READ_BY[name][:2]:
        with pytest.raises(SordinoError, match=f"{name}.*a pipe stands where a file belongs"):
            commands[at]()


@pytest.mark.parametrize("name", ["rounds.jsonl", "ledger.sqlite"])
def test_what_is_written_in_place_has_no_second_name(run: Path, name: str) -> None:
    os.link(run / name, run.parent / "elsewhere")
    if name == "rounds.jsonl":
        shutil.rmtree(run / "checkpoints")  # or nothing would be appended to it
    with pytest.raises(SordinoError, match=f"{name}.*another name elsewhere"):
        everything(run)[1]()


def test_a_ledger_whose_making_was_killed_between_its_two_names_is_still_one(run: Path) -> None:
    os.link(run / "ledger.sqlite", run / ".ledger.sqlite.0123456789abcdef")
    everything(run)[1]()


def test_temporary_names_cannot_be_foreseen_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    (tmp_path / "x.part").symlink_to(victim)
    made: list[str] = []
    true = os.open

    def watched(path: object, flags: int, *rest: object, **more: object) -> int:
        if flags & os.O_CREAT:
            assert flags & os.O_EXCL
            made.append(str(path))
        return true(path, flags, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", watched)
    files.replace_file(tmp_path / "x", b"1")
    files.replace_file(tmp_path / "x", b"2")
    assert victim.read_bytes() == b"mine"
    assert (tmp_path / "x").read_bytes() == b"2"
    assert len(set(made)) == 2
    monkeypatch.setattr(os, "fsync", lambda handle: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        files.replace_file(tmp_path / "x", b"3")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["victim", "x", "x.part"]


TEXTS = {
    "brackets": "[" * 5000,
    "objects": '{"a":' * 200 + "1" + "}" * 200,
    "digits": '{"a":' + "9" * 5000 + "}",
    "bytes": "\udcff",
    "nothing": "",
}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        pytest.param(
            name,
            text,
            id=f"{kind}-{name}",
            marks=[] if name == "run.json" or kind == "brackets" else [pytest.mark.nightly],
        )
        for name in ("run.json", "environment.json", "rounds.jsonl", "study.toml")
        for kind, text in TEXTS.items()
    ],
)
def test_text_that_ends_a_parser_is_one_message(run: Path, name: str, text: str) -> None:
    (run / name).write_bytes(
        text.encode("utf-8", "surrogateescape") + b"\n{}\n" * (name == "rounds.jsonl")
    )
    for command in everything(run)[:2]:
        # or it is none of what this command reads, or it is left out with a remark
        with suppress(SordinoError) as _:
            command()


def test_a_file_larger_than_its_kind_is_not_read(run: Path) -> None:
    with (run / "run.json").open("r+b") as file:
        file.truncate(1 << 40)  # a hole: the disk holds nothing of it
    for command in everything(run):
        with pytest.raises(
            SordinoError,
            match=r"run\.json.*it has 1,099,511,627,776 bytes, and a file of its kind at most",
        ):
            command()


@pytest.mark.parametrize("change", ["a." * 3000 + "a=1", "a=" + "[" * 3000, "a=" + "9" * 5000])
def test_changes_on_the_command_line_end_no_parser(run: Path, change: str) -> None:
    with pytest.raises(SordinoError):
        studies.read(run / "study.toml", [change])


def test_a_study_of_dotted_keys_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text("a." * 100_000 + "a = 1\n")
    limited = (
        "import resource; from pathlib import Path; import sordino.core.study as s\n"
        f"resource.setrlimit(resource.RLIMIT_AS, (8 << 30,) * 2); s.read(Path({str(path)!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", limited], capture_output=True, text=True, timeout=120, check=False
    )
    assert "StudyError" in done.stderr.splitlines()[-1]
    assert "a key of more than 64 parts" in done.stderr


def test_finished_runs_still_say_how_they_ended(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in everything(run)[:3]:
        command()
    assert json.loads((run / "run.json").read_text())["status"] == "done"


def test_a_hidden_name_that_goes_while_it_is_looked_for_is_no_second_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes make one ledger: the one that comes second looks while the first one drops the
    name under which it was made.
    """
    path, draft = tmp_path / "ledger.sqlite", tmp_path / ".ledger.sqlite.0123456789abcdef"
    draft.write_bytes(b"")
    os.link(draft, path)
    scandir = os.scandir

    def late(folder: Path) -> Any:
        draft.unlink(missing_ok=True)
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", late)
    refuse_odd(path)
    os.link(path, tmp_path / "elsewhere")
    with pytest.raises(StudyError, match="another name elsewhere"):
        refuse_odd(path)
