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
from collections import Counter
from pathlib import Path
from typing import Annotated, Literal

import tomli_w
from pydantic import Field, ValidationError, model_validator

from sordino.base import modules as code
from sordino.base.errors import StudyError
from sordino.base.files import MIB, read_below, there
from sordino.base.parsing import Malformed, toml_of
from sordino.base.section import Section
from sordino.core import regimes
from sordino.core import study as studies
from sordino.core.study.base import Study
from sordino.network.certificates import read_keys, signed_by

AGREEMENT, STUDY, KEYS = "agreement.toml", "study.toml", "keys.pem"
MOST = 2 * MIB
"""Bytes of either: a table may have thousands of columns, each with its name."""

Transport = Literal["websocket", "mqtt", "nvflare"]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,59}$")]


class SiteEntry(Section):
    """A site: its name, as in its certificate, and how many examples it has. Both are public."""

    name: Name
    examples: int = Field(ge=1, le=10**9)


class Shape(Section):
    """What an example looks like: its shape, how its numbers are kept, and the classes.

    Attributes:
        columns: names of the features, where they have any: a file whose columns have names has
            these, in whatever order.
    """

    shape: tuple[Annotated[int, Field(ge=1)], ...]
    type: Literal["uint8", "float32"] = "float32"
    classes: tuple[str, ...] = Field(min_length=2)
    columns: tuple[str, ...] = ()


class Agreement(Section):
    """What a federation has agreed to.

    Attributes:
        name: of the federation.
        server: host and port that sites connect to: the server's own, or the broker's.
        transport: how frames travel. With ``mqtt`` everybody, the server too, is a client of a
            broker; with ``nvflare`` they travel between the processes of an NVFlare job, and
            ``server`` is where NVFlare's own server listens.
        minimum: sites that must be there; with fewer the run waits.
        patience: seconds without a connection after which a site counts as gone. Of events also
            those that the server waits for a site to speak, and then for the answer to its query.
        answer_within: seconds in which a site that is connected answers; one that does not is out
            until it connects again. Where the study sets a deadline, that comes first.
        data: of examples.
        site: in the order of the clients' numbers.
        modules: digests of code that the study names, which every site has of its own.
        rehearsal: fingerprints of everybody's data and of the test set, where all of it is public.
            Noise then comes from the study's seed, as in a simulation, and protects nobody.
    """

    name: Name
    server: str = Field(pattern=r"^[A-Za-z0-9_.:\[\]-]+:\d{1,5}$")
    transport: Transport = "websocket"
    minimum: int = Field(1, ge=1)
    patience: float = Field(5.0, gt=0, le=86_400)
    answer_within: float = Field(21_600.0, gt=0, le=864_000)
    data: Shape
    site: tuple[SiteEntry, ...] = Field(min_length=1)
    modules: dict[str, str] = Field(default_factory=dict)
    rehearsal: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _fits(self) -> Agreement:
        names = [each.name for each in self.site]
        if len({each.lower() for each in names}) < len(names):
            raise ValueError("two sites have the same name, or names that differ in case alone")
        if twice := [each for each in self.data.classes if self.data.classes.count(each) > 1]:
            raise ValueError(f"data.classes: two classes have the same name, {twice[0]!r}")
        if "" in self.data.classes:
            raise ValueError("data.classes: a class has no name; a row without a label has none")
        if not self.data.shape:
            raise ValueError("data.shape is empty; examples of 30 features have the shape [30]")
        columns = self.data.columns
        if columns and self.data.shape != (len(columns),):
            raise ValueError(
                f"data.columns: {len(columns)} names, and data.shape = {list(self.data.shape)}"
            )
        if twice := [each for each, times in Counter(columns).items() if times > 1]:
            raise ValueError(f"data.columns: two columns have the same name, {twice[0]!r}")
        if self.minimum > len(names):
            raise ValueError(f"minimum = {self.minimum}, and there are {len(names)} sites")
        if not 0 < self.port < 65_536:
            raise ValueError(f"server = '{self.server}': the port must lie in 1..65535")
        return self

    @property
    def host(self) -> str:
        """Of the server, without brackets."""
        return self.server.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """Of the server."""
        return int(self.server.rpartition(":")[2])

    @property
    def names(self) -> tuple[str, ...]:
        """Of the sites."""
        return tuple(each.name for each in self.site)

    @property
    def sizes(self) -> tuple[int, ...]:
        """n_i of every site."""
        return tuple(each.examples for each in self.site)


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
