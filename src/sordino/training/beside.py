"""Releases beside a client's model: what a method asks for, how a task says so, and what it costs.

A new kind is a field of :class:`Wants` and its price here, the fields of the messages that carry it
(:mod:`sordino.base.message`), and the method that asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from sordino.base.message import Train, Vector
from sordino.privacy import Composed, Event, Gaussian, NonPrivate

RAW_LOSS = "the mean loss of raw data, without noise"
RAW_CONSTANTS = (
    "raw curvature, Lipschitz constant and gradient are sent, as the paper's own form asks"
)


@dataclass(frozen=True, slots=True)
class Wants:
    """The requests of a method to clients besides their weights.

    Attributes:
        first: the first noisy gradient of the round (d numbers more upwards).
        raw: raw constants, in a paper's literal form; makes the run not private.
        loss: (M, sigma_h) of a noisy mean loss; with sigma_h 0 it is raw, and the run not private.
    """

    first: bool = False
    raw: bool = False
    loss: tuple[float, float] | None = None

    @classmethod
    def of(cls, task: Train) -> Wants:
        """Return the requests of a task."""
        loss = None if task.loss_bound is None else (task.loss_bound, task.loss_noise)
        return cls(task.wants_first, task.probe is not None, loss)

    def refusal(self, task: Train) -> str | None:
        """Return what a task asks for otherwise than this, or None; a client's first task of raw
        constants has no model to compare with.
        """
        found = Wants.of(task)
        if found.first != self.first or (found.raw and not self.raw):
            return "it asks for more than the model after the local steps"
        if found.loss != self.loss:
            return "it asks for the loss otherwise than the study does"
        return None

    def asked(self, task: Train, last: Vector | None) -> Train:
        """Return a task with these requests; ``last`` is the client's last model (d,), if any."""
        bound, noise = (None, 0.0) if self.loss is None else self.loss
        probe = last if self.raw else None
        return replace(
            task, wants_first=self.first, probe=probe, loss_bound=bound, loss_noise=noise
        )

    @property
    def beside(self) -> Event | None:
        """The release beside a step's noisy sum, of the same sample, where there is one."""
        noisy = self.loss is not None and self.loss[1]
        return Gaussian(noise_multiplier=noisy) if noisy else None

    @property
    def unpriced(self) -> bool:
        """Something is asked for that has no price."""
        return any(True for _ in self.raw_releases())

    def first_step(self, gradient: Event) -> Event:
        """Return the release of the first step of a round, where ``gradient`` is one step's."""
        return gradient if self.beside is None else Composed(events=(gradient, self.beside))

    def releases(self, gradient: Event, steps: int) -> Iterator[tuple[Event, int]]:
        """Yield the releases of a round of steps, before sampling, and how often there is each."""
        first = 0 if self.beside is None else 1
        if first:
            yield self.first_step(gradient), first
        if steps > first:
            yield gradient, steps - first

    def raw_releases(self) -> Iterator[Event]:
        """Yield what has no price."""
        if self.loss is not None and not self.loss[1]:
            yield NonPrivate(reason=RAW_LOSS)
        if self.raw:
            yield NonPrivate(reason=RAW_CONSTANTS)
