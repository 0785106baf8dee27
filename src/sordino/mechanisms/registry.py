"""Mechanisms by name: the ``[privacy.mechanism]`` table of a study.

A new one is a file with one registration.

A study names a registered kind, or a class in a module of its own as ``package.module:Class``;
docs/own-mechanism.md shows one.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from sordino.base.registry import Registry, Section, register_all
from sordino.privacy import event

if TYPE_CHECKING:
    from sordino.mechanisms.gaussian import Bounded


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseRequest:
    """The parameters that a study asks a mechanism for, all of them public.

    Attributes:
        unit: "sample": the contributions are gradients of examples; "client": updates of clients.
        clip: C (or S), L2 bound of a contribution in the mechanism's norm.
        noise_multiplier: sigma.
        parameters: how many numbers each parameter of the model has, in the vector's order.
        energies: of a map from rows (n, d) to (n, groups), its mean over public examples' gradients
            of length one, (groups,); None where a study has no public examples.
        counted: whether a noisy count of clipped contributions is wanted beside the sum.
        count_deviation: standard deviation that its noise must have, in contributions; None leaves
            it to the mechanism.
        update_bound: eta tau C, how far a client can get by tau steps of gradients of length C;
            None for unit "sample".
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

    A subclass adds its constants as fields. ``form`` is "paper" where it is a paper's literal
    algorithm, whose :meth:`Bounded.event` then differs from what is asked for.
    """

    counts: ClassVar[bool] = False  # whether it can release a count beside the sum
    simulated: ClassVar[bool] = (
        False  # whether its price rests on an ideal sampler that no computer has
    )
    sized: ClassVar[bool] = (
        False  # whether its price depends on d, which a study learns from its data and model
    )

    kind: str
    form: Literal["sound", "paper"] = Field(
        "sound", description='"sound", or "paper" for what a paper prints, which is not private'
    )

    @property
    def learns(self) -> bool:
        """Tell whether its shape follows earlier noisy releases."""
        return False

    def refused(self, unit: str, public: bool) -> str | None:
        """Why it cannot serve this unit, or lacks public examples; None if it can."""
        return None

    def for_dimension(self, dimension: int) -> Self:
        """The same for sums of ``dimension`` numbers."""
        return self

    def event(self, noise_multiplier: float) -> event.Event:
        """Return the event of one release at this sigma, before sampling: noise is calibrated by
        it.

        In a paper's form, what the paper claims.

        A mechanism that is no Gaussian of multiplier sigma says here what it is.
        """
        return event.Gaussian(noise_multiplier=noise_multiplier)

    @model_validator(mode="after")
    def _states_an_event(self) -> Self:
        """Look at the event of one of somebody's own, before noise is calibrated by it."""
        if not self.sized:
            told: object = self.event(1.0)
            if not isinstance(told, event.Event):
                raise MECHANISMS.wrong(self, "event", told, "a privacy event")
        return self

    def make(self, asked: NoiseRequest) -> Bounded:
        """The mechanism."""
        raise NotImplementedError

    def made(self, asked: NoiseRequest) -> Bounded:
        """Return what :meth:`make` gives, if it is a mechanism.

        Raises:
            StudyError: if it lacks something, or its event is none.
        """
        given: object = self.make(asked)
        wanted = _wanted(own_norm=getattr(given, "measure", None) == "own")
        if missing := [name for name in wanted if not hasattr(given, name)]:
            raise MECHANISMS.wrong(
                self, "make", given, f"a mechanism, and this has no {', no '.join(missing)}"
            )
        found: Bounded = given  # type: ignore[assignment]
        told: object = found.event()
        if not isinstance(told, event.Event):
            raise MECHANISMS.wrong(self, "the event of what make gave", told, "a privacy event")
        return found


@functools.cache
def _load() -> None:
    """Not before a mechanism is looked for: compilers take a while to load."""
    register_all("sordino.mechanisms", importlib.import_module("sordino.mechanisms").__path__)


MECHANISMS = Registry(
    base=Noise,
    noun="mechanism",
    key="kind",
    place="privacy.mechanism",
    page="docs/own-mechanism.md",
    needs=("make",),
    load=_load,
)
register, known, imported = MECHANISMS.register, MECHANISMS.known, MECHANISMS.imported


@functools.cache
def _wanted(*, own_norm: bool) -> tuple[str, ...]:
    """Return the members of a mechanism, and of one that has a norm of its own."""
    from sordino.mechanisms.gaussian import Bounded, Measuring

    protocols: list[type] = [Bounded, *([Measuring] if own_norm else [])]
    return tuple(name for each in protocols for name in vars(each) if not name.startswith("_"))
