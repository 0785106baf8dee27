"""Noise is never used twice: the same study over the same data repeats bit for bit, anything else
draws afresh.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from sordino.base.errors import ResumeError, StudyError
from sordino.core import study as studies
from sordino.core.run import environment, session
from sordino.core.run.environment import answering, protective
from sordino.core.run.folder import KEY

ROUNDS = """
name = "shared"
[data]
file = "FILE"
test = "none"
clients = 2
[model]
name = "logistic"
[method]
name = "dp-sgd"
tau = 1
learning_rate = 0.5
[privacy]
unit = "sample"
epsilon = 50.0
delta = 1e-5
noise_multiplier = 1.0
sampling_rate = 0.9
[budget]
rounds = 1
"""
CLIENTS = (
    'method={name="dp-fedavg", tau=1, batch=8, learning_rate=0.1}',
    'privacy={unit="client", epsilon=200.0, delta=1e-5, noise_multiplier=1.0, sampling_rate=0.9}',
)
EDGES = """
name = "shared"
[data]
file = "FILE"
test = "none"
clients = 2
[model]
name = "logistic"
[method]
name = "mapa"
batch = 40
[privacy]
unit = "sample"
epsilon = 50.0
delta = 1e-5
noise_multiplier = 1.0
[budget]
updates = 1
"""


def data(folder: Path, changed: bool) -> Path:
    rng, path = np.random.default_rng(0), folder / f"data{int(changed)}.npz"
    x, y = rng.standard_normal((120, 60)).astype(np.float32), np.arange(120) % 3
    if changed:
        x[17] *= -1.0
    np.savez(path, x=x, y=y)
    return path


def study(folder: Path, text: str, changed: bool, *changes: str) -> studies.Study:
    path = folder / "study.toml"
    path.write_text(text.replace("FILE", str(data(folder, changed))))
    return studies.read(path, list(changes))


def model(asked: studies.Study, folder: Path) -> np.ndarray[Any, Any]:
    session.begin(asked, folder, _quiet, _quiet)
    found = load_file(folder / "model.safetensors")
    return np.concatenate([found[name].ravel() for name in sorted(found)]).astype(np.float64)


def _quiet(row: Any) -> None:
    """Show nothing."""


@pytest.mark.parametrize(
    ("text", "changes", "noise"),
    [
        (ROUNDS, (), 0.05),
        (ROUNDS, CLIENTS, 1.0),
        (EDGES, (), 0.03),
        (ROUNDS, ("privacy.entropy='system'",), 0.05),
    ],
    ids=["samples", "clients", "edges", "system"],
)
def test_two_data_sets_that_differ_in_a_row_do_not_share_noise(
    tmp_path: Path, text: str, changes: tuple[str, ...], noise: float
) -> None:
    """The attack: subtract the published models of both. Where noise was shared, 0.009 was left, 0
    and 0: what one row does.
    """
    asked = study(tmp_path, text, False, *changes)
    here, again = model(asked, tmp_path / "a"), model(asked, tmp_path / "again")
    there = model(study(tmp_path, text, True, *changes), tmp_path / "b")
    system = bool(changes) and "system" in changes[0]
    assert np.array_equal(here, again) != system  # from a seed it repeats bit for bit
    assert np.linalg.norm(here - there) > noise


@pytest.mark.parametrize(
    "change",
    [
        "seed=1",
        "privacy.noise_multiplier=1.1",
        "privacy.clip=2.0",
        "method.learning_rate=0.4",
        "privacy.delta=2e-5",
        "budget.rounds=2",
        "execution.threads=2",
    ],
)
def test_whatever_shapes_a_release_is_part_of_the_address(tmp_path: Path, change: str) -> None:
    def draws(asked: studies.Study, run: str = "r", prints: tuple[str, ...] = ("a", "b")) -> float:
        return float(protective(asked, run, prints, tmp_path).at("client", 0).random())

    base, other = study(tmp_path, ROUNDS, False), study(tmp_path, ROUNDS, False, change)
    assert draws(base) == draws(base, run="another")  # a run's own ledger: it repeats
    assert draws(base) != draws(other)
    assert draws(base) != draws(base, prints=("a", "c"))
    assert draws(base) != draws(base, prints=("ab",))
    shared = study(tmp_path, ROUNDS, False, f"privacy.ledger='{tmp_path}/kept'")
    # one ledger for several runs: each has noise of its own
    assert draws(shared, "r") != draws(shared, "s")


def test_another_program_draws_afresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = study(tmp_path, ROUNDS, False)
    before = [
        draw(asked, "r", ("a",), tmp_path).at("x").random() for draw in (protective, answering)
    ]
    monkeypatch.setattr(environment, "sources", lambda: "another")
    after = [
        draw(asked, "r", ("a",), tmp_path).at("x").random() for draw in (protective, answering)
    ]
    assert all(a != b for a, b in zip(before, after, strict=True))
    monkeypatch.undo()
    monkeypatch.setattr(environment, "environment", lambda study: {"torch": "another"})
    assert protective(asked, "r", ("a",), tmp_path).at("x").random() != before[0]
    # their charges are not keyed by it either
    assert answering(asked, "r", ("a",), tmp_path).at("x").random() == before[1]
    # an edited drift had one coin for two labels: each pair of answers named the true one
    monkeypatch.setattr(environment, "_modules", lambda study: {"drift": "edited"})
    assert answering(asked, "r", ("a",), tmp_path).at("x").random() != before[1]


def test_an_installed_program_is_known_by_its_number_and_a_comment_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "HOME", Path("/lib/site-packages/sordino"))
    asked, found = study(tmp_path, ROUNDS, False), []
    for sources, number in (("a", 1), ("b", 1), ("b", 2)):
        monkeypatch.setattr(environment, "sources", lambda told=sources: told)
        monkeypatch.setattr(environment, "NUMERICS", number)
        found.append(
            [
                draw(asked, "r", ("a",), tmp_path).at("x").random()
                for draw in (protective, answering)
            ]
            + [environment.charge_key_prefix(asked, "r")]
        )
    assert found[0] == found[1]
    assert all(a != b for a, b in zip(found[1], found[2], strict=True))


def test_where_files_lie_is_no_part_and_what_they_hold_is(tmp_path: Path) -> None:
    found = []
    for name, trace in (
        ("a", "client,seconds\n0,1\n1,1\n"),
        ("b", "client,seconds\n0,1\n1,1\n"),
        ("c", "client,seconds\n0,2\n1,1\n"),
    ):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "trace.csv").write_text(trace)
        asked = study(
            folder, EDGES, False, f'world.latency={{kind="trace", file="{folder}/trace.csv"}}'
        )
        found.append(protective(asked, "r", ("a",), folder).at("x").random())
    assert found[0] == found[1] != found[2]


def test_a_secret_key_is_kept_private_while_a_run_lasts_and_destroyed_then(tmp_path: Path) -> None:
    asked = study(tmp_path, ROUNDS, False, "privacy.entropy='system'")
    first = protective(asked, "r", (), tmp_path).at("x").random()
    key = tmp_path / KEY
    assert key.stat().st_mode & 0o077 == 0
    assert protective(asked, "r", (), tmp_path).at("x").random() == first  # it goes on as it began
    secret = key.read_bytes()
    environment.forget(tmp_path)
    assert secret not in key.read_bytes()
    assert protective(asked, "r", (), tmp_path).at("x").random() != first
    key.write_bytes(b"short")
    with pytest.raises(ResumeError, match="not the secret key"):
        protective(asked, "r", (), tmp_path)
    key.unlink()
    key.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StudyError, match="symbolic link"):
        protective(asked, "r", (), tmp_path)
    assert not (tmp_path / "elsewhere").exists()


def test_noise_without_a_proven_sampler_is_not_for_people(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="no proof covers how mechanism 'k-norm' is sampled"):
        study(
            tmp_path, ROUNDS, False, "privacy.entropy='system'", 'privacy.mechanism={kind="k-norm"}'
        )
