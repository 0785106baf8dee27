"""Kernels and their kept code: compiled once, found again, read only where nobody else can have
written it, and compiled in memory wherever it cannot be kept.
"""

from __future__ import annotations

import ast
import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba.core import config as settings
from numba.core.event import install_recorder

import sordino as package
import warm
from command import sordino
from sordino.base.compiled import FOLDER, compiled, watched
from sordino.base.errors import StudyError
from sordino.mechanisms import draws
from sordino.regimes.synchronous.study import TEMPLATE

FACTOR = 3.0


def _scaled(x: Any, factor: float, out: Any) -> Any:
    """``out`` = ``factor`` x; the sum."""
    total = 0.0
    for i in range(x.size):
        out[i] = factor * x[i] * FACTOR
        total += out[i]
    return total


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for code of this test."""
    folder = tmp_path / "compiled"
    monkeypatch.setenv(FOLDER, str(folder))
    return folder


def compiles(kind: str = "float64") -> bool:
    """Whether a fresh kernel that is used now must be compiled; what it computes is checked."""
    x, out = np.arange(5).astype(kind), np.empty(5)
    with install_recorder("numba:compile") as seen:
        total = compiled()(_scaled)(x, 2.0, out)
    assert np.array_equal(out, 6.0 * np.arange(5))
    assert total == 60.0
    return bool(seen.buffer)


def files(folder: Path, ending: str = "") -> list[Path]:
    return sorted(path for path in folder.rglob(f"*{ending}") if path.is_file())


def version(folder: Path) -> Path:
    """The folder of this version's code."""
    (found,) = folder.iterdir()
    return found


def test_code_is_made_once_and_found_again(kept: Path) -> None:
    assert compiles()
    assert not compiles()
    assert compiles("float32")
    assert not compiles("float32")
    assert not compiles()


def test_code_is_kept_in_a_folder_of_the_users_alone(kept: Path) -> None:
    old = os.umask(0)
    try:
        compiles()
    finally:
        os.umask(old)
    assert files(kept, ".nbc")
    assert kept.stat().st_mode & 0o777 == 0o700
    assert version(kept).stat().st_mode & 0o777 == 0o700


def test_kept_code_computes_the_same_bits(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, bits = [], set()
    for folder in (str(kept), str(kept), ""):
        monkeypatch.setenv(FOLDER, folder)
        found = importlib.util.spec_from_file_location(draws.__name__, draws.__file__)
        assert found is not None
        assert found.loader is not None
        module = importlib.util.module_from_spec(found)
        found.loader.exec_module(module)  # as in a process that begins anew
        row, out = np.linspace(0, 1, 8, dtype=np.float32), np.linspace(1, 2, 8)
        with install_recorder("numba:compile") as seen:
            module.add_row(out, 0.1, row)
        made.append(bool(seen.buffer))
        bits.add(out.tobytes())
    assert made == [True, False, True]
    assert len(bits) == 1


def test_settings_of_the_environment_have_code_of_their_own(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert compiles()
    monkeypatch.setenv("NUMBA_LOOP_VECTORIZE", "0")
    assert compiles()
    assert not compiles()


@pytest.mark.parametrize("ending", [".nbi", ".nbc"])
@pytest.mark.parametrize("content", [b"", b"\x80\x04", b"what is no pickle"])
def test_damaged_code_is_made_anew(kept: Path, ending: str, content: bytes) -> None:
    compiles()
    for path in files(kept, ending):
        path.write_bytes(content)
    assert compiles()
    assert not compiles()


@pytest.mark.parametrize(
    ("below", "mode"), [(False, 0o770), (False, 0o707), (True, 0o770), (True, 0o702), (True, 0o755)]
)
def test_a_folder_that_others_can_write_to_is_neither_read_nor_written(
    kept: Path, below: bool, mode: int
) -> None:
    """Folders that numba makes below may be anybody's: others must not get there."""
    compiles()
    (version(kept) if below else kept).chmod(mode)
    before = files(kept)
    assert compiles()
    assert compiles()
    assert files(kept) == before


def test_what_belongs_to_somebody_else_is_not_used(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiles()
    before, me = files(kept), os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    assert compiles()
    assert files(kept) == before


def test_links_are_not_followed(kept: Path) -> None:
    compiles()
    for folder in (version(kept), kept):
        away = folder.rename(folder.parent / "away")
        folder.symlink_to(away)
        assert compiles()
        folder.unlink()
        away.rename(folder)
    assert not compiles()


@pytest.mark.parametrize("own", ["", "file/below", "~no-such-user/code", "beside/a/study"])
def test_without_a_place_to_write_code_is_compiled_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv(FOLDER, str(tmp_path / own) if own.startswith("file") else own)
    assert compiles()
    assert compiles()
    assert not files(tmp_path, ".nbc")


def test_no_other_place_is_taken_where_that_one_cannot_be_written_to(kept: Path) -> None:
    """Numba would take one beside the source."""
    compiles()
    for folder in version(kept).iterdir():
        if folder.is_dir():
            shutil.rmtree(folder)
            folder.touch()
    before = files(Path(__file__).parent, ".nb?")
    assert compiles()
    assert compiles()
    assert files(Path(__file__).parent, ".nb?") == before


def test_without_a_home_code_is_compiled_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    def refused(*_: Any, **__: Any) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr(Path, "home", homeless)
    monkeypatch.setattr(Path, "mkdir", refused)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv(FOLDER, raising=False)
    assert compiles()
    assert compiles()


KERNEL = """
from sordino.base.compiled import compiled
@compiled()
def total(x):
    found = 0.0
    for value in x:
        found += value
    return found
"""


@pytest.mark.parametrize(
    "full",
    [
        "from the start",
        pytest.param("once there are folders", marks=pytest.mark.nightly),
        "once used",
    ],
)
def test_on_a_full_disk_code_is_compiled_in_memory(kept: Path, full: str) -> None:
    """Files may not grow beyond no bytes, as on a full disk; folders may be made."""
    (kept.parent / "shared.py").write_text(KERNEL)
    program = (
        "import resource, sys, numpy as np\n"
        "sys.dont_write_bytecode = True\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "def fill(): resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
        "if sys.argv[2] == 'from the start': fill()\n"
        "import shared\n"
        "if sys.argv[2] == 'once there are folders': fill()\n"
        "assert shared.total(np.arange(5.0)) == 10\n"
        "if sys.argv[2] == 'once used': fill()\n"
        "assert shared.total(np.arange(5)) == 10\n"
    )
    command = [sys.executable, "-c", program, str(kept.parent), full]
    ran = warm.run(command, timeout=120)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert {path.suffix for path in files(kept)} <= {"", ".nbi", ".nbc"}  # no half-written part


def test_one_process_at_a_time_reads_or_writes(kept: Path) -> None:
    """Two that keep code for different types at once would give both the same name."""
    compiles()
    (lock,) = (path for path in files(kept) if not path.suffix)
    other = threading.Thread(target=compiles)
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        other.start()
        other.join(2.0)
        assert other.is_alive()
    other.join(60.0)
    assert not other.is_alive()


@pytest.mark.nightly
def test_processes_that_fill_a_folder_at_once_find_their_own_code(kept: Path) -> None:
    """Each for another type of numbers: the code of another process would give wrong ones."""
    (kept.parent / "shared.py").write_text(KERNEL)
    program = (
        "import sys, numpy as np\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "import shared\n"
        "assert shared.total(np.arange(5).astype(sys.argv[2])) == 10\n"
    )
    for _ in range(2):
        running = [
            subprocess.Popen([sys.executable, "-c", program, str(kept.parent), kind])
            for kind in ("float32", "float64", "int32", "int64")
        ]
        assert [process.wait() for process in running] == [0] * 4
    assert len(files(kept, ".nbc")) == 4


def test_settings_of_the_compiler_in_the_working_folder_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(".numba_config.yaml").write_text("opt: '0'\n")
    with pytest.raises(StudyError, match=r"\.numba_config\.yaml: the compiler would take settings"):
        compiled()(_scaled)


def test_a_run_in_a_folder_with_such_settings_is_refused_before_it_begins(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(TEMPLATE)
    (tmp_path / ".numba_config.yaml").write_text("opt: '0'\n")
    told = sordino(tmp_path, "run", "study.toml", "--out", "run", "-q")
    assert told.returncode != 0
    assert ".numba_config.yaml: the compiler would take settings" in " ".join(told.stderr.split())
    assert not files(tmp_path, ".sqlite")


def test_settings_of_the_compiler_are_read_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER, "")
    kernel = compiled()(_scaled)
    (tmp_path / ".numba_config.yaml").write_text("opt: '0'\n")
    monkeypatch.chdir(tmp_path)
    config: Any = settings
    before = config.OPT
    kernel(np.arange(5.0), 2.0, np.empty(5))
    assert config.OPT == before != 0


def test_who_waits_for_the_compiler_is_told_once(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    def tells() -> list[str]:
        said.clear()
        with watched(lambda: said.append("now")):
            compiles()
            compiles("float32")
        return said

    assert tells() == ["now"]
    assert tells() == []
    monkeypatch.setenv(FOLDER, "")
    assert tells() == ["now"]


# --- which modules have kernels, and who loads them --------------------------------------------


def decorated(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    """The kernels of a module."""
    return {
        node.name: node
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and any("compiled(" in ast.unparse(each) for each in node.decorator_list)
    }


def test_kernels_use_nothing_of_other_files() -> None:
    """Kept code is made anew when the file of the kernel changes, and not when another one does."""
    found = 0
    for path in Path(package.__file__).parent.rglob("*.py"):
        tree = ast.parse(path.read_text())
        others = {
            name.asname or name.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sordino")
            for name in node.names
        }
        for kernel in decorated(tree).values():
            body = [node for part in kernel.body for node in ast.walk(part)]
            used = {node.id for node in body if isinstance(node, ast.Name)}
            assert not used & others, f"{path}: {kernel.name}"
            found += 1
    assert found > 20


def test_a_site_loads_no_compiler_by_importing() -> None:
    code = (
        "import sys, sordino.network.site, sordino.clients.network\n"
        "import sordino.regimes.vertical.network\n"
        "sys.exit('numba' in sys.modules or 'llvmlite' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
