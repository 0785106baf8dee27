"""Debian's Chromium without a window, spoken to by its debugging protocol: what a page looks like
and does there.
"""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

PATH = shutil.which("chromium") or shutil.which("chromium-browser")
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--remote-debugging-port=0",
)


class Tab:
    """One page of the browser."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket, self._numbers = socket, itertools.count(1)
        self.errors: list[str] = []
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **given: Any) -> dict[str, Any]:
        """One command of the protocol, and its result."""
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": given}))
        while True:
            found = json.loads(self._socket.recv(timeout=20))
            if found.get("method") == "Log.entryAdded":
                self.errors.append(found["params"]["entry"]["text"])
            if found.get("method") == "Runtime.exceptionThrown":
                self.errors.append(json.dumps(found["params"]["exceptionDetails"]))
            if found.get("id") == number:
                if "error" in found:
                    raise RuntimeError(f"{method}: {found['error']}")
                result: dict[str, Any] = found["result"]
                return result

    def open(self, address: str) -> None:
        """Go there, and wait until the page is loaded."""
        self.call("Page.navigate", url=address)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def told(self, expression: str) -> Any:
        """What a JavaScript expression is worth on the page."""
        found = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in found:
            raise RuntimeError(json.dumps(found["exceptionDetails"]))
        return found["result"].get("value")

    def until(self, expression: str, seconds: float = 20.0) -> None:
        """Wait until an expression holds."""
        end = time.monotonic() + seconds
        while not self.told(f"!!({expression})"):
            if time.monotonic() > end:
                raise TimeoutError(f"{expression}: not so after {seconds} s")
            time.sleep(0.05)

    def sized(self, width: int, *, dark: bool = False) -> None:
        """Show pages in this width, in CSS pixels, and in light or dark."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])


@contextmanager
def browser(folder: Path) -> Iterator[Tab]:
    """A browser whose profile is in ``folder``."""
    assert PATH is not None
    process = subprocess.Popen(
        [PATH, *OPTIONS, f"--user-data-dir={folder}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        note = folder / "DevToolsActivePort"
        end = time.monotonic() + 30
        while not (note.exists() and note.read_text().count("\n")):
            if time.monotonic() > end or process.poll() is not None:
                raise TimeoutError("Chromium did not start")
            time.sleep(0.05)
        port, place = note.read_text().splitlines()[:2]
        with connect(f"ws://127.0.0.1:{port}{place}", max_size=None) as whole:
            target = _command(whole, "Target.createTarget", url="about:blank")["targetId"]
            address = f"ws://127.0.0.1:{port}/devtools/page/{target}"
            with connect(address, max_size=None) as socket:
                yield Tab(socket)
    finally:
        process.terminate()
        process.wait(20)


def _command(socket: ClientConnection, method: str, **given: Any) -> dict[str, Any]:
    socket.send(json.dumps({"id": 1, "method": method, "params": given}))
    while (found := json.loads(socket.recv(timeout=20))).get("id") != 1:
        pass
    result: dict[str, Any] = found["result"]
    return result
