"""The picture of ``sordino audit --attack inversion``: originals, and what noise leaves of them.

One block for each scene: models one below the other, batches side by side. Rows are the originals,
the mean public image of the label (what the label alone gives away), then the noise levels. Every
image is stretched to its own darkest and brightest pixel, and its correlation with the original
stands below it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sordino.extend.runs import INK, QUIET, canvas, clean, epsilon_text, figure, svg
from sordino_papers.inversion.scenes import Level, Scene

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# In widths of an image: from one image to the next, from row to row, between blocks, left of all,
# and for a block's title.
ACROSS, DOWN, BETWEEN, LEFT, TITLE = 1.1, 1.38, 0.9, 4.7, 0.9
NARROWEST = 4.4  # block, for its title
INCHES = 0.5  # an image's width
GREYS = 16  # shades; more would not be seen, and noise does not compress

Pixels = np.ndarray[Any, np.dtype[np.float64]]


def noise_words(level: Level) -> str:
    """A noise level in words.

    >>> noise_words(Level(sigma=0.1, once=1.0, whole=2.0))
    'σ = 0.1'
    >>> noise_words(Level(sigma=0.0, own=True, once=math.inf, whole=math.inf))
    "no noise (the study's)"
    """
    if level.sigma is None:
        name = f"MAPA's noise, ε₀ = {epsilon_text(level.claimed)}"
    else:
        name = "no noise" if level.sigma == 0.0 else f"σ = {level.sigma:.4g}"
    return name + (" (the study's)" if level.own else "")


def price_words(level: Level) -> str:
    """Return the price in words.

    >>> price_words(Level(sigma=0.1, once=1.0, whole=2.00001))
    'ε = 1 once, 2.001 in all'
    """
    once, whole = (epsilon_text(each, infinite="∞") for each in (level.once, level.whole))
    return "ε = ∞" if math.isinf(level.once) else f"ε = {once} once, {whole} in all"


def _hundredths(value: float) -> str:
    return f"{round(value, 2) + 0.0:.2f}".replace("-", "\N{MINUS SIGN}")


def scene_words(scene: Scene) -> str:
    """A scene in words."""
    return f"{scene.model}, batch of {'1' if scene.alone else f'about {scene.batch:.0f}'}"


def inversion_figure(scenes: Sequence[Scene]) -> str:
    """The picture as SVG text; it holds raw training images."""
    models = list(dict.fromkeys(scene.model for scene in scenes))
    across = max(sum(scene.model == model for scene in scenes) for model in models)
    block = max(len(scenes[0].originals) * ACROSS, NARROWEST) + BETWEEN
    below = TITLE + (2 + len(scenes[0].attempts)) * DOWN + BETWEEN / 2
    width, height = LEFT + across * block, len(models) * below
    with canvas("inversion"):
        drawn, (axis,) = figure(1, height * INCHES, width=width * INCHES)
        drawn.set_layout_engine("none")
        axis.set_position((0.0, 0.0, 1.0, 1.0))
        axis.set_xlim(-0.1, width - 0.1)
        axis.set_ylim(height, 0)
        axis.set_aspect("equal")
        axis.axis("off")
        for i, model in enumerate(models):
            for j, scene in enumerate(scene for scene in scenes if scene.model == model):
                _block(axis, scene, LEFT + j * block, i * below, named=j == 0)
        return svg(drawn, "Images recovered from a gradient at several noise levels")


def _block(axis: Axes, scene: Scene, left: float, top: float, *, named: bool) -> None:
    """One scene with its upper left corner there; ``named`` blocks name their rows at the left."""
    axis.text(left, top + 0.5, clean(scene_words(scene)), fontsize=9.5, color=INK, va="center")
    rows: list[tuple[str, str, Pixels, Sequence[str]]] = [
        (
            "original",
            "never leaves its owner",
            scene.originals,
            [clean(label, 10) for label in scene.labels],
        ),
        (
            "mean image of the label",
            "public: no gradient needed",
            scene.guesses,
            [_hundredths(r) for r in scene.guessed],
        ),
    ]
    rows += [
        (
            noise_words(each.level),
            price_words(each.level),
            each.images,
            [_hundredths(r) for r in each.correlations],
        )
        for each in scene.attempts
    ]
    for number, (name, remark, images, captions) in enumerate(rows):
        y = top + TITLE + number * DOWN
        if named:
            axis.text(0, y + 0.36, name, fontsize=9, color=INK, va="center")
            axis.text(0, y + 0.78, remark, fontsize=7.5, color=QUIET, va="center")
        for place, (image, caption) in enumerate(zip(images, captions, strict=True)):
            x = left + place * ACROSS
            axis.imshow(
                _shown(image, scene.shape),
                cmap="gray",
                vmin=0,
                vmax=1,
                extent=(x, x + 1, y + 1, y),
                interpolation="none",
                aspect="equal",
            )
            axis.text(
                x + 0.5, y + 1.15, caption, fontsize=6.5, color=QUIET, ha="center", va="center"
            )


def _shown(image: Pixels, shape: tuple[int, ...]) -> Pixels:
    """(height, width) or (height, width, 3), from 0 (darkest) to 1; grey if all are equal."""
    low, spread = float(image.min()), float(np.ptp(image))
    shaded = spread > 0.0 and math.isfinite(spread)
    levels = (image - low) / spread if shaded else np.full_like(image, 0.5)
    shades = np.round(levels * (GREYS - 1)) / (GREYS - 1)
    channels: Pixels = shades.reshape(shape).transpose(1, 2, 0)
    return channels[..., 0] if shape[0] == 1 else channels
