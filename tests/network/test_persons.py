"""Persons with many rows between sites: what sites agree to, and what they book."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from federations import laid
from memory import Killed
from sordino.base.errors import DataError, LedgerError, ResumeError
from sordino.core.prepared import open_ledgers
from sordino.core.run.verify import verify
from sordino.network import certificates, proof
from sordino.network.kit import Agreed
from sordino.network.site import JoinOptions, opened, promised
from sordino.privacy import Ledger, PoissonSampled, accountant
from sordino.privacy.records.group import of_rows

from .conftest import Makes
from .test_kit import sign

PERSONS = ["data.person=who", "data.person_rows=6", "privacy.unit=person"]
CLIPPED = [*PERSONS, "privacy.clip_per=person"]


def people(folder: Path) -> None:
    """150 rows of 60 persons, of one to six rows each."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 150)
    x = (rng.normal(size=(150, 6)) + y[:, None]).astype(np.float32)
    np.savez(folder / "all.npz", x=x, y=y, who=np.arange(150) % (np.arange(150) % 60 + 1))


@pytest.mark.parametrize(
    ("name", "changes", "rows"),
    [
        ("synchronous", PERSONS, 6),
        ("synchronous", CLIPPED, 1),
        ("shared", CLIPPED, 1),
        pytest.param("shared", PERSONS, 6, marks=pytest.mark.nightly),
        pytest.param("asynchronous", PERSONS, 6, marks=pytest.mark.nightly),
        pytest.param("asynchronous", CLIPPED, 1, marks=pytest.mark.nightly),
    ],
)
def test_sites_book_the_rows_of_persons_or_persons(
    name: str, changes: list[str], rows: int, tmp_path: Path, federate: Makes
) -> None:
    people(tmp_path / "0")
    found = federate(name, changes)
    agreed = Agreed(found.laid.server)
    assert (sum(agreed.agreement.sizes) < 100) == (rows == 1)  # of 60 persons, not of their rows
    found.start()
    found.wait()
    for site in found.names:
        with Ledger.open(found.folder(site) / "ledger.sqlite", readonly=True) as ledger:
            booked = [(entry.event, entry.count) for entry in ledger.entries()]
        assert booked
        assert all(isinstance(event, PoissonSampled) for event, _ in booked)
        spent = [(of_rows(event, rows), count) for event, count in booked]
        delta = agreed.study.privacy.delta or 0.0
        price, done = pytest.approx(accountant("rdp").epsilon(spent, delta)), found.done[site]
        assert done.spent == price
        # others choose how many updates of edges there are, so the budget may be what bounds them
        chosen = name == "asynchronous" and done.epsilon == agreed.study.privacy.epsilon
        assert done.epsilon == price or chosen
        assert found.done[site].unit == "person"
        assert verify(found.folder(site)).problems == []
    assert verify(found.server).problems == []
    # the server has nobody's rows, and stated the price of one; of edges it charges ahead
    dearest = max(found.done[site].epsilon for site in found.names)
    assert found.done["server"].epsilon >= dearest
    assert name == "asynchronous" or found.done["server"].epsilon == dearest
    kit, data = found.laid.sites[0]
    run, (agreed, index, *_) = found.folder(kit.name), opened(JoinOptions(kit=kit, data=data))
    proof.write(kit, run, agreed, index, found.done[kit.name])
    stated = proof.verify(run, kit / "authority.pem")
    assert stated.epsilon == pytest.approx(found.done[kit.name].epsilon)
    whole = json.loads((run / proof.NAME).read_text())
    less = {**json.loads(whole["statement"]), "epsilon": 0.9 * found.done[kit.name].spent}
    sign(run / proof.NAME, certificates.read_pair(kit, "site"), less)
    with pytest.raises(LedgerError, match="is spent, and the proof of site"):
        proof.verify(run, kit / "authority.pem")


def test_a_site_has_as_many_persons_as_it_agreed_to(tmp_path: Path) -> None:
    people(tmp_path / "all")
    kit, data = laid(tmp_path / "all", "synchronous", CLIPPED).sites[0]
    with np.load(data) as held:
        x, y, who = held["x"], held["y"], held["who"]
    *_, own = opened(JoinOptions(kit=kit, data=data))
    persons = Agreed(kit).agreement.site[0].examples
    assert len(own) == len(x) > persons == len(np.unique(who))
    told = " ".join(promised(JoinOptions(kit=kit, data=data)))
    assert f"how many persons you have ({persons})" in told
    np.savez(data, x=x, y=y, who=["somebody", *who[1:]])
    with pytest.raises(DataError, match=r"has \d+ persons, and this site agreed to have"):
        opened(JoinOptions(kit=kit, data=data))


def test_what_a_limit_pays_for_in_passes_is_within_it(tmp_path: Path) -> None:
    """Steps of passes are not charged by themselves."""
    people(tmp_path / "all")
    kit, data = laid(tmp_path / "all", "passes", [*PERSONS, "privacy.epsilon=60.0"]).sites[0]
    agreed, index, study, own = opened(JoinOptions(kit=kit, data=data, limit=45.0))
    found = agreed.network.standing(index, study, own)
    assert found is not None
    assert found.pays == 3  # a pass has three batches
    assert found.total is not None
    assert 30.0 < found.total <= 45.0


def test_a_run_whose_server_priced_a_person_as_one_row_is_not_gone_on_with(
    tmp_path: Path, federate: Makes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As every version before did; and what such a folder states is not verified."""
    before = [True]

    def as_before(*given: Any, rows: Any = None, **named: Any) -> Any:
        return open_ledgers(*given, rows={} if before[0] else rows, **named)

    def killed(kernel: Any) -> None:
        if before[0] and kernel.state.number == 3:
            before[0] = False
            raise Killed

    monkeypatch.setattr("sordino.core.prepared.open_ledgers", as_before)
    people(tmp_path / "0")
    found = federate("synchronous", PERSONS, scripted=False)
    found.told = killed
    found.start()
    with pytest.raises(ResumeError, match="priced a person as one row here"):
        found.wait()
    assert any("a person of 6 rows as one row" in each for each in verify(found.server).problems)
