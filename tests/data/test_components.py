"""Components of made-up pictures: the map of a float64 twin, and the same bytes in any company."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest

from sordino.base.errors import StudyError
from sordino.data import scattering
from sordino.data.dataset import Bytes, Dataset
from sordino.data.features import featured
from sordino.data.scattering import BLOCK, LIMIT, RIDGE, Components, Scattering, learned, pictures

SHAPE = (1, 12, 12)
FRONT = Scattering(J=1, L=3, components=20)
D = 4 * 6 * 6


@pytest.fixture(autouse=True, scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(scattering, "PICTURES", 400)
        scattering._components.cache_clear()
        yield
    scattering._components.cache_clear()


@cache
def shown(count: int) -> Bytes:
    """Made-up pictures (count, 1, 12, 12)."""
    return pictures(count, *SHAPE)


@cache
def made_up() -> Bytes:
    """Coefficients (400, d) of those that components are learned from."""
    return coefficients(shown(450)[:400])


def coefficients(x: Bytes) -> Bytes:
    plain = FRONT.model_copy(update={"components": None})
    return np.concatenate([plain.features(x[i : i + 1]).reshape(1, -1) for i in range(len(x))])


def twin(x: Bytes, made_up: Bytes, count: int, ridge: float = RIDGE) -> np.ndarray:
    """Components (n, K), normalised, by the formula in float64, with directions of any sign."""
    public = made_up.astype(np.float64)
    centre = public.mean(0)
    values, vectors = np.linalg.eigh(np.cov(public.T, bias=True))
    values, vectors = values[::-1][:count], vectors[:, ::-1][:, :count]
    found = (x.astype(np.float64) - centre) @ vectors / np.sqrt(values + ridge * values[0])
    return np.asarray(found * np.sqrt(count) / np.linalg.norm(found, axis=1, keepdims=True))


def test_components_are_those_of_a_dense_twin() -> None:
    x = shown(450)[400:]
    wanted = twin(coefficients(x), made_up(), 20)
    found = (FRONT.features(x) - 127.5) / 127.5 * LIMIT
    assert (50, *FRONT.shape(SHAPE)) == found.shape == (50, 20)
    signs = np.sign((found * wanted).sum(0))
    # a byte is worth 1/32; seven bits of each direction leave a few thousandths of its length
    gap = np.abs(found * signs - np.clip(wanted, -LIMIT, LIMIT))
    assert gap.max() < 0.06
    other = twin(coefficients(x), made_up(), 20, ridge=4 * RIDGE)
    assert np.abs(found * signs - np.clip(other, -LIMIT, LIMIT)).max() > 0.12


def test_an_example_has_the_same_components_in_any_company() -> None:
    x = np.concatenate([shown(450)[:40], np.full((2, *SHAPE), 255, np.uint8)])
    alone = np.concatenate([FRONT.features(x[i : i + 1]) for i in range(len(x))])
    for some in (slice(None), slice(None, None, -1), slice(3, 20)):
        assert np.array_equal(FRONT.features(x[some].copy()), alone[some])
    data = Dataset("made up", x, np.zeros(42, np.int64), ("a", "b"))
    assert np.array_equal(featured(data, FRONT).x, alone)


@pytest.mark.parametrize("byte", [0, 255])
def test_products_are_whole_at_the_largest_features_and_directions(byte: int) -> None:
    d = 2 * BLOCK + 5
    rng = np.random.default_rng(2)
    directions = np.where(rng.random((d, 6)) < 0.5, -127.0, 127.0).astype(np.float32)
    directions[:, 0] = 127.0
    x = np.full((3, d), byte, np.uint8)
    sums = (x.astype(np.int64) - 128) @ directions.astype(np.int64)
    scale = 1.0 / np.maximum(np.abs(sums[0]), 1)
    found = Components(np.vstack([directions.astype(np.float64), np.zeros(6), scale]))(x)
    wanted = np.sign(sums) * np.sqrt(6.0) / np.sqrt((sums[0] != 0).sum())
    assert np.abs((found - 127.5) / 127.5 * LIMIT - wanted).max() < 0.51 * LIMIT / 127.5
    # and the products themselves, block by block, to the last digit
    blocks = [
        (x[:, i : i + BLOCK].astype(np.float32) - 128) @ directions[i : i + BLOCK]
        for i in range(0, d, BLOCK)
    ]
    assert np.array_equal(np.sum(blocks, 0, dtype=np.float64).astype(np.int64), sums)


def test_made_up_pictures_have_components_of_nearly_equal_variance() -> None:
    public = made_up()
    components = learned(public, 20)
    values = np.linalg.eigvalsh(np.cov(public.astype(np.float64).T, bias=True))[::-1][:20]
    x = public.astype(np.float64) - 128
    found = (x @ components.directions - components.centre) * components.scale
    assert found.var(0) == pytest.approx(values / (values + RIDGE * values[0]), rel=0.02)
    between = np.corrcoef(found.T) - np.eye(20)
    assert np.abs(between).max() < 0.05


def test_a_kept_map_is_the_same_map() -> None:
    components = learned(made_up(), 20)
    assert components.table.shape == (D + 2, 20)
    again = Components(components.table.view(np.uint8).view(np.float64))
    x = coefficients(shown(450)[:10])
    assert np.array_equal(again(x), components(x))
    first = FRONT.features(shown(450)[:3])
    scattering._components.cache_clear()  # the next one comes from the cache folder
    assert np.array_equal(FRONT.features(shown(450)[:3]), first)


def test_examples_without_any_variance_have_components() -> None:
    found = learned(np.full((40, 12), 128, np.uint8), 4)
    assert (found(np.full((2, 12), 128, np.uint8)) == 128).all()


def test_made_up_pictures_are_always_the_same_and_differ_from_one_another() -> None:
    found = pictures(30, 3, 16, 20)
    assert found.shape == (30, 3, 16, 20)
    assert np.array_equal(found[:4], pictures(4, 3, 16, 20))
    assert len({each.tobytes() for each in found}) == 30
    assert 5 < found.mean() < 128
    assert found.std() > 20
    assert (found[:, 0] != found[:, 1]).any()


@pytest.mark.parametrize(
    ("front", "shape", "why"),
    [
        (FRONT.model_copy(update={"components": D + 1}), SHAPE, f"at most {D} of"),
        (Scattering(components=9), (3, 64, 64), "at most 8,192 of at most 8,192"),
    ],
)
def test_too_many_components_are_refused(
    front: Scattering, shape: tuple[int, int, int], why: str
) -> None:
    with pytest.raises(StudyError, match=why):
        front.shape(shape)
