r"""Front ends: fixed functions of one example, which a model sees in its place.

A front end must look at one example alone: then the features of neighbouring data sets differ in
one example, too, and every guarantee for examples is one for theirs. It must not learn anything
from data: no mean, no deviation, no dictionary. What it needs at random comes from a public seed.

**It is tried before it sees data**, on made-up examples of the right shape: alone, together, in
another order and once more. A front end that gives other features to the same example then is
refused.

**Examples go through one by one.** Matrix products of libraries give other last digits to an
example beside others, by its place among them; a byte that is rounded from such a number may change
as well. And no trial on made-up examples shows what a front end does with other ones. Alone, an
example has no neighbours to depend on. (A front end whose sums do not depend on neighbours
to the last bit may take several together: ``together``.)

**A front end of your own** is a class with a registration, or ``kind = "package.module:Class"`` in
a study (docs/own-tables.md).

Shapes: examples (n, *shape), ``uint8`` pixels or ``float32``; features (n, *other), ``float32``, or
``uint8`` where every feature lies between two public limits: then a byte b stands for
(b - 127.5) / 127.5, as with pixels.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino.base.entropy import Seeded
from sordino.base.errors import StudyError
from sordino.base.registry import Registry
from sordino.base.section import Section

Shape = tuple[int, ...]
Examples = NDArray[Any]

TRIED = 6
_ROUNDING = 1e-3  # of features, relative to the largest: what another order of sums may change


class FrontEnd(Section):
    """One front end, and the ``data.features`` table of a study that asks for it.

    Its fields are the keys.
    """

    kind: str

    @property
    def together(self) -> int:
        """How many examples may go through at once: one, unless all that is done to several at
        once gives each the same bits in any company, as whole numbers and loops over examples do.
        """
        return 1

    @property
    def settings(self) -> tuple[tuple[str, object], ...]:
        """Its keys and values, but its name and what is not set."""
        found = self.model_dump(exclude={"kind"}, exclude_none=True)
        return tuple(found.items())

    def shape(self, shape: Shape) -> Shape:
        """Shape of an example's features, by that of an example.

        Raises:
            StudyError: if it takes no such examples.
        """
        raise NotImplementedError

    def features(self, x: Examples) -> Examples:
        """Features (n, *shape) of examples (n, ...), each of its own example alone."""
        raise NotImplementedError


FRONT_ENDS = Registry(
    base=FrontEnd,
    noun="front end",
    key="kind",
    place="data.features",
    page="docs/own-tables.md",
    needs=("shape", "features"),
)


def tried(front: FrontEnd, shape: Shape, kind: np.dtype[Any]) -> np.dtype[Any]:
    """The type of a front end's features, once it has been tried.

    Raises:
        StudyError: if it gives no features, or features that depend on other examples.
    """
    wanted = shape_of(front, shape)
    x = made_up(shape, kind)
    together = _tried_on(front, x, wanted)
    alone = np.concatenate([_tried_on(front, x[i : i + 1], wanted) for i in range(len(x))])
    turned = _tried_on(front, x[::-1].copy(), wanted)[::-1]
    few = _tried_on(front, x[:2].copy(), wanted)
    again = np.concatenate([_tried_on(front, x[i : i + 1], wanted) for i in range(len(x))])
    if not np.array_equal(alone, again):
        raise _refused(front, "gives another answer when it is asked again")
    same = _close if front.together == 1 else np.array_equal
    for found, beside in ((together, alone), (turned, alone), (few, alone[:2])):
        if not same(found, beside):
            raise _refused(front, "looks at more than one example")
    return alone.dtype


def made_up(shape: Shape, kind: np.dtype[Any]) -> Examples:
    """Examples of a shape and type that are nobody's: random ones, one of them dark."""
    rng = Seeded(0).at("made-up examples")
    bytes_ = rng.integers(0, 256, (TRIED, *shape))
    bytes_[1] //= 16
    found = bytes_.astype(np.uint8)
    return found if kind == np.uint8 else (found.astype(np.float32) - 127.5) / np.float32(127.5)


def _close(found: Examples, beside: Examples) -> bool:
    if found.dtype == np.uint8:
        return bool(np.abs(found.astype(np.int16) - beside).max(initial=0) <= 1)
    most = float(np.abs(beside).max(initial=0.0))
    return bool(np.abs(found - beside).max(initial=0.0) <= _ROUNDING * most)


def shape_of(front: FrontEnd, shape: Shape) -> Shape:
    """Shape of an example's features, by that of an example, if it is one.

    Raises:
        StudyError: if it is none, or the front end takes no such examples.
    """
    told: object = front.shape(shape)
    if not (isinstance(told, tuple) and told and all(isinstance(n, int) and n > 0 for n in told)):
        raise FRONT_ENDS.wrong(front, "shape", told, "a shape: a tuple of positive whole numbers")
    return told


def given(front: FrontEnd, x: Examples, wanted: Shape) -> Examples:
    """Features of examples, finite or not.

    Raises:
        StudyError: if they are none of the right shape and type.
    """
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # one would tell of an example
        told: object = front.features(x.copy())
    fits = (
        isinstance(told, np.ndarray)
        and told.dtype in (np.uint8, np.float32)
        and told.shape == (len(x), *wanted)
    )
    if not fits:
        raise FRONT_ENDS.wrong(
            front,
            "features",
            f"{told.dtype} numbers of shape {told.shape}" if isinstance(told, np.ndarray) else told,
            f"uint8 or float32 numbers of shape {(len(x), *wanted)}",
        )
    found: Examples = told  # type: ignore[assignment]
    return found


def _tried_on(front: FrontEnd, x: Examples, wanted: Shape) -> Examples:
    found = given(front, x, wanted)
    if not np.isfinite(found).all():
        raise _refused(front, "gives features that are not finite")
    return found


def _refused(front: FrontEnd, why: str) -> StudyError:
    return StudyError(
        f"data.features kind '{front.kind}' {why}: features must be a fixed function of one "
        "example. It was tried on made-up examples; no data was read"
    )
