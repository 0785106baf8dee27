"""Methods: a table of a study, the list of them by name, and the contract that every one keeps.

A new one is a file with one registration: docs/own-method.md shows one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from sordino.base.errors import ContractBroken as ContractBroken
from sordino.base.registry import Registry, Section
from sordino.core import regimes


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """A row of the list of methods.

    Attributes:
        regime: the name of the regime that it works in.
        paper: whose it is, and when.
        does: what it does, in a few words.
        forms: each form's name, and whether what it releases has a finite price.
        units: the values of ``privacy.unit`` that it can keep.
    """

    regime: str
    paper: str
    does: str
    forms: Mapping[str, bool]
    units: tuple[str, ...] = ("sample",)


class Method(Section):
    """One published algorithm, and the ``[method]`` table of a study that runs it.

    A subclass adds its hyper-parameters as fields, and says what it does in ``about``.
    :func:`~sordino.core.method.register` makes it known by its name.
    """

    about: ClassVar[About]
    needs: ClassVar[tuple[str, ...]] = ()  # methods that a class of this regime must define itself

    name: str

    @property
    def title(self) -> str:
        """Return its name in tables."""
        return self.name

    @property
    def private(self) -> bool:
        """Return whether clients add noise."""
        return self.about.units != ("none",)

    @property
    def adapts_noise(self) -> bool:
        """Return whether sigma depends on earlier releases; a fixed Rényi order bounds that."""
        return False

    @property
    def adapts_steps(self) -> bool:
        """Return whether earlier releases decide how many steps are taken."""
        return False

    @property
    def aggregated(self) -> bool:
        """Return whether clients' updates meet in a sum; else each client sends a noisy model."""
        return True

    @property
    def unpriced(self) -> str | None:
        """Return why what clients send has no finite price; None where it has one."""
        return None


def _lacks(kind: type) -> str | None:
    if not isinstance(about := getattr(kind, "about", None), About):
        return "an about"
    if about.regime not in regimes.names():
        return f"an about whose regime is one of {', '.join(regimes.names())}"
    for base in kind.__mro__:
        for name in vars(base).get("needs", ()):
            if getattr(kind, name) is getattr(base, name):
                return f"a method {name}"
    return None


METHODS = Registry(
    base=Method,
    noun="method",
    key="name",
    place="method",
    page="docs/own-method.md",
    lacks=_lacks,
    load=regimes.known,
)
register, known, imported = METHODS.register, METHODS.known, METHODS.imported


def check_method(method: Method) -> None:
    """Hold a method against what its regime rests on.

    Raises:
        ContractBroken: naming what does not hold.
    """
    regimes.named(method.about.regime).check(method)
