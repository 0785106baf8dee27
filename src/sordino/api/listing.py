"""What there is to choose from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sordino.api import shown
from sordino.engine.methods import known

if TYPE_CHECKING:
    import polars


def methods() -> polars.DataFrame:
    """Every method: its regime, which of its forms are private, what it does, and its paper."""
    return shown.frame(
        [
            {
                "name": name,
                "regime": about.regime,
                "private": [form for form, sound in about.forms.items() if sound],
                "not_private": [form for form, sound in about.forms.items() if not sound],
                "about": about.does,
                "paper": about.paper,
            }
            for name, about in sorted((name, kind.about) for name, kind in known().items())
        ]
    )
