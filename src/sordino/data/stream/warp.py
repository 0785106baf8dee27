r"""Images bent a little, pixel by pixel: affine maps, displacement fields and bilinear sampling.

Output pixel p sits at q_p in the picture (source pixels; the centres of both grids cover the same
square), and shows the picture at

    s_p = c + A (q_p - c) + t + k_1 f_i(p) + k_2 f_j(p)          (row, column)

with the picture's centre c, a small affine map A, t, and two fields f of a bank. Between pixels the
picture is bilinear, outside it is the background.

The kernel first brings the base image, scaled, into a small frame with a border of background. Then
no pixel asks where the edge is: positions are held within the frame. Positions and weights of one
image are computed at once (that vectorises), then four numbers of the frame are looked up for each
pixel.

References: Simard, Steinkraus, Platt 2003, "Best practices for convolutional neural networks
applied to visual document analysis"; Loosli, Canu, Bottou 2007, "Training invariant support vector
machines using selective sampling" (infinite MNIST).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sordino.base.compiled import compiled


@compiled(fastmath={"contract", "nnan", "nsz"})
def render(
    images: Any, rows: Any, gain: Any, shift: Any, background: Any,
    grid: Any, fields: Any, pair: Any, affine: Any, mix: Any, out: Any,
) -> None:  # fmt: skip
    """Compute samples into ``out``.

    Args:
        images: (n, channels, height, width), uint8 or float32.
        rows: (b,) base images.
        gain, shift, background: numbers; a value v of an image becomes gain v + shift.
        grid: where output pixels lie in the picture, from its centre, (2, pixels).
        fields: (count, 2, pixels).
        pair: (b, 2) numbers of fields.
        affine: (b, 6): A by rows, then t.
        mix: (b, 2) their coefficients, in pixels of the picture.
        out: (b, channels x pixels).
    """
    channels, height, width = images.shape[1], images.shape[2], images.shape[3]
    pixels, wide = grid.shape[1], width + 3
    plane = (height + 3) * wide
    frame = np.full(channels * plane, background, np.float32)
    at, down = np.empty(pixels, np.int32), np.empty(pixels, np.float32)
    across = np.empty(pixels, np.float32)
    half = np.float32(0.5)
    lowest, rightmost = np.float32(height + 1), np.float32(width + 1)
    for n in range(rows.shape[0]):
        image = images[rows[n]]
        for c in range(channels):
            for i in range(height):
                for j in range(width):
                    frame[c * plane + (i + 1) * wide + 1 + j] = (
                        gain * np.float32(image[c, i, j]) + shift
                    )
        rr, rc, cr, cc = affine[n, 0], affine[n, 1], affine[n, 2], affine[n, 3]
        # The frame's pixel (1, 1) is the picture's (0, 0); a centre between two pixels is half a
        # pixel further.
        row_at = np.float32(height) * half + half + affine[n, 4]
        column_at = np.float32(width) * half + half + affine[n, 5]
        first, second, k1, k2 = fields[pair[n, 0]], fields[pair[n, 1]], mix[n, 0], mix[n, 1]
        for p in range(pixels):
            v = row_at + rr * grid[0, p] + rc * grid[1, p] + k1 * first[0, p] + k2 * second[0, p]
            u = column_at + cr * grid[0, p] + cc * grid[1, p] + k1 * first[1, p] + k2 * second[1, p]
            v, u = min(max(v, np.float32(0)), lowest), min(max(u, np.float32(0)), rightmost)
            row, column = np.int32(v), np.int32(u)
            at[p] = row * np.int32(wide) + column
            down[p], across[p] = v - np.float32(row), u - np.float32(column)
        for c in range(channels):
            for p in range(pixels):
                k = c * plane + at[p]
                a, b = frame[k], frame[k + 1]
                d, e = frame[k + wide], frame[k + wide + 1]
                above, below = a + across[p] * (b - a), d + across[p] * (e - d)
                out[n, c * pixels + p] = above + down[p] * (below - above)
