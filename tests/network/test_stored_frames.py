"""Frames that sites and servers of protocol 1 sent: every later version that speaks it reads them,
and writes the same bytes.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sordino.base.package import PROTOCOL
from sordino.network import frames
from sordino.network.checks import differs

STORED = Path(__file__).parent / "stored" / "frames-1.json"
SITE: list[frames.FromSite] = [
    frames.Hello(1, "a" * 64, "0123456789abcdef", 7, 3, (9, b"seal"), (2, b"")),
    frames.Say(7, b"answer"),
    frames.Booked(3),
    frames.Stepped(3, 1, b"keys"),
    frames.Refuse(7, "no budget is left"),
    frames.Done(),
]
SERVER: list[frames.FromServer] = [
    frames.Welcome("run-1"),
    frames.Ask(7, b"task", b"seal", b"shares"),
    frames.Book(3, "event", b"seal"),
    frames.Step(3, 1, b"keys"),
    frames.Reject("it has agreed to something else"),
    frames.Bye("the study has ended", b"\0\0\x80\x3f"),
]


def told() -> dict[str, list[str]]:
    return {
        "to server": [frames.encode(each).hex() for each in SITE],
        "to site": [frames.encode(each).hex() for each in SERVER],
    }


def test_stored_frames_are_read_and_written_as_they_were() -> None:
    stored = json.loads(STORED.read_text())
    assert PROTOCOL == 1, "store the frames of the new number beside these"
    assert told() == stored
    assert [frames.to_server(bytes.fromhex(each)) for each in stored["to server"]] == SITE
    assert [frames.to_site(bytes.fromhex(each)) for each in stored["to site"]] == SERVER


@pytest.mark.parametrize(("version", "fits"), [(PROTOCOL, True), (PROTOCOL + 1, False)])
def test_a_site_of_other_sources_and_the_same_protocol_is_welcome(version: int, fits: bool) -> None:
    hello = frames.Hello(version, "a" * 64, "of another release", 0)
    assert (differs(hello, "a" * 64) is None) == fits
