"""Small files that ask for much memory, and files of random bytes: one message, and no memory."""

from __future__ import annotations

import bz2
import gzip
import io
import os
import struct
import sys
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import warm
from sordino.base.errors import DataError, StudyError
from sordino.base.files import allowed
from sordino.data import load
from sordino.data.formats import Source, read_idx, read_libsvm
from sordino.data.stream.table import TableStream

ZEROS = 3 << 28  # bytes: more than any of these files may expand to
LIMIT = 1 << 26


def packed(path: Path, kind: str, start: bytes, piece: bytes) -> Path:
    """A compressed file of ``start`` and then ``piece`` again and again, in members of 128 MiB."""
    pack = gzip.compress if kind == "gzip" else bz2.compress
    member = pack(piece * ((1 << 27) // len(piece)))
    path.write_bytes(pack(start) + member * (ZEROS >> 27))
    return path


def header(shape: tuple[int, ...], descr: str) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": descr, "fortran_order": False, "shape": shape}
    )
    return file.getvalue()


def npz(path: Path, x: bytes, method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("x.npy", x)
        labels = io.BytesIO()
        np.save(labels, np.arange(4) % 2)
        archive.writestr("y.npy", labels.getvalue())
    return path


def npz_of_zeros(path: Path) -> Path:
    """0.2 MB that expand to 200 MB."""
    size = ZEROS >> 2
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("y.npy", header((size,), "|u1"))
        with archive.open("x.npy", "w", force_zip64=True) as file:
            file.write(header((size, 1), "|u1"))
            for _ in range(size >> 22):
                file.write(bytes(1 << 22))
    return path


def bomb(kind: str, folder: Path) -> Path:
    """A file of its kind that asks for gigabytes."""
    match kind:
        case "npz":
            return npz_of_zeros(folder / "x.npz")
        case "header.npz":
            return npz(folder / "x.npz", header((4, 1 << 40), "<f8") + bytes(32))
        case "text.npz":
            return npz(folder / "x.npz", header((4, 1), "<U999999999") + bytes(32))
        case "gzip.csv":
            return packed(folder / "x.csv", "gzip", b"a,label\n", b"1,1\n")
        case "columns.csv":
            path = folder / "x.csv"
            path.write_bytes(b"," * 15_000_000 + b"\n")
            return path
        case "label.csv":
            path = folder / "x.csv"
            path.write_bytes(b"a,label\n1," + b"x" * 1_000_000 + b"\n" + b"1,y\n" * 50_000)
            return path
        case "rows.parquet":
            path = folder / "x.parquet"
            pl.select(label=pl.repeat(1, 100_000_000, dtype=pl.Int8)).write_parquet(
                path, compression="zstd", row_group_size=1 << 24
            )
            return path
        case "idx":
            path = folder / "x.idx"
            path.write_bytes(
                gzip.compress(struct.pack(">HBB3I", 0, 8, 3, 1000, 1000, 1000) + bytes(1 << 20))
                + bytes(1 << 20)
            )
            return path
        case "libsvm.gz":
            return packed(folder / "x", "gzip", b"", b"\n")
        case "libsvm.bz2":
            return packed(folder / "x", "bzip2", b"", bytes(1 << 20))
        case "line.csv.gz":
            return packed(folder / "x.csv.gz", "gzip", b"a,label\n", b"1" * 64)
        case "quote.csv.gz":
            return packed(folder / "x.csv.gz", "gzip", b"a,label\n", b'"' + b"1\n" * 999 + b'",')
    raise ValueError(kind)


READ = {  # how each is read, in a process that may have 768 MiB more than it has
    **dict.fromkeys(
        ("npz", "header.npz", "text.npz", "gzip.csv", "columns.csv", "label.csv", "rows.parquet"),
        "data.load('x', file=path)",
    ),
    "idx": "data.formats.read_idx(path, 3)",
    **dict.fromkeys(("libsvm.gz", "libsvm.bz2"), "data.formats.read_libsvm(path, 256)"),
    **dict.fromkeys(
        ("line.csv.gz", "quote.csv.gz"),
        "data.stream.table.TableStream(path, classes='01').read(0, 1000)",
    ),
}

PROGRAM = """
import resource, sys
from pathlib import Path
import numpy, polars
from sordino import data
import sordino.data.formats, sordino.data.stream.table
from sordino.base.errors import DataError
polars.select(1)
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (3 << 28),) * 2)
path = Path(sys.argv[1])
try:
    {read}
except DataError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="measures with /proc")
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=pytest.mark.nightly if kind == "libsvm.bz2" else ())
        for kind in READ
    ],
)
def test_a_small_file_that_asks_for_gigabytes_is_refused(tmp_path: Path, kind: str) -> None:
    path = bomb(kind, tmp_path)
    assert path.stat().st_size < 20_000_000
    done = warm.run(
        [sys.executable, "-c", PROGRAM.format(read=READ[kind]), str(path)],
        timeout=60,
        env={
            **os.environ,
            "POLARS_MAX_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            "SORDINO_READ_LIMIT": str(LIMIT),
        },
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(path))
    assert "MemoryError" not in done.stdout
    assert "Unable to allocate" not in done.stdout


def test_the_limit_can_be_raised_and_lowered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.npz"
    np.savez_compressed(path, x=np.zeros((1000, 100)), y=np.arange(1000) % 2)
    load("x", file=path)
    assert allowed(1_300_000) < 5 << 28  # where nobody sets a limit
    monkeypatch.setenv("SORDINO_READ_LIMIT", "100000")
    with pytest.raises(
        DataError,
        match=r"x\.npz: its arrays expand to 808,256 bytes, and at most 100,000 are "
        r"read.*SORDINO_READ_LIMIT",
    ):
        load("x", file=path)
    monkeypatch.setenv("SORDINO_READ_LIMIT", "1 GB")
    with pytest.raises(
        StudyError, match="SORDINO_READ_LIMIT = '1 GB' must be a whole number of bytes"
    ):
        load("x", file=path)


def test_what_numpy_would_not_write_is_refused(tmp_path: Path) -> None:
    good = header((4, 2), "<f8") + bytes(64)
    for method in (zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2):
        with pytest.raises(
            DataError, match=r"x\.npy is compressed in a way that NumPy does not write"
        ):
            load("x", file=npz(tmp_path / "x.npz", good, method))
    with pytest.raises(DataError, match="announces another size than it has"):
        load("x", file=npz(tmp_path / "x.npz", header((4, 4), "<f8") + bytes(64)))
    with pytest.raises(DataError, match="announces another size than it has"):
        load("x", file=npz(tmp_path / "x.npz", good + b"1"))
    assert load("x", file=npz(tmp_path / "x.npz", good)).train.x.shape[1] == 2


def test_a_pipe_is_no_data_file(tmp_path: Path) -> None:
    for name, read in (
        ("x.csv", lambda path: load("x", file=path)),
        ("y.npz", lambda path: load("x", file=path)),
        ("z.csv.gz", lambda path: TableStream(path, classes=("0", "1"))),
        ("z.idx", lambda path: read_idx(path, 1)),
    ):
        os.mkfifo(tmp_path / name)
        with pytest.raises(DataError, match=name):
            read(tmp_path / name)


def test_compressed_text_is_read_as_before(tmp_path: Path) -> None:
    rows = b"a,label\n" + b"".join(b"%d,%d\n" % (i, i % 2) for i in range(100_000))
    for pack in (
        gzip.compress,
        bz2.compress,
        lambda data: gzip.compress(data[:1000]) + gzip.compress(data[1000:]),
    ):
        (tmp_path / "x.csv").write_bytes(pack(rows))
        (tmp_path / "x.csv.gz").write_bytes(pack(rows))
        assert Source(tmp_path / "x.csv").whole() == rows
        assert len(load("x", file=tmp_path / "x.csv").train) == 80_000
        found = TableStream(tmp_path / "x.csv.gz", classes=("0", "1")).read(0, 300_000)
        assert np.array_equal(found.x[:, 0], np.arange(100_000))


def whole(kind: str) -> bytes:
    """A small good file."""
    file = io.BytesIO()
    frame = pl.DataFrame({"a": list(range(20)), "label": ["x", "y"] * 10})
    match kind:
        case "npz":
            np.savez(file, x=np.arange(40.0).reshape(20, 2), y=np.arange(20) % 2)
        case "packed.npz":
            np.savez_compressed(file, x=np.arange(40.0).reshape(20, 2), y=np.arange(20) % 2)
        case "parquet":
            frame.write_parquet(file)
        case "csv":
            frame.write_csv(file)
        case "csv.gz":
            file.write(gzip.compress(frame.write_csv().encode()))
        case "csv.bz2":
            file.write(bz2.compress(frame.write_csv().encode()))
        case "libsvm":
            file.write(b"1 1:0.5 3:1\n2 2:0.25\n" * 5)
        case "idx":
            file.write(struct.pack(">HBB1I", 0, 8, 1, 40) + bytes(range(40)))
    return file.getvalue()


@pytest.mark.parametrize(
    "kind", ["npz", "packed.npz", "parquet", "csv", "csv.gz", "csv.bz2", "libsvm", "idx"]
)
# The same examples each time: one of some thousand damaged Parquet files has polars 1 ask for 2^61
# bytes, which ends the process (docs/threats.md).
@settings(
    max_examples=50, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_whatever_stands_in_a_file_only_data_errors_come_out(
    tmp_path: Path, kind: str, data: st.DataObject
) -> None:
    content = bytearray(whole(kind))
    match data.draw(st.sampled_from(["random", "cut", "changed", "doubled"])):
        case "random":
            content = bytearray(data.draw(st.binary(max_size=300)))
        case "cut":
            del content[data.draw(st.integers(0, len(content))) :]
        case "changed":
            for at, value in data.draw(
                st.lists(
                    st.tuples(st.integers(0, len(content) - 1), st.integers(0, 255)), max_size=6
                )
            ):
                content[at] = value
        case "doubled":
            at = data.draw(st.integers(0, len(content)))
            content[at:at] = content[: data.draw(st.integers(0, 100))]
    path = tmp_path / f"x.{kind.split('.')[-1] if 'npz' in kind else kind}"
    path.write_bytes(content)
    with suppress(DataError):
        if kind == "libsvm":
            read_libsvm(path, 3)
        elif kind == "idx":
            read_idx(path, 1)
        elif kind.startswith("csv.") or (kind in ("csv", "parquet") and data.draw(st.booleans())):
            TableStream(path, classes=("x", "y")).read(0, 100)
        else:
            load("x", file=path)
