"""A small server for one's own browser: pages and streams of events, on 127.0.0.1 and nowhere else.

A page of somebody else's name that resolves to this address (DNS rebinding) asks with that name as
its host, and is refused. Pages run no script but those whose digests their policy names.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from sordino.base.errors import StudyError

HOSTS = ("127.0.0.1", "localhost")
MOST, SILENT = 64, 10.0
"""Connections at once, and seconds in which one says what it asks for, or takes what it is sent:
every user of the machine can connect.
"""
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {scripts}; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to a request: a body, or pieces of a stream as they come.

    Attributes:
        scripts: sources that the policy of the page lets run, such as ``'sha256-...'``.
        place: where to go instead.
    """

    body: bytes = b""
    status: int = 200
    kind: str = "text/html; charset=utf-8"
    scripts: tuple[str, ...] = ()
    place: str = ""
    stream: Iterator[bytes] | None = field(default=None, compare=False)


Answers = Callable[[str], Answer]
"""Return the answer to a path; raise StudyError where that cannot be read."""


class Loopback:
    """Serves until it is closed, in a thread of its own.

    Args:
        port: 0 for any that is free.
        option: the option that named the port, for the message if it is in use.

    Raises:
        StudyError: if nothing can listen there.
    """

    def __init__(self, port: int, answers: Answers, option: str = "--port") -> None:
        try:
            self._server = _Server(("127.0.0.1", port), _handler(answers))
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or error
            raise StudyError(
                f"{option} {port}: cannot listen there ({why}). Choose another port, or 0 for any "
                "that is free"
            ) from error
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}/"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until it is closed, or the user interrupts."""
        while self._thread.is_alive():
            self._thread.join(0.5)

    def close(self) -> None:
        """Stop."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a stream ends with its reader

    def __init__(self, *given: Any) -> None:
        self._free = threading.BoundedSemaphore(MOST)
        super().__init__(*given)

    def verify_request(self, request: object, client_address: object) -> bool:
        """Take no more connections than :data:`MOST`: each is a descriptor of the run's process."""
        return self._free.acquire(blocking=False)

    def process_request_thread(self, *given: Any) -> None:
        try:
            super().process_request_thread(*given)
        finally:
            self._free.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """A browser that was closed is nothing to report."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


def _handler(answers: Answers) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = SILENT

        def do_GET(self) -> None:  # the library's name
            host = self.headers.get("Host") or ""
            origin = self.headers.get("Origin")
            # a page of somebody else's name, or a page of somebody else that asks for this one
            if host.rpartition(":")[0] not in HOSTS or origin not in (None, f"http://{host}"):
                self.send_error(403)
                return
            try:
                found = answers(self.path.partition("?")[0])
            except StudyError as error:
                found = Answer(str(error).encode(), 503, "text/plain; charset=utf-8")
            self._send(found)

        def _send(self, found: Answer) -> None:
            self.send_response(303 if found.place else found.status)
            headers = {
                "Content-Type": found.kind,
                "Cache-Control": "no-store",
                "X-Content-Type-Options": "nosniff",
                "Referrer-Policy": "no-referrer",
                "Cross-Origin-Resource-Policy": "same-origin",
                "Content-Security-Policy": POLICY.format(
                    scripts=" ".join(found.scripts) or "'none'"
                ),
            }
            if found.stream is None:
                headers["Content-Length"] = str(len(found.body))
            if found.place:
                headers["Location"] = found.place
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(found.body)
            for piece in found.stream or ():
                self.wfile.write(piece)
                self.wfile.flush()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    return Handler
