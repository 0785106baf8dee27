"""The kernels of runs whose server learns nothing but sums."""

from __future__ import annotations

import heapq
from functools import partial
from typing import Any

from sordino.base.message import Task
from sordino.core import records
from sordino.core.effect import Joined, Left, Open, Request
from sordino.core.kernel import M
from sordino.core.simulation import S
from sordino.core.world import ServerSide
from sordino.mechanisms.secure.server import PHASES, Opened, Void
from sordino.network.agreement import Agreed
from sordino.network.checks import sendable
from sordino.network.courier import Courier
from sordino.network.journal import Input
from sordino.network.kernel import LiveKernel
from sordino.network.partner import setting
from sordino.network.scripted import Declined, ScriptedKernel
from sordino.network.standing import Heard
from sordino.network.sums import FAILURES, GRACE, INPUTS, PAUSE, Sums, declines, step_of

STEP = 60.0
"""Seconds that a sum waits for the step of a site that is there; less where rounds are short."""
MOST = 10
"""Times that the while is doubled for which a slow site is left out."""
_SUM = "sum "


class LiveSums(LiveKernel[S, M]):
    """As :class:`~sordino.network.kernel.LiveKernel`; a site that misses a step of a sum is not in
    it, and is asked again in the next round.
    """

    def __init__(self, *args: Any, sums: Sums, **more: Any) -> None:
        super().__init__(*args, **more)
        self._sums = sums
        self._missed: set[int] = set()
        self._tardy: set[int] = set()  # to be left out for a while
        self._opening: Open | None = None

    def begin(self) -> None:
        """Count in again who has missed a step."""
        for site in sorted(self._missed & self._there):
            self.tell(Joined(site))
        self._missed.clear()
        super().begin()

    def ask(self, site: int, task: Task) -> None:
        """Invite the site to the round's sum; it is asked the task when the shares are there."""
        self._sums.dispatch(site, task)
        if len(self._sums.tasks) == 1:
            self._wait()

    def open(self, effect: Open) -> None:
        """Ask who is in the sum to sign that, and to reveal the shares."""
        self._opening = effect
        self._sums.counted(effect)
        self._advance()

    def close(self, number: int, log: records.Round) -> None:
        """The round's sum is over."""
        self._quiet()
        self._sums.unopened()
        self._sums.forget()
        self._opening = None
        super().close(number, log)

    def _take(self, each: Input) -> None:
        if each.kind == "step" and self._sums.phase == INPUTS:
            self.courier.settled(each.site, each.number)
            self._sums.heard(each.site, each.body)
            self._out([each.site])
        elif each.kind == "step":
            self._sums.heard(each.site, each.body)
        else:
            super()._take(each)
        if each.kind == "down":
            self._tardy.discard(each.site)
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
            self.courier.note(site, "slow", "its step of a secure sum has not come in time")
            self._sums.slow[site] += GRACE
            if self._sums.slow[site] >= FAILURES * GRACE:
                self._tardy.add(site)
            self._sums.without(site)

    def _heard(self) -> Input | None:
        """Also that a site is left out. The journal holds that as if the site had refused, or gone,
        so that a server that is started again stands where it stood.
        """
        for site in () if self._replaying else sorted(self._there):
            if (times := self._sums.failures[site]) >= FAILURES:
                why = f"it has failed {times} secure sums, and is left out"
                self.courier.exclude(site, why)
                return self._noted("refused", why.encode(), site)
            if site in self._tardy and len(self._there) > self._minimum:
                again = self._sums.slow[site] // GRACE - FAILURES
                self.courier.pause(site, PAUSE * self._sums.seconds * 2.0 ** min(again, MOST))
                return self._noted("down", site=site)
        return super()._heard()

    def _advance(self) -> None:
        """End a step that everybody has taken who is left."""
        self._quiet()
        effect, before = self._opening, self._sums.sum
        done = self._sums.advance()
        if isinstance(done, list):
            self._out(done)
            if self._sums.phase != INPUTS:
                self._wait()
            return
        self._sums.blame(done)
        if effect is not None:
            self.tell(self._sums.summed(effect, done))
        elif self._sums.sum is before:
            everybody = sorted(self._sums.tasks)
            self._sums.forget()
            self._out(everybody)

    def _out(self, sites: list[int]) -> None:
        """These take no part in the round's sum: nobody waits for them."""
        for site in sites:
            if site in self._there:
                self._missed.add(site)
            self.tell(Left(site, final=True))

    @property
    def _tag(self) -> str:
        """Of the alarm of the open step."""
        return f"{_SUM}{self._sums.round} {self._sums.phase}"

    def _wait(self) -> None:
        if self._sums.sum is not None:
            self.push(self.time + self._sums.seconds, tag=self._tag)

    def _quiet(self) -> None:
        """Forget alarms of steps."""
        self.heap = [each for each in self.heap if not each[4].startswith(_SUM)]
        heapq.heapify(self.heap)


class ScriptedSums(ScriptedKernel[S, M]):
    """As :class:`~sordino.network.scripted.ScriptedKernel`; a site that misses a step ends it."""

    def __init__(self, *args: Any, sums: Sums, **more: Any) -> None:
        super().__init__(*args, **more)
        self._sums = sums
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
        self._sums.forget()
        self.tell(self._sums.summed(effect, done))

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
            self._settle()
        return None

    def _settle(self) -> None:
        """Answers that the journal holds already are not asked for again."""
        for site in self._sums.tasks if self._sums.phase == INPUTS else ():
            number = self._sums.tasks[site].number
            if (site, number) in self._answers:
                self.courier.settled(site, number)

    def _hear(self, heard: Heard) -> None:
        if heard.kind != "step":
            super()._hear(heard)
            return
        if declines(heard.body):
            raise Declined(
                f"the run was stopped: {self.courier.names[heard.site]} takes no part in a "
                "secure sum; the server's status says why"
            )
        phase = PHASES.index(type(step_of(heard.body)))
        self._noted += 1
        self.journal.append(Input(self._noted, 0.0, "step", heard.site, heard.body, heard.number))
        self._steps[heard.site, heard.number, phase] = heard.body
        self.courier.step(heard.site, None)


def kernels(
    world: ServerSide[Any], agreed: Agreed, dimension: int, run: str, courier: Courier
) -> tuple[dict[str, Any], type[ScriptedKernel[Any, Any]], type[LiveKernel[Any, Any]]]:
    """The kernels that play a world, and what they need besides: other ones where the server learns
    nothing but sums.
    """
    if (summing := world.summing) is None:
        return {}, ScriptedKernel, LiveKernel
    deadline = getattr(getattr(agreed.study, "participation", None), "deadline", None)
    # four steps and the answers: who is silent in one must not make the round miss its deadline
    step = STEP if deadline is None else min(STEP, deadline / 5)
    known = partial(setting, agreed, summing, dimension, run)
    sums = Sums(courier, known, agreed.verify, step)
    return {"sums": sums}, ScriptedSums, LiveSums
