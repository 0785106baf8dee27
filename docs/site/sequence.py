"""A small part of mermaid's sequence diagrams, drawn as an SVG: columns of participants, a row for
each message, note, or border of a loop.
"""

from __future__ import annotations

import re
from html import escape

PARTICIPANT = re.compile(r"^\s*participant (\w+) as (.+)$")
MESSAGE = re.compile(r"^\s*(\w+)(-?->>)(\w+): (.+)$")
NOTE = re.compile(r"^\s*Note over (\w+)(?:,\s*(\w+))?: (.+)$")
BORDER = re.compile(r"^\s*(loop|alt|else|opt|end)\b ?(.*)$")
COLUMN, ROW, TOP, SIDE = 150, 34, 44, 20


def drawn(text: str) -> str:
    """Return the diagram as one line of HTML."""
    names: dict[str, str] = {}
    parts: list[str] = []
    told: list[str] = []
    y, depth = float(TOP + ROW), 0
    for line in text.splitlines():
        if who := PARTICIPANT.match(line):
            names[who[1]] = who[2]
        elif sent := MESSAGE.match(line):
            parts.append(_message(_x(names, sent[1]), _x(names, sent[3]), y, sent[2], sent[4]))
            told.append(f"{names[sent[1]]} to {names[sent[3]]}: {sent[4]}")
            y += ROW
        elif note := NOTE.match(line):
            middle = (_x(names, note[1]) + _x(names, note[2] or note[1])) / 2
            parts.append(_text(middle, y, note[3], "font-style='italic'"))
            y += ROW
        elif border := BORDER.match(line):
            depth -= border[1] in ("end", "else")
            words = f"{border[1]}: {border[2]}" if border[2] else border[1]
            wide = len(names) * COLUMN
            parts.append(
                f'<path d="M{depth * 8:g} {y - 4:g}H{wide:g}" stroke="currentColor" '
                f'stroke-dasharray="2 4" opacity=".5"/>'
                f'<text x="{depth * 8 + 4:g}" y="{y - 8:g}" font-weight="bold">'
                f"{escape(words)}</text>"
            )
            depth += border[1] != "end"
            y += ROW * 0.8
    heads = "".join(_head(i, name, y) for i, name in enumerate(names.values()))
    wide = len(names) * COLUMN + SIDE
    return (
        f'<div class="picture" style="overflow-x:auto" role="img" '
        f'aria-label="{escape("; ".join(told))}"><svg xmlns="http://www.w3.org/2000/svg" '
        f'viewBox="{-SIDE} 0 {wide + SIDE:g} {y:g}" style="min-width:{wide * 0.8:g}px" '
        'font-size="11" '
        'fill="currentColor"><defs><marker id="to" viewBox="0 0 8 8" refX="7" refY="4" '
        'markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8z"/></marker></defs>'
        f"{heads}{''.join(parts)}</svg></div>"
    )


def _x(names: dict[str, str], who: str) -> float:
    return COLUMN * (list(names).index(who) + 0.5)


def _text(x: float, y: float, words: str, more: str = "") -> str:
    return f'<text x="{x:g}" y="{y - 6:g}" text-anchor="middle" {more}>{escape(words)}</text>'


def _head(column: int, name: str, low: float) -> str:
    middle = COLUMN * (column + 0.5)
    return (
        f'<path d="M{middle:g} {TOP - 10:g}V{low:g}" stroke="currentColor" opacity=".25"/>'
        f'<rect x="{middle - COLUMN / 2 + 4:g}" y="6" width="{COLUMN - 8}" height="28" rx="5" '
        f'class="box" stroke="currentColor"/>{_text(middle, 31, name)}'
    )


def _message(start: float, end: float, y: float, arrow: str, words: str) -> str:
    dashed = ' stroke-dasharray="4 3"' if arrow == "-->>" else ""
    if start == end:
        way, middle = f"M{start:g} {y:g}h26v10h-24", start + COLUMN / 2
    else:
        way, middle = f"M{start:g} {y:g}H{end:g}", (start + end) / 2
    return (
        f'<path d="{way}" fill="none" stroke="currentColor"{dashed} marker-end="url(#to)"/>'
        f"{_text(middle, y, words)}"
    )
