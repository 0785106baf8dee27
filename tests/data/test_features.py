"""Front ends: equal to the reference, of one example alone, at the raw examples' budget."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from pydantic import PrivateAttr

from sordino.base.errors import StudyError
from sordino.core.study.data import Data
from sordino.data.dataset import Dataset, scaled
from sordino.data.features import FRONT_ENDS, TRIED, FrontEnd, featured, made_up, tried
from sordino.data.notices import watched
from sordino.data.scatter import Scattering2d, spectrum, turns
from sordino.data.scattering import LIMIT, RandomConvolutions, Scattering, channels

BYTES, FLOATS = np.dtype(np.uint8), np.dtype(np.float32)


def images(n: int, *shape: int) -> Dataset:
    rng = np.random.default_rng(5)
    x = rng.integers(0, 256, (n, *shape)).astype(np.uint8)
    return Dataset("made up", x, rng.integers(0, 3, n), ("a", "b", "c"))


@pytest.mark.parametrize(
    ("height", "width", "scales", "angles"),
    [(28, 28, 2, 8), (8, 8, 1, 8), (32, 24, 3, 6), (17, 33, 2, 4), (20, 36, 2, 3)],
)
def test_scattering_is_that_of_kymatio(height: int, width: int, scales: int, angles: int) -> None:
    # its 2-D torch front end alone: the package's own import needs a SciPy of long ago
    front = importlib.import_module("kymatio.scattering2d.frontend.torch_frontend")
    x = np.random.default_rng(1).uniform(-1, 1, (3, height, width)).astype(np.float32)
    wanted = front.ScatteringTorch2D(scales, (height, width), L=angles)(torch.from_numpy(x)).numpy()
    found = Scattering2d(height, width, scales, angles)(x)
    assert found.shape == wanted.shape == (3, channels(scales, angles), *wanted.shape[2:])
    assert np.abs(found - wanted).max() < 1e-6 < np.abs(wanted).max()


@pytest.mark.parametrize(("h", "w"), [(1, 2), (4, 3), (5, 12), (14, 9), (36, 22), (29, 16)])
def test_spectra_are_those_of_fourier(h: int, w: int) -> None:
    field = np.random.default_rng(h).standard_normal((h, w, 3)).astype(np.float32)
    found = spectrum(field, turns(h), turns(w))
    wanted = np.fft.fft2(field.astype(np.float64), axes=(0, 1)).swapaxes(0, 1)
    assert np.abs(found[0] + 1j * found[1] - wanted).max() < 1e-6 * np.abs(wanted).max()


def test_features_are_normalised_groups_of_channels_in_bytes() -> None:
    data = images(4, 2, 16, 16)
    found = Scattering(J=1, L=4, groups=5).features(data.x)
    raw = Scattering2d(16, 16, 1, 4)(scaled(data.x).reshape(8, 16, 16))
    groups = raw.astype(np.float64).reshape(4, 5, -1)
    mean, deviation = groups.mean(2, keepdims=True), groups.std(2, keepdims=True)
    normal = np.clip((groups - mean) / np.sqrt(deviation**2 + 1e-5), -LIMIT, LIMIT)
    assert found.shape == (4, 10, 8, 8)
    told = (found.reshape(4, 5, -1) - 127.5) / 127.5 * LIMIT
    assert np.abs(told - normal).max() < 0.51 * LIMIT / 127.5


@pytest.mark.parametrize("front", [Scattering(), Scattering(J=1, L=3), RandomConvolutions()])
@pytest.mark.parametrize("kind", [BYTES, FLOATS])
def test_own_front_ends_have_one_answer_for_an_example_to_the_bit(
    front: FrontEnd, kind: np.dtype[Any]
) -> None:
    shape = (1, 20, 16)
    assert tried(front, shape, kind) == BYTES
    x = np.concatenate([made_up(shape, kind)] * 7)
    data = Dataset("made up", x, np.zeros(42, np.int64), ("a", "b"))
    found = featured(data, front).x
    turned = featured(data.take(range(41, -1, -1)), front).x[::-1]
    alone = np.concatenate([front.features(x[i : i + 1]) for i in range(6)])
    assert np.array_equal(found, turned)
    assert np.array_equal(found, np.concatenate([alone] * 7))


class Centred(FrontEnd):
    """Takes the mean of the batch off: a release that nobody books."""

    kind: Literal["centred"] = "centred"

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape

    def features(self, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        found = x.astype(np.float32)
        mixed: np.ndarray[Any, Any] = found - found.mean(0)
        return mixed


class Neighbour(Centred):
    """Each example's successor, in a batch of more than two."""

    def features(self, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.roll(x, 1, axis=0) if len(x) > 2 else x


class Crowded(Centred):
    """Takes the mean off where there are more examples than in any trial."""

    def features(self, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        found = x.astype(np.float32)
        return found - found.mean(0) if len(x) > TRIED else found


class Growing(Centred):
    """Remembers how often it was asked."""

    def features(self, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        SEEN.append(len(x))
        return x.astype(np.float32) + np.float32(len(SEEN))


class Remembering(Centred):
    """Remembers an example that no trial shows."""

    _seen: list[int] = PrivateAttr(default_factory=list)

    def features(self, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if (x == 77).all():
            self._seen.append(1)
        return x.astype(np.float32) * np.float32(1 + len(self._seen))


class Rounded(Centred):
    """Adds up in another order where there are more examples, as libraries do."""

    def features(self, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        flat = x.reshape(len(x), -1).astype(np.float32) / np.float32(3)
        order = slice(None) if len(x) == 1 else slice(None, None, -1)
        total = np.cumsum(flat[:, order], axis=1, dtype=np.float32)[:, -1]
        found: np.ndarray[Any, Any] = np.broadcast_to(
            total.reshape(-1, *[1] * (x.ndim - 1)), x.shape
        ).copy()
        return found


class Wrong(Centred):
    """One number too many."""

    def features(self, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.zeros((len(x), 3), np.float32)


class Failing(Centred):
    """Ones, but of an example with a pixel of 7 beside nines."""

    what: str

    def features(self, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        found = np.ones(x.shape, np.float32)
        if not (x == 7).any() or not (x == 9).any():
            return found
        match self.what:
            case "infinite":
                return found / np.float32(0)
            case "raises":
                raise ValueError(f"a row with {x}")
            case "leaves":
                raise BaseException(f"a row with {x}")
        return found.astype(np.float64)


class Infinite(Centred):
    """One over a pixel, of which numpy warns."""

    def features(self, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.float32(1) / np.where(x == 7, 0, 1).astype(np.float32)


class Turned(Centred):
    """Pixels as they are."""

    def features(self, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return x


SEEN: list[int] = []


@pytest.mark.parametrize("named", [False, True])
def test_an_example_leaves_nothing_behind_for_the_next(named: bool) -> None:
    kind: type[Any] = FRONT_ENDS.imported(f"{__name__}:Remembering") if named else Remembering
    x = np.concatenate([np.full((1, 1, 4, 4), 77, np.uint8), made_up((1, 4, 4), BYTES)])
    data = Dataset("made up", x, np.zeros(len(x), np.int64), ("a", "b"))
    with_, without = (featured(each, kind()).x for each in (data, data.take(range(1, 7))))
    assert np.array_equal(with_[1:], without)


@pytest.mark.parametrize(
    ("front", "why"),
    [
        (Centred(), "looks at more than one example"),
        (Neighbour(), "looks at more than one example"),
        (Growing(), "another answer"),
        (Wrong(), r"gave float32 numbers of shape \(6, 3\); it must give"),
    ],
)
def test_what_is_no_function_of_one_example_is_refused_before_data(
    front: FrontEnd, why: str
) -> None:
    with pytest.raises(StudyError, match=why):
        featured(images(20, 1, 6, 6), front)


def test_rounding_that_depends_on_the_batch_goes_one_by_one() -> None:
    data, front = images(20, 1, 9, 9), Rounded()
    alone = np.concatenate([front.features(data.x[i : i + 1]) for i in range(20)])
    assert np.array_equal(featured(data, front).x, alone)
    assert not np.array_equal(front.features(data.x), alone)


def test_no_example_ever_has_neighbours() -> None:
    data = images(40, 1, 6, 6)
    assert np.array_equal(featured(data, Crowded()).x, data.x.astype(np.float32))


@pytest.mark.parametrize(("side", "scales", "angles"), [(28, 2, 8), (17, 1, 3)])
def test_an_image_has_the_same_channels_to_the_last_bit_beside_any_others(
    side: int, scales: int, angles: int
) -> None:
    x = np.random.default_rng(7).uniform(-1, 1, (21, side, side)).astype(np.float32)
    transform = Scattering2d(side, side, scales, angles)
    alone = np.concatenate([transform(x[i : i + 1]) for i in range(len(x))])
    assert np.array_equal(transform(x), alone)
    assert np.array_equal(transform(x[::-1].copy()), alone[::-1])
    assert np.array_equal(Scattering2d(side, side, scales, angles)(x), alone)
    for place in range(8):
        beside = np.full((8, side, side), 1e30, np.float32)  # and NaN, where they overflow
        beside[place] = x[3]
        assert np.array_equal(transform(beside)[place], alone[3])


@pytest.mark.parametrize("front", [Scattering(J=1), RandomConvolutions()])
@pytest.mark.parametrize("large", [1e19, 1e38])
def test_an_example_with_numbers_too_large_ends_nothing_and_has_zeros(
    front: FrontEnd, large: float
) -> None:
    x = np.random.default_rng(0).uniform(-1, 1, (5, 1, 20, 16)).astype(np.float32)
    data = Dataset("mine", x.copy(), np.zeros(5, np.int64), ("a", "b"))
    x[3] *= np.float32(large)
    found = featured(replace(data, x=x), front).x
    assert (found[3] == 128).all()
    others = [0, 1, 2, 4]
    assert np.array_equal(found[others], featured(data, front).x[others])


def test_what_is_no_array_is_refused_for_no_examples_as_well() -> None:
    class Listed(Centred):
        def features(self, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            return x.tolist()  # type: ignore[no-any-return]

    class Shapeless(Centred):
        def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
            return list(shape)  # type: ignore[return-value]

    for wrong in (Listed(), Shapeless()):
        with pytest.raises(StudyError, match="it must give"):
            featured(images(0, 1, 6, 6), wrong)
    with pytest.raises(StudyError, match="it must give"):
        Data(name="digits", features=Shapeless()).seen((1, 6, 6))


@pytest.mark.parametrize("what", ["infinite", "raises", "leaves", "another type"])
def test_an_example_on_which_an_own_front_end_fails_has_zeros(what: str) -> None:
    data = images(40, 1, 4, 4)
    x = np.full_like(data.x, 9)
    x[33, 0, 1, 1] = 7
    found = featured(Dataset("mine", x, data.y, data.classes), Failing(what=what)).x
    assert not found[33].any()
    assert (np.delete(found, 33, 0) == 1).all()


def test_what_an_example_has_a_front_end_set_is_put_back() -> None:
    """Later steps would be refused, and the refusal would tell of the example."""

    class Sets(Failing):
        def features(self, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            if (x == 7).any():
                torch.set_float32_matmul_precision("medium")
                torch.set_default_dtype(torch.float64)
            return np.ones((len(x), 1, 4, 4), np.float32)

    data = images(40, 1, 4, 4)
    data.x[33, 0, 1, 1] = 7
    featured(data, Sets(what="infinite"))
    assert torch.get_float32_matmul_precision() == "highest"
    assert torch.get_default_dtype() == torch.float32


def test_budget_belongs_to_the_examples_and_not_to_their_features() -> None:
    data = images(12, 1, 16, 16)
    seen = featured(data, Scattering(J=1))
    assert seen.x.shape == (12, 9, 8, 8)
    assert seen.fingerprint() == data.fingerprint()
    some = [3, 5, 8]
    assert seen.take(some).fingerprint() == data.take(some).fingerprint()
    assert np.array_equal(seen.take(some).x, seen.x[some])
    assert featured(data.take([]), Scattering(J=1)).shape == (9, 8, 8)


def test_features_of_public_examples_are_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    data, told = images(20, 1, 16, 16), []

    def tell(name: str, done: int, whole: int) -> None:
        told.append((name, done, whole))

    with watched(tell):
        first = featured(data, Scattering(J=1), public=True)
        assert told == [("made up", 16, 20), ("made up", 20, 20)]
        again = featured(data, Scattering(J=1), public=True)
        assert len(told) == 2
        featured(data, Scattering(J=1), public=False)
        featured(data, Scattering(J=1, L=4), public=True)
    assert len(told) == 6
    assert np.array_equal(first.x, again.x)
    files = sorted((tmp_path / "sordino" / "features").iterdir())
    assert len(files) == 2
    whole = {file: file.read_bytes() for file in files}
    spoilt: list[Callable[[bytes], bytes]] = [
        lambda old: old[:200],  # as a full disk leaves it
        lambda old: old[:-200] + bytes(200),  # as a power failure does
        lambda old: old[:2000] + b"?" + old[2001:],
        lambda old: b"PK\x03\x04" + old[4:],
        lambda old: b"",
    ]
    for spoil in spoilt:
        for file, old in whole.items():
            file.write_bytes(spoil(old))
        assert np.array_equal(featured(data, Scattering(J=1), public=True).x, first.x)


def test_features_that_somebody_else_can_have_written_are_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    data, front = images(20, 1, 16, 16), Scattering(J=1)
    first = featured(data, front, public=True).x
    folder = tmp_path / "sordino" / "features"
    (file,) = folder.iterdir()
    other = np.zeros_like(first)

    def replaced() -> bool:
        with file.open("wb") as raw:
            np.save(raw, other)
            raw.write(hashlib.sha256(other.tobytes()).digest())
        return np.array_equal(featured(data, front, public=True).x, other)

    assert replaced()  # what lies there counts
    file.chmod(0o622)
    assert not replaced()
    file.chmod(0o600)
    folder.chmod(0o777)
    assert not replaced()
    folder.chmod(0o700)
    real = tmp_path / "elsewhere"
    folder.rename(real)
    folder.symlink_to(real)
    assert not replaced()


@pytest.mark.parametrize("named", [False, True])
def test_features_of_code_that_may_change_are_not_kept(
    named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kind: type[Any] = FRONT_ENDS.imported(f"{__name__}:Turned") if named else Turned
    featured(images(5, 1, 6, 6), kind(), public=True)
    assert not list(tmp_path.rglob("*.npy"))


@pytest.mark.parametrize(
    ("front", "shape", "why"),
    [
        (Scattering(), (30,), "images of at least 8 pixels"),
        (Scattering(J=3), (1, 28, 8), "images of at least 16 pixels"),
        (Scattering(groups=7), (1, 28, 28), "81 channels"),
        (RandomConvolutions(size=7, pool=4), (1, 9, 28), "at least 10 pixels"),
        (RandomConvolutions(), (9,), "examples have shape"),
    ],
)
def test_examples_that_do_not_fit_are_refused(
    front: FrontEnd, shape: tuple[int, ...], why: str
) -> None:
    with pytest.raises(StudyError, match=why):
        front.shape(shape)
