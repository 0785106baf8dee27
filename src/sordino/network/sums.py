"""The server's half of secure sums: asks sites for the steps of the open round's sum.

A round's tasks wait until the keys and the shares of all who take part are there; then each site is
asked its task together with what the others have sealed for it, and its answer is under its masks.
The regime counts the answers; when it asks for their sum to be opened, the last two steps follow
(:mod:`sordino.mechanisms.secure`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from sordino.base.errors import RemoteProtocolError
from sordino.base.message import Task
from sordino.core import records
from sordino.core.effect import Joined, Left, Open, Request, Summed
from sordino.core.world import KernelSnapshot, S, Summing
from sordino.mechanisms.secure import messages
from sordino.mechanisms.secure.server import PHASES, Opened, Sum, Void
from sordino.network import frames
from sordino.network.kernel import Declined, KernelOptions, LiveKernel, ScriptedKernel
from sordino.network.kit import Agreed
from sordino.network.secure_client import INPUTS, setting
from sordino.network.server_session import Heard, ServerSession, sendable
from sordino.network.storage import Input

FAILURES = 3
"""Secure sums that a site may fail, as far as this process of the server knows, before it is left
out; and sums of which it may miss a step, before it is left out for a while.
"""
GRACE = 10
"""Complete sums that make up for one of which a site has missed a step."""
PAUSE = 20
"""Times the seconds of a step that a site is left out that is too slow; doubled each time."""
STEP = 60.0
"""Seconds that a sum waits for the step of a site that is there; less where rounds are short."""
MOST = 10
"""Times that the while is doubled for which a slow site is left out."""
_SUM = "sum "


def step_of(body: bytes) -> messages.FromClient:
    """A site's step of a sum.

    Raises:
        RemoteProtocolError: if no site says that; masked inputs are answers to tasks.
    """
    found = messages.decode(body)
    if not isinstance(found, messages.FromClient) or isinstance(found, messages.MaskedInput):
        raise RemoteProtocolError(f"no step of a secure sum: {type(found).__name__}", "unfit")
    return found


def declines(body: bytes) -> bool:
    """Return whether a site takes part no more."""
    return not body or isinstance(step_of(body), messages.Unopened)


class Sums:
    """The secure sum of the round that is open.

    Args:
        session: the way to the sites.
        agreed: what everybody has agreed to, with the public keys that steps are signed by.
        summing: what everybody knows of a sum.

    Attributes:
        failures: sums that a site has failed: with a step that cannot be used, or with shares that
            are to blame that the sum is void.
        slow: sums of which a site has missed a step, times :data:`GRACE`, less complete ones. A
            step is missed that has not come in time; and in a void sum whatever step was not taken,
            also where the site declined it or was gone.
        voids: void sums in a row.
        seconds: that a step is waited for.
        missed: sites that have missed a step, and are asked again in the next round; ``tardy`` ones
            are to be left out for a while.
        opening: the regime's wish to open the sum, once it has counted the inputs.
    """

    def __init__(self, session: ServerSession, agreed: Agreed, summing: Summing) -> None:
        self._session, self._agreed, self._summing = session, agreed, summing
        deadline = summing.deadline
        # four steps and the answers: who is silent in one must not make the round miss its deadline
        self.seconds = STEP if deadline is None else min(STEP, deadline / 5)
        self.sum: Sum | None = None
        self.tasks: dict[int, Task] = {}
        self.failures: Counter[int] = Counter()
        self.slow: Counter[int] = Counter()
        self.missed, self.tardy = set[int](), set[int]()
        self.voids, self._late = 0, set[int]()
        self.inputs = set[int]()
        self.opening: Open | None = None
        session.steps = self.answered

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
        """True where the sum can go on: nobody is waited for, nor that the regime counts inputs."""
        return self.sum is not None and not self.sum.waiting

    def dispatch(self, site: int, task: Task) -> None:
        """A site is to be asked this task, once its round's shares are there."""
        if self.round != task.number:
            self.forget()
            session, agreed = self._session, self._agreed
            facts = setting(agreed, self._summing, session.dimension, session.run, task.number)
            self.sum = Sum(facts, agreed.verify)
        assert self.sum is not None
        self.tasks[site] = task
        self.sum = replace(self.sum, waiting=self.sum.waiting | {site})
        self._ask(site, task.number, 0, messages.encode(messages.Invitation(task.number)))

    def answered(self, site: int, said: frames.Stepped) -> Heard | None:
        """Return what is heard of a site's step; an empty one where it declines, or what it says
        cannot be used: the sum goes on without it.
        """
        session = self._session
        step, task = session.sites[site].step, session.sites[site].ask
        asked = step is not None and (step.number, step.phase) == (said.number, said.phase)
        # whatever else it says then: it declines the sum, and with it the task
        without = task is not None and (task.number, INPUTS) == (said.number, said.phase)
        if not (asked or without):
            session.note(site, "unasked", "a step of a secure sum that nobody waits for")
            return None
        nothing = Heard("step", site, b"", said.number)
        if without or said.why or not said.body:
            session.note(site, "declined", f"a secure sum: {said.why}")
        late = without and (self.sum is None or site not in self.sum.waiting)
        if late or not said.body:
            return nothing
        try:
            self._after(site, said.body)
            if without and not declines(said.body):
                raise RemoteProtocolError("a step that it was not asked for", "unfit")
        except RemoteProtocolError as error:
            session.bad(site, error)
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
        self._session.step(site, None)
        try:
            self.sum = self._after(site, body) if body else self.sum
            if self.phase == len(PHASES) - 1 and self.slow[site]:
                self.slow[site] -= 1
        except RemoteProtocolError as error:
            self._session.note(site, error.what, str(error))
        self.without(site)

    def without(self, site: int) -> None:
        """Wait for a site no more."""
        if self.sum is not None and self.phase != INPUTS:
            self.sum = self.sum.without(site)
            self._session.step(site, None)

    def advance(self) -> list[int] | Opened | Void:
        """End the phase: who takes part no more, though it was to be asked a task; or what came of
        the sum.
        """
        assert self.sum is not None
        done = self.sum.closed()
        if not isinstance(done, tuple):
            return done
        before, (self.sum, asked) = self.sum, done
        number, phase = self.sum.setting.round, self.sum.phase
        for site, message in asked.items():
            if isinstance(message, messages.Delivered):
                self._session.ask(site, self.tasks[site], messages.encode(message))
            else:
                self._ask(site, number, phase, messages.encode(message))
        if phase > INPUTS:
            return []
        known = self.tasks.keys() if before.phase == 0 else before.keys.keys()
        return sorted(set(known) - asked.keys())

    def counted(self, effect: Open) -> None:
        """The regime has added up the answers of these sites, masks and all."""
        assert self.sum is not None
        self.opening = effect
        self.sum = self.sum.counted(effect.clients, effect.values)

    def forget(self) -> None:
        """The round is over."""
        for site in self.waiting:
            self._session.step(site, None)
        self.sum, self.tasks, self.opening = None, {}, None
        self._late, self.inputs = set(), set()

    def summed(self, done: Opened | Void) -> Summed:
        """Return what the regime is told."""
        assert self.opening is not None
        if isinstance(done, Void):
            return Summed(self.opening.number, (), np.zeros(0, np.uint64))
        return Summed(self.opening.number, done.clients, done.values.astype(np.uint64))

    def blame(self, done: Opened | Void) -> None:
        """Name who has done what he must not, and say why a sum is not opened."""
        for site, why in done.faults:
            self._session.note(site, "secure sum", why)
        if isinstance(done, Void):
            self._session.noted("", "void sum", done.why)
            self._void(done.blamed)
        else:
            self.voids = 0

    def unopened(self) -> None:
        """The round is over before its inputs were counted."""
        if self.sum is not None and self.phase == INPUTS and self.opening is None:
            self.sum = replace(self.sum, inputs=frozenset(self.inputs))
            self._void(self.sum.blamed())

    def _void(self, blamed: Iterable[int]) -> None:
        """Count a void sum: whoever takes no step of it costs the others what they have booked. If
        that is because of shares, their dealer may be to blame instead: people are told.
        """
        assert self.sum is not None
        self.voids += 1
        for site in blamed:
            self._session.note(site, "shares", "its shares are to blame for a void sum")
            self.failures[site] += 1
        missing = {*self.sum.missing(self.tasks.keys())}
        doubted = {dealer for one, dealer in self.sum.doubts if one in missing} - {*blamed}
        for site in sorted(doubted):
            self._session.note(
                site, "doubt", "a site that voids a sum says: its shares do not open"
            )
        self.late(missing - {*blamed})

    def late(self, sites: Iterable[int]) -> None:
        """Count a missed step of the open sum, once for each of these sites."""
        for site in {*sites} - self._late:
            self._late.add(site)
            self.slow[site] += GRACE
            if self.slow[site] >= FAILURES * GRACE:
                self.tardy.add(site)

    def _ask(self, site: int, number: int, phase: int, body: bytes) -> None:
        self._session.step(site, frames.Step(number, phase, body))


class LiveSums(LiveKernel[S]):
    """As :class:`~sordino.network.kernel.LiveKernel`; a site that misses a step of a sum is not in
    it, and is asked again in the next round.
    """

    def begin(self) -> None:
        """Count in again who has missed a step."""
        for site in sorted(self._sums.missed & self._there):
            self.tell(Joined(site))
        self._sums.missed.clear()
        super().begin()

    def ask(self, site: int, task: Task) -> None:
        """Invite the site to the round's sum; it is asked the task when the shares are there."""
        self._sums.dispatch(site, task)
        if len(self._sums.tasks) == 1:
            self._wait()

    def open(self, effect: Open) -> None:
        """Ask who is in the sum to sign that, and to reveal the shares."""
        self._sums.counted(effect)
        self._advance()

    def close(self, number: int, log: records.Round) -> None:
        """The round's sum is over."""
        self.forget_alarms(_SUM)
        self._sums.unopened()
        self._sums.forget()
        super().close(number, log)

    def _take(self, each: Input) -> None:
        if each.kind == "step" and self._sums.phase == INPUTS:
            self.session.close_ask(each.site, each.number)
            self._sums.heard(each.site, each.body)
            self._out([each.site])
        elif each.kind == "step":
            self._sums.heard(each.site, each.body)
        else:
            if each.kind == "message" and each.number == self._sums.round:
                self._sums.inputs.add(each.site)
            super()._take(each)
        if each.kind == "late":
            self._sums.tardy.discard(each.site)
        for site in self._sums.waiting - self._there:
            self._sums.without(site)
        while self._sums.due:
            self._advance()

    def _woke(self, tag: str) -> None:
        """Also that a step was to be there by now."""
        if not tag.startswith(_SUM):
            super()._woke(tag)
            return
        for site in sorted(self._sums.waiting if tag == self._tag else ()):
            self.session.note(site, "slow", "its step of a secure sum has not come in time")
            self._sums.late([site])
            self._sums.without(site)

    def _heard(self) -> Input | None:
        """Also that a site is left out. The journal holds that as if the site had refused, or gone,
        so that a server that is started again stands where it stood.
        """
        for site in () if self._replaying else sorted(self._there):
            if (times := self._sums.failures[site]) >= FAILURES:
                why = f"it has failed {times} secure sums, and is left out"
                self.session.exclude(site, why)
                return self._noted("refused", why.encode(), site)
        if not self._replaying and (late := self._tardy) is not None:
            again = self._sums.slow[late] // GRACE - FAILURES
            self.session.pause(late, PAUSE * self._sums.seconds * 2.0 ** min(again, MOST))
            return self._noted("late", site=late)
        return super()._heard()

    @property
    def _waits(self) -> bool:
        """True where a site is left out for a while before the next round begins, by now or as the
        journal says: nobody books a round that it would make void.
        """
        return self._to_replay[0].kind == "late" if self._to_replay else self._tardy is not None

    @property
    def _tardy(self) -> int | None:
        """Whom to leave out now. After void sums in a row that is done also where the others are
        too few: they wait.
        """
        enough = len(self._there) > self._minimum or self._sums.voids >= FAILURES
        if not self._closed or not enough:
            return None
        return min(self._sums.tardy & self._there, default=None)

    def _advance(self) -> None:
        """End a step that everybody has taken who is left."""
        self.forget_alarms(_SUM)
        before = self._sums.sum
        done = self._sums.advance()
        if isinstance(done, list):
            self._out(done)
            if self._sums.phase != INPUTS:
                self._wait()
            return
        self._sums.blame(done)
        if self._sums.opening is not None:
            self.tell(self._sums.summed(done))
        elif self._sums.sum is before:
            everybody = sorted(self._sums.tasks)
            self._sums.forget()
            self._out(everybody)

    def _out(self, sites: list[int]) -> None:
        """These take no part in the round's sum: nobody waits for them."""
        for site in sites:
            if site in self._there:
                self._sums.missed.add(site)
            self.tell(Left(site, final=True))

    @property
    def _tag(self) -> str:
        """The tag of the alarm of the open step."""
        return f"{_SUM}{self._sums.round} {self._sums.phase}"

    def _wait(self) -> None:
        if self._sums.sum is not None:
            self.push(self.time + self._sums.seconds, tag=self._tag)


class ScriptedSums(ScriptedKernel[S]):
    """As :class:`~sordino.network.kernel.ScriptedKernel`; a site that misses a step ends it."""

    def read_journal(self, moment: KernelSnapshot[S], options: KernelOptions) -> None:
        super().read_journal(moment, options)
        self._steps = {
            (each.site, each.number, PHASES.index(type(step_of(each.body)))): each.body
            for each in self.journal.after(0)
            if each.kind == "step"
        }

    def _ask(self, site: int, task: Request) -> None:
        self._sums.dispatch(site, sendable(task))

    def answer(self, site: int, number: int) -> Any:
        """Wait until the shares are there, and for the site's answer."""
        self._play(INPUTS)
        return super().answer(site, number)

    def open(self, effect: Open) -> None:
        """Let who is in the sum sign that, and reveal the shares."""
        self._play(INPUTS)
        self._sums.counted(effect)
        done = self._play(len(PHASES))
        assert done is not None
        summed = self._sums.summed(done)
        self._sums.forget()
        self.tell(summed)

    def _play(self, until: int) -> Opened | Void | None:
        """The steps up to this phase; what came of the sum, at its end."""
        while self._sums.sum is not None and self._sums.phase < until:
            for site in sorted(self._sums.waiting):
                key = (site, self._sums.sum.setting.round, self._sums.phase)
                if key in self._steps:
                    self._sums.heard(site, self._steps[key])
            if not self._sums.due:
                if self._sums.phase == INPUTS:
                    return None
                self._listen()
                continue
            done = self._sums.advance()
            if not isinstance(done, list):
                self._sums.blame(done)
            if isinstance(done, Void):
                raise Declined(f"the run was stopped: {done.why}")
            if isinstance(done, Opened):
                return done
            if done:
                raise Declined("the run was stopped: a site has missed a step of a secure sum")
            # answers that the journal holds already are not asked for again
            for site, task in self._sums.tasks.items() if self._sums.phase == INPUTS else ():
                if (site, task.number) in self._answers:
                    self.session.close_ask(site, task.number)
        return None

    def _hear(self, heard: Heard) -> None:
        if heard.kind != "step":
            super()._hear(heard)
            return
        if declines(heard.body):
            raise Declined(
                f"the run was stopped: {self.session.names[heard.site]} takes no part in a "
                "secure sum; the server's status says why"
            )
        phase = PHASES.index(type(step_of(heard.body)))
        self._note(heard)
        self._steps[heard.site, heard.number, phase] = heard.body
        self.session.step(heard.site, None)
