"""Methods by name. A new one is a file with one registration: docs/own-method.md shows one."""

from __future__ import annotations

from sordino.base.registry import Registry
from sordino.core import regimes
from sordino.core.method import About, Method


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
