"""Machine code that is kept: the same answers as without, found again, trusted only where nobody
else can have written it, and made anew wherever it cannot be used.
"""

from __future__ import annotations

import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba.core.errors import TypingError
from numpy.typing import NDArray

from sordino.errors import StudyError
from sordino.native import compiled, meaning, processor, store
from sordino.native.image import Image, Unfit, laid_out, linked
from sordino.native.kernel import Kernel

pytestmark = pytest.mark.skipif(not processor.keeps(), reason="no code is kept on this machine")

FACTOR = 3.0


def _scaled(x: Any, factor: float, out: Any) -> Any:
    """``out`` = ``factor`` x; the sum."""
    room, total = np.empty(x.size), 0.0
    for i in range(x.size):
        room[i] = factor * x[i] * FACTOR
        out[i] = room[i]
        total += room[i]
    return total


def _mixed(whole: Any, share: Any, single: Any, truth: Any, sizes: Any) -> Any:
    value = whole + share + single + (1.0 if truth else 0.0)
    for size in sizes:
        value += size
    return value


def _corner(x: Any) -> Any:
    return x[-1, 0]


def _counted(x: Any) -> Any:
    return x.size * 2


def _signed(x: Any) -> bool:
    return bool(x[0] < 0)


def _filled(x: Any) -> None:
    x[:] = 1


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for code of this test."""
    folder = tmp_path / "compiled"
    monkeypatch.setenv(store.FOLDER, str(folder))
    return folder


def scale(kernel: Callable[..., Any]) -> float:
    """Call a kernel of :func:`_scaled`, and check what it does."""
    x, out = np.arange(5.0), np.empty(5)
    total: float = kernel(x, 2.0, out)
    assert np.array_equal(out, 6.0 * x)
    assert total == 60.0
    return total


def builds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that are compiled from now on."""
    from sordino.native import build

    seen: list[str] = []
    before = build.image

    def image(kernel: Kernel, kinds: Any) -> Image | None:
        seen.append(kernel.__name__)
        return before(kernel, kinds)

    monkeypatch.setattr(build, "image", image)
    return seen


def only(folder: Path) -> Path:
    (found,) = folder.iterdir()
    return found


def test_this_machine_lays_objects_out_as_entries_read_them() -> None:
    assert laid_out()


def test_code_is_made_once_and_found_again(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = builds(monkeypatch)
    scale(compiled(_scaled))
    scale(compiled(_scaled))
    assert seen == ["_scaled"]
    assert kept.stat().st_mode & 0o777 == 0o700
    assert only(kept).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("kind", ["float32", "float64", "int64", "uint8", "bool"])
@pytest.mark.parametrize("order", ["C", "F", "strided", "read-only"])
def test_arrays_of_every_type_and_order(kept: Path, kind: str, order: str) -> None:
    whole = np.arange(24).reshape(4, 6).astype(kind)
    x = {"C": whole, "F": np.asfortranarray(whole), "strided": whole[::2, ::3]}.get(order, whole)
    x.flags.writeable = order != "read-only"
    kernel = compiled(_corner)
    assert kernel(x) == x[-1, 0]
    assert kernel(x) == x[-1, 0]


def test_one_kernel_serves_many_types_of_arguments(kept: Path) -> None:
    kernel = compiled(_counted)
    for _ in range(2):
        for x in (np.zeros(3), np.zeros(4, np.float32), np.zeros((2, 5)), np.zeros(9)[::2]):
            assert kernel(x) == 2 * x.size
    assert len(list(kept.iterdir())) == 4


def test_numbers_of_python_and_of_numpy(kept: Path) -> None:
    kernel = compiled(_mixed)
    wholes: list[Any] = [7, np.int64(7)]
    shares: list[Any] = [0.5, np.float64(0.5)]
    truths: list[Any] = [True, False, np.True_, np.False_]
    for whole in wholes:
        for share in shares:
            for truth in truths:
                found = kernel(whole, share, np.float32(0.25), truth, (1, -2, 3))
                assert found == 9.75 + bool(truth)
    assert len(list(kept.iterdir())) == 1


def test_results_of_every_kind(kept: Path) -> None:
    x = np.array([-1.0, 2.0])
    assert compiled(_signed)(x) is True
    assert compiled(_signed)(-x) is False
    assert type(compiled(_counted)(x)) is int
    assert compiled(_filled)(x) is None
    assert x.tolist() == [1.0, 1.0]


def test_what_an_entry_does_not_take_is_left_to_numba(kept: Path) -> None:
    kernel = compiled(_counted)
    pair = types.SimpleNamespace(size=1)
    with pytest.raises(TypingError):
        kernel(pair)
    with pytest.raises(TypeError):
        kernel()
    huge = compiled(_mixed)
    assert huge(1, 0.0, np.float32(0), False, (1,)) == 2.0
    assert huge(2**63, 0.0, np.float32(0), False, (1,)) == float(2**63)


def test_memory_and_references_are_given_back(kept: Path) -> None:
    kernel, x, out = compiled(_scaled), np.zeros(100_000), np.zeros(100_000)
    factor = 2.5
    kernel(x, factor, out)

    def held() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1])

    before = held(), sys.getrefcount(x), sys.getrefcount(factor)
    for _ in range(300):  # 240 MB, were it kept
        kernel(x, factor, out)
    after = held(), sys.getrefcount(x), sys.getrefcount(factor)
    assert after[1:] == before[1:]
    assert after[0] - before[0] < 10_000  # pages


@pytest.mark.parametrize("where", [0, 20, 60, -1])
def test_damaged_code_is_made_anew(kept: Path, monkeypatch: pytest.MonkeyPatch, where: int) -> None:
    scale(compiled(_scaled))
    path = only(kept)
    good = path.read_bytes()
    bad = bytearray(good)
    bad[where] ^= 1
    for content in (bytes(bad), b"", good[: len(good) // 2], good + b"x"):
        path.write_bytes(content)
        seen = builds(monkeypatch)
        scale(compiled(_scaled))
        assert seen == ["_scaled"]
        monkeypatch.undo()
        monkeypatch.setenv(store.FOLDER, str(kept))
        assert path.read_bytes() == good


def test_code_under_another_name_is_not_used(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of another function, or for another processor."""
    scale(compiled(_scaled))
    path = only(kept)
    other = path.with_name("0" * 40)
    path.rename(other)
    assert store.find("0" * 40) is None


def test_another_processor_has_other_code(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scale(compiled(_scaled))
    told = processor.described()
    monkeypatch.setattr(processor, "described", lambda: (*told, "flags fewer"))
    seen = builds(monkeypatch)
    scale(compiled(_scaled))
    assert seen == ["_scaled"]
    assert len(list(kept.iterdir())) == 2


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_folder_that_others_can_write_to_is_neither_read_nor_written(
    kept: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    scale(compiled(_scaled))
    kept.chmod(mode)
    seen = builds(monkeypatch)
    scale(compiled(_scaled))
    scale(compiled(_filled_too))
    assert seen == ["_scaled", "_filled_too"]
    assert len(list(kept.iterdir())) == 1


def _filled_too(x: Any, factor: float, out: Any) -> Any:
    total = 0.0
    for i in range(x.size):
        out[i] = x[i] * factor * 3.0
        total += out[i]
    return total


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_can_write_to_is_not_used(
    kept: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    scale(compiled(_scaled))
    only(kept).chmod(mode)
    seen = builds(monkeypatch)
    scale(compiled(_scaled))
    assert seen == ["_scaled"]
    assert only(kept).stat().st_mode & 0o777 == 0o600


def test_what_belongs_to_somebody_else_is_not_used(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scale(compiled(_scaled))
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    seen = builds(monkeypatch)
    scale(compiled(_scaled))
    assert seen == ["_scaled"]


def test_links_are_not_followed(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scale(compiled(_scaled))
    path = only(kept)
    away = path.rename(kept.parent / "away")
    path.symlink_to(away)
    assert store.find(path.name) is None
    path.unlink()
    away.rename(path)
    kept.rename(kept.parent / "elsewhere")
    kept.symlink_to(kept.parent / "elsewhere")
    assert store.find(path.name) is None


@pytest.mark.parametrize("own", ["", "file/below", "missing"])
def test_without_a_place_to_write_code_is_made_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv(store.FOLDER, str(tmp_path / own) if own else "")
    if own == "missing":
        monkeypatch.setattr(Path, "mkdir", _refused)
    seen = builds(monkeypatch)
    scale(compiled(_scaled))
    scale(compiled(_scaled))
    assert seen == ["_scaled"] * 2


def _refused(*_: Any, **__: Any) -> None:
    raise PermissionError("read-only")


@pytest.mark.parametrize("own", [None, "~no-such-user/code"])
def test_without_a_home_code_is_made_each_time(
    monkeypatch: pytest.MonkeyPatch, own: str | None
) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    monkeypatch.setattr(Path, "mkdir", _refused)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv(store.FOLDER, raising=False)
    if own is not None:
        monkeypatch.setenv(store.FOLDER, own)
    seen = builds(monkeypatch)
    scale(compiled(_scaled))
    scale(compiled(_scaled))
    assert seen == ["_scaled"] * 2


def test_settings_of_the_compiler_in_the_working_folder_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(".numba_config.yaml").write_text("opt: '0'\n")
    with pytest.raises(StudyError, match=r"\.numba_config\.yaml: the compiler would take settings"):
        scale(compiled(_scaled))


def test_a_full_disk_leaves_no_part_behind(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "rename", _refused)
    scale(compiled(_scaled))
    assert not list(kept.iterdir())


def test_parts_that_killed_processes_left_are_swept(kept: Path) -> None:
    kept.mkdir(mode=0o700, exist_ok=True)
    old, young, code = kept / "a.part", kept / "b.part", kept / "c"
    for each in (old, young, code):
        each.write_bytes(b"half")
    for each in (old, code):
        os.utime(each, (1.0, 1.0))
    store.keep("d", Image(b"", 0, (), ()))
    assert sorted(each.name for each in kept.iterdir()) == ["b.part", "c", "d"]


# --- what code depends on ---------------------------------------------------------------------


def _made(text: str, **world: Any) -> Any:
    exec(text, world)
    return world["run"]


def test_what_a_function_names_is_part_of_its_meaning() -> None:
    plain = "def run(x):\n    return x * SIZE + helper(x)\n"

    def one(x: float) -> float:
        return x

    def two(x: float) -> float:
        return x + 1.0

    found = {
        meaning.of_function(_made(plain, SIZE=2, helper=one)),
        meaning.of_function(_made(plain, SIZE=3, helper=one)),
        meaning.of_function(_made(plain, SIZE=2.0, helper=one)),
        meaning.of_function(_made(plain, SIZE=np.float32(2), helper=one)),
        meaning.of_function(_made(plain, SIZE=2, helper=two)),
        meaning.of_function(_made(plain, SIZE=2, helper=compiled(one))),
        meaning.of_function(_made(plain, SIZE=2, helper=compiled(one, fastmath=True))),
        meaning.of_function(_made(plain.replace("*", "-"), SIZE=2, helper=one)),
        meaning.of_function(_made(plain, SIZE=2, helper=one), "options"),
    }
    assert len(found) == 9
    spaced = "def run(x):\n    # why\n\n    return x * SIZE + helper(x)\n"
    assert meaning.of_function(_made(spaced, SIZE=2, helper=one)) in found


def test_what_is_bound_in_a_function_is_part_of_its_meaning() -> None:
    def adding(number: Any) -> Callable[[float], Any]:
        return lambda x: x + number

    numbers = (0.0, -0.0, 1, 1.0, True, (1,), np.int64(1))
    assert len({meaning.of_function(adding(each)) for each in numbers}) == len(numbers)


def test_what_the_program_compiles_for_networks_is_kept() -> None:
    """Else a site would load the compiler, for three seconds and a hundred megabytes."""


@pytest.mark.parametrize("raw", [b"", b"\x7fELF", b"\x7fELF\x01\x01" + bytes(90), bytes(100)])
def test_what_is_no_object_file_is_refused(raw: bytes) -> None:
    with pytest.raises(Unfit):
        linked(raw.ljust(64, b"\0"), "run")


def test_numbers_are_those_of_the_compiler_alone(kept: Path) -> None:
    """The same instructions run, whether they were kept or not."""
    from sordino.native.build import outside

    rng = np.random.default_rng(5)
    x: NDArray[np.float64] = rng.standard_normal(1001)
    own, theirs = np.empty(1001), np.empty(1001)
    options = {"fastmath": {"contract", "reassoc"}}
    found = compiled(_scaled, **options)(x, 0.3, own)
    assert found == outside(_scaled, options)(x, 0.3, theirs)
    assert own.tobytes() == theirs.tobytes()


def test_a_party_loads_no_symbolic_algebra_to_learn() -> None:
    """PyTorch would load 1.4 seconds of it to look at the shape of one derivative."""
    code = (
        "import sys, numpy as np, torch\n"
        "from sordino.message import Derivative, packed\n"
        "from sordino.regimes.vertical.engines.split import Cover, Party, Plan\n"
        "plan = Plan(length=1, alpha=1.0, replays=False, batch=1, bits=32)\n"
        "party = Party(0, torch.nn.Linear(3, 2), 3, plan, 0.1, Cover(), False)\n"
        "before = party.flat.weights.clone()\n"
        "class Free:\n"
        "    def covers(self, unit, event): pass\n"
        "party.embed(1, torch.ones(1, 3), True, Free())\n"
        "party.learn(Derivative(0, 1, 32, packed(np.ones(2, np.float32), 32)))\n"
        "assert not torch.equal(before, party.flat.weights)\n"
        "sys.exit('sympy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
