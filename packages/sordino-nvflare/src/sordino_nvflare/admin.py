"""Submitting a job as an admin of NVFlare, and again when it has failed."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from sordino.extend.network import StudyError, object_of, read_below

LOOK = 2.0
PATIENCE = 60.0
"""Seconds to wait for the server, and for sites that were there before."""
DONE = "FINISHED:COMPLETED"
"""Nobody has used the job for its time of idleness."""
STOPPED = "FINISHED:ABORTED"
"""An admin has aborted the job: nobody wants it to go on."""
RUNNING, LOST, BACK = "RUNNING", "LOST", "BACK"
GONE = 20.0
"""Seconds for which a job is lost, or a site is back without it, until it is believed: a server
that was started again forgets its jobs, and goes on saying that they run."""


class Admin:
    """A session with NVFlare's server.

    Args:
        kit: the admin's start-up folder; its name is the admin's.

    Raises:
        StudyError: if its server cannot be reached.
    """

    def __init__(self, kit: Path) -> None:
        self._kit = kit.absolute()
        self._session: Any = None
        self.sites()

    def sites(self) -> set[str]:
        """Names of the sites that are connected."""
        return {each.name for each in self._do(lambda own: own.get_system_info()).client_info}

    def going(self, job: Path) -> str | None:
        """Return the identifier of a job of the same name that goes on: two of one port would wait
        for each other.

        Raises:
            StudyError: if the folder holds no job.
        """
        name = object_of(read_below(job, "meta.json"), job / "meta.json").get("name")
        for each in self._do(lambda own: own.list_jobs(reverse=True)):
            if each.get("job_name") == name and not str(each.get("status")).startswith("FINISHED"):
                found = str(each.get("job_id"))
                if self.status(found) != LOST:
                    return found
        return None

    def submit(self, job: Path) -> str:
        """Submit a job; its identifier."""
        path, token = str(job.absolute()), secrets.token_hex(16)  # who asks twice gets one job
        return str(self._do(lambda own: own.submit_job(path, submit_token=token)))

    def status(self, job: str) -> str:
        """Return the state of a job in NVFlare's words; ``LOST`` if it says that the job is
        running, and does not run it.
        """
        found = str(self._do(lambda own: own.get_job_meta(job)).get("status", ""))
        if found != RUNNING:
            return found
        runs = {each.job_id for each in self._do(lambda own: own.get_system_info()).job_info}
        return found if job in runs else LOST

    def abort(self, job: str) -> None:
        """End a job."""
        self._do(lambda own: own.abort_job(job))

    def running(self, job: str) -> set[str]:
        """Return the names of the sites that run a job."""
        found = self._do(lambda own: own.get_client_job_status()) or ()
        return {str(each.get("client_name")) for each in found if each.get("job_id") == job}

    def close(self) -> None:
        """End the session."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def _do(self, what: Callable[[Any], Any]) -> Any:
        """Do something in a session, and in a new one if that has ended: the server may have been
        started again.
        """
        from nvflare.fuel.flare_api.flare_api import new_secure_session

        end = time.monotonic() + PATIENCE
        while True:
            try:
                if self._session is None:
                    self._session = new_secure_session(self._kit.name, str(self._kit), timeout=10.0)
                return what(self._session)
            except Exception as error:  # the library has many, and tells of them in words only
                with suppress(Exception):
                    self.close()
                self._session = None
                if time.monotonic() > end:
                    raise StudyError(f"{self._kit}: NVFlare's server says: {error}") from error
                time.sleep(LOOK)


def keep(
    admin: Admin,
    job: Path,
    tell: Callable[[str], None],
    *,
    tries: int,
    alive: Callable[[], bool] = lambda: True,
) -> bool:
    """Submit a job, and again whenever it has failed; watch one that was submitted before, and goes
    on. Sites that were connected before are waited for, because NVFlare gives a job to those that
    are there when it begins; so does one that comes back later. Whether it has ended by itself.

    Args:
        tries: how often at most.
        alive: whether there is still somebody to run it.
    """
    sites: set[str] = set()
    before = admin.going(job)
    for _ in range(tries):
        end = time.monotonic() + PATIENCE
        while not sites <= (now := admin.sites()) and time.monotonic() < end and alive():
            time.sleep(LOOK)
        sites |= now
        if before is None:
            name, first = admin.submit(job), now
            tell(f"submitted as job {name}")
        else:
            name, first, before = before, set(), None
            tell(f"job {name} goes on")
        if (status := _watched(admin, name, first, alive)) is None:
            return False
        tell(f"job {name}: {status}")
        if status in (DONE, STOPPED):
            return status == DONE
    return False


def _watched(admin: Admin, job: str, first: set[str], alive: Callable[[], bool]) -> str | None:
    """Return how a job ended, in NVFlare's words; LOST; or BACK, if it was aborted because a site
    is there that has lost it, or has come after it began. None if nobody runs it any more.

    Args:
        first: sites that were there when it was submitted. One of them that never runs it does not
            allow it, and is not waited for.
    """
    expected: set[str] = set()
    lost = back = 0.0
    while alive():
        status = admin.status(job)
        if status.startswith("FINISHED"):
            return status
        lost = lost + LOOK if status == LOST else 0.0
        if status == RUNNING:
            there, running = admin.sites(), admin.running(job)
            expected |= running | (there - first)
            back = back + LOOK if (there & expected) - running else 0.0
        if lost > GONE:
            return LOST
        if back > GONE:
            admin.abort(job)
            return BACK
        time.sleep(LOOK)
    return None
