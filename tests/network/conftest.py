"""What tests of a network share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from federations import STUDIES, Federation, laid
from sordino.network import server, site


@pytest.fixture(autouse=True)
def swift(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections that are tried again at once, and short farewells."""
    monkeypatch.setattr(site, "FIRST_PAUSE", 0.002)
    monkeypatch.setattr(site, "LONGEST_PAUSE", 0.02)
    monkeypatch.setattr(server, "FAREWELL", 3.0)


@pytest.fixture
def brief(swift: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A farewell that does not wait long for a site that never says that it has heard it."""
    monkeypatch.setattr(server, "FAREWELL", 0.4)


Makes = Callable[..., Federation]


@pytest.fixture
def federate(tmp_path: Path, swift: None) -> Iterator[Makes]:
    """Makes a federation in memory, by name of its study; what still goes on is ended."""
    made: list[Federation] = []

    def makes(
        name: str, changes: Sequence[str] = (), limits: dict[str, float] | None = None, **given: Any
    ) -> Federation:
        found = laid(tmp_path / str(len(made)), name, changes, **given)
        made.append(Federation(laid=found, limits=limits or {}))
        return made[-1]

    yield makes
    for each in made:
        each.end()


def some(*names: str) -> list[Any]:
    """All studies, of which these are played by day and the others at night."""
    every = [*STUDIES, "events"] if "events" in names else list(STUDIES)
    return [
        pytest.param(each, marks=() if each in names else pytest.mark.nightly) for each in every
    ]
