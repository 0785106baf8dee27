"""The methods, mechanisms and front ends to choose from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

from sordino import mechanisms
from sordino.api import shown
from sordino.core.method import known
from sordino.data.features import FRONT_ENDS

if TYPE_CHECKING:
    import polars

    from sordino.core.method import About

NOISE = (
    ("own", "each client (or the aggregator) adds all of the noise; every regime"),
    ("shared", "clients add parts of it, and only their sum is opened; rounds, kind gaussian"),
)


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


@dataclass(frozen=True, slots=True)
class Choices:
    """Names that a study may use, each with a line about it.

    Attributes:
        methods: by name.
        mechanisms: of methods that add noise: kind, forms, description.
        noise: who adds the noise, and what that means.
        front_ends: kinds of ``data.features``, and their descriptions.
    """

    methods: Mapping[str, About]
    mechanisms: Sequence[tuple[str, Sequence[str], str]]
    noise: Sequence[tuple[str, str]]
    front_ends: Sequence[tuple[str, str]]

    def record(self) -> list[dict[str, object]]:
        """Return the methods for machines."""
        return [
            {
                "name": name,
                "regime": about.regime,
                "paper": about.paper,
                "forms": dict(about.forms),
                "units": list(about.units),
                "about": about.does,
            }
            for name, about in self.methods.items()
        ]


def choices() -> Choices:
    """Return every method, mechanism and front end that is known."""
    found = sorted(known().items(), key=lambda each: each[1].about.regime)
    return Choices(
        methods={name: kind.about for name, kind in found},
        mechanisms=[
            (name, get_args(kind.model_fields["form"].annotation), _first_line(kind))
            for name, kind in mechanisms.known().items()
        ],
        noise=NOISE,
        front_ends=[(name, _first_line(kind)) for name, kind in FRONT_ENDS.known().items()],
    )


def _first_line(kind: type) -> str:
    return (kind.__doc__ or "").strip().partition("\n")[0].rstrip(".")
