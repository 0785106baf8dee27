"""docs/federation.md and docs/operations.md are followed as they are written: every block of shell
commands, in order.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```bash\n(.*?)^```", re.DOTALL | re.MULTILINE)


def free() -> int:
    """A port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def follow(page: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Run the commands of a page, on ports of this machine that nobody uses."""
    blocks = BLOCK.findall((ROOT / "docs" / page).read_text(encoding="utf-8"))
    first, *rest = "".join(blocks).splitlines()
    assert first == "cp -r examples/federation ."
    shutil.copytree(ROOT / "examples" / "federation", tmp_path / "federation")
    agreed = tmp_path / "federation" / "federation.toml"
    # another port than the documented one, which somebody may use
    agreed.write_text(agreed.read_text().replace(":8443", f":{free()}"))
    port = str(free())
    commands = [line.replace("8600", port) for line in rest]
    # the last commands must all succeed; those in the background are seen by what they leave
    script = "set -euo pipefail\n" + "\n".join(commands)
    return subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=540,
    )


@pytest.mark.nightly
def test_operations_from_provisioning_to_the_record(tmp_path: Path) -> None:
    found = follow("operations.md", tmp_path)
    logs = {each.stem: each.read_text() for each in tmp_path.glob("*.log")}
    assert found.returncode == 0, (found.stdout + found.stderr, logs)
    assert " of 2 sites are there" in found.stdout  # /readyz, before the second has come
    assert 'sordino_site_epsilon{study="three-hospitals",site="west"} 0' in found.stdout
    assert "2 proofs of sites hold" in found.stdout
    for text in logs.values():
        assert [json.loads(each)["level"] for each in text.splitlines()][-1] == "info", text


@pytest.mark.nightly
def test_three_hospitals_from_provisioning_to_verified_ledgers(tmp_path: Path) -> None:
    found = follow("federation.md", tmp_path)
    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stdout.count("match the seal in the ledger") == 2, found.stdout
    for site in ("north", "south", "west"):
        assert (tmp_path / "kits" / site / "run" / "report.html").exists(), found.stderr
        assert (tmp_path / "ledgers" / site / "ledger.sqlite").exists()
    assert (tmp_path / "kits" / "server" / "run" / "model.safetensors").exists()
