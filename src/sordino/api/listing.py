"""What there is to choose from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sordino.api import shown
from sordino.core.method import known

if TYPE_CHECKING:
    import polars


def methods() -> polars.DataFrame:
    """Every method: its regime, the units it can protect, its forms, what it does, and its paper.

    ``private`` are the forms that keep a promise where ``privacy.unit`` is not "none".
    """
    return shown.frame(
        [
            {
                "name": name,
                "regime": about.regime,
                "units": list(about.units),
                "private": [form for form, sound in about.forms.items() if sound],
                "not_private": [form for form, sound in about.forms.items() if not sound],
                "about": about.does,
                "paper": about.paper,
            }
            for name, about in sorted((name, kind.about) for name, kind in known().items())
        ]
    )
