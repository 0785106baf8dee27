"""The federations among the examples are agreements whose studies can be provisioned."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from sordino.network import kit
from sordino.network.kit import Agreed

EXAMPLES = Path(__file__).parents[2] / "examples"
FEDERATIONS = sorted(EXAMPLES.glob("**/federation.toml"))


@pytest.mark.parametrize("path", FEDERATIONS, ids=lambda path: path.parent.name)
def test_examples_are_federations(path: Path, tmp_path: Path) -> None:
    agreement = kit.provision(path, tmp_path / "kits", dt.datetime.now(dt.UTC))
    found = [Agreed(tmp_path / "kits" / each) for each in (kit.SERVER, *agreement.names)]
    assert {each.digest for each in found} == {found[0].digest}
    assert len(found) == 1 + len(agreement.site) > 2
