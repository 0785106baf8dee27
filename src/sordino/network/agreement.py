"""What the server and every site of a federation have agreed to, before anybody connects.

An agreement is two files that are the same everywhere: ``agreement.toml`` (who takes part, with how
many examples of which shape and classes, and where the server is) and ``study.toml`` (the study,
complete and calibrated). Their digest is the first thing that a site says. Clip, noise, rates,
model and budget all follow from these two files, so a server that asks for something else is found
out.

Where the server learns nothing but sums, there is a third: ``keys.pem``, the public keys of all
sites in the order of their numbers. Sites hold what others sign against it; the server cannot put
other keys in their place.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import tomli_w
from pydantic import ValidationError

from sordino.base import modules as code
from sordino.base.errors import StudyError
from sordino.base.files import MIB, read_below, there
from sordino.base.parsing import Malformed, toml_of
from sordino.core import regimes
from sordino.core import study as studies
from sordino.core.network import Agreement, NetworkRegime
from sordino.core.study.base import Study
from sordino.network.certificates import read_keys, signed_by

AGREEMENT, STUDY, KEYS = "agreement.toml", "study.toml", "keys.pem"
MOST = 2 * MIB
"""Bytes of either: a table may have thousands of columns, each with its name."""


def read(path: Path) -> Agreement:
    """The agreement in a file.

    Raises:
        StudyError: naming the file, the key and what is wrong.
    """
    try:
        content = read_below(path.parent, path.name, most=MOST)
        return checked(toml_of(content.decode()), str(path))
    except (FileNotFoundError, NotADirectoryError):
        raise StudyError(f"{path}: there is no such file") from None
    except (Malformed, UnicodeDecodeError) as error:
        raise StudyError(f"{path}: {error}") from error


def checked(table: dict[str, object], source: str) -> Agreement:
    """The agreement in a table.

    Raises:
        StudyError: naming the key and what is wrong.
    """
    try:
        return Agreement.model_validate(table)
    except ValidationError as error:
        raise StudyError(
            "\n".join(
                f"{source}: {'.'.join(str(part) for part in each['loc']) or 'the agreement'}: "
                f"{each['msg'].removeprefix('Value error, ')}"
                + (f"; got {each['input']!r}" if each["loc"] else "")
                for each in error.errors()
            )
        ) from error


def written(agreement: Agreement) -> bytes:
    """The bytes of ``agreement.toml``."""
    return tomli_w.dumps(agreement.model_dump(mode="json", exclude_defaults=False)).encode()


class Agreed:
    """An agreement, its study, and the digest of both.

    Args:
        folder: of a kit.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.agreement = read(folder / AGREEMENT)
        self.study: Study = studies.read(folder / STUDY, as_written=True)
        self._same_code()
        self.keys = read_keys(folder) if there(folder, KEYS) else ()
        found = hashlib.sha256()
        for name in (AGREEMENT, STUDY, *([KEYS] if self.keys else [])):
            content = read_below(folder, name, most=MOST)
            found.update(f"{name} {len(content)}\n".encode() + content)
        self.digest = found.hexdigest()

    @property
    def network(self) -> NetworkRegime:
        """What the study's regime does on a network."""
        return regimes.of(self.study).network

    @property
    def minimum(self) -> int:
        """Sites that must be there: as agreed, and enough for a sum to be opened."""
        summing = regimes.of(self.study).summing(self.study)
        return max(self.agreement.minimum, 0 if summing is None else summing.fewest)

    def verify(self, site: int, content: bytes, signature: bytes) -> bool:
        """Whether the site with this number has signed the content."""
        return 0 <= site < len(self.keys) and signed_by(self.keys[site], content, signature)

    def _same_code(self) -> None:
        here = code.digests(studies.named_modules(self.study))
        for name in sorted({*here, *self.agreement.modules}):
            if here.get(name) != self.agreement.modules.get(name):
                raise StudyError(
                    f"{self.folder / STUDY}: it names the module {name}, and the code of that "
                    "module here is not what was agreed to. Code never comes over the network: "
                    "copy the agreed version beside the study, or install it"
                )
