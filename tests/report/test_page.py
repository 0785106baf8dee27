"""The page: the guarantee first, the numbers those of the files, nothing fetched, nothing
executed.
"""

from __future__ import annotations

import re
import tomllib
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest

import drawings
from sordino.base.errors import StudyError
from sordino.report import write, write_comparison
from sordino.report.page import script_digest

from .conftest import SENTENCE, Maker, rows

NAMESPACES = (
    "http://www.w3.org/2000/svg",
    "http://www.w3.org/1999/xlink",
    "http://www.w3.org/1999/xhtml",
)
VOID = ("meta", "br", "link", "img", "input", "hr")


class Reader(HTMLParser):
    """Text, tags, and whether every tag is closed; independent of the template engine."""

    def __init__(self) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.stack, tag
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.stack or self.stack[-1] not in ("style", "script", "metadata", "caption"):
            self.words.append(data)


def read(path: Path) -> tuple[str, str, Reader]:
    html = path.read_text(encoding="utf-8")
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert reader.stack == []
    return html, re.sub(r"\s+", " ", " ".join(reader.words)), reader


def test_guarantee_stands_before_every_number(make: Maker) -> None:
    html, text, _ = read(write(make()))
    assert SENTENCE in text
    assert html.index(SENTENCE[:40]) < html.index('class="numbers"') < html.index("<svg")
    assert "No privacy guarantee" not in text


def test_numbers_are_those_of_the_files(make: Maker) -> None:
    _, text, _ = read(write(make()))
    for shown in (
        "73.13 %",
        "best: 75.01 %",
        "1.98766",
        "budget 2",
        "1e-05",
        "of 5 planned",
        "of 12 planned",
        "1 min 46 s",
        "93 examples",
    ):
        assert shown in text, shown
    assert "tau: 2 in rounds 1 to 2; 3 in rounds 3 to 4; 2 in round 5." in text
    assert "15 entries" in text
    assert "ab" * 32 in text
    assert "sordino ledger verify . " in text
    for said in (
        "gamma is far from what was measured",
        "The sizes of the clients' data sets are public.",
        "3.11.7",
        "the round budget is used up",
    ):
        assert said in text


def test_spent_epsilon_is_never_rounded_down(make: Maker) -> None:
    shown = re.search(r"epsilon spent ([\d.]+)", read(write(make()))[1])
    assert shown is not None
    assert 1.987654321 <= float(shown[1]) < 1.98767


def test_study_stands_there_word_for_word(make: Maker) -> None:
    folder = make()
    reader = Reader()
    reader.feed(write(folder).read_text(encoding="utf-8"))
    study = next(word for word in reader.words if word.startswith('name = "a small run"'))
    assert tomllib.loads(study) == tomllib.loads((folder / "study.toml").read_text())


@pytest.mark.parametrize(
    "changes",
    [
        {
            "unit": "none",
            "guarantee": "No privacy guarantee: updates were computed without noise, and epsilon "
            "is "
            "infinite.",
        },
        {
            "form": "paper",
            "guarantee": "No privacy guarantee: epsilon is infinite. The paper's literal form was "
            "asked "
            "for.",
        },
        {
            "epsilon_budget": "inf"
        },  # although run.json still holds a sentence that promises something
    ],
)
def test_banner_where_nothing_is_guaranteed(make: Maker, changes: dict[str, object]) -> None:
    html, text, _ = read(write(make(**changes)))
    assert 'class="promise none"' in html
    assert html.index("No privacy guarantee") < html.index('class="numbers"')
    assert "epsilon is infinite" in text.lower()
    assert SENTENCE not in text
    assert "epsilon spent ∞" in text
    assert "1.98766" not in text


def test_nothing_from_elsewhere_and_nothing_that_runs(make: Maker) -> None:
    html, _, reader = read(
        write(
            make(
                clients=[
                    {"client": i, "unit": "u", "examples": 1, "labels": [1, 0]} for i in range(40)
                ]
            )
        )
    )
    for address in re.findall(r"https?://[^\s\"'<)]*", html):
        assert address in NAMESPACES, address
    assert "@import" not in html
    assert not re.search(r"url\((?!#)", html)
    for tag, attributes in reader.tags:
        assert tag not in ("link", "iframe", "object", "img")
        assert not any(name.startswith("on") for name in attributes)
        for name in ("src", "href", "xlink:href"):
            assert (attributes.get(name) or "#").startswith(("#", "data:image/png;base64,")), (
                attributes
            )


def test_every_picture_is_well_formed_and_no_two_share_an_id(make: Maker) -> None:
    clients = [{"client": i, "unit": "u", "examples": 3, "labels": [i % 3, 40]} for i in range(40)]
    slow = [{**row, "time": row["time"] ** 2} for row in rows()] + [
        {"kind": "lost", "round": 2, "client": 1}
    ]
    html, _, _ = read(write(make(log=slow, clients=clients)))
    drawn = re.findall(r"<svg.*?</svg>", html, flags=re.DOTALL)
    assert len(drawn) == 8
    ids = [
        found.attrib["id"]
        for picture in drawn
        for found in ET.fromstring(picture).iter()
        if "id" in found.attrib
    ]
    assert len(ids) == len(set(ids)) > 0
    assert {name for picture in drawn for name in re.findall(r"url\(#([^)]+)\)", picture)} <= set(
        ids
    )
    assert html.count("<figcaption>") == 8


def test_browser_is_told_to_fetch_nothing(make: Maker, tmp_path: Path) -> None:
    folder = make()
    for page in (write(folder), write_comparison([folder], tmp_path / "c.html")):
        policies = [
            a["content"]
            for tag, a in read(page)[2].tags
            if a.get("http-equiv") == "Content-Security-Policy"
        ]
        assert policies == [
            "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
            f"script-src {script_digest()}"
        ]
        html = page.read_text()
        assert html.count("<script") == 1
        inside = html[html.index("<script>") + 8 : html.index("</script>")]
        assert script_digest(inside) == script_digest()
        assert not re.search(r"\b(fetch|XMLHttpRequest|WebSocket|innerHTML|eval)\b", inside)


def test_what_the_guarantee_is_made_of(make: Maker) -> None:
    _, text, _ = read(write(make(dimension=26010)))
    for said in (
        "sigma C = 6.9624",
        "26010",
        "contribution replaced by none",
        "epsilon = 2 at delta = 1e-05",
        "each single example",
    ):
        assert said in text, said  # 6.9624 = 2.3208 * 3
    _, text, _ = read(
        write(
            make("open", unit="none", epsilon_budget="inf", guarantee="No privacy guarantee: none.")
        )
    )
    assert "What the guarantee is made of" not in text


def test_label_counts_are_marked_and_left_out_where_nobody_knows_them(make: Maker) -> None:
    _, text, _ = read(write(make("known")))
    assert text.lower().count("known because this is a simulation, not released by clients") == 2
    _, text, _ = read(
        write(make("unknown", clients=[{"client": 0, "unit": "client:0", "examples": 7}]))
    )
    assert "Who holds what" not in text


def test_malicious_names_stay_text(make: Maker) -> None:
    evil = "<script>alert('x')</script>\"><img src=x onerror=alert(1)>"
    folder = make(
        name=evil,
        classes=[evil, evil],
        guarantee=evil,
        warnings=[evil],
        assumptions=[evil],
        clients=[{"client": evil, "unit": evil, "labels": [1, 2]}],
    )
    html, text, reader = read(write(folder))
    assert "alert('x')" in text
    assert [tag for tag, _ in reader.tags if tag in ("script", "img")] == ["script"]
    page = write_comparison([folder, make("other")], folder / "c.html")
    assert [tag for tag, _ in read(page)[2].tags if tag in ("script", "img")] == ["script"]
    assert html.count("<script") == 1  # ours


def test_running_run_and_half_a_line(make: Maker) -> None:
    _, text, _ = read(
        write(
            make(
                log=rows()[:3], tail='{"kind": "round"', status="running", result=None, ledger=None
            )
        )
    )
    assert "3 rounds are closed" in text
    assert "Spent when the last round of the log closed: epsilon = 1.2" in text
    assert "line 4 of rounds.jsonl is half written" in text
    # the log is behind the ledger: charge, then release
    assert "sordino ledger epsilon . " in text
    assert "digest of the last entry is written here when the run is finished" in text


def test_run_without_a_round(make: Maker) -> None:
    _, text, _ = read(write(make(log=[], status="running", result=None, ledger=None)))
    assert "No round is closed yet." in text
    assert SENTENCE in text


def test_refused_run_says_so(make: Maker) -> None:
    log = [*rows()[:2], {"kind": "refused", "round": 3, "why": "client:0 would pass its budget"}]
    _, text, _ = read(write(make(log=log, status="running", result=None)))
    assert "client:0 would pass its budget" in text


def test_over_the_budget_is_a_warning(make: Maker) -> None:
    _, text, _ = read(write(make(epsilon_budget=1.5)))
    assert "over the budget of 1.5" in text
    assert "No privacy guarantee Epsilon 1.98766 was spent, over the promised budget of 1.5" in text
    assert SENTENCE not in text


def test_bare_run_json_renders(make: Maker) -> None:
    folder = make()
    (folder / "run.json").write_text("{}")
    assert "No privacy guarantee" in read(write(folder))[1]


@drawings.anew()
def test_equal_folders_give_equal_bytes_and_a_small_page(make: Maker) -> None:
    one, two = write(make("a/run")).read_bytes(), write(make("b/run")).read_bytes()
    assert one == two
    assert len(one) < 1_000_000


def test_long_run_of_many_clients_stays_small(make: Maker) -> None:
    base = rows()[4]
    log = [
        {
            **base,
            "round": i,
            "steps": 2 * i,
            "tau": 2 + i % 2,
            "snr": i * 7919 % 101 / 100,
            "clipped": i * 31 % 97 / 97,
        }
        for i in range(1, 3001)
    ]
    clients = [
        {"client": i, "unit": f"client:{i}", "examples": 60, "labels": [i % 60] * 10}
        for i in range(2000)
    ]
    page = write(make(log=log, clients=clients, classes=[f"class {i}" for i in range(10)]))
    assert page.stat().st_size < 1_000_000
    assert "The first 500 are shown" in read(page)[1]


def test_writing_leaves_one_file_more(make: Maker) -> None:
    folder = make()
    before = {path.name for path in folder.iterdir()}
    assert write(folder) == folder / "report.html"
    assert {path.name for path in folder.iterdir()} - before == {"report.html"}


def test_ledger_kept_with_the_data(make: Maker) -> None:
    folder = make()
    (folder / "ledger.sqlite").unlink()
    _, text, _ = read(write(folder))
    assert "kept with the data" in text
    assert "in the folder that holds this page" not in text


def test_comparison(make: Maker, tmp_path: Path) -> None:
    folders = [
        make("x", name="one"),
        make("y", name="two", form="paper", epsilon_budget=2.0),
        make("z", name="three", accountant="rdp"),
    ]
    html, text, _ = read(write_comparison(folders, tmp_path / "c.html"))
    assert "No privacy guarantee for two ." in text or "No privacy guarantee for two." in text
    assert "one ali-dpfl done 73.13 % 75.01 % 1.98766 2 1e-05 pld 5 12 3 2.3208 0.06 0.5" in text
    assert "two ali-dpfl done 73.13 % 75.01 % ∞ ∞ - -" in text
    assert "different accountants" in text
    assert html.count("<svg") == 2
    assert text.count("three") >= 3  # in the table, in the legends, among the guarantees
    assert all(address in NAMESPACES for address in re.findall(r"https?://[^\s\"'<)]*", html))


def test_comparison_of_bad_input(make: Maker, tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="at least one"):
        write_comparison([], tmp_path / "c.html")
    with pytest.raises(StudyError, match="no run folder"):
        write_comparison([make(), tmp_path], tmp_path / "c.html")
    with pytest.raises(StudyError, match="a folder that exists"):
        write_comparison([make("b")], tmp_path / "nowhere" / "c.html")
