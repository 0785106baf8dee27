"""The command line in this process: a process of its own spends three seconds on imports for every
command.

To lay out and write the pictures of a page takes longer than a small run: tests put pages together
without their content, but for those that ask for ``painted``.
"""

from __future__ import annotations

import contextlib
import io
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import typer.main

from sordino.cli import add_companions, main


@dataclass(frozen=True)
class Done:
    """How a command ended: its exit status, what it said to machines and to people, and both in the
    order of a terminal.
    """

    returncode: int
    stdout: str
    stderr: str
    screen: str


@cache
def parser_of(app: typer.Typer, made: Any = typer.main.get_command) -> Any:
    """The parser of all commands, which a process makes once: it takes 40 ms."""
    add_companions()
    return made(app)


def _empty(drawn: object, label: str, *more: object) -> str:
    return f'<svg role="img"><title>{label}</title></svg>\n'


_seen: set[object] = set()


def _empty_soon(figure: Any) -> str:
    """The first figure of a kind is laid out, and others are not."""
    from sordino.report import drawing

    panels = getattr(figure, "panels", ())
    kind = figure.key, *(each.kind for panel in panels for each in panel.series)
    if kind not in _seen:
        _seen.add(kind)
        return drawing.draw(figure)
    return _empty(None, figure.label)


def paint(whole: bool = True) -> None:
    """From now on, put pictures of pages together whole, or without their content."""
    from sordino.report import canvas, drawing, page

    vars(drawing)["svg"] = canvas.svg if whole else _empty
    vars(page)["draw"] = drawing.draw if whole else _empty_soon


class _Shown(io.StringIO):
    """A stream that is shown on a terminal, too."""

    def __init__(self, screen: io.StringIO) -> None:
        super().__init__()
        self._screen = screen

    def write(self, text: str) -> int:
        self._screen.write(text)
        return super().write(text)


def sordino(folder: Path, *arguments: str) -> Done:
    """``sordino ARGUMENTS`` as typed in ``folder``."""
    screen = io.StringIO()
    out, err = _Shown(screen), _Shown(screen)
    status: object = 0
    typed = mock.patch.object(sys, "argv", ["sordino", *arguments])
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(typer.main, "get_command", parser_of),
        typed,
    ):
        try:
            main()
        except SystemExit as end:
            status = end.code or 0
    if not isinstance(status, int):
        raise TypeError(f"an exit status is a number; got {status!r}")
    return Done(status, out.getvalue(), err.getvalue(), screen.getvalue())
