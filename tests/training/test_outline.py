"""Built-in models without torch against what torch makes of them."""

from __future__ import annotations

import numpy as np
import pytest

from sordino.base.errors import StudyError
from sordino.training import models
from sordino.training.flat import Flat
from sordino.training.loss import loss_for
from sordino.training.outline import NAMES, outline
from sordino.training.perexample.sums import path_of

SHAPES = ((7,), (1, 8, 8), (1, 15, 17), (1, 28, 28), (3, 32, 32), (2, 33, 41), (1, 64, 50))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("classes", [2, 10])
def test_sizes_and_path_are_those_of_the_module(
    name: str, shape: tuple[int, ...], classes: int
) -> None:
    told = outline(name, shape, classes)
    if told is None:
        with pytest.raises(StudyError):
            models.build(name, shape, classes, np.random.default_rng(0))
        return
    flat = Flat(models.build(name, shape, classes, np.random.default_rng(0)))
    assert told.parameters == tuple(slot.size for slot in flat.layout)
    assert told.dim == flat.dim
    assert told.path == path_of(flat, shape, loss_for(name, number=name == "linear"))


def test_of_others_nothing_is_known() -> None:
    assert outline("others:factory", (3,), 2) is None
    assert outline("mlp", (0,), 2) is None
