"""What is shipped beside the code: the image's recipe, the citation, the licence.

The recipe, the compose file and the unit of a service are read, and each command in them is checked
by the command line; an engine builds the image where there is one, at night.
"""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import tomllib
from importlib.metadata import metadata
from pathlib import Path

import pytest
import yaml

from command import sordino
from player import parsed
from sordino import __version__

ROOT = Path(__file__).parents[1]
ENGINE = shutil.which("docker") or shutil.which("podman")
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


def test_a_federation_in_containers_has_no_rights_and_its_commands_exist() -> None:
    services = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())["services"]
    for each in services.values():
        assert each["read_only"]
        assert each["user"] == "10001:10001"
        assert each["cap_drop"] == ["ALL"]
        assert "no-new-privileges:true" in each["security_opt"]
        assert parsed(f"sordino {each['command']}")
    probe = services["server"]["healthcheck"]["test"]
    assert probe[:3] == ["CMD", "python", "-c"]
    compile(probe[3], "healthcheck", "exec")


def test_the_unit_of_a_service_starts_a_command_that_exists() -> None:
    page = (ROOT / "docs/operations.md").read_text()
    (unit,) = re.findall(r"^```ini\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    table = configparser.ConfigParser(interpolation=None)
    table.optionxform = str  # type: ignore[assignment, method-assign]
    table.read_string(unit)
    assert parsed(table["Service"]["ExecStart"].removeprefix("/opt/sordino/bin/"))
    codes = table["Service"]["RestartPreventExitStatus"].split()
    for code in codes:  # the table on the page says that these are not started again
        assert re.search(rf"^\| {code} \| .* \| (no|after that) \|$", page, re.MULTILINE)


@pytest.mark.nightly
@pytest.mark.skipif(ENGINE is None, reason="no engine for containers is here")
def test_the_image_is_built_and_runs_with_a_read_only_root() -> None:
    assert ENGINE is not None
    if subprocess.run([ENGINE, "info"], capture_output=True, timeout=60, check=False).returncode:
        pytest.skip("the engine for containers does not run here")
    build = [ENGINE, "build", "--tag", "sordino-test", str(ROOT)]
    subprocess.run(build, check=True, timeout=3000)
    shut = ["--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL"]
    run = [ENGINE, "run", "--rm", *shut, "sordino-test", "methods"]
    assert "mapa" in subprocess.run(run, check=True, capture_output=True, text=True).stdout


def test_citation_licence_and_version_agree() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == PROJECT["version"] == __version__
    assert cited["license"] == PROJECT["license"] == "Apache-2.0"
    assert "Apache License" in (ROOT / "LICENSE").read_text()
    assert len(cited["references"]) == 5
    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text()
