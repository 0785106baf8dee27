"""Mechanisms by name: the ``[privacy.mechanism]`` table of a study. A new one is a file with one registration.

A study names a registered kind, or a class in a module of its own as ``package.module:Class``;
docs/own-mechanism.md shows one.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from pydantic import create_model

from sordino.errors import StudyError
from sordino.mechanism.gaussian import Bounded
from sordino.section import Section


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a study asks a mechanism for. All of it is public.

    Attributes:
        unit: "sample": the contributions are gradients of examples; "client": updates of clients.
        clip: C (or S), L2 bound of a contribution in the mechanism's norm.
        noise_multiplier: sigma.
        parameters: how many numbers each parameter of the model has, in the vector's order.
        energies: of a map from rows (n, d) to (n, groups), its mean over public examples' gradients of length one, (groups,);
            None where a study has no public examples.
        counted: whether a noisy count of clipped contributions is wanted beside the sum.
        count_deviation: standard deviation that its noise must have, in contributions; None leaves it to the mechanism.
        update_bound: eta tau C, how far a client can get by tau steps of gradients of length C; None for unit "sample".
        largest: the largest weight of a client, in examples; 1 where all weigh the same.
    """

    unit: str
    clip: float
    noise_multiplier: float
    parameters: tuple[int, ...]
    energies: Callable[[Callable[[Any], Any]], Sequence[float]] | None = None
    counted: bool = False
    count_deviation: float | None = None
    update_bound: float | None = None
    largest: float = 1.0

    @property
    def dimension(self) -> int:
        """d."""
        return sum(self.parameters)


class Noise(Section):
    """One mechanism, and the ``[privacy.mechanism]`` table of a study that asks for it.

    A subclass adds its constants as fields. ``form`` is "paper" where it is a paper's literal algorithm,
    whose :meth:`Bounded.event` then differs from what is asked for.
    """

    kind: str
    form: Literal["sound", "paper"] = "sound"

    def refused(self, unit: str, public: bool) -> str | None:
        """Why it cannot serve this unit, or needs public examples that are not there; None if it can."""
        return None

    def make(self, asked: Asked) -> Bounded:
        """The mechanism."""
        raise NotImplementedError


N = TypeVar("N", bound=Noise)

_KNOWN: dict[str, type[Noise]] = {}


def register(kind: type[N]) -> type[N]:
    """Make a mechanism known by the default of its ``kind``.

    Raises:
        StudyError: if another one has this name.
    """
    name = kind.model_fields["kind"].default
    if not isinstance(name, str):
        raise StudyError(f"{kind.__qualname__}: a mechanism needs a name (kind: Literal['mine'] = 'mine')")
    known = _KNOWN.setdefault(name, kind)
    if (known.__module__, known.__qualname__) != (kind.__module__, kind.__qualname__):
        raise StudyError(f"{kind.__qualname__}: the mechanism {name!r} is {known.__qualname__} already; choose another name")
    _KNOWN[name] = kind
    return kind


def known() -> Mapping[str, type[Noise]]:
    """Every registered mechanism, in the order of registration."""
    return MappingProxyType(_KNOWN)


@functools.cache
def imported(path: str) -> type[Noise]:
    """The mechanism at ``package.module:Class``.

    Raises:
        StudyError: if there is none.
    """
    module, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise StudyError(f"privacy.mechanism.kind = {path!r}: {error}. Write it as package.module:Class, importable from here") from error
    if not (isinstance(found, type) and issubclass(found, Noise)):
        raise StudyError(f"privacy.mechanism.kind = {path!r} is no Noise; see docs/own-mechanism.md")
    place: Any = Literal[path]
    return create_model(found.__name__, __base__=found, __doc__=found.__doc__, kind=(place, path))
