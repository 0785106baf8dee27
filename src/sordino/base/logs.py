"""Log lines of processes that run for long, by the standard library's logging.

A line has a time (UTC, to the second), a level, the study, a site and a message. It holds nothing
that depends on private rows: what only the owner of the data may read is beside the message, in
the attribute ``owner`` of a record, and stands on a console in place of it. Rounds are no lines:
how long they take depends on secret batches.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
from collections.abc import Callable
from typing import Literal

Format = Literal["text", "json"]
Level = Literal["debug", "info", "warning", "error"]


class Lines(logging.Formatter):
    """Lines for machines and for journals.

    Args:
        form: "json" for one object a line, with the keys time, level, study, site and message.
        study, site: where a record says nothing else.
    """

    def __init__(self, form: Format, study: str = "", site: str = "") -> None:
        super().__init__()
        self._form, self._study, self._site = form, study, site

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        values = {
            "time": f"{dt.datetime.fromtimestamp(int(record.created), dt.UTC):%Y-%m-%dT%H:%M:%SZ}",
            "level": record.levelname.lower(),
            "study": self._study,
            "site": getattr(record, "site", self._site),
            "message": record.getMessage(),
        }
        if self._form == "json":
            return json.dumps(values)
        named = " ".join(values[key] for key in ("time", "level", "study", "site") if values[key])
        return f"{named}: {' '.join(values['message'].split())}"


class Words(logging.Formatter):
    """Messages alone, whole: for the owner of the data."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the message of a record, or what stands in its place for the owner."""
        return str(getattr(record, "owner", None) or record.getMessage())


class _Writes(logging.Handler):
    def __init__(self, write: Callable[[str], None]) -> None:
        super().__init__()
        self._write = write

    def emit(self, record: logging.LogRecord) -> None:
        self._write(self.format(record))


def log_to(
    write: Callable[[str], None], lines: logging.Formatter | None = None, level: Level = "info"
) -> logging.Logger:
    """Return a logger whose lines are written by a function; messages alone unless ``lines`` says
    otherwise.
    """
    log, handler = logging.Logger("sordino", level.upper()), _Writes(write)
    handler.setFormatter(lines or Words())
    log.addHandler(handler)
    return log
