"""A proxy on the loopback that is as slow as a line to a far-away site, and may break."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field

TICK = 0.02
"""Seconds between two portions of bytes."""
LATELY = 1 << 14
"""Bytes that a socket of the proxy holds beside: of a slow line, little waits on the way."""


@dataclass
class SlowLine:
    """A proxy as ``https_proxy`` names one.

    Attributes:
        rate: bytes a second in each direction; changes at once.
        lasts: seconds after which each connection is reset, or None.
        connections: that were opened so far.
        passed: bytes that went through, in both directions.
        frozen: while it is set, nothing goes through and nothing is closed: a half-open line.
    """

    rate: float
    lasts: float | None = None
    connections: int = 0
    passed: int = 0
    frozen: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Let nobody in any more."""
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._open, args=(near,), daemon=True).start()

    def _open(self, near: socket.socket) -> None:
        asked = b""
        while not asked.endswith(b"\r\n\r\n"):
            asked += near.recv(1)
        host, port = asked.split()[1].decode().rsplit(":", 1)
        far = socket.socket()
        for each in (near, far):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, LATELY)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LATELY)
        try:
            far.connect((host, int(port)))
        except OSError:
            near.close()
            far.close()
            return
        near.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        self.connections += 1
        ends = None if self.lasts is None else time.monotonic() + self.lasts
        for one, other in ((near, far), (far, near)):
            threading.Thread(target=self._pass, args=(one, other, ends), daemon=True).start()

    def _pass(self, one: socket.socket, other: socket.socket, ends: float | None) -> None:
        one.settimeout(TICK)
        began, passed = time.monotonic(), 0
        with suppress(OSError):
            while ends is None or time.monotonic() < ends:
                if self.frozen.is_set():
                    time.sleep(TICK)
                    continue
                try:
                    if not (data := one.recv(max(int(self.rate * TICK), 1))):
                        break
                except TimeoutError:
                    continue
                other.settimeout(None)
                other.sendall(data)
                other.settimeout(TICK)
                self.passed += len(data)
                passed += len(data)
                # a line that was quiet for a while has saved up nothing
                began = max(began, time.monotonic() - TICK - passed / self.rate)
                time.sleep(max(began + passed / self.rate - time.monotonic(), 0.0))
        for each in (one, other):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
