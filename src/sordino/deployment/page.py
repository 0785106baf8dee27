"""The record as a page that opens anywhere."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import astuple

from sordino.core.files import replace_file
from sordino.deployment.check import signer
from sordino.deployment.document import Record
from sordino.privacy.rounding import epsilon_text
from sordino.report.canvas import clean
from sordino.report.page import template

HOME = Path(__file__).parent


def write(record: Record, path: Path) -> None:
    """Write the page."""
    replace_file(path, render(record).encode("utf-8", "replace"))


def render(record: Record) -> str:
    """The page as HTML."""
    html: str = template("record.html", HOME).render(
        title=record.registry.deployment.basic.name,
        record=record,
        epsilon_text=epsilon_text,
        clean=clean,
        rows=lambda several: [astuple(each) for each in several],
        signer=signer(record),
    )
    return html
