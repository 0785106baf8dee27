"""What is left when a run has ended is shown to others: it holds no row, no name of an entity, and
not who was drawn. What others register under a name is no more public than a file.
"""

from __future__ import annotations

import bz2
import gzip
import json
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file
from sklearn.preprocessing import LabelEncoder
from sklearn.utils import Bunch

from command import sordino
from sordino.api.given import store
from sordino.base.errors import BudgetExceeded, DataError, StudyError
from sordino.base.fingerprints import KEYED
from sordino.clients.study import HorizontalStudy
from sordino.comparison import runner
from sordino.core import study as studies
from sordino.core.regimes import named
from sordino.core.run import session
from sordino.data import identity, sets
from sordino.data.notices import noticed
from sordino.privacy import Ledger
from sordino.tune import public

ROWS = 120
CLASSES = ("low", "mid", "high")
STATED = 'classes=["low", "mid", "high"]'
NAMES = [f"Patient {i // 3}" for i in range(ROWS)]
SYSTEM = 'privacy.entropy="system"'
EVENTS = [
    f'data={{file="rows.csv", parties=2, stream="file", {STATED}, entity="who"}}',
    'model={name="mlp", embedding=4}',
    "budget.events=120",
]
ENTITY = (
    'privacy={unit="entity", epsilon=64.0, delta=1e-4, label_epsilon=4.0, appearances=3, '
    'embedding={clip=1.0}, updates="frozen"}'
)
SAMPLE = ["privacy.epsilon=4", "privacy.delta=1e-2", "budget.rounds=2", "model.name=logistic"]
ENDED = {
    "rows, names": [*EVENTS, 'method={name="slr", learning_rate=0.01, length=3}', ENTITY],
    "cohorts": [
        f'data={{file="rows.csv", clients=40, client_column="who", partition="column", {STATED}}}',
        'method={name="dp-fedavg", weights="equal"}',
        'privacy.unit="client"',
        *SAMPLE,
    ],
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SORDINO_DATA_KEY", str(tmp_path / "key"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def numbers() -> tuple[Any, Any]:
    x = np.random.default_rng(0).normal(size=(ROWS, 4)).clip(-3, 3).astype(np.float32)
    return x, np.repeat(x[::3, :3].argmax(1), 3)


def table(path: Path, rows: int = ROWS, bad: dict[int, tuple[int, str]] | None = None) -> Path:
    """Rows with names, the same ones again and again; in ``bad`` ones, a cell that says another
    thing.
    """
    x, y = numbers()
    lines = ["a,b,c,d,who,label"]
    for i in range(rows):
        at = i % ROWS
        cells = [*(repr(float(v)) for v in x[at]), NAMES[at], CLASSES[y[at]]]
        if bad and i in bad:
            place, text = bad[i]
            cells[place] = text
        lines.append(",".join(cells))
    path.write_text("\n".join(lines))
    return path


def asked(folder: Path, regime: str, *changes: str) -> studies.Study:
    (folder / "study.toml").write_text(named(regime).template)
    return studies.read(folder / "study.toml", [*changes, SYSTEM])


def quiet(told: object) -> None:
    """Show nothing."""


@pytest.mark.parametrize("case", ENDED)
def test_a_run_that_has_ended_keeps_no_rows_no_names_and_not_who_was_drawn(
    folder: Path, case: str
) -> None:
    table(folder / "rows.csv")
    study = asked(folder, "synchronous" if case == "cohorts" else "vertical", *ENDED[case])
    outcome = session.begin(study, folder / "run", quiet, quiet)
    x, _ = numbers()
    parts = {half.tobytes() for row in x for half in (row[:2], row[2:])}
    digests = {identity.entity(name).to_bytes(8, "little") for name in NAMES}
    for path in (folder / "run").rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        assert not [each for each in parts | digests if each in content], path
    last = folder / "run" / "checkpoints" / "latest.safetensors"
    assert set(load_file(last)) == {"model"}
    with safe_open(last, framework="numpy") as file:
        moment = json.loads(file.metadata()["state"])["moment"]
    assert set(moment) == {"number", "steps", "ended"}
    assert session.resume(folder / "run", quiet, quiet).why == outcome.why


@pytest.mark.parametrize("cell", [(5, "weird"), (0, ""), (1, "nan")])
def test_a_bad_row_far_down_ends_no_run_in_the_middle(folder: Path, cell: tuple[int, str]) -> None:
    """The number of rows in the log would tell where it stands."""
    table(folder / "rows.csv", 1400, {1350: cell})
    own = f'data={{file="rows.csv", label="label", parties=2, stream="file", {STATED}'
    study = asked(
        folder,
        "vertical",
        f'{own}, entity="who"}}',
        'model={name="mlp", embedding=4}',
        'method={name="ogd", learning_rate=0.01}',
        'privacy={unit="label", epsilon=3.0, delta=1e-4, memoised=false, appearances=20}',
        "budget.events=1400",
    )
    with pytest.raises(DataError, match=r"rows\.csv: row 1350"):
        session.begin(study, folder / "run", quiet, quiet)
    assert not list(folder.glob("run/rounds.jsonl"))


OWN = """
import numpy as np
from sordino.data import Published, register

def read(folder, published):
    with np.load(folder / "ours.npz") as found:
        x, y = found["x"], found["y"]
    return (x[:90], y[:90]), (x[90:], y[90:])

OURS = register(Published("ours", ("low", "mid", "high"), (("ours.npz",),), read=read))
"""


@pytest.fixture
def ours(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A data set with a name of somebody's own, and its two halves as files."""
    x, y = numbers()
    (folder / "data" / "ours").mkdir(parents=True)
    np.savez(folder / "data" / "ours" / "ours.npz", x=x, y=y)
    np.savez(folder / "train.npz", x=x[:90], y=y[:90])
    np.savez(folder / "test.npz", x=x[90:], y=y[90:])
    (folder / "ours.py").write_text(OWN)
    monkeypatch.setenv("SORDINO_DATA", str(folder / "data"))
    monkeypatch.syspath_prepend(folder)
    yield folder
    sys.modules.pop("ours", None)
    sets.forget("ours")


def sampled(folder: Path, data: str, *changes: str) -> studies.Study:
    own = ['method={name="dp-sgd", tau=1}', *SAMPLE, f'privacy.ledger="{folder / "kept"}"']
    return asked(folder, "synchronous", f"data={{{data}, clients=2}}", *own, *changes)


def test_rows_that_somebody_else_names_are_no_more_public_than_a_file(ours: Path) -> None:
    promised = sampled(ours, 'file="test.npz"')
    session.begin(sampled(ours, 'name="ours:OURS"'), ours / "run", quiet, quiet)
    with pytest.raises(BudgetExceeded, match="declared public"):  # measured on exactly
        session.begin(promised, ours / "later", quiet, quiet)
    (ours / "study.toml").write_text(studies.write(sampled(ours, 'name="ours:OURS"')))
    told = sordino(ours, "data", "partition", "study.toml", "--json")
    assert json.loads(told.stdout) == {"clients": ["client 0", "client 1"], "sizes": [45, 45]}


def test_tuning_on_rows_that_somebody_else_names_is_declared_and_booked(
    ours: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise StudyError("here candidates train")

    monkeypatch.setattr(runner, "play_tasks", stop)
    (ours / "study.toml").write_text(studies.write(sampled(ours, 'file="train.npz"')))
    vary = ("tune", "study.toml", "--vary", "method.learning_rate=0.1,0.5", "--on", "ours:OURS")
    assert "--declared-public" in sordino(ours, *vary, "-q").stderr
    assert "here candidates train" in sordino(ours, *vary, "--declared-public", "-q").stderr
    with pytest.raises(BudgetExceeded, match="declared public"):
        session.begin(studies.read(ours / "study.toml", []), ours / "run", quiet, quiet)


def test_sizes_of_clients_that_weigh_the_same_are_shown_by_no_command(folder: Path) -> None:
    table(folder / "rows.csv")
    study = asked(folder, "synchronous", *ENDED["cohorts"])
    (folder / "study.toml").write_text(studies.write(study))
    told = sordino(folder, "data", "partition", "study.toml", "--json")
    assert json.loads(told.stdout) == {"clients": sorted(set(NAMES)), "sizes": None}
    assert "40 clients: Patient 0," in sordino(folder, "data", "partition", "study.toml").stdout
    assert "examples" not in sordino(folder, "plan", "study.toml").stdout.splitlines()[0]


def test_classes_that_a_container_learned_from_its_rows_are_not_stated(folder: Path) -> None:
    x, y = numbers()
    coder = LabelEncoder()
    held = Bunch(
        data=x, target=coder.fit_transform(np.array(CLASSES)[y]), target_names=coder.classes_
    )
    assert "classes" not in store(held, folder / "kept", {})
    stated = store(held, folder / "kept", {"classes": list(CLASSES)})
    assert stated["classes"] == list(CLASSES)


def images(folder: Path, count: int) -> None:
    """Images of somebody's own in files of MNIST's form, as many to train on, half to test on."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(7)
    for half, rows in (("train", count), ("t10k", count // 2)):
        pixels = rng.integers(0, 256, (rows, 28, 28), np.uint8)
        for kind, values in (("images-idx3", pixels), ("labels-idx1", np.arange(rows) % 10)):
            head = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape)
            (folder / f"{half}-{kind}-ubyte").write_bytes(head + values.astype(np.uint8).tobytes())


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_own_rows_under_a_published_name_are_private(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Files that somebody has put where published ones lie may be of people."""
    images(folder / "data" / name, 200)
    monkeypatch.setenv("SORDINO_DATA", str(folder / "data"))
    study = sampled(folder, f'name="{name}"', 'privacy.ledger="run"')
    assert not study.data.published
    told: list[str] = []
    with noticed(told.append):
        session.begin(study, folder / "run", quiet, quiet)
    assert [text for text in told if f"not the files that are published as {name}" in text]
    with Ledger.open(folder / "run" / "ledger.sqlite", readonly=True) as ledger:
        prints = [each for unit, each in ledger.units().items() if each != unit]
    assert prints
    assert all(each.startswith(KEYED) for each in prints), prints
    digits = sampled(folder, 'name="digits"')
    assert isinstance(digits, HorizontalStudy)
    with pytest.raises(StudyError, match="--declared-public"):
        public.moved(digits, name, declared=False)


def test_published_files_count_as_published_under_whatever_ending(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SORDINO_DATA", str(folder / "data"))
    place = folder / "data" / "susy"
    place.mkdir(parents=True)
    row = (
        "0.000000000000000000e+00,9.728614687919616699e-01,6.538545489311218262e-01,"
        "1.176224589347839355e+00,1.157156467437744141e+00\n"
    )
    for content, whole in ((row, True), (row.replace("9.7", "9.8"), False)):
        (place / "SUSY.csv").write_text(content)
        assert sets.is_published("susy") is whole
        (place / "SUSY.csv.gz").write_bytes(gzip.compress(content.encode()))
        assert sets.is_published("susy") is whole
        (place / "SUSY.csv.gz").unlink()
    place = folder / "data" / "usps"
    place.mkdir()
    (place / "usps").write_text("1 1:0.5\n")
    (place / "usps.t.bz2").write_bytes(bz2.compress(b"1 1:0.5\n"))  # not the published sum
    assert not sets.is_published("usps")
    installed = Path("/usr/share/datasets/fashion-mnist")
    if installed.is_dir():
        assert sets.is_published("fashion-mnist")  # Debian has packed it anew


def test_a_bad_row_under_a_published_name_ends_no_run_in_the_middle(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SORDINO_DATA", str(folder / "data"))
    place = folder / "data" / "susy" / "SUSY.csv"
    place.parent.mkdir(parents=True)
    rows = [f"{row % 2},{','.join(['0.5'] * 18)}" for row in range(1400)]
    place.write_text("\n".join([*rows[:1350], rows[1350].replace("0.5", "weird"), *rows[1351:]]))
    study = asked(
        folder,
        "vertical",
        'data={name="susy", parties=2, stream="file"}',
        'model={name="mlp", embedding=4}',
        'method={name="ogd", learning_rate=0.01}',
        'privacy={unit="label", epsilon=3.0, delta=1e-4}',
        "budget.events=1400",
    )
    with pytest.raises(DataError, match=r"SUSY\.csv: row 1350"):
        session.begin(study, folder / "run", quiet, quiet)
    assert not list(folder.glob("run/rounds.jsonl"))
