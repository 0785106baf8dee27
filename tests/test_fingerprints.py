"""Nothing that is written or sent tells guesses of a private row apart.

The attacker knows all rows but one, and this program, and not the key of the owner's fingerprints:
for each guess of that row the attacker runs the same study, and looks for what is equal where the
guess is right and different where it is wrong. Noise comes from the operating system, so that this
finds whatever follows from the rows without it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sqlite3
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import sordino as so
from digits import small
from federations import Federation, laid
from network.test_events_between_sites import play, read
from permitted import permit
from sordino.base.entropy import Seeded
from sordino.base.errors import ResumeError, StudyError
from sordino.core import study as studies
from sordino.core.prepared import UNIT, PaidEvaluation
from sordino.core.regimes import named, plan
from sordino.core.run import environment, session
from sordino.core.run.verify import verify
from sordino.core.statements import uncovered
from sordino.data import identity, scattering
from sordino.data.dataset import Bytes
from sordino.data.notices import noticed
from sordino.mechanisms.gaussian import Gaussian as Noise
from sordino.network import demo
from sordino.network.proof import write as write_proof
from sordino.network.site import JoinOptions, opened
from sordino.privacy import Budget
from sordino.privacy.records.identity import digests
from sordino.report.page import write as write_report
from sordino.tune.public import keep_digest

HERE = "SORDINO_DATA_KEY"
ROWS = 60
SYSTEM = 'privacy.entropy="system"'
CHEAP = {
    "synchronous": ["data.clients=2", "budget.rounds=2", "budget.steps=4", "data.partition=iid"],
    "asynchronous": ["data.clients=2", "budget.updates=12", "method.batch=10"],
    "vertical": [
        'privacy={unit="label", epsilon=1.0, delta=1e-5}',
        "data.parties=2",
        "data.stream=replay",
        "budget.events=40",
        "execution.path=messages",
    ],
}
HORIZONTAL = [
    'model.name="logistic"',
    "privacy.epsilon=20",
    "privacy.delta=1e-3",
    "privacy.accountant=rdp",
]
CASES = {
    "synchronous": ["data.validation=10"],
    "synchronous, whole clients": [
        'method.name="dp-fedavg"',
        'privacy.unit="client"',
        "privacy.epsilon=500",
        "privacy.noise_multiplier=1",
    ],
    "synchronous, a test share that pays": ['data.test="private share"'],
    "synchronous, persons": [
        "data.person=who",
        "data.person_rows=2",
        "privacy.epsilon=900",
        "privacy.noise_multiplier=2",
    ],
    "synchronous, a ledger of the data": ["privacy.ledger=kept"],
    "asynchronous": [],
    "vertical": [],
    "vertical, from a file in its order": ["data.stream=file", 'data.classes=["0", "1", "2"]'],
}


def rows(path: Path, *, other: bool = False, features: bool = True) -> Path:
    """A table; the attacker's wrong guess of one row has another number and another label.

    Where features are not protected, the guess is of the label alone.
    """
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(ROWS, 4)), rng.integers(0, 3, ROWS)
    if other:
        x[7, 1], y[7] = 0.25 if features else x[7, 1], (y[7] + 1) % 3
    lines = [
        f"{','.join(f'{v:.5f}' for v in row)},p{i // 2},{label}"
        for i, (row, label) in enumerate(zip(x, y, strict=True))
    ]
    path.write_text("\n".join(["a,b,c,d,who,label", *lines]))
    return path


def study(folder: Path, case: str, file: Path, *more: str) -> studies.Study:
    regime = case.partition(",")[0]
    path = folder / "asked.toml"
    path.write_text(named(regime).template)
    own = [*CHEAP[regime], *(HORIZONTAL if regime != "vertical" else []), *CASES.get(case, ())]
    if "data.person=who" not in own and file.suffix == ".csv":
        text = file.read_text().replace(",who,", ",e,")
        file.write_text(re.sub(r",p(\d+),", r",\1,", text))
    own = [each.replace("=kept", f'="{folder / "kept"}"') for each in own]
    return studies.read(path, [f'data={{file="{file}"}}', *own, SYSTEM, *more])


def quiet(told: object) -> None:
    """Show nothing."""


HEX = re.compile(rb"(?<![0-9a-f.])[0-9a-f]{12,}")
NAME = re.compile(rb"[A-Za-z0-9]{3}")
SIZE = 16


def contents(folder: Path) -> Iterator[bytes]:
    """All bytes of the files of a folder; all values of its ledgers, in whatever order."""
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.name.endswith(("-wal", "-shm")):
            continue
        if path.suffix == ".safetensors":  # of releases; what says of them is the header
            content = path.read_bytes()
            yield content[8 : 8 + int.from_bytes(content[:8], "little")]
            continue
        if path.suffix != ".sqlite":
            yield path.read_bytes()
            continue
        with closing(sqlite3.connect(path)) as db:
            for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'"):
                for row in db.execute(f"SELECT * FROM {table}"):
                    yield from (v if isinstance(v, bytes) else str(v).encode() for v in row)


def seen(parts: Iterable[bytes]) -> set[bytes]:
    """What a digest, or a part of one, could be: words of hexadecimal letters, and odd bytes.

    Digests of files that are there are left out: they tell what the file tells.
    """
    found, files = set[bytes](), set[bytes]()
    for part in parts:
        files.add(hashlib.sha256(part).hexdigest().encode())
        found.update(HEX.findall(part))
        odd = np.frombuffer(part, np.uint8)
        if len(odd) < SIZE or not (odd > 126).any():
            continue
        windows = np.lib.stride_tricks.sliding_window_view(odd, SIZE)
        binary = ((windows < 9) | (windows > 126)).sum(1) > SIZE // 2  # and no names of keys
        found.update(w.tobytes() for w in windows[binary & ((windows == 0).sum(1) < 3)])
    return found - files


def tells(right: set[bytes], guessed: set[bytes], wrong: set[bytes]) -> set[bytes]:
    """What is equal where the guess is right and is not there where it is wrong.

    Odd bytes with names among them are not of a digest: they are the envelope of a message.
    """
    return {each for each in right & guessed - wrong if HEX.search(each) or not NAME.search(each)}


@pytest.fixture
def owners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Take the place of the owner or of the attacker, who has another key; and the clock stands."""
    monkeypatch.setattr("sordino.core.run.session._now", lambda study: "2026-01-01T00:00:00+00:00")

    def become(who: str) -> None:
        monkeypatch.setenv(HERE, str(tmp_path / "keys" / who))

    return become


@pytest.mark.parametrize("case", CASES)
def test_a_run_folder_tells_no_guess_of_a_row(case: str, tmp_path: Path, owners: Any) -> None:
    found = []
    for who, name, other in (("owner", "0", False), ("two", "1", False), ("two", "2", True)):
        owners(who)
        place = tmp_path / name
        place.mkdir()
        file = rows(place / "rows.csv", other=other, features="vertical" not in case)
        session.begin(study(place, case, file), place / "run", quiet, quiet)
        if case in CHEAP:
            write_report(place / "run")
        found.append(seen(contents(place / "run")))
        for key in (tmp_path / "keys").glob("*"):
            assert not any(key.read_bytes() in part for part in contents(place / "run"))
    assert not tells(found[0], found[1], found[2])


@pytest.mark.parametrize(
    "kind", ["synchronous", "shared", pytest.param("client", marks=pytest.mark.nightly)]
)
def test_kits_frames_and_proofs_tell_no_guess_of_a_row(
    kind: str, tmp_path: Path, owners: Any
) -> None:
    found = []
    for who, name, other in (("owner", "0", False), ("two", "1", False), ("two", "2", True)):
        owners(who)
        made = laid(tmp_path / name, kind, scripted=False)
        if other:
            path = made.sites[1][1]
            with np.load(path) as held:
                arrays = dict(held)
            arrays["x"][3, 1] += 0.5
            np.savez(path, **arrays)
        federation = Federation(laid=made)
        federation.start()
        federation.wait()
        kit, _ = made.sites[1]
        agreed, index, _, _ = opened(JoinOptions(kit=kit, data=made.sites[1][1]))
        write_proof(kit, kit / "run", agreed, index, federation.done[kit.name])
        frames = [frame for _, frame in (*federation.net.said, *federation.net.told)]
        kits = contents(tmp_path / name / kind / demo.KITS)
        found.append(seen((*frames, *kits)))
    assert not tells(found[0], found[1], found[2])
    if os.name == "posix":
        folders = [made.server / "run", *(kit / "run" for kit, _ in made.sites)]
        assert {stat.S_IMODE(each.stat().st_mode) for each in folders} == {0o700}


def test_kits_and_folders_of_parties_tell_no_guess_of_a_label(tmp_path: Path, owners: Any) -> None:
    found = []
    # At an epsilon this small no two runs release the same labels: equal models are released, and
    # paid for, where they do.
    label = 'privacy={unit="label",epsilon=1.0,delta=1e-3}'
    for who, name, other in (("owner", "0", False), ("two", "1", False), ("two", "2", True)):
        owners(who)
        (tmp_path / name).mkdir()
        made = demo.lay_out(
            read(tmp_path / name, [label]), tmp_path / name / "laid", scripted=False
        )
        if other:
            path = made.sites[-1][1]
            with np.load(path) as held:
                y = held["y"]
            y[3] = y[np.flatnonzero(y != y[3])[0]]
            np.savez(path, y=y)
        play(made, scripted=False)
        found.append(seen(contents(tmp_path / name / "laid" / demo.KITS)))
    assert not tells(found[0], found[1], found[2])


def test_the_key_of_persons_is_not_in_the_run_folder(tmp_path: Path) -> None:
    file = rows(tmp_path / "rows.csv")
    session.begin(study(tmp_path, "synchronous, persons", file), tmp_path / "run", quiet, quiet)
    with closing(sqlite3.connect(tmp_path / "run" / "ledger.sqlite")) as db:
        (key,) = db.execute("SELECT value FROM record_meta WHERE name = 'key'").fetchone()
        kept = b"".join(
            each for (each,) in db.execute("SELECT content FROM record_arrays ORDER BY name, part")
        )
        sizes = {size for (size,) in db.execute("SELECT size FROM record_classes")}
    words = identity.persons(np.array([f"p{i}" for i in range(30)])) ^ np.uint64(0x70656F706C65)
    guessed = digests(bytes.fromhex(key) or bytes(16), words)
    assert not any(each.tobytes() in kept for each in guessed)
    assert (kept, sizes) == (b"", {0})  # nor who has how many rows
    assert verify(tmp_path / "run").problems == []


class Killed(Exception):
    """What a kill is in these tests."""


@pytest.mark.parametrize("case", ["synchronous", "synchronous, persons", "vertical"])
def test_who_goes_on_needs_the_key(case: str, tmp_path: Path, owners: Any) -> None:
    owners("mine")

    def kill(row: object) -> None:
        raise Killed

    asked = study(tmp_path, case, rows(tmp_path / "rows.csv"))
    with pytest.raises(Killed):
        session.begin(asked, tmp_path / "run", kill, quiet)
    if os.name == "posix":
        assert stat.S_IMODE((tmp_path / "keys" / "mine").stat().st_mode) == 0o600
    owners("nobody's")
    with pytest.raises(ResumeError, match=r"missing(.|\n)*Copy it from(.|\n)*SORDINO_DATA_KEY"):
        session.resume(tmp_path / "run", quiet, quiet)
    assert not (tmp_path / "keys" / "nobody's").exists()
    (tmp_path / "keys" / "another").write_bytes(bytes(32))
    owners("another")
    wanted = "are not those" if "persons" in case else "made with another key"
    with pytest.raises(ResumeError, match=wanted):
        session.resume(tmp_path / "run", quiet, quiet)
    owners("mine")
    session.resume(tmp_path / "run", quiet, quiet)
    (tmp_path / "keys" / "mine").write_bytes(b"short")
    with pytest.raises(StudyError, match="no secret key of 32 bytes"):
        session.resume(tmp_path / "run", quiet, quiet)


def test_other_data_is_refused_under_the_same_key(tmp_path: Path) -> None:
    def kill(row: object) -> None:
        raise Killed

    asked = study(tmp_path, "asynchronous", rows(tmp_path / "rows.csv"))
    with pytest.raises(Killed):
        session.begin(asked, tmp_path / "run", kill, quiet)
    other = rows(tmp_path / "rows.csv", other=True)
    study(tmp_path, "asynchronous", other)  # writes numbers for persons, as before
    with pytest.raises(ResumeError, match=r"the data of client:\d is not what the run began with"):
        session.resume(tmp_path / "run", quiet, quiet)


@pytest.mark.parametrize(
    "case",
    [
        "synchronous, a ledger of the data",
        "synchronous, persons",
        "asynchronous, kept",
        "vertical, kept",
    ],
)
def test_a_run_goes_on_over_the_same_rows_in_their_order(case: str, tmp_path: Path) -> None:
    """Records are known in any order of rows and columns, and noise covers them in one."""

    def kill(row: object) -> None:
        raise Killed

    file = rows(tmp_path / "rows.csv")
    kept = [f'privacy.ledger="{tmp_path / "kept"}"'] if case.endswith("kept") else []
    asked = study(tmp_path, case, file, *kept)
    with pytest.raises(Killed):
        session.begin(asked, tmp_path / "run", kill, quiet)
    before = file.read_text()
    head, *lines = before.splitlines()
    one, two, *rest = lines[0].split(",")
    lines[0] = ",".join([two, one, *rest])
    file.write_text("\n".join([head, *lines]))
    with pytest.raises(ResumeError, match="is not what the run began with: its fingerprint"):
        session.resume(tmp_path / "run", quiet, quiet)
    file.write_text(before)
    with pytest.raises(Killed):
        session.resume(tmp_path / "run", kill, quiet)


def from_a_file(shape: tuple[int, ...], classes: int) -> nn.Module:
    """First weights, frozen ones too, as a file has them by now."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, classes))
    module.load_state_dict(torch.load(os.environ["FIRST_WEIGHTS"]))
    return module.requires_grad_(True)


def weights_in(path: Path, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10))
    torch.save(module.state_dict(), path)
    return module


def test_other_first_weights_have_other_noise_and_are_refused_by_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sums under one noise: their difference had none (0.098 where a release has 2.01)."""
    monkeypatch.setenv("FIRST_WEIGHTS", str(tmp_path / "first.pt"))
    monkeypatch.setitem(sys.modules, "first_weights", sys.modules[__name__])

    def kill(row: object) -> None:
        raise Killed

    rate, moved = 0.5, []
    asked = small(
        model="first_weights:from_a_file",
        method=so.DpSgd(learning_rate=rate, tau=1),
        budget=so.Budget(rounds=1),
    )
    for seed in (0, 1):
        first = weights_in(tmp_path / "first.pt", seed)
        run = so.run(asked, out=tmp_path / f"run{seed}", progress=False)
        last = run.model(np.zeros((1, 8, 8)), 10).state_dict()
        moved.append(torch.cat([(last[k] - v).flatten() for k, v in first.state_dict().items()]))
    assert float((moved[0] - moved[1]).norm()) > float(moved[0].norm())
    checked = asked.checked
    with pytest.raises(Killed):
        session.begin(checked, tmp_path / "killed", kill, quiet)
    weights_in(tmp_path / "first.pt", 2)
    with pytest.raises(ResumeError, match="the model's first weights"):
        session.resume(tmp_path / "killed", quiet, quiet)


class Scaled(nn.Module):
    """A linear model of inputs that a number scales, which is neither parameter nor buffer."""

    def __init__(self, scale: float, outputs: int, inputs: int = 64) -> None:
        super().__init__()
        self.scale, self.linear = torch.tensor(scale), nn.Linear(inputs, outputs)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.linear(x.flatten(1) * self.scale)
        return out


def from_elsewhere(shape: tuple[int, ...], classes: int) -> nn.Module:
    """What a package that the study does not name says by now."""
    kind, number = os.environ["ELSEWHERE"].split()
    if kind == "attribute":
        return Scaled(float(number), classes)
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 16), nn.LeakyReLU(float(number)), nn.Linear(16, classes)
    )


@pytest.mark.parametrize("kind", ["attribute", "layer"])
def test_a_model_that_computes_something_else_is_refused_by_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The same weights, and another function of them: noise of one round covered two sums, whose
    difference had none (norm 0.18, where a release has 1.18).
    """

    def kill(row: object) -> None:
        raise Killed

    monkeypatch.setitem(sys.modules, "elsewhere", sys.modules[__name__])
    asked = small(
        model="elsewhere:from_elsewhere",
        method=so.DpSgd(learning_rate=0.5, tau=1),
        budget=so.Budget(rounds=1),
    ).checked
    monkeypatch.setenv("ELSEWHERE", f"{kind} 0.5")
    with pytest.raises(Killed):
        session.begin(asked, tmp_path / "run", kill, quiet)
    monkeypatch.setenv("ELSEWHERE", f"{kind} 0.25")
    with pytest.raises(ResumeError, match="first weights and operations"):
        session.resume(tmp_path / "run", quiet, quiet)
    monkeypatch.setenv("ELSEWHERE", f"{kind} 0.5")
    with pytest.raises(Killed):
        session.resume(tmp_path / "run", kill, quiet)


def a_party(features: int, embedding: int) -> nn.Module:
    """A party's half whose inputs a number scales, which is neither parameter nor buffer."""
    return Scaled(float(os.environ["ELSEWHERE"]), embedding, features)


def a_server(embeddings: tuple[int, ...], classes: int) -> nn.Module:
    return Scaled(float(os.environ["SERVER"]), classes, sum(embeddings))


def test_a_half_that_computes_something_else_is_refused_by_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred embeddings of the same features were released twice and charged once; so were
    updates of parties, where the server's half was another.
    """

    def kill(row: object) -> None:
        raise Killed

    monkeypatch.setitem(sys.modules, "elsewhere", sys.modules[__name__])
    monkeypatch.setenv("ELSEWHERE", "0.5")
    monkeypatch.setenv("SERVER", "0.5")
    path = tmp_path / "asked.toml"
    path.write_text(named("vertical").template)
    noisy = (
        'privacy={unit="entity", epsilon=64.0, delta=1e-6, label_epsilon=4.0, '
        'embedding={clip=1.0}, updates="noisy", update={clip=1.0}, entropy="system"}'
    )
    asked = studies.read(
        path,
        [
            'data={name="digits", parties=2, stream="replay", drift="none"}',
            'model={name="own", party="elsewhere:a_party", server="elsewhere:a_server"}',
            'method={name="dlr", learning_rate=0.005, length=3, activation="full"}',
            noisy,
            "budget.events=40",
        ],
    )
    with pytest.raises(Killed):
        session.begin(asked, tmp_path / "run", kill, quiet)
    for half in ("ELSEWHERE", "SERVER"):
        with monkeypatch.context() as changed:
            changed.setenv(half, "0.25")
            with pytest.raises(ResumeError, match="first weights and operations"):
                session.resume(tmp_path / "run", quiet, quiet)


def test_a_map_that_another_machine_learned_is_refused_by_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kept map under another processor's library: noise of one round covered two sums."""

    def kill(row: object) -> None:
        raise Killed

    def elsewhere(features: Bytes, count: int) -> scattering.Components:
        table = learned(features, count).table.copy()
        table[-1] *= 1.001
        return scattering.Components(table)

    learned = scattering.learned
    monkeypatch.setattr(scattering, "PICTURES", 1000)  # to draw them takes most of the time
    asked = small(
        data={"name": "digits", "features": {"kind": "scattering", "components": 20}},
        method=so.DpSgd(learning_rate=0.5, tau=1),
        budget=so.Budget(rounds=1),
    ).checked
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "here"))
    scattering._components.cache_clear()
    with pytest.raises(Killed):
        session.begin(asked, tmp_path / "run", kill, quiet)
    scattering._components.cache_clear()
    with monkeypatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
        patch.setattr(scattering, "learned", elsewhere)
        with pytest.raises(ResumeError, match="what a front end gives"):
            session.resume(tmp_path / "run", quiet, quiet)
    scattering._components.cache_clear()
    with pytest.raises(Killed):
        session.resume(tmp_path / "run", kill, quiet)


def test_accuracies_with_other_noise_have_other_draws() -> None:
    """Runs of one seed that ask a private share more or less often had one number with two scales:
    the exact count followed.
    """
    drawn = []
    for scale in (1.0, 2.0):
        paid = PaidEvaluation(
            right=lambda weights: 300,
            rows=600,
            mechanism=Noise(clip=1.0, noise_multiplier=scale),
            ledgers=None,  # type: ignore[arg-type]  # a permit is given
            budget=Budget(epsilon=1.0, delta=1e-5),
            entropy=Seeded(0),
            method="test",
            charge_key_prefix="test",
        )
        given = permit(paid.mechanism.event(), number=0, unit=UNIT)
        share = paid.release(np.zeros(1, np.float32), given.key[-4:], given)
        drawn.append((share * 600 - 300) / scale)
    assert abs(drawn[0] - drawn[1]) > 1e-3


@pytest.mark.parametrize("make", [environment.protective, environment.answering])
def test_secret_noise_is_over_its_data(make: Any, tmp_path: Path) -> None:
    asked = study(tmp_path, "synchronous", rows(tmp_path / "rows.csv"))
    one, same, other = (make(asked, "run", data, tmp_path) for data in (["a"], ["a"], ["b"]))
    assert one.at("noise").random() == same.at("noise").random() != other.at("noise").random()


def test_published_data_has_a_plain_fingerprint(tmp_path: Path, owners: Any) -> None:
    told = []
    for name in ("0", "1"):
        owners(name)
        path = tmp_path / f"{name}.toml"
        path.write_text(named("synchronous").template)
        asked = studies.read(path, ["data.clients=2", "budget.rounds=1", "budget.steps=1"])
        session.begin(asked, tmp_path / name, quiet, quiet)
        told.append(json.loads((tmp_path / name / "run.json").read_text())["data"])
    assert told[0] == told[1]
    assert not (tmp_path / "keys").exists()


def test_fingerprints_given_to_a_ledger_are_keyed(tmp_path: Path, owners: Any) -> None:
    owners("one")
    mine = so.fingerprint(b"rows")
    assert mine == so.fingerprint(b"rows") != so.fingerprint(b"other rows")
    owners("two")
    assert mine != so.fingerprint(b"rows")
    assert so.fingerprint(b"rows", public=True).startswith("sha256:")
    file = rows(tmp_path / "rows.csv")
    keep_digest(file, tmp_path / "kept", write=True)
    keep_digest(file, tmp_path / "kept", write=True)
    owners("one")
    keep_digest(file, tmp_path / "other", write=True)
    assert (tmp_path / "kept").read_bytes() != (tmp_path / "other").read_bytes()


@pytest.mark.parametrize(
    "kind", ['{kind="dirichlet", beta=0.5}', '{kind="shards", fragments=12, each=6}']
)
def test_private_rows_are_not_dealt_by_their_labels(kind: str, tmp_path: Path) -> None:
    """One label that is flipped moves the sizes of clients, which are public."""
    file = rows(tmp_path / "rows.csv")
    dealt = (f"data.partition={kind}", "data.validation=0")
    asked = study(tmp_path, "synchronous", file, *dealt, 'privacy.entropy="system"')
    with pytest.raises(StudyError, match=r"deals private rows by their labels(.|\n)*Use 'iid'"):
        session.begin(asked, tmp_path / "run", quiet, quiet)
    with pytest.raises(StudyError, match="deals private rows by their labels"):
        plan(asked)
    simulated = study(tmp_path, "synchronous", file, *dealt, 'privacy.entropy="seed"')
    assert any("no epsilon covers that" in each for each in uncovered(simulated))
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(os.name != "posix", reason="rights of other users")
def test_a_key_that_others_may_read_is_said(tmp_path: Path, owners: Any) -> None:
    """It was taken without a word, and tells guesses of rows in every run folder."""
    owners("mine")
    said: list[str] = []
    for number, mode in enumerate((None, 0o644)):
        if mode is not None:
            (tmp_path / "keys" / "mine").chmod(mode)
        asked = study(tmp_path, "synchronous", rows(tmp_path / "rows.csv"))
        with noticed(said.append):
            session.begin(asked, tmp_path / str(number), quiet, quiet)
        assert sum("rights on the key of fingerprints" in each for each in said) == number


@pytest.mark.parametrize(
    "added",
    [
        "record_classes VALUES (1, 0, 0, 0, '1', '[]', '[[[1, 2], 1]]')",
        "record_meta VALUES ('version', '7')",
    ],
)
def test_verify_refuses_records_in_a_ledger_that_knows_none(tmp_path: Path, added: str) -> None:
    asked = study(tmp_path, "asynchronous", rows(tmp_path / "rows.csv"))
    session.begin(asked, tmp_path / "run", quiet, quiet)
    with closing(sqlite3.connect(tmp_path / "run" / "ledger.sqlite")) as db, db:
        db.execute(f"INSERT INTO {added}")
    assert any("somebody added them" in each for each in verify(tmp_path / "run").problems)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ended")
    asked = study(folder, "synchronous, a ledger of the data", rows(folder / "rows.csv"))
    session.begin(asked, folder / "run", quiet, quiet)
    return folder


def test_verify_looks_at_the_place_in_the_ledger(ended: Path, tmp_path: Path) -> None:
    about = ended / "run" / "run.json"
    before = about.read_text()
    assert verify(ended / "run").problems == []
    for change in ({"seq": 1}, {"seq": None}, {"digest": "0" * 64}):
        told = json.loads(before)
        told["ledger"].update(change)
        about.write_text(json.dumps(told))
        assert "ledger.seq or ledger.digest is no link" in verify(ended / "run").problems[0]
    about.write_text(before)


def test_verify_misses_a_checkpoint_and_judges_no_page(ended: Path) -> None:
    run = ended / "run"
    write_report(run)
    (run / "report.html").write_text("epsilon = 0.001")
    assert any("report.html is not judged" in each for each in verify(run).remarks)
    (run / "report.html").unlink()
    path = run / "checkpoints" / "latest.safetensors"
    before = path.read_bytes()
    path.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
    assert "not the file that was sealed" in verify(run).problems[0]
    path.unlink()
    assert "not the file that was sealed" in verify(run).problems[0]
    path.write_bytes(before)
    assert verify(run).problems == []


def test_verify_says_that_it_compares_no_rows_and_warns_of_plain_digests(tmp_path: Path) -> None:
    asked = study(tmp_path, "asynchronous", rows(tmp_path / "rows.csv"))
    session.begin(asked, tmp_path / "run", quiet, quiet)
    verdict = verify(tmp_path / "run")
    assert verdict.problems == []
    assert [each for each in verdict.remarks if "rows are not compared" in each]
    with pytest.MonkeyPatch.context() as patch:  # as an earlier version wrote it
        patch.setattr("sordino.core.prepared.keying", lambda run, make: str)
        session.begin(asked, tmp_path / "old", quiet, quiet)
    verdict = verify(tmp_path / "old")
    assert verdict.problems == []
    assert [each for each in verdict.remarks if "digests of private rows without a key" in each]


@pytest.mark.skipif(os.name != "posix", reason="rights of other users")
def test_a_ledger_of_the_data_is_for_its_owner(ended: Path) -> None:
    kept = ended / "kept"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o700
    assert {stat.S_IMODE(each.stat().st_mode) for each in kept.iterdir()} == {0o600}
    with closing(sqlite3.connect(kept / "ledger.sqlite")) as db:  # while somebody writes
        db.execute("BEGIN IMMEDIATE")
        db.execute("INSERT INTO record_meta VALUES ('x', 'y')")
        db.execute("COMMIT")
        assert {stat.S_IMODE(each.stat().st_mode) for each in kept.iterdir()} == {0o600}
        db.execute("DELETE FROM record_meta WHERE name = 'x'")
        db.commit()
    assert not any("other users" in each for each in verify(ended / "run").remarks)
    (kept / "ledger.sqlite").chmod(0o644)
    said: list[str] = []
    with noticed(said.append):
        asked = study(
            ended, "synchronous, a ledger of the data", ended / "rows.csv", "privacy.epsilon=60"
        )
        session.begin(asked, ended / "again", quiet, quiet)
    warnings = [each for each in said if "other users of this machine" in each]
    assert len(warnings) == 1
    assert "chmod -R go=" in warnings[0]
    for place in (ended / "run", kept):
        assert sum("other users" in each for each in verify(place).remarks) == 1
    (kept / "ledger.sqlite").chmod(0o600)
