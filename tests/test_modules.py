"""Modules that a study names: found beside it or installed, told of before they run; nothing else
of the folder is imported.
"""

from __future__ import annotations

import hashlib
import json
import os
import py_compile
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import sordino
from sordino.base import modules
from sordino.base.errors import ResumeError, StudyError
from sordino.cli import app
from sordino.regimes.synchronous.study import TEMPLATE as SYNCHRONOUS

SRC = Path(sordino.__file__).parents[1]
NET = """
import math, sys
from torch import nn
sys.stderr.write("CODE RAN\\n")
def net(shape, classes): return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))
"""
SMALL = [
    "data.clients=3",
    "budget.rounds=2",
    "budget.steps=4",
    "privacy.accountant=rdp",
    "model.name=mine:net",
]
EVIL = "import sys\nsys.stderr.write('SHADOWED ' + __name__ + '\\n')\nraise SystemExit(9)\n"
COMMANDS = {  # as the console script has it, and as a module
    "script": [sys.executable, "-P", "-c", "from sordino.cli import main; main()"],
    "module": [sys.executable, "-m", "sordino"],
}


def sordino_in(folder: Path, *words: str, how: str = "script") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*COMMANDS[how], *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def told(*words: str) -> None:
    """The same in this process."""
    app(list(words), standalone_mode=False)


def forget(name: str) -> None:
    """As a process that begins anew."""
    sys.modules.pop(name, None)
    modules._told.pop(name, None)
    modules._FINDER.modules.pop(name, None)


def study(folder: Path) -> Path:
    path = folder / "study.toml"
    path.write_text(SYNCHRONOUS)
    return path


def sets(*changes: str) -> list[str]:
    return [word for change in (*SMALL, *changes) for word in ("--set", change)]


@pytest.mark.parametrize(
    "how",
    [
        pytest.param(each, marks=[pytest.mark.nightly] if each == "module" else [])
        for each in COMMANDS
    ],
)
def test_only_the_module_that_is_named_is_imported_and_it_is_told_of_before(
    tmp_path: Path, how: str
) -> None:
    """Wherever the command is given: not what lies beside the study, not what lies in the current
    folder.
    """
    inside = tmp_path / "studies"
    inside.mkdir()
    study(inside)
    (inside / "mine.py").write_text(NET)
    (inside / "torch.py").write_text(EVIL)
    for name in (
        "mine",
        "json",
        "torch",
        "numpy",
        "typer",
        "errno",
        "secrets",
        "sqlite3",
        "pydantic",
        "matplotlib",
        "sitecustomize",
        "numba",
    ):
        (tmp_path / f"{name}.py").write_text(EVIL)
    digest = hashlib.sha256(NET.encode()).hexdigest()
    done = sordino_in(
        tmp_path, "run", "studies/study.toml", "--out", "run", "--quiet", "--json", *sets(), how=how
    )
    assert done.returncode == 0, done.stderr
    assert "SHADOWED" not in done.stderr
    line = f"This study imports and runs the code of mine ({inside / 'mine.py'}, sha256 {digest})"
    lines = done.stderr.splitlines()
    assert lines.index(line) < lines.index("CODE RAN")
    assert lines.count(line) == 1
    assert (
        json.loads((tmp_path / "run" / "run.json").read_text())["modules"]["mine"]["sha256"]
        == digest
    )
    assert json.loads((tmp_path / "run" / "environment.json").read_text())["modules"] == {
        "mine": digest
    }


@pytest.fixture
def clean() -> Iterator[None]:
    before = dict(sys.modules)
    yield
    modules.look_beside(None)
    for name in set(sys.modules) - set(before):
        if name.partition(".")[0].startswith("own_"):
            del sys.modules[name]
    for name in [name for name in modules.told() if name.startswith("own_")]:
        forget(name)


@pytest.mark.usefixtures("clean")
def test_other_code_does_not_go_on_with_a_run_and_reports_run_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    beside, run = tmp_path / "own_net.py", str(tmp_path / "run")
    resume = ["run", "--quiet", "--resume", str(tmp_path / "run")]
    beside.write_text(NET)
    told("run", str(study(tmp_path)), "--out", run, "--quiet", *sets("model.name=own_net:net"))
    forget("own_net")
    beside.write_text(NET + "# changed\n")
    with pytest.raises(
        ResumeError,
        match=r"begun with a module own_net that \(.*own_net\.py\) has changed: sha256 .*begin a "
        r"new run",
    ):
        told(*resume)
    beside.unlink()
    with pytest.raises(ResumeError, match="a module own_net that is not found"):
        told(*resume)
    (tmp_path / "run" / "own_net.py").write_text(EVIL)  # in the run folder, nobody looks for it
    capsys.readouterr()
    told("report", run)
    told("ledger", "verify", run)
    assert "CODE RAN" not in capsys.readouterr().err
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "own_net.py").write_text(NET)
    told(*resume, "--modules", str(tmp_path / "elsewhere"))
    assert (
        f"This study imports and runs the code of own_net ({tmp_path / 'elsewhere'}"
        in capsys.readouterr().err
    )


@pytest.mark.usefixtures("clean")
@pytest.mark.nightly
def test_a_comparison_tells_before_its_runs_and_does_not_run_what_lies_in_its_folders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own_compared.py").write_text(NET)
    (tmp_path / "json.py").write_text(EVIL)
    words = [
        "compare",
        str(study(tmp_path)),
        "--seeds",
        "1",
        "--out",
        str(tmp_path / "out"),
        "--quiet",
    ]
    told(*words, *sets("model.name=own_compared:net"))
    assert (
        capsys.readouterr().err.count("This study imports and runs the code of own_compared (") == 1
    )
    (run,) = (each.parent for each in (tmp_path / "out").rglob("run.json"))
    text = (run / "study.toml").read_text()
    (run / "study.toml").write_text(
        text.replace('[method]\nname = "ali-dpfl"', '[method]\nname = "own_evil:Method"')
    )
    (tmp_path / "own_evil.py").write_text(EVIL)
    (run / "own_evil.py").write_text(EVIL)
    with pytest.raises(StudyError, match=r"own_evil.*not run just to read a study"):
        told(*words, *sets("model.name=own_compared:net"))


@pytest.mark.usefixtures("clean")
def test_a_record_of_a_folder_runs_no_code_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its run.json says where the code lies: beside the study, wherever that is."""
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run"
    told("run", str(study(tmp_path)), "--out", str(run), "--quiet", *sets("model.name=logistic"))
    text = (run / "study.toml").read_text()
    method = '[method]\nname = "ali-dpfl"'
    (run / "study.toml").write_text(text.replace(method, '[method]\nname = "own_evil:Method"'))
    (run / "own_evil.py").write_text(EVIL)
    about = json.loads((run / "run.json").read_text())
    digest = hashlib.sha256(EVIL.encode()).hexdigest()
    about["modules"] = {"own_evil": {"file": "run/own_evil.py", "sha256": digest, "beside": True}}
    (run / "run.json").write_text(json.dumps(about))
    with pytest.raises(StudyError, match=r"own_evil.*not run just to read a study"):
        sordino.record(run)
    with pytest.raises(SystemExit):
        sordino.record(run, modules=run)


@pytest.mark.usefixtures("clean")
def test_a_package_imports_its_parts_and_only_sources_that_were_hashed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    package = tmp_path / "own_package"
    (package / "deep").mkdir(parents=True)
    (package / "__init__.py").write_text("from .deep.part import value\n")
    (package / "deep" / "__init__.py").write_text("")
    (package / "deep" / "part.py").write_text("value = 3\n")
    cache = Path(py_compile.compile(str(package / "deep" / "part.py"), doraise=True) or "")
    other = tmp_path / "other.py"
    other.write_text("value = 4\n")
    stamp = (package / "deep" / "part.py").stat()
    os.utime(other, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    # a cache that claims to be of part.py, with other code
    py_compile.compile(str(other), cfile=str(cache), doraise=True)
    (package / "loose.pyc").write_bytes(cache.read_bytes())
    (tmp_path / "own_helper.py").write_text("raise SystemExit('never')\n")
    modules.look_beside(tmp_path)
    assert modules.attribute("own_package:value") == 3
    assert modules.attribute("own_package.deep.part:value") == 3
    told = capsys.readouterr().err
    assert told.count("This study imports and runs the code of own_package") == 1
    assert modules.digest_of(package / "__init__.py") in told
    with pytest.raises(ModuleNotFoundError, match=r"own_package\.loose"):
        modules.attribute("own_package.loose:value")
    with pytest.raises(ModuleNotFoundError):
        __import__("own_helper")
    (package / "deep" / "part.py").write_text("value = 5\n")
    assert modules.digest_of(package / "__init__.py") not in told


@pytest.mark.usefixtures("clean")
def test_what_own_code_sets_when_it_is_imported_is_put_back(tmp_path: Path) -> None:
    """With anomaly detection on, a row whose gradient is no number ended the run."""
    (tmp_path / "sets_things.py").write_text(
        "import torch\ntorch.autograd.set_detect_anomaly(True)\n"
        "torch.set_default_dtype(torch.float64)\nvalue = torch.is_anomaly_enabled()\n"
    )
    modules.look_beside(tmp_path)
    assert modules.attribute("sets_things:value") is True
    assert not torch.is_anomaly_enabled()
    assert torch.get_default_dtype() == torch.float32


def test_a_name_that_means_two_modules_is_refused(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("net = 1\n")
    modules.look_beside(tmp_path)
    with pytest.raises(
        StudyError,
        match=r"json means two things, .*json\.py and the installed .*rename the file beside the "
        r"study",
    ):
        modules.attribute("json:net")
    for at in ("one", "two"):
        (tmp_path / at).mkdir()
        (tmp_path / at / "own_twice.py").write_text(f"net = {at!r}\n")
    modules.look_beside(tmp_path / "one")
    assert modules.attribute("own_twice:net") == "one"
    modules.look_beside(tmp_path / "two")
    with pytest.raises(
        StudyError, match=r"own_twice is .*one.own_twice\.py already, and another study means .*two"
    ):
        modules.attribute("own_twice:net")


@pytest.mark.usefixtures("clean")
def test_reading_a_study_imports_nothing_new(tmp_path: Path) -> None:
    (tmp_path / "own_new.py").write_text("raise SystemExit('never')\n")
    modules.look_beside(tmp_path)
    with (
        modules.nothing_new(),
        pytest.raises(
            StudyError, match=r"own_new .*own_new\.py\), whose code is not run just to read a study"
        ),
    ):
        modules.attribute("own_new:net")
    (tmp_path / "own_old.py").write_text(textwrap.dedent("net = 1"))
    assert modules.attribute("own_old:net") == 1
    with modules.nothing_new():
        assert modules.attribute("own_old:net") == 1
