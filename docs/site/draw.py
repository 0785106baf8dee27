"""The pictures of the concepts: ``python docs/site/draw.py`` writes them to ``docs/site/pictures``.

They use the colour of the text around them where they are part of a page, and a grey that is
readable on light and dark where they are images of their own.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

PICTURES = Path(__file__).parent / "pictures"
INK, BLUE, RED, GREEN = "#7c8790", "#3f8fc4", "#d9772b", "#4a9c6d"


def page(width: int, height: int, *parts: str) -> str:
    """An SVG of this size."""
    tips = "".join(
        f'<marker id="tip-{colour[1:]}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" '
        f'markerHeight="6" orient="auto"><path d="M0 0 8 4 0 8z" fill="{colour}"/></marker>'
        for colour in (INK, BLUE, RED, GREEN)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'font-family="system-ui, sans-serif" font-size="13">\n<style>text{{fill:#68737c}}'
        f".picture text{{fill:currentColor}}</style>\n<defs>{tips}</defs>\n"
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def word(x: float, y: float, text: str, anchor: str = "middle", bold: bool = False) -> str:
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{weight}>{escape(text)}</text>'


def box(
    x: float, y: float, wide: float, high: float, *lines: str, colour: str = INK, fill: float = 0.12
) -> str:
    """A rectangle with centred lines."""
    middle = y + high / 2 + 4.5 - 8 * (len(lines) - 1)
    words = "".join(word(x + wide / 2, middle + 16 * i, line) for i, line in enumerate(lines))
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{wide:g}" height="{high:g}" rx="5" fill="{colour}" '
        f'fill-opacity="{fill:g}" stroke="{colour}" stroke-width="1.5"/>{words}'
    )


def arrow(
    x: float, y: float, to_x: float, to_y: float, colour: str = INK, dash: bool = False
) -> str:
    dashed = ' stroke-dasharray="5 4"' if dash else ""
    return (
        f'<path d="M{x:g} {y:g}L{to_x:g} {to_y:g}" stroke="{colour}" stroke-width="1.8" fill="none"'
        f'{dashed} marker-end="url(#tip-{colour[1:]})"/>'
    )


def table(x: float, y: float, rows: list[tuple[str, ...]], widths: list[int]) -> str:
    """Cells of a table, 26 high."""
    parts = []
    for i, row in enumerate(rows):
        left = x
        for text, wide in zip(row, widths, strict=True):
            parts.append(
                f'<rect x="{left:g}" y="{y + 26 * i:g}" width="{wide}" height="26" fill="none" '
                f'stroke="{INK}" stroke-opacity=".55"/>'
                + word(left + wide / 2, y + 26 * i + 18, text, bold=i == 0)
            )
            left += wide
    return "".join(parts)


def frame(x: float, y: float, wide: float, high: float, colour: str) -> str:
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{wide:g}" height="{high:g}" rx="4" fill="{colour}" '
        f'fill-opacity=".16" stroke="{colour}" stroke-width="2.5"/>'
    )


def units() -> str:
    """What a unit takes out of a table."""
    rows = [
        ("hospital", "patient", "age", "pressure", "diagnosis"),
        ("north", "ana", "61", "142", "yes"),
        ("north", "ana", "62", "138", "yes"),
        ("north", "ben", "45", "120", "no"),
        ("south", "eva", "70", "151", "yes"),
        ("south", "joe", "38", "118", "no"),
    ]
    top, left = 20, 175
    return page(
        760,
        200,
        frame(left, top + 78, 450, 26, BLUE),
        frame(left + 4, top + 28, 442, 48, RED),
        frame(left, top + 104, 450, 52, GREEN),
        frame(left + 366, top + 80, 80, 22, INK),
        table(left, top, rows, [90, 90, 80, 100, 90]),
        word(161, top + 57, "all rows of one person", "end"),
        word(161, top + 96, "one row: sample", "end"),
        word(161, top + 135, "one client", "end"),
        word(640, top + 96, "one label", "start"),
    )


def adjacency() -> str:
    """Two worlds, one of them without the contribution of a row."""
    parts = []
    for top, name, one in ((20, "world 1", "its gradient"), (150, "world 2", "nothing")):
        parts += [
            word(20, top + 46, name, "start", bold=True),
            box(95, top, 90, 24, "row 1"),
            box(95, top + 32, 90, 24, "row 2", colour=RED, fill=0.25),
            box(95, top + 64, 90, 24, "row 3"),
            arrow(190, top + 12, 300, top + 34),
            arrow(190, top + 44, 300, top + 44, RED, dash=one == "nothing"),
            arrow(190, top + 76, 300, top + 54),
            word(243, top + 100, f"row 2 adds {one}"),
            box(306, top + 26, 110, 36, "sum + noise"),
            arrow(420, top + 44, 480, top + 44),
        ]
    curve = "M490 {y}C530 {y} 545 {t} 575 {t}S620 {y} 660 {y}"
    parts += [
        f'<path d="{curve.format(y=150, t=40)}" fill="{BLUE}" fill-opacity=".2" stroke="{BLUE}" '
        'stroke-width="2"/>',
        f'<path d="{curve.format(y=150, t=40)}" transform="translate(42 0)" fill="{RED}" '
        f'fill-opacity=".2" stroke="{RED}" stroke-width="2"/>',
        word(565, 30, "world 2"),
        word(640, 30, "world 1"),
        word(600, 180, "what is released:"),
        word(600, 197, "nearly the same in both worlds"),
        word(600, 214, "(the ratio is at most e to the ε)"),
    ]
    return page(760, 260, *parts)


def ledger() -> str:
    """Charge, permit, release; and the chain."""
    chain = []
    for i, event in enumerate(("unit", "begin", "round 1", "round 2", "round 3", "seal")):
        chain.append(box(30 + 120 * i, 190, 92, 44, event, "digest", colour=GREEN))
        if i:
            chain.append(arrow(30 + 120 * i - 3, 212, 30 + 120 * i - 26, 212, GREEN))
    return page(
        760,
        260,
        box(30, 20, 170, 66, "a round of training", "asks for a release"),
        arrow(206, 40, 288, 40),
        word(247, 32, "1 charge"),
        box(294, 20, 172, 66, "ledger: within the", "budget? then on disk", colour=GREEN, fill=0.2),
        arrow(472, 53, 552, 53, BLUE),
        word(512, 44, "2 permit"),
        box(558, 20, 172, 66, "client: compute, clip,", "add noise", colour=BLUE, fill=0.2),
        arrow(644, 90, 644, 128, RED),
        word(656, 114, "3 release", "start"),
        word(644, 146, "model, log, report"),
        arrow(288, 70, 206, 70, RED, dash=True),
        word(247, 102, "or: refused, nothing booked"),
        arrow(380, 90, 380, 180, GREEN),
        word(392, 172, "each entry names the one before", "start"),
        *chain,
    )


def trust() -> str:
    """Who adds noise."""
    parts = []
    settings = (
        ("each client for itself", True, "server", "sees noisy updates", RED),
        ("a trusted server", False, "server + noise", "sees bounded updates", BLUE),
        ("shared noise, secure sums", True, "server", "sees the noisy sum only", GREEN),
    )
    for i, (title, noisy, server, sees, colour) in enumerate(settings):
        left = 10 + 253 * i
        parts.append(word(left + 115, 18, title, bold=True))
        for j in range(3):
            x = left + 80 * j
            lines = ("rows", "+ noise" if i == 0 else "+ a share") if noisy else ("rows",)
            parts.append(box(x, 34, 70, 50, *lines, colour=colour, fill=0.22 if noisy else 0.08))
            parts.append(arrow(x + 35, 88, left + 85 + 30 * j, 138, colour))
        if i == 2:
            parts.append(box(left + 55, 104, 120, 18, colour=colour, fill=0.05))
            parts.append(word(left + 115, 117, "masked"))
        parts.append(box(left + 45, 142, 140, 30, server, colour=colour, fill=0.12))
        parts.append(word(left + 115, 192, sees))
    return page(770, 205, *parts)


if __name__ == "__main__":
    for picture in (units, adjacency, ledger, trust):
        place = PICTURES / f"{picture.__name__}.svg"
        place.write_text(picture(), encoding="utf-8")
