"""The engine and the report know a regime by its name only, and no name of one stands in them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import sordino
from sordino.base.errors import StudyError
from sordino.core import regimes
from sordino.core.records import Facts, Round

ROOT = Path(sordino.__file__).parent
SOURCES = [
    path
    for package in ("engine", "report", "federation", "comparison", "verify", "cli", "console")
    for path in sorted((ROOT / package).rglob("*.py"))
]
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def code(path: Path) -> str:
    """A source file without comments and docstrings."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None:
            node.body = [*node.body[1:], ast.Pass()]
    return ast.unparse(tree)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_name_of_a_regime_stands_outside_of_it(path: Path) -> None:
    found = re.findall("|".join(map(re.escape, regimes.names())), code(path), re.IGNORECASE)
    assert not found


def test_every_regime_is_whole() -> None:
    for name in regimes.names():
        assert regimes.named(name).name == name
        assert regimes.vocabulary(name).regime == name
        assert issubclass(regimes.row(name), Round)
        assert issubclass(regimes.facts(name), Facts)
        assert regimes.facts(name).__struct_config__.tag == name
        assert regimes.teller(name) is regimes.teller(name)


def test_a_regime_that_is_not_known_is_one_error() -> None:
    for part in (regimes.named, regimes.facts, regimes.row, regimes.vocabulary, regimes.teller):
        with pytest.raises(StudyError, match="regime 'weather' is not known"):
            part("weather")
