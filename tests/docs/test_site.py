"""The site of docs/ is built without a warning, opens without a server, and fits its screens."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from blocks import ROOT
from browser import PATH, Tab, browser

pytestmark = pytest.mark.nightly

# what is wider than the screen, and in no box that scrolls
WIDE = """[...document.querySelectorAll('.md-content *')].filter(each => {
  if (each.getBoundingClientRect().right <= innerWidth + 1) return false
  for (let box = each.parentElement; box; box = box.parentElement)
    if (getComputedStyle(box).overflowX !== 'visible' && box.scrollWidth > box.clientWidth)
      return false
  return true
}).map(each => each.outerHTML.slice(0, 200))"""
TYPED = """(() => {
  const field = document.querySelector('input[data-md-component=search-query]')
  document.querySelector('#__search').click()
  field.value = 'staleness'
  field.dispatchEvent(new Event('input', {bubbles: true}))
  field.dispatchEvent(new KeyboardEvent('keyup', {bubbles: true}))
})()"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built anew."""
    pytest.importorskip("mkdocs", reason="the extra docs is not installed")
    pytest.importorskip("latex2mathml", reason="the extra docs is not installed")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return folder


@pytest.fixture
def tab(tmp_path: Path) -> Iterator[Tab]:
    if PATH is None:
        pytest.skip("there is no Chromium")
    with browser(tmp_path / "profile") as found:
        yield found


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_page_fits_three_widths(site: Path, tab: Tab, dark: bool) -> None:
    wrong = []
    for width in (1280, 768, 390):
        tab.sized(width, dark=dark)
        for page in sorted(set(site.rglob("*.html")) - {site / "404.html"}):
            tab.open(page.as_uri())
            found = tab.told(WIDE)
            if found or tab.errors:
                wrong.append((page.name, width, found, list(tab.errors)))
            tab.errors.clear()
    assert not wrong


def test_search_works_without_a_server(site: Path, tab: Tab) -> None:
    tab.sized(1280)
    tab.open((site / "papers" / "mapa.html").as_uri())
    tab.told(TYPED)
    tab.until("document.querySelectorAll('.md-search-result__item').length > 0")
    assert not tab.errors
