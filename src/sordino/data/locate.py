"""Places of published data sets, and downloads into them.

Loading never touches the network: a run must not depend on one, and a hospital's machine
has none. :func:`find` looks in three places, in this order,

1. ``$SORDINO_DATA/<name>``
2. the user's cache, ``$XDG_CACHE_HOME/sordino/<name>`` or ``~/.cache/sordino/<name>``
3. ``/usr/share/datasets/<name>``, where Debian's data packages install

and when nothing is there says so once, with every place and every way to get the data.
:func:`fetch` is the separate, deliberate step that downloads. A file is checked while it
arrives and takes its name only when it is whole and right; nothing half-written is left.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import tempfile
import urllib.request
from collections.abc import Callable
from pathlib import Path

from sordino.base import modules
from sordino.base.errors import DataError
from sordino.base.files import cache_folder
from sordino.data.sets import NAMES, PUBLISHED, Published, Remote

TIMEOUT = 60.0
_SYSTEM = Path("/usr/share/datasets")


def named(name: str) -> Published | None:
    """The data set of this name, or the one at ``package.module:attribute``; None if there is none.

    Raises:
        DataError: if there is a path, and no data set at it.
    """
    if ":" not in name:
        return PUBLISHED.get(name)
    try:
        found = modules.attribute(name)
    except Exception as error:  # a user's module may raise anything
        raise DataError(
            f"data.name = {name!r}: {error}. Write it as package.module:NAME, beside the study "
            "file or installed"
        ) from error
    if not isinstance(found, Published) or found.read is None:
        raise DataError(f"data.name = {name!r} is no Published with read; see docs/own-tables.md")
    return found


def places(name: str) -> tuple[Path, ...]:
    """The folders in which ``name`` is looked for, first to last."""
    own = os.environ.get("SORDINO_DATA", "")
    return (
        *((Path(own).expanduser() / name,) if own else ()),
        cache_folder() / name,
        _SYSTEM / name,
    )


def where(name: str) -> Path | None:
    """The first folder that holds all of ``name``, or None."""
    published = named(name)
    if published is None:
        return None
    folders = places(published.name)
    return next((folder for folder in folders if not published.missing(folder)), None)


def find(name: str) -> Path:
    """As :func:`where`; a DataError says all places and all ways where there is none."""
    published = named(name)
    if published is None:
        raise DataError(
            f"data find: nothing is known about {name!r}; known: {', '.join((*NAMES, *PUBLISHED))}"
        )
    folder = where(name)
    if folder is None:
        raise DataError(missing_message(published))
    return folder


def missing_message(published: Published) -> str:
    """Return the places that were looked in for ``published``, and every way to get it."""
    name = published.name
    lines = [f"the data set {name} was not found. Looked in"]
    if not os.environ.get("SORDINO_DATA"):
        lines.append(f"  $SORDINO_DATA/{name}: SORDINO_DATA is not set")
    for folder in places(name):
        lacking = published.missing(folder)
        lines.append(
            f"  {folder}: "
            + (f"lacks {', '.join(lacking)}" if folder.is_dir() else "no such folder")
        )
    ways = []
    if published.package:
        ways.append(f"install Debian's package: apt install {published.package}")
    if published.remote:
        ways.append(
            f"download it with its checksum, where there is a network: sordino data fetch {name}"
        )
    wanted = " or ".join(", ".join(layout) for layout in published.layouts[:2])
    compressed = f" (each with or without {published.endings[0]})" if published.endings[0] else ""
    ways.append(f"put {wanted}{compressed} into {cache_folder() / name}")
    ways.append(f"set SORDINO_DATA to the folder that holds {name}/ with these files")
    ways.append("or use the data set digits, which needs no files")
    return "\n".join([*lines, "Ways to get it:", *(f"  - {way}" for way in ways)])


def fetch(
    name: str, *, folder: Path | None = None, say: Callable[[str], None] | None = None
) -> Path:
    """Download ``name`` into ``folder``, and check it; files that are right already are kept."""
    published = named(name)
    if name in NAMES:
        raise DataError(f"data fetch: {name!r} is part of this program; there is nothing to fetch")
    if published is None:
        raise DataError(
            f"data fetch: nothing is known about {name!r}; known: {', '.join(PUBLISHED)}"
        )
    if not published.remote:
        raise DataError(
            f"data fetch: no trusted checksum is known for {name}, so it is not "
            f"downloaded.\n{missing_message(published)}"
        )
    target = cache_folder() / published.name if folder is None else folder
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"data fetch: cannot make the folder {target} ({error.strerror})"
        ) from error
    for remote in published.remote:
        path = target / remote.name
        if path.is_file() and _sum_of(path, remote.checksum) == remote.checksum:
            if say:
                say(f"{remote.name}: already there")
            continue
        if say:
            say(f"{remote.name}: downloading {remote.url}")
        _download(remote, path)
    return target


def _download(remote: Remote, path: Path) -> None:
    """Into a temporary neighbour first; the name is taken only by a whole and right file."""
    kind = remote.checksum.partition(":")[0]
    digest = hashlib.new(kind, usedforsecurity=False)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            try:
                with urllib.request.urlopen(remote.url, timeout=TIMEOUT) as answer:
                    while piece := answer.read(1 << 18):
                        digest.update(piece)
                        file.write(piece)
            except (OSError, http.client.HTTPException) as error:
                reason = getattr(error, "reason", None) or error
                raise DataError(
                    f"data fetch: {remote.url} could not be downloaded into {path} ({reason}). "
                    f"Without a network, copy the file there by hand; it must have {kind} "
                    f"{remote.checksum.partition(':')[2]}"
                ) from error
            file.flush()
            os.fsync(file.fileno())
        found = f"{kind}:{digest.hexdigest()}"
        if found != remote.checksum:
            raise DataError(
                f"data fetch: {remote.url} is not the published file: expected "
                f"{remote.checksum}, found {found}; nothing was kept"
            )
        # a data folder may be shared; temporary files are their owner's alone
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def _sum_of(path: Path, like: str) -> str:
    kind = like.partition(":")[0]
    with path.open("rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False))
    return f"{kind}:{found.hexdigest()}"
