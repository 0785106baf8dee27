"""A small part of mermaid's flow charts, drawn as an SVG: boxes in layers, arrows downwards.

The repository's pages have mermaid blocks, which their viewer draws with a script. The site has no
script for it.
"""

from __future__ import annotations

import re
from html import escape, unescape

BOX = re.compile(r"^\s*(\w+)[\[(]+\"(.*?)\"[\])]+$")
ARROW = re.compile(r"^\s*(\w+) (?:-->|-\. (?P<told>.*?) \.->) (\w+)$")
WIDTH, LINE, GAP_X, GAP_Y = 190, 15, 24, 46
SIGNS = 27  # of a line of a box


def drawn(text: str) -> str:
    """The chart as one line of HTML."""
    boxes: dict[str, list[str]] = {}
    arrows: list[tuple[str, str, str]] = []
    for line in text.splitlines():
        if box := BOX.match(line):
            boxes[box[1]] = _wrapped(unescape(box[2]).replace("<br/>", " "))
        elif arrow := ARROW.match(line):
            arrows.append((arrow[1], arrow[3], arrow["told"] or ""))
    rows = _layers(list(boxes), arrows)
    wide = max(len(row) for row in rows) * (WIDTH + GAP_X)
    place: dict[str, tuple[float, float, float]] = {}  # left, top, height
    y = 8.0
    for row in rows:
        high = max(16 + LINE * len(boxes[name]) for name in row)
        left = (wide - len(row) * (WIDTH + GAP_X) + GAP_X) / 2
        for i, name in enumerate(row):
            place[name] = (left + i * (WIDTH + GAP_X), y, 16 + LINE * len(boxes[name]))
        y += high + GAP_Y
    parts = [_arrow(place, *each) for each in arrows] + [
        _box(place[name], lines) for name, lines in boxes.items()
    ]
    told = "; ".join(f"{' '.join(boxes[a])} to {' '.join(boxes[b])}" for a, b, _ in arrows)
    return (
        f'<div class="picture" role="img" aria-label="{escape(told)}"><svg xmlns="http://www.w3.org/'
        f'2000/svg" viewBox="0 0 {wide:g} {y - GAP_Y + 8:g}" font-size="12" fill="currentColor">'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8z"/></marker></defs>'
        f"{''.join(parts)}</svg></div>"
    )


def _layers(names: list[str], arrows: list[tuple[str, str, str]]) -> list[list[str]]:
    """Names by the length of the longest way to them."""
    depth = dict.fromkeys(names, 0)
    for _ in names:
        for a, b, _told in arrows:
            depth[b] = max(depth[b], depth[a] + 1)
    return [
        [name for name in names if depth[name] == level] for level in range(max(depth.values()) + 1)
    ]


def _wrapped(text: str) -> list[str]:
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + len(word) >= SIGNS:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def _box(place: tuple[float, float, float], lines: list[str]) -> str:
    left, top, high = place
    words = "".join(
        f'<text x="{left + WIDTH / 2:g}" y="{top + 20 + LINE * i:g}" text-anchor="middle">'
        f"{escape(line)}</text>"
        for i, line in enumerate(lines)
    )
    return (
        f'<rect x="{left:g}" y="{top:g}" width="{WIDTH}" height="{high:g}" rx="5" class="box" '
        f'stroke="currentColor"/>{words}'
    )


def _arrow(place: dict[str, tuple[float, float, float]], start: str, end: str, told: str) -> str:
    (x, y, high), (to_x, to_y, _) = place[start], place[end]
    a, b = (x + WIDTH / 2, y + high), (to_x + WIDTH / 2, to_y - 1)
    dashed = ' stroke-dasharray="4 3"' if told else ""
    bend = (b[1] - a[1]) / 2
    return (
        f'<path d="M{a[0]:g} {a[1]:g}C{a[0]:g} {a[1] + bend:g} {b[0]:g} {b[1] - bend:g} {b[0]:g} '
        f'{b[1]:g}" fill="none" stroke="currentColor" opacity=".6"{dashed} marker-end="url(#tip)"/>'
    )
