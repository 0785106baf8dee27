"""Methods by name. A new one is a file with one registration: docs/own-method.md shows one."""

from __future__ import annotations

from sordino.engine import regimes
from sordino.engine.method import About, Method
from sordino.registry import Registry


def _lacks(kind: type) -> str | None:
    return None if isinstance(getattr(kind, "about", None), About) else "an about"


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
