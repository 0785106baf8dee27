"""Published formats: what is written is read back, and damage always ends in a DataError that names
the file.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import pickle
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sordino.base.errors import DataError
from sordino.data.formats import (
    CIFAR_BINARY,
    CIFAR_PYTHON,
    array_of,
    read_cifar_archive,
    read_cifar_folder,
    read_idx,
    read_images,
    read_inert,
    read_libsvm,
    read_usps,
)

Bytes = npt.NDArray[np.uint8]
RNG = np.random.default_rng(5)


def idx(values: Bytes) -> bytes:
    return struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape) + values.tobytes()


def libsvm(x: npt.NDArray[np.float32], y: npt.NDArray[np.int64]) -> bytes:
    rows = (
        f"{label} " + " ".join(f"{j + 1}:{v:.6f}" for j, v in enumerate(row) if v)
        for label, row in zip(y, x, strict=True)
    )
    return ("\n".join(rows) + "\n").encode()


def cifar_batches(
    records: int,
) -> tuple[Bytes, npt.NDArray[np.int64], dict[str, bytes], dict[str, bytes]]:
    """Pixels and labels of six batches, and their binary and python forms."""
    rng = np.random.default_rng(records)
    x = rng.integers(0, 256, (6, records, 3072), dtype=np.uint8)
    y = rng.integers(0, 10, (6, records))
    binary = {
        n: np.hstack([y[i][:, None].astype(np.uint8), x[i]]).tobytes()
        for i, n in enumerate(CIFAR_BINARY)
    }
    python = {
        n: pickle.dumps(
            {
                b"batch_label": b"b",
                b"labels": y[i].tolist(),
                b"data": x[i],
                b"filenames": [b"a.png"] * records,
            },
            protocol=2,
        )
        for i, n in enumerate(CIFAR_PYTHON)
    }
    return x, y, binary, python


def archive(members: dict[str, bytes], folder: str) -> bytes:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(f"{folder}/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return gzip.compress(plain.getvalue(), mtime=0)


IMAGES = RNG.integers(0, 256, (7, 4, 5), dtype=np.uint8)
X = np.where(RNG.random((6, 9)) < 0.3, 0, RNG.normal(size=(6, 9))).astype(np.float32)
Y = RNG.integers(1, 11, 6)
PYTHON_BATCH = pickle.dumps(
    {b"labels": [1, 2], b"data": RNG.integers(0, 256, (2, 8), dtype=np.uint8)}, protocol=2
)


def read_batch(path: Path) -> object:
    batch = read_inert(path.read_bytes(), str(path))
    if not isinstance(batch, dict):
        raise DataError(f"{path}: no batch")
    return array_of(batch.get(b"data"), (2, 8), str(path))


FILES: dict[str, tuple[bytes, Callable[[Path], object]]] = {
    "idx": (idx(IMAGES), lambda p: read_idx(p, 3)),
    "idx.gz": (gzip.compress(idx(IMAGES)), lambda p: read_idx(p, 3)),
    "libsvm": (libsvm(X, Y), lambda p: read_libsvm(p, 9, 6)),
    "libsvm.bz2": (bz2.compress(libsvm(X, Y)), lambda p: read_libsvm(p, 9, 6)),
    "pickle": (PYTHON_BATCH, read_batch),
    "tar.gz": (
        archive(cifar_batches(1)[2], "x"),
        lambda p: read_cifar_archive(p.rename(p.with_name("cifar-10-binary.tar.gz")), 1),
    ),
}


@pytest.mark.parametrize("compress", [bytes, gzip.compress, bz2.compress])
def test_idx_round_trip(tmp_path: Path, compress: Callable[[bytes], bytes]) -> None:
    (tmp_path / "x").write_bytes(compress(idx(IMAGES)))
    assert np.array_equal(read_idx(tmp_path / "x", 3), IMAGES)


def test_idx_larger_than_a_piece_and_in_two_gzip_members(tmp_path: Path) -> None:
    values = RNG.integers(0, 3, (300, 28, 28), dtype=np.uint8)
    raw = idx(values)
    (tmp_path / "x").write_bytes(gzip.compress(raw[:100_000]) + gzip.compress(raw[100_000:]))
    assert np.array_equal(read_idx(tmp_path / "x", 3), values)


def test_images_get_a_channel_and_must_match_their_labels(tmp_path: Path) -> None:
    a, b = tmp_path / "images", tmp_path / "labels"
    a.write_bytes(idx(IMAGES))
    b.write_bytes(idx(np.arange(7, dtype=np.uint8)))
    x, y = read_images(a, b, 10)
    assert x.shape == (7, 1, 4, 5)
    assert y.dtype == np.int64
    assert y.tolist() == list(range(7))
    with pytest.raises(DataError, match=r"labels: expected labels 0\.\.4, but label 5 is 5"):
        read_images(a, b, 5)
    b.write_bytes(idx(np.arange(6, dtype=np.uint8)))
    with pytest.raises(
        DataError, match=r"expected 7 labels, one for each image of images, but found 6"
    ):
        read_images(a, b, 10)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected 4 bytes of IDX magic number, but the file ends after 0"),
        (
            b"\x00\x00\x0d\x03" + idx(IMAGES)[4:],
            r"0x00000803 \(unsigned bytes, 3 dimensions\), but found 0x00000d03",
        ),
        (idx(IMAGES[0]), "0x00000803 .* but found 0x00000802"),
        (
            idx(IMAGES) + b"\x00",
            "expected the end of the file after 140 values .* but more bytes follow",
        ),
        (
            gzip.compress(idx(IMAGES), mtime=0) + b"junk",
            "expected a gzip stream, but expanding it failed",
        ),
        (idx(IMAGES)[:50], r"expected 140 bytes of values \(shape 7 x 4 x 5\)"),
        (
            gzip.compress(idx(IMAGES)[:50], mtime=0),
            r"expected 140 bytes of values .*, but the file ends after 34 of them",
        ),
        (struct.pack(">4I", 0x803, 0, 4, 5), "expected at least one value"),
    ],
)
def test_idx_damage_is_described(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "x.gz").write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read_idx(tmp_path / "x.gz", 3)
    assert str(caught.value).startswith(f"{tmp_path / 'x.gz'}: ")
    assert "get it again" in str(caught.value)


def test_a_header_that_announces_too_much_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(struct.pack(">4I", 0x803, 2**31, 2**31, 2**31))
    with pytest.raises(DataError, match=r"its header announces .* bytes, and at most"):
        read_idx(tmp_path / "x", 3)


def test_an_unreadable_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot be read \(Is a directory\)"):
        read_idx(tmp_path, 3)


@pytest.mark.parametrize("kind", FILES)
def test_every_truncation_is_a_data_error(tmp_path: Path, kind: str) -> None:
    content, read = FILES[kind]
    path = tmp_path / "file"
    path.write_bytes(content)
    read(path)  # whole, it reads
    # Every position of a small file; of a large one the ends and a spread between.
    size = len(content)
    positions = sorted(
        {*range(min(size, 300)), *range(0, size, 1 + size // 300), *range(size - 40, size)}
    )
    for cut in positions:
        path.write_bytes(content[:cut])
        with pytest.raises(DataError, match=str(tmp_path)):
            read(path)


@pytest.mark.parametrize("kind", FILES)
@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_no_damage_raises_anything_but_a_data_error(
    tmp_path: Path, kind: str, data: st.DataObject
) -> None:
    content, read = FILES[kind]
    damaged = bytearray(content)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, min(len(content), 2000) - 1))] = data.draw(
            st.integers(0, 255)
        )
    path = tmp_path / "file"
    path.write_bytes(damaged)
    with contextlib.suppress(DataError):
        read(path)  # a changed pixel cannot be recognised, and may be read


@pytest.mark.parametrize("compress", [bytes, bz2.compress])
def test_libsvm_round_trip(tmp_path: Path, compress: Callable[[bytes], bytes]) -> None:
    (tmp_path / "x").write_bytes(compress(libsvm(X, Y)))
    x, y = read_libsvm(tmp_path / "x", 9)
    assert np.allclose(x, X, atol=1e-6)
    assert np.array_equal(y, Y)


def test_usps_digits_and_range(tmp_path: Path) -> None:
    path = tmp_path / "usps"
    values = RNG.uniform(-1, 1, (10, 256)).astype(np.float32)
    path.write_bytes(libsvm(values, np.arange(1, 11)))
    x, y = read_usps(path, 10)
    assert x.shape == (10, 1, 16, 16)
    assert y.tolist() == list(range(10))
    with pytest.raises(DataError, match="expected 7291 lines, one for each example, but found 10"):
        read_usps(path, 7291)
    path.write_bytes(libsvm(values, np.arange(10)))
    with pytest.raises(DataError, match=r"expected labels 1\.\.10, but line 1 has 0"):
        read_usps(path, 10)
    path.write_bytes(libsvm(values * 3, np.arange(1, 11)))
    with pytest.raises(DataError, match=r"expected values in \[-1, 1\]"):
        read_usps(path, 10)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"1 2:0.5 2:0.5", "rising feature numbers"),
        (b"1 0:0.5", "rising feature numbers"),
        (b"1 10:0.5", "rising feature numbers"),
        (b"1 1.5:0.5", "rising feature numbers"),
        (b"1 1:0.5 2", "label index:value"),
        (b"1:2 3:4", "label index:value"),
        (b"", "label index:value"),
        (b"1 1:nan", "not finite"),
        (b"1 1e300:1", "rising feature numbers"),
        (b"x 1:1", "could not convert"),
    ],
)
def test_a_damaged_line_of_libsvm_is_refused(tmp_path: Path, line: bytes, message: str) -> None:
    (tmp_path / "x").write_bytes(b"1 1:0.5\n" + line + b"\n")
    with pytest.raises(DataError, match=message):
        read_libsvm(tmp_path / "x", 9)


@pytest.mark.parametrize(
    "form", ["binary folder", "python folder", "binary archive", "python archive"]
)
def test_cifar_round_trip(tmp_path: Path, form: str) -> None:
    x, y, binary, python = cifar_batches(3)
    members = binary if form.startswith("binary") else python
    if form.endswith("folder"):
        for name, content in members.items():
            (tmp_path / name).write_bytes(content)
        train, test = read_cifar_folder(tmp_path, 3)
    else:
        path = tmp_path / f"cifar-10-{form.split()[0]}.tar.gz"
        path.write_bytes(archive({**members, "readme.html": b"hello"}, "cifar-10-batches"))
        train, test = read_cifar_archive(path, 3)
    assert np.array_equal(train[0], x[:5].reshape(15, 3, 32, 32))
    assert np.array_equal(train[1], y[:5].reshape(15))
    assert np.array_equal(test[0], x[5].reshape(3, 3, 32, 32))
    assert np.array_equal(test[1], y[5])


def test_cifar_damage_is_described(tmp_path: Path) -> None:
    _, _, binary, _ = cifar_batches(2)
    path = tmp_path / "cifar-10-binary.tar.gz"
    path.write_bytes(archive({n: c for n, c in binary.items() if n != "data_batch_3.bin"}, "b"))
    with pytest.raises(DataError, match=r"but data_batch_3.bin is not there"):
        read_cifar_archive(path, 2)
    path.write_bytes(archive({**binary, "test_batch.bin": binary["test_batch.bin"][:-3073]}, "b"))
    with pytest.raises(
        DataError, match=r"test_batch.bin: expected 6146 bytes \(2 images of 3073\), found 3073"
    ):
        read_cifar_archive(path, 2)
    path.write_bytes(
        archive({**binary, "data_batch_1.bin": b"\x0a" + binary["data_batch_1.bin"][1:]}, "b")
    )
    with pytest.raises(DataError, match=r"expected labels 0\.\.9, found 10 in image 0"):
        read_cifar_archive(path, 2)
    path.write_bytes(gzip.compress(b"not a tar" * 500))
    with pytest.raises(DataError, match="the archive of batches: cannot be read"):
        read_cifar_archive(path, 2)
    path.write_bytes(archive({"data_batch_1.bin": bytes(100_000)}, "b"))
    with pytest.raises(DataError, match=r"expected data_batch_1\.bin to have at most"):
        read_cifar_archive(path, 2)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_inert_reader_reads_what_numpy_pickles(protocol: int) -> None:
    values = np.asfortranarray(RNG.integers(0, 256, (4, 6), dtype=np.uint8))
    batch = read_inert(pickle.dumps({b"data": values, b"labels": [1, 2]}, protocol=protocol), "p")
    assert isinstance(batch, dict)
    assert batch[b"labels"] == [1, 2]
    assert np.array_equal(array_of(batch[b"data"], (4, 6), "p"), values)


class Trap:
    """A pickle that opens a file when it is loaded, as an attacker's would run a shell."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (str(self.path), "w")


def test_a_pickle_is_never_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    content = pickle.dumps({b"labels": [1], b"data": Trap(mark)}, protocol=2)
    with pytest.raises(DataError, match=r"it names (io|_io)\.open, and this reader calls nothing"):
        read_inert(content, "batch")
    assert not mark.exists()
    pickle.loads(content)[b"data"].close()  # the trap does spring elsewhere
    assert mark.exists()


@pytest.mark.parametrize(
    "name",
    [
        "numpy load",
        "builtins eval",
        "os system",
        "numpy.core.multiarray fromfile",
        "sordino.data.formats _Reader",
    ],
)
def test_no_other_name_is_answered(name: str) -> None:
    module, attribute = name.split()
    with pytest.raises(DataError, match="calls nothing"):
        read_inert(f"c{module}\n{attribute}\n.".encode(), "batch")


def test_a_pickle_cannot_alter_the_reader() -> None:
    before = PYTHON_BATCH
    # BUILD with a state dictionary on the answer itself.
    with pytest.raises(DataError):
        read_inert(b"cnumpy.core.multiarray\n_reconstruct\n}(U\x08__call__I1\nub.", "batch")
    assert isinstance(read_inert(before, "batch"), dict)


def test_inert_arrays_are_checked() -> None:
    batch = read_inert(
        pickle.dumps({"f": np.zeros((2, 8)), "u": np.zeros((2, 8), np.uint8)}, protocol=2), "b"
    )
    assert isinstance(batch, dict)
    with pytest.raises(DataError, match="found type f8"):
        array_of(batch["f"], (2, 8), "b") if "f" in batch else array_of(batch[b"f"], (2, 8), "b")
    with pytest.raises(DataError, match=r"shape \(3, 8\)"):
        array_of(batch["u"], (3, 8), "b")
    with pytest.raises(DataError, match="found int"):
        array_of(7, (2, 8), "b")
    with pytest.raises(DataError, match="more bytes follow"):
        read_inert(pickle.dumps(1) + b"x", "b")
