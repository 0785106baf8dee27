"""The server's half of secure sums: asks sites for the steps of the open round's sum.

A round's tasks wait until the keys and the shares of all who take part are there; then each site is
asked its task together with what the others have sealed for it, and its answer is under its masks.
The regime counts the answers; when it asks for their sum to be opened, the last two steps follow
(:mod:`sordino.mechanisms.secure`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from sordino.base.errors import RemoteProtocolError
from sordino.base.message import Task
from sordino.core.effect import Open, Summed
from sordino.mechanisms.secure.client import Verify
from sordino.mechanisms.secure.messages import (
    Delivered,
    FromClient,
    Invitation,
    MaskedInput,
    Unopened,
    decode,
    encode,
)
from sordino.mechanisms.secure.server import PHASES, Opened, Sum, Void
from sordino.mechanisms.secure.setting import Setting
from sordino.network import frames
from sordino.network.courier import Courier
from sordino.network.standing import Heard

INPUTS = PHASES.index(MaskedInput)
FAILURES = 3
"""Secure sums that a site may fail, as far as this process of the server knows, before it is left
out; and sums of which it may miss a step, before it is left out for a while.
"""
GRACE = 10
"""Complete sums that make up for one of which a site has missed a step."""
PAUSE = 20
"""Times the seconds of a step that a site is left out that is too slow; doubled each time."""


def step_of(body: bytes) -> FromClient:
    """A site's step of a sum.

    Raises:
        RemoteProtocolError: if no site says that; masked inputs are answers to tasks.
    """
    found = decode(body)
    if not isinstance(found, FromClient) or isinstance(found, MaskedInput):
        raise RemoteProtocolError(f"no step of a secure sum: {type(found).__name__}", "unfit")
    return found


def declines(body: bytes) -> bool:
    """Whether a site takes part no more."""
    return not body or isinstance(step_of(body), Unopened)


class Sums:
    """The secure sum of the round that is open.

    Args:
        courier: the way to the sites.
        setting: of the sum of a round.
        verify: whether a site has signed something, by the public keys in the kit.
        seconds: that a step is waited for.

    Attributes:
        failures: sums that a site has failed: with a step that cannot be used, or with shares that
            are to blame that the sum is void.
        slow: sums of which a site has missed a step, times :data:`GRACE`, less complete ones.
    """

    def __init__(
        self,
        courier: Courier,
        setting: Callable[[int], Setting],
        verify: Verify,
        seconds: float = math.inf,
    ) -> None:
        self._courier, self._setting, self._verify = courier, setting, verify
        self.seconds = seconds
        self.sum: Sum | None = None
        self.tasks: dict[int, Task] = {}
        self._bodies: tuple[object, bytes] = (None, b"")
        self.failures: Counter[int] = Counter()
        self.slow: Counter[int] = Counter()
        courier.steps = self.answered

    @property
    def phase(self) -> int:
        """Of the open sum; -1 without one."""
        return -1 if self.sum is None else self.sum.phase

    @property
    def round(self) -> int:
        """Of the open sum; 0 without one."""
        return 0 if self.sum is None else self.sum.setting.round

    @property
    def waiting(self) -> frozenset[int]:
        """Sites that are asked for a step now."""
        return frozenset() if self.sum is None or self.phase == INPUTS else self.sum.waiting

    @property
    def due(self) -> bool:
        """Whether the sum can go on: nobody is waited for, nor that the regime counts inputs."""
        return self.sum is not None and not self.sum.waiting

    def dispatch(self, site: int, task: Task) -> None:
        """A site is to be asked this task, once its round's shares are there."""
        if self.sum is None or self.sum.setting.round != task.number:
            self.forget()
            self.sum = Sum(self._setting(task.number), self._verify)
        self.tasks[site] = task
        self.sum = replace(self.sum, waiting=self.sum.waiting | {site})
        self._ask(site, task.number, 0, encode(Invitation(task.number)))

    def answered(self, site: int, said: frames.Stepped) -> Heard | None:
        """What is heard of a site's step; an empty one where it declines, or what it says cannot be
        used: the sum goes on without it.
        """
        courier, own = self._courier, self._courier.sites[site]
        step, task = own.step, own.ask
        asked = step is not None and (step.number, step.phase) == (said.number, said.phase)
        # whatever else it says then: it declines the sum, and with it the task
        without = task is not None and (task.number, INPUTS) == (said.number, said.phase)
        if not (asked or without):
            courier.note(site, "unasked", "a step of a secure sum that nobody waits for")
            return None
        nothing = Heard("step", site, b"", said.number)
        if without or said.why or not said.body:
            courier.note(site, "declined", f"a secure sum: {said.why}")
        late = without and (self.sum is None or site not in self.sum.waiting)
        if late or not said.body:
            return nothing
        try:
            self._after(site, said.body)
            if without and not declines(said.body):
                raise RemoteProtocolError("a step that it was not asked for", "unfit")
        except RemoteProtocolError as error:
            courier.bad(site, error)
            self.failures[site] += 1
            return nothing
        return Heard("step", site, said.body, said.number)

    def _after(self, site: int, body: bytes) -> Sum:
        found = step_of(body)
        if found.client != site:
            raise RemoteProtocolError(
                f"it speaks for client {found.client} and is client {site}", "for another"
            )
        if self.sum is None:
            raise RemoteProtocolError("no secure sum is open", "unasked")
        return self.sum.received(found)

    def heard(self, site: int, body: bytes) -> None:
        """Take a site's step in, or go on without it."""
        self._courier.step(site, None)
        try:
            self.sum = self._after(site, body) if body else self.sum
            if self.phase == len(PHASES) - 1 and self.slow[site]:
                self.slow[site] -= 1
        except RemoteProtocolError as error:
            self._courier.note(site, error.what, str(error))
        self.without(site)

    def without(self, site: int) -> None:
        """Wait for a site no more."""
        if self.sum is not None and self.phase != INPUTS:
            self.sum = self.sum.without(site)
            self._courier.step(site, None)

    def advance(self) -> list[int] | Opened | Void:
        """End the phase: who takes part no more, though it was to be asked a task; or what came of
        the sum.
        """
        assert self.sum is not None
        done = self.sum.closed()
        if not isinstance(done, tuple):
            return done
        before, (self.sum, told) = self.sum, done
        number, phase = self.sum.setting.round, self.sum.phase
        for site, message in told.items():
            if isinstance(message, Delivered):
                self._courier.ask(site, self.tasks[site], encode(message))
            else:
                self._ask(site, number, phase, self._encoded(message))
        if phase > INPUTS:
            return []
        known = self.tasks.keys() if before.phase == 0 else before.keys.keys()
        return sorted(set(known) - told.keys())

    def counted(self, effect: Open) -> None:
        """The regime has added up the answers of these sites, masks and all."""
        assert self.sum is not None
        self.sum = self.sum.counted(effect.clients, effect.values)

    def forget(self) -> None:
        """The round is over."""
        for site in self.waiting:
            self._courier.step(site, None)
        self.sum, self.tasks = None, {}

    def summed(self, effect: Open, done: Opened | Void) -> Summed:
        """What the regime is told."""
        if isinstance(done, Void):
            return Summed(effect.number, (), np.zeros(0, np.uint64))
        return Summed(effect.number, done.clients, done.values.astype(np.uint64))

    def blame(self, done: Opened | Void) -> None:
        """Name who has done what he must not, and say why a sum is not opened."""
        for site, why in done.faults:
            self._courier.note(site, "secure sum", why)
        if isinstance(done, Void):
            self._courier.noted("", "void sum", done.why)
            self._failed(done.blamed)

    def unopened(self) -> None:
        """The round is over before its inputs were counted."""
        if self.sum is not None and self.phase == INPUTS:
            self._failed(self.sum.blamed())

    def _failed(self, sites: Iterable[int]) -> None:
        for site in sites:
            self._courier.note(site, "shares", "its shares are to blame for a void sum")
            self.failures[site] += 1

    def _ask(self, site: int, number: int, phase: int, body: bytes) -> None:
        self._courier.step(site, frames.Step(number, phase, body))

    def _encoded(self, message: object) -> bytes:
        """The bytes of a message; one that goes to everybody is encoded once."""
        if self._bodies[0] is not message:
            self._bodies = (message, encode(message))  # type: ignore[arg-type]
        return self._bodies[1]
