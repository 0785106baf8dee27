"""The page in Debian's Chromium: three widths, light and dark, hover values, downloads."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

import browser
from sordino.report import write, write_comparison

from .conftest import Maker, rows

pytestmark = pytest.mark.skipif(browser.PATH is None, reason="Debian's Chromium is not installed")
CLIENTS = [
    {"client": i, "unit": f"client:{i}", "examples": 3, "labels": [i % 3, 40]} for i in range(3)
]
# The text of the file that a button downloads.
DOWNLOADED = """(() => {{
  let found = null;
  const click = HTMLAnchorElement.prototype.click;
  HTMLAnchorElement.prototype.click = function () {{ found = [this.download, this.href]; }};
  document.querySelector("[aria-label='Download {title} as {kind}']").click();
  HTMLAnchorElement.prototype.click = click;
  return found;
}})()"""
TITLE = "Accuracy and epsilon over rounds"
# The first picture's tip after the pointer was at a share of its width and height.
POINTED = """(() => {{
  const figure = document.querySelectorAll("figure")[{index}], svg = figure.querySelector("svg");
  const box = svg.getBoundingClientRect();
  svg.dispatchEvent(new PointerEvent("pointermove", {{ bubbles: true,
    clientX: box.left + {x} * box.width, clientY: box.top + {y} * box.height }}));
  return figure.querySelector(".tip").textContent;
}})()"""


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Tab]:
    with browser.browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture
def page(make: Maker, tab: browser.Tab) -> Path:
    found = write(make("run 001", clients=CLIENTS, name="a 'small' run"))
    tab.sized(1280)
    tab.errors.clear()
    tab.open(found.as_uri())
    return found


def test_nothing_sticks_out_at_any_width(
    page: Path, make: Maker, tab: browser.Tab, tmp_path: Path
) -> None:
    both = write_comparison([make("x", name="one " * 20), make("y")], tmp_path / "c.html")
    for found in (page, both):
        tab.open(found.as_uri())
        for width in (1280, 768, 390):
            for dark in (False, True):
                tab.sized(width, dark=dark)
                assert tab.told("document.scrollingElement.scrollWidth") <= width
                narrow = tab.told(
                    "[...document.querySelectorAll('figure svg')].map("
                    "each => each.getBoundingClientRect().width / innerWidth)"
                )
                assert width > 400 or min(narrow) > 0.9
    assert tab.errors == []


def test_hover_tells_the_numbers_of_the_log(page: Path, tab: browser.Tab) -> None:
    assert tab.told(POINTED.format(index=0, x=0.99, y=0.2)) == (
        "round 5  ·  accuracy (%) 73.13  ·  epsilon spent 1.98766"
    )
    last = tab.told("document.querySelectorAll('figure').length") - 1
    assert tab.told(POINTED.format(index=last, x=0.3, y=0.2)).startswith("client 0  ·  cat: 0")
    tab.told("document.querySelector('figure svg').focus()")
    for key, told in (("Home", "round 1 "), ("ArrowRight", "round 2 "), ("End", "round 5 ")):
        tab.told(
            "document.querySelector('figure svg').dispatchEvent(new KeyboardEvent('keydown', "
            f"{{ key: '{key}', bubbles: true }}))"
        )
        assert tab.told("document.querySelector('.tip').textContent").startswith(told)
    assert tab.errors == []


def test_figures_are_downloaded_without_a_network(page: Path, tab: browser.Tab) -> None:
    name, address = tab.told(DOWNLOADED.format(title=TITLE, kind="CSV"))
    assert name == "accuracy-and-epsilon-over-rounds.csv"
    kind, _, text = address.partition(",")
    assert kind == "data:text/csv;charset=utf-8"
    lines = unquote(text).split("\r\n")
    assert lines[0] == "round,accuracy (%),epsilon spent"
    assert lines[1].startswith("1,41.21,0.4")
    assert lines[2].startswith("2,,0.8")
    name, address = tab.told(DOWNLOADED.format(title=TITLE, kind="SVG"))
    picture = ET.fromstring(unquote(address.partition(",")[2]))
    assert name.endswith(".svg")
    assert picture.tag == "{http://www.w3.org/2000/svg}svg"
    assert "var(--" not in unquote(address)
    held = unquote(tab.told(DOWNLOADED.format(title="Who holds what", kind="CSV"))[1])
    assert held.endswith("client,cat,dog\r\n0,0,40\r\n1,1,40\r\n2,2,40\r\n")


def test_names_are_no_formulas_of_a_spreadsheet(page: Path, tab: browser.Tab) -> None:
    html, hostile = page.read_text(encoding="utf-8"), page.with_name("hostile.html")
    html = html.replace('"cat"', '"=1+1;=2+2"').replace('"dog"', '"a, -b\\n\\u00a0@c"')
    hostile.write_text(html, encoding="utf-8")
    tab.open(hostile.as_uri())
    held = unquote(tab.told(DOWNLOADED.format(title="Who holds what", kind="CSV"))[1])
    assert "client,\"'=1+1;'=2+2\",\"a,' -b\n'\u00a0@c\"\r\n" in held


def test_the_command_works_where_it_is_read(page: Path, tab: browser.Tab) -> None:
    code = "[...document.querySelectorAll('code')].map(each => each.innerText).find("
    told = tab.told(code + "each => each.startsWith('sordino ledger verify'))")
    assert told == f"sordino ledger verify '{page.parent}'"


def test_a_page_without_a_script_has_all_it_says(page: Path, tab: browser.Tab) -> None:
    tab.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        tab.open(page.as_uri())
        assert tab.told("document.querySelectorAll('.tools').length") == 0
        assert "sordino ledger verify ." in tab.told("document.body.innerText")
        assert len(rows()) == 6
    finally:
        tab.call("Emulation.setScriptExecutionDisabled", value=False)
