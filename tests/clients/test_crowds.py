"""A great many clients: mapped data gives what its source gives, and nothing is made for a client
who is not drawn.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from command import sordino
from sordino.base.entropy import Seeded, System
from sordino.base.errors import DataError, StudyError
from sordino.clients import assemble
from sordino.clients.division import converted, federation
from sordino.core import study as studies
from sordino.core.run import session
from sordino.data import mapped
from sordino.data.dataset import rows as rows_of
from sordino.data.table import ReadOptions
from sordino.regimes.synchronous.protocol import sample
from sordino.training.perexample.sums import Examples

STUDY = """
name = "many"
[data]
file = "{file}"
test = "file"
clients = {clients}
client_column = "client"
partition = {{ kind = "column" }}
[model]
name = "logistic"
[method]
name = "dp-fedavg"
learning_rate = 0.5
tau = 1
batch = 2
[privacy]
unit = "client"
epsilon = 4.0
delta = 1e-6
clip = 0.5
sampling_rate = {rate}
[budget]
rounds = 3
"""


def read(path: Path) -> Any:
    """A study, of whose regime nothing is asked here."""
    return studies.read(path)


def files(folder: Path, clients: int, each: int = 3) -> None:
    """An npz file in which clients' rows are mixed, and a study."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((clients * each, 4), dtype=np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    owner = rng.permutation(np.repeat(np.arange(clients), each))
    np.savez(folder / "rows.npz", x=x, y=y, client=owner, x_test=x[:50], y_test=y[:50])
    text = STUDY.format(file="rows.npz", clients=clients, rate=20 / clients)
    (folder / "study.toml").write_text(text)
    (folder / "mapped.toml").write_text(text.replace("rows.npz", "rows.mapped"))


def made(folder: Path, clients: int) -> tuple[Any, Any]:
    """The study of a file, and that of the same rows, mapped."""
    files(folder, clients)
    study = read(folder / "study.toml")
    converted(study, folder / "rows.mapped")
    return study, read(folder / "mapped.toml")


def test_mapped_rows_give_the_bytes_of_their_source(tmp_path: Path) -> None:
    for study, name in zip(made(tmp_path, 60), ("one", "other"), strict=True):
        session.begin(study, tmp_path / name, lambda _: None, lambda _: None)
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "other"))
    assert all(np.array_equal(one[key], other[key]) for key in one)
    logs = [(tmp_path / name / "rounds.jsonl").read_text() for name in ("one", "other")]
    assert logs[0] == logs[1]


def test_mapped_rows_are_each_clients_own(tmp_path: Path) -> None:
    """Against a dense twin: the rows of each owner in the source, in their order."""
    _, study = made(tmp_path, 40)
    source, parts = np.load(tmp_path / "rows.npz"), federation(study).parts
    for client in (0, 7, 39):
        own = source["client"] == client
        assert np.array_equal(parts[client].x, source["x"][own])
        assert np.array_equal(parts[client].y, source["y"][own])
    assert federation(study).counts.sum() == 120


def test_of_many_clients_those_who_are_drawn_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """20 000 clients, of whom about 20 are drawn in each of three rounds."""
    _, study = made(tmp_path, 20_000)
    seen = Counter[int]()
    monkeypatch.setattr(assemble, "Examples", lambda *given: seen.update([0]) or Examples(*given))
    session.begin(study, tmp_path / "run", lambda _: None, lambda _: None)
    assert 10 < seen.total() < 200
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    assert "clients" not in about
    assert about["crowd"]["clients"] == 20_000
    assert about["crowd"]["examples"] is None  # whole clients are protected, and weigh the same
    for name in ("run.json", "ledger.sqlite", "checkpoints/latest.safetensors"):
        assert (tmp_path / "run" / name).stat().st_size < 100_000
    shown = sordino(tmp_path, "report", "run")
    assert shown.returncode == 0, shown.stderr
    page = (tmp_path / "run" / "report.html").read_text()
    assert "20000 clients" in page
    assert len(page) < 300_000


def test_a_large_cohort_is_a_poisson_sample() -> None:
    """Each client with probability q: its size, and how often it comes, within five deviations;
    and of a rate 1.5 times as high neither.
    """
    count, rate, rounds = 5_000, 0.01, 400
    for entropy in (Seeded(1), System(bytes(32))):
        sizes, seen = [], np.zeros(count)
        for number in range(rounds):
            found = sample(entropy, rate, count, {3}, number)
            assert found == sorted(set(found))
            sizes.append(len(found))
            seen[found] += 1
        for wanted, holds in ((rate, True), (1.5 * rate, False)):
            deviation = (count * wanted * (1 - wanted) / rounds) ** 0.5
            assert (abs(np.mean(sizes) - count * wanted) < 5 * deviation) == holds
        # by number of rounds: counts of a client are Binomial(rounds, q)
        assert abs(seen.var() / (rounds * rate * (1 - rate)) - 1.0) < 0.15
        assert seen[3] == 0


def test_changed_or_foreign_rules_are_refused(tmp_path: Path) -> None:
    _, study = made(tmp_path, 30)
    folder = tmp_path / "rows.mapped"
    with pytest.raises(DataError, match="there already"):
        converted(read(tmp_path / "study.toml"), folder)
    other = study.model_copy(
        update={"data": study.data.model_copy(update={"classes": ("no", "yes")})}
    )
    with pytest.raises(DataError, match=r"data\.classes"):
        federation(other)
    fewer = study.model_copy(update={"data": study.data.model_copy(update={"clients": 29})})
    with pytest.raises(StudyError, match=r"set data\.clients = 30"):
        federation(fewer)
    path = folder / "x.npy"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"x\.npy: not the file"):
        federation(study)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("bounds", np.zeros(0, np.int64)),
        ("bounds", np.zeros((31, 2), np.int64)),
        ("bounds", np.full(31, "a")),
        ("prints", None),
        ("x", np.array(3.0, np.float32)),
        ("y_test", None),
        ("words", np.zeros((90, 2))),
        ("people", np.zeros((90, 1), np.int64)),
    ],
)
def test_a_folder_that_somebody_prepared_is_refused(
    tmp_path: Path, name: str, wrong: np.ndarray[Any, Any] | None
) -> None:
    """Its index has the digest of whatever lies there; None: of no such file."""
    made(tmp_path, 30)
    folder = tmp_path / "rows.mapped"
    index = json.loads((folder / "index.json").read_text())
    index["files"].pop(name, None)
    if wrong is not None:
        np.save(folder / f"{name}.npy", wrong)
        print_of = hashlib.sha256((folder / f"{name}.npy").read_bytes()).hexdigest()
        index["files"] |= {name: print_of}
    (folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(DataError, match=f"{name}: not there|do not fit"):
        mapped.read(folder, ReadOptions(identify=True))


def test_words_and_persons_are_those_of_the_source(tmp_path: Path) -> None:
    """A ledger of the data knows mapped rows for those of their file."""
    rows = "\n".join(f"{i / 8},{i % 2},c{i % 3},p{i // 2}" for i in range(24))
    (tmp_path / "rows.csv").write_text(f"a,label,garden,who\n{rows}\n")
    text = STUDY.format(file="rows.csv", clients=3, rate=0.5)
    text = text.replace('client_column = "client"', 'client_column = "garden"')
    (tmp_path / "test.csv").write_text("a,label,garden,who\n9.5,1,c0,q0\n9.7,0,c1,q1\n")
    people, tested = 'person = "who"\nperson_rows = 1', 'test = "file"\n'
    (tmp_path / "study.toml").write_text(
        text.replace(tested, f'{tested}test_file = "test.csv"\n{people}\n')
    )
    (tmp_path / "mapped.toml").write_text(
        text.replace("rows.csv", "rows.mapped").replace(tested, f"{tested}{people}\n")
    )
    source = read(tmp_path / "study.toml")
    converted(source, tmp_path / "rows.mapped")
    mapped_too = read(tmp_path / "mapped.toml")
    first, second = (federation(each, identify=True) for each in (source, mapped_too))
    one: Any
    other: Any
    for one, other in zip((*first.parts, first.test), (*second.parts, second.test), strict=True):
        assert np.array_equal(one.words, other.words)
        assert np.array_equal(one.people, other.people)
        assert one.fingerprint() == other.fingerprint()
    for client in (0, 1, 2, -1):
        trained = zip(rows_of(first.parts, client), rows_of(second.parts, client), strict=True)
        for one, other in trained:
            assert np.array_equal(one, other)
            assert other.flags.owndata  # its pages are given back
    assert federation(mapped_too).names == ("c0", "c1", "c2")


def test_mapped_rows_keep_the_persons_rows_of_their_conversion(tmp_path: Path) -> None:
    """The words said that the study named no column of clients, and it did."""
    rows = "\n".join(f"{i / 8},{i % 2},c{i // 8},p{i // 2}" for i in range(24))
    (tmp_path / "rows.csv").write_text(f"a,label,client,who\n{rows}\n")
    text = STUDY.format(file="rows.csv", clients=3, rate=0.5)
    text = text.replace('test = "file"', 'person = "who"\nperson_rows = 2')
    (tmp_path / "study.toml").write_text(text)
    converted(read(tmp_path / "study.toml"), tmp_path / "rows.mapped")
    text = text.replace("rows.csv", "rows.mapped").replace("person_rows = 2", "person_rows = 1")
    (tmp_path / "mapped.toml").write_text(text)
    with pytest.raises(StudyError, match="person_rows = 1 leaves rows out, and mapped rows stay"):
        federation(read(tmp_path / "mapped.toml"))


def test_the_command_says_what_to_write(tmp_path: Path) -> None:
    files(tmp_path, 30)
    done = sordino(tmp_path, "data", "convert", "study.toml", "rows.mapped")
    assert done.returncode == 0, done.stderr
    assert "clients = 30" in done.stdout
    assert mapped.has_test(tmp_path / "rows.mapped")


@pytest.mark.nightly
def test_memory_does_not_grow_with_the_clients(tmp_path: Path) -> None:
    """200 000 clients of ten examples of 64 numbers are 512 MB; a run takes less than half of that
    beyond what 1000 clients take.
    """
    taken = []
    for clients in (1000, 200_000):
        folder = tmp_path / str(clients)
        folder.mkdir()
        rows = clients * 10
        x = np.random.default_rng(0).standard_normal((rows, 64), dtype=np.float32)
        y = (x[:, 0] > 0).astype(np.int64)
        np.savez(folder / "rows.npz", x=x, y=y, client=np.repeat(np.arange(clients), 10))
        del x
        text = STUDY.format(file="rows.npz", clients=clients, rate=200 / clients)
        text = text.replace('test = "file"\n', "")
        (folder / "study.toml").write_text(text)
        (folder / "mapped.toml").write_text(text.replace("rows.npz", "rows.mapped"))
        assert sordino(folder, "data", "convert", "study.toml", "rows.mapped").returncode == 0
        code = (
            "import sys; from sordino.__main__ import main; sys.argv[1:] = "
            "['run', 'mapped.toml', '--out', 'run', '--quiet']\n"
            "try: main()\nexcept SystemExit: pass\n"
            # getrusage would give the memory of this process, if it was larger when it forked
            "print(open('/proc/self/status').read().partition('VmHWM:')[2].split()[0])"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True
        )
        taken.append(int(done.stdout.split()[-1]))
    assert taken[1] - taken[0] < 250_000
