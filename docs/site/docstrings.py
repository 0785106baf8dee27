"""Docstrings as Markdown: what they say in other markup is said in Markdown's.

* Examples of an interpreter (``>>>``) become blocks of code.
* A paragraph that ends with two colons is followed by a block of code.
* ``:meth:`name``` becomes the name alone.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

ROLE = re.compile(r":(?:class|func|meth|mod|attr):`~?([^`]*)`")
SESSION = re.compile(r"^>>> .*?(?=\n\n(?!>>>)|\Z)", re.DOTALL | re.MULTILINE)


class Told(Extension):
    """Rewrites each docstring before it is parsed."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = told(obj.docstring.value)


def told(text: str) -> str:
    """A docstring in Markdown.

    >>> told("See :meth:`on`.")
    'See `on`.'
    """
    text = re.sub(r"::(?=\n\n    )", ":", ROLE.sub(r"`\1`", text))
    return SESSION.sub(lambda found: f"```pycon\n{found[0]}\n```", text)
