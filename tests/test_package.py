"""What is shipped beside the code: the image's recipe, the citation, the licence.

No engine builds the image here: this reads its recipe, and checks that each command in it exists.
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from importlib.metadata import metadata
from pathlib import Path

import yaml

from command import sordino
from sordino import __version__

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def steps() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile, one logical line each."""
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def test_the_image_is_small_and_its_user_has_no_rights() -> None:
    found = steps()
    known = {"FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "ENTRYPOINT", "CMD"}
    assert {word for word, _ in found} <= known
    last = found[max(i for i, (word, _) in enumerate(found) if word == "FROM") :]
    assert [rest for word, rest in last if word == "USER"] == ["sordino"]
    assert "pip" not in " ".join(rest for word, rest in last if word == "RUN")
    assert json.loads(dict(last)["ENTRYPOINT"]) == ["sordino"]
    extras = re.search(
        r"\[([\w,]+)\]", next(rest for _, rest in found if '"."' in rest or ".[" in rest)
    )
    assert extras is not None
    assert set(extras[1].split(",")) <= set(metadata("sordino").get_all("Provides-Extra", []))


def test_every_command_of_the_image_exists(tmp_path: Path) -> None:
    text = (ROOT / "Dockerfile").read_text()
    roles = re.findall(r"^#   docker run .* sordino (\w+ .*)$", text, re.MULTILINE)
    assert [shlex.split(role)[0] for role in roles] == ["run", "serve", "join"]
    for role in roles:
        words = shlex.split(role)
        told = sordino(tmp_path, words[0], "--help")
        assert told.returncode == 0
        assert all(word in told.stdout for word in words if word.startswith("--"))
    assert sordino(tmp_path, *json.loads(dict(steps())["CMD"])).returncode == 0


def test_citation_licence_and_version_agree() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == PROJECT["version"] == __version__
    assert cited["license"] == PROJECT["license"] == "Apache-2.0"
    assert "Apache License" in (ROOT / "LICENSE").read_text()
    assert len(cited["references"]) == 5
    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text()
