"""The notebooks run as they are, and show what they say."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from IPython.core.formatters import DisplayFormatter
from nbclient import NotebookClient

HERE = Path(__file__).parents[1] / "examples" / "notebooks"
NAMES = sorted(path.name for path in HERE.glob("*.ipynb"))


def executed(name: str, folder: Path) -> list[Any]:
    """The last output of each cell of code, in a kernel."""
    notebook = nbformat.read(HERE / name, 4)  # type: ignore[no-untyped-call]
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()
    return [
        cell.outputs[-1].data if cell.outputs and "data" in cell.outputs[-1] else {}
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


def played(name: str, folder: Path) -> list[Any]:
    """The same in this process, which has imported it all: what each cell's last line shows."""
    shown, names = [], {"__name__": "__main__"}
    notebook = nbformat.read(HERE / name, 4)  # type: ignore[no-untyped-call]
    with contextlib.chdir(folder):
        for cell in notebook.cells:
            if cell.cell_type == "code":
                *lines, last = ast.parse(cell.source).body
                value = None
                if not isinstance(last, ast.Expr):
                    lines.append(last)
                exec(compile(ast.Module(lines, []), name, "exec"), names)
                if isinstance(last, ast.Expr):
                    value = eval(compile(ast.Expression(last.value), name, "eval"), names)
                shows: Any = DisplayFormatter()
                shown.append({} if value is None else shows.format(value)[0])
    return shown


def test_there_are_three_and_each_cell_shows_something() -> None:
    assert NAMES == ["audit-a-run.ipynb", "choose-a-method.ipynb", "first-run.ipynb"]
    for name in NAMES:
        notebook = nbformat.read(HERE / name, 4)  # type: ignore[no-untyped-call]
        code = [cell for cell in notebook.cells if cell.cell_type == "code"]
        assert all(cell.outputs for cell in code), name
        assert [cell.execution_count for cell in code] == [i + 1 for i in range(len(code))], name


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(
    ("name", "shows"),
    [
        ("audit-a-run.ipynb", played),
        pytest.param("choose-a-method.ipynb", played, marks=pytest.mark.nightly),
        ("first-run.ipynb", played),
        pytest.param("first-run.ipynb", executed, marks=pytest.mark.nightly),
    ],
)
def test_a_notebook_runs(
    name: str, shows: Callable[[str, Path], list[Any]], tmp_path: Path
) -> None:
    shown = shows(name, tmp_path)
    text = [str(each.get("text/plain", "")) for each in shown]
    if name == "audit-a-run.ipynb":
        mine, theirs = map(float, text[-2].strip("()").split(","))
        assert 0.999 * mine <= theirs <= mine
        assert "rounds.jsonl" in text[-1]  # the change was found
        assert text[2].startswith("([],")
    elif name == "choose-a-method.ipynb":
        assert len(shown) + 4 <= 10 + 2  # it stays short
        assert "<svg" in shown[-2]["text/html"]
        assert "0.99" in text[-1]
    else:
        assert "<svg" in shown[2]["text/html"]
