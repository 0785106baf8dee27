"""Columns have names, and mean the same at every site, whatever order a file has them in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from federations import laid, study_of
from sordino.base.errors import DataError
from sordino.data import load
from sordino.network import demo
from sordino.network.demo import DemoFederation
from sordino.network.kit import Agreed
from sordino.network.site import JoinOptions, opened, promised

from .test_events_between_sites import read

NAMES = ("age", "dose", "height", "pulse", "sugar", "weight")


def agreed(found: DemoFederation, names: tuple[str, ...]) -> None:
    """Have everybody agree to these columns."""
    for path in found.server.parent.glob("*/agreement.toml"):
        text = path.read_text()
        assert text.count("columns = []") == 1
        path.write_text(text.replace("columns = []", f"columns = {list(names)}"))


def table(path: Path, to: Path, names: tuple[str, ...]) -> tuple[Path, Any]:
    """A site's rows as a CSV file with these columns in this order, and the rows."""
    with np.load(path) as held:
        x, y = held["x"], held["y"]
    columns = {name: x[:, NAMES.index(name)] for name in names if name in NAMES}
    more = {name: x[:, 0] for name in names if name not in NAMES}
    pl.DataFrame({**columns, "label": y, **more}).write_csv(to)
    return to, x


@pytest.fixture
def site(tmp_path: Path) -> tuple[Path, Path]:
    """The first site's kit and its npz file, of a federation that agreed to columns."""
    found = laid(tmp_path, "synchronous")
    agreed(found, NAMES)
    return found.sites[0]


def test_a_file_with_other_order_of_columns_is_read_by_name(
    site: tuple[Path, Path], tmp_path: Path
) -> None:
    kit, data = site
    path, x = table(data, tmp_path / "own.csv", tuple(reversed(NAMES)))
    *_, own = opened(JoinOptions(kit=kit, data=path))
    assert np.array_equal(own.x, x)
    found = Agreed(kit)
    *_, plain = opened(JoinOptions(kit=kit, data=data))  # without names: as it stands
    assert np.array_equal(plain.x, x)
    test = found.network.test(path)
    assert test is not None
    assert np.array_equal(test.x, x)


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (("age", "dose", "height", "pulse", "salt", "weight"), "lacks 'sugar', and .* 'salt'"),
        (NAMES[:-1], "lacks 'weight'"),
        ((*NAMES, "salt"), "also has 'salt'"),
    ],
)
def test_other_columns_than_agreed_are_refused_by_name(
    names: tuple[str, ...], told: str, site: tuple[Path, Path], tmp_path: Path
) -> None:
    kit, data = site
    path, _ = table(data, tmp_path / "own.csv", names)
    with pytest.raises(DataError, match=rf"own.csv: .*not the agreed ones \(6\).*{told}"):
        opened(JoinOptions(kit=kit, data=path))
    found = Agreed(kit)
    with pytest.raises(DataError, match=told):
        found.network.test(path)


def test_where_nobody_has_agreed_on_names_a_site_is_told_so(tmp_path: Path) -> None:
    kit, data = laid(tmp_path, "synchronous").sites[0]
    path, _ = table(data, tmp_path / "own.csv", NAMES)
    warned = "The agreement names no columns"
    assert warned in "\n".join(promised(JoinOptions(kit=kit, data=path)))
    assert warned not in "\n".join(promised(JoinOptions(kit=kit, data=data)))


def test_a_demo_agrees_to_the_columns_of_its_file(tmp_path: Path) -> None:
    study = study_of(tmp_path, "synchronous")
    path, _ = table(tmp_path / "all.npz", tmp_path / "all.csv", NAMES)
    study = study.model_copy(update={"data": study.data.model_copy(update={"file": path})})
    found = demo.lay_out(study, tmp_path / "federation", scripted=True)
    assert Agreed(found.server).agreement.data.columns == NAMES


def test_a_party_reads_its_own_columns_by_name_and_labels_as_numbers(tmp_path: Path) -> None:
    found = demo.lay_out(read(tmp_path), tmp_path / "federation", scripted=False)
    names = tuple(f"pixel {i}" for i in range(64))
    for path in found.server.parent.glob("*/agreement.toml"):
        text = path.read_text().replace("columns = []", f"columns = {list(names)}")
        shaped = text.replace("shape = [\n    1,\n    8,\n    8,\n]", "shape = [64]")
        path.write_text(shaped.replace('type = "uint8"', 'type = "float32"'))
    kit = Agreed(found.server)
    part, rows = kit.network, kit.agreement.sizes[0]
    x = np.arange(rows * 32, dtype=np.float32).reshape(rows, 32)
    path = tmp_path / "own.csv"
    pl.DataFrame({names[i]: x[:, i] for i in reversed(range(32))}).write_csv(path)
    assert np.array_equal(part.read(path, 0, kit.study).x, x)
    with pytest.raises(DataError, match="lacks 'pixel 32'"):
        part.read(path, 1, kit.study)
    pl.DataFrame({"label": np.arange(rows) % 10 * 1.0}).write_csv(path)
    assert part.read(path, 2, kit.study).y.tolist() == [i % 10 for i in range(rows)]
    x[3, 5] = np.nan
    pl.DataFrame({names[i]: x[:, i] for i in range(32)}).write_csv(path)
    with pytest.raises(DataError, match=r"row 3 .*column 'pixel 5'"):
        part.read(path, 0, kit.study)


def test_a_second_file_has_the_columns_of_the_first_in_any_order(tmp_path: Path) -> None:
    frame = pl.DataFrame({"a": [1.0, 2.0], "b": [10.0, 20.0], "label": [0, 1]})
    frame.write_csv(tmp_path / "train.csv")
    test = tmp_path / "test.csv"
    frame.select("b", "label", "a").write_csv(test)
    given: dict[str, Any] = {"file": tmp_path / "train.csv", "test_file": test}
    found = load("mine", **given)
    assert np.array_equal(found.test.x, found.train.x)
    assert found.test.columns == ("a", "b")
    frame.rename({"a": "c"}).write_csv(test)
    with pytest.raises(DataError, match=r"test.csv: .*those of .*train.csv.*lacks 'a'"):
        load("mine", **given)
