"""Which classes there are is stated, or said to be read from private rows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from sordino.base.errors import DataError, StudyError
from sordino.cli import main
from sordino.core import study as studies
from sordino.core.run import session
from sordino.data import load
from sordino.data.labels import encode
from sordino.data.table import ReadOptions

RARE = "Creutzfeldt-Jakob"
STUDY = """
name = "diagnoses"
seed = 0
[data]
file = "rows.csv"
clients = 2
{stated}
[model]
name = "logistic"
[method]
name = "dp-sgd"
learning_rate = 0.5
tau = 1
[privacy]
unit = "sample"
epsilon = 4.0
delta = 1e-2
sampling_rate = 0.2
clip = 1.0
[budget]
rounds = 1
"""


def write(folder: Path, last: str, stated: str) -> Path:
    """Forty patients; the diagnosis of the last is given."""
    rng = np.random.default_rng(0)
    labels = [("cold", "flu")[i % 2] for i in range(39)] + [last]
    rows = [f"{a:.3f},{b:.3f},{y}" for (a, b), y in zip(rng.random((40, 2)), labels, strict=True)]
    (folder / "rows.csv").write_text("\n".join(["a,b,label", *rows]) + "\n")
    (folder / "study.toml").write_text(STUDY.format(stated=stated))
    return folder / "study.toml"


def ran(folder: Path, last: str, stated: str) -> dict[str, object]:
    folder.mkdir()
    read = studies.read(write(folder, last, stated))
    session.begin(read, folder / "run", lambda _: None, lambda _: None)
    about: dict[str, object] = json.loads((folder / "run" / "run.json").read_text())
    return about


def test_stated_classes_do_not_tell_that_a_row_is_there(tmp_path: Path) -> None:
    stated = f'classes = ["cold", "flu", "{RARE}"]'
    found = [ran(tmp_path / name, last, stated) for name, last in (("a", "flu"), ("b", RARE))]
    assert found[0]["classes"] == found[1]["classes"] == ["cold", "flu", RARE]
    assert found[0]["dimension"] == found[1]["dimension"]
    assert not any("classes" in str(each) for about in found for each in about["warnings"])  # type: ignore[attr-defined]


def test_classes_that_private_rows_tell_are_named_in_the_plan_the_record_and_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    about = ran(tmp_path / "a", RARE, "")
    said = "which classes there are was read from the private rows"
    assert any(said in str(each) for each in about["warnings"])  # type: ignore[attr-defined]
    monkeypatch.setattr("sys.argv", ["sordino", "plan", str(tmp_path / "a" / "study.toml")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    told = "".join(capsys.readouterr())
    assert f"NOT COVERED: {said}" in told
    assert f'classes = ["{RARE}", "cold", "flu"]' in told  # the line to paste, for the owner alone
    assert RARE not in json.dumps(about["warnings"])


def test_a_label_that_is_not_stated_is_refused_before_anything_runs(tmp_path: Path) -> None:
    read = studies.read(write(tmp_path, RARE, 'classes = ["cold", "flu"]'))
    with pytest.raises(DataError, match=rf"row 39 .* has the label '{RARE}', and data\.classes"):
        session.begin(read, tmp_path / "run", lambda _: None, lambda _: None)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("labels", "classes", "target", "numbers"),
    [
        (["b", "a ", "b"], ("b", "a", "c"), None, [0, 1, 0]),
        ([0, 2, 1], ("low", "middle", "high"), None, [0, 2, 1]),
        ([7.0, 3.0], ("3", "7"), None, [1, 0]),
        ([True, False], ("False", "True"), None, [1, 0]),
        (["YES", " no"], ("yes", "No"), "binary", [0, 1]),
        (["1", "2"], ("1", "2", "3"), "classes", [0, 1]),
    ],
)
def test_labels_are_numbered_as_they_are_stated(
    labels: list[object], classes: tuple[str, ...], target: str | None, numbers: list[int]
) -> None:
    own = np.array(labels)
    (found,), names = encode((own,), "x.csv", target, None, classes)  # type: ignore[arg-type]
    assert found.tolist() == numbers
    assert names == classes


def test_files_of_every_kind_take_them(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.zeros((3, 2)), y=np.array(["a", "b", "a"]))
    found = load(
        "x", file=tmp_path / "x.npz", test_fraction=None, how=ReadOptions(classes=("b", "a", "z"))
    ).train
    assert found.y.tolist() == [1, 0, 1]
    assert found.outputs == 3


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ('classes = ["flu"]', "two labels at least"),
        ('classes = ["flu", "flu"]', "'flu' twice"),
        ('classes = ["flu", " "]', "an empty name"),
        ('classes = ["Flu", "flu"]\ntarget = "binary"', "'Flu' twice"),
        ('classes = ["a", "b", "c"]\ntarget = "binary"', "needs two classes"),
        ('classes = ["a", "b"]\ntarget = "number"\nlabel_range = [0, 1]', "labels are classes"),
    ],
)
def test_lists_that_are_none_are_refused(tmp_path: Path, stated: str, message: str) -> None:
    with pytest.raises(StudyError, match=message):
        studies.read(write(tmp_path, "flu", stated))
