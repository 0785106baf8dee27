"""Between the server's kernel and the transport: frames in and out, who is there, who is refused.

What a site was last asked is kept, and sent again whenever it connects: numbers make repeats
harmless. A connection that ends is no event until it has stayed away for the agreed patience.

Everything that a site says is checked here, before it is written down or acted on: who sent it is
who its certificate says, its messages speak for nobody else, and vectors have the model's length
and finite numbers. What does not fit is refused, named and counted; after too much of it the site
is cut off until it connects again.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from sordino.base.errors import RemoteProtocolError, printable
from sordino.base.message import Reply, Task, decode, encode
from sordino.network import frames
from sordino.network.checks import ahead, checked, differs, unknown
from sordino.network.seals import Far, Seals, seal
from sordino.network.standing import KINDS, LONGEST, Heard, Standing, leaving, returning, untimely
from sordino.network.transport import Event, Hub, Mailbox
from sordino.privacy import Event as Fact
from sordino.privacy import encode as written
from sordino.training.plausible import Length

MOST_BAD = 16
"""Frames of one connection that may be refused, before it is ended."""
AT_ONCE, LONGEST_OUT = 8, 600.0
"""How often a site that was out may be back at once, and seconds that it waits at most then."""


def _silent(site: str, what: str, detail: str) -> None:
    pass


class Courier:
    """The kernel's way to the sites.

    Args:
        hub, mailbox: the transport.
        names: of the sites, in order.
        dimension: d.
        run: the federation's run.
        agreement: digest of what was agreed to.
        patience: seconds without a connection after which a site is gone.
        refused: told of each kind of refusal once: which site, and why.
        noted: told of each refusal: which site, what it is, and the detail.
        unfit: why a message about an event is refused, as the regime says; see
            :meth:`~sordino.core.world.ServerSide.unfit`; ``most`` is how long a vector may be.
        owed: rounds that were charged to a site after the one with this number, and their events:
            what a server that was restarted does not remember.
        seals: of what sites were asked; see :mod:`~sordino.network.seals`.

    Attributes:
        far: how far the server has gone with a site, which the kernel knows.
        bridges: whether the run can go on after a task that a site proves that it was asked.
        steps: what is heard where a site takes a step of a secure sum, where there are any.
    """

    def __init__(
        self,
        hub: Hub,
        mailbox: Mailbox,
        names: Sequence[str],
        *,
        dimension: int,
        run: str,
        agreement: str,
        patience: float,
        refused: Callable[[str, str], None],
        noted: Callable[[str, str, str], object] = _silent,
        unfit: Callable[[int, int, Reply], str | None] = unknown,
        most: float = math.inf,
        owed: Callable[[int, int], Iterable[tuple[int, Fact]]] = lambda site, after: (),
        seals: Seals | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._unfit, self._most, self.noted = unfit, most, noted
        self._hub, self._mailbox, self.names = hub, mailbox, tuple(names)
        self.run, self._dimension = run, dimension
        self._agreement = agreement
        self._patience, self._refused, self._clock = patience, refused, clock
        self._owed, self._seals, self._began = owed, seals, clock()
        self.far: Callable[[int], Far] | None = None
        self.bridges: Callable[[int, int], bool] = lambda site, number: False
        self._more: deque[Heard] = deque()
        self.steps: Callable[[int, frames.Stepped], Heard | None] | None = None
        self._index = {name: i for i, name in enumerate(self.names)}
        self.sites = [Standing() for _ in self.names]
        self._last: tuple[object, bytes] | None = None

    def ask(self, site: int, task: Task, shares: bytes = b"") -> None:
        """Ask a site, now and whenever it connects again, until it has answered."""
        own = self.sites[site]
        sealed = seal(self._seals, "task", self.names[site], task.number)
        own.ask = frames.Ask(task.number, self._encoded(task), sealed, shares)
        if own.greeted:
            self._send(site, frames.encode(own.ask))

    def step(self, site: int, step: frames.Step | None) -> None:
        """Ask a site for a step of a secure sum, likewise; or for none any more."""
        own = self.sites[site]
        own.step = step
        if step is not None and own.greeted:
            self._send(site, frames.encode(step))

    def book(self, site: int, number: int, fact: Fact) -> None:
        """Have a site book a round, likewise."""
        own, frame = self.sites[site], self._booking(site, number, fact)
        own.books[number] = frame
        if own.greeted:
            self._send(site, frame)

    def _booking(self, site: int, number: int, fact: Fact) -> bytes:
        sealed = seal(self._seals, "round", self.names[site], number)
        return frames.encode(frames.Book(number, written(fact), sealed))

    def flush(self) -> None:
        """Let frames go now: what comes next may take long."""
        self._mailbox.waits()

    def settled(self, site: int, number: int) -> None:
        """A site has answered or refused a task, or is not waited for any more."""
        own = self.sites[site]
        if own.ask is not None and own.ask.number <= number:
            own.ask = None

    def booked(self, site: int, number: int) -> None:
        """A site has booked a round, or refused to."""
        self.sites[site].books.pop(number, None)

    def barred(self, site: int, why: str) -> None:
        """A site takes part no more until it connects again. One that is out again and again, and
        answers nothing between, waits twice as long each time: each is a row and a journal entry.
        """
        own = self.sites[site]
        own.there, own.out = False, printable(why, LONGEST) or "no reason was given"
        own.barred += 1
        own.paused = -math.inf
        if own.barred > AT_ONCE:
            wait = min(2.0 ** min(own.barred - AT_ONCE, 64), LONGEST_OUT)
            own.paused = self._clock() + wait

    def exclude(self, site: int, why: str) -> None:
        """Admit a site no more while this process lives."""
        self.sites[site].excluded = why
        self.drop(site, why)

    def pause(self, site: int, seconds: float) -> None:
        """Count a site as absent for so long, connected or not."""
        own = self.sites[site]
        own.there, own.paused = False, self._clock() + seconds
        self.note(site, "slow", f"it is asked for nothing for {seconds:.0f} s")

    def admitted(self, site: int) -> None:
        """A site takes part again."""
        self.sites[site].out = ""

    def drop(self, site: int, why: str) -> None:
        """End a site's connection."""
        self._hub.drop(self.names[site], why)

    def weighed(self, site: int, number: int, found: Length | None) -> None:
        """Flag an answer that is longer than an honest one is but by a chance below 10^-9."""
        if found is None or found.plausible:
            return
        own = self.sites[site]
        own.flagged += 1
        own.flag = (
            f"task {number}: an answer of length {found.found:.4g}, where clipping and noise allow "
            f"{found.most:.4g}"
        )
        self.noted(self.names[site], "norm", own.flag)
        if own.flagged == 1:
            self._refused(self.names[site], f"flagged, and used: {own.flag}")

    def missing(self) -> list[str]:
        """Names of the sites that are absent, once they have been for the agreed patience."""
        now = self._clock()
        late = now >= self._began + self._patience
        return [
            name
            for name, own in zip(self.names, self.sites, strict=True)
            if late and not own.there and not own.out
        ]

    def expect(self, sites: Iterable[int]) -> None:
        """Count these as present: a server that was killed has them in its journal. Who stays away
        for the agreed patience is gone.
        """
        for site in sites:
            own = self.sites[site]
            if not own.there:
                own.there, own.since = True, self._clock()

    def bye(self, bye: frames.Bye, seconds: float) -> int:
        """Tell everybody that the run is over, and wait a while until they have kept what they
        need, or have refused what they were told. How many have been heard.
        """
        frame = frames.encode(bye)
        for i, own in enumerate(self.sites):
            own.ask = own.step = None
            own.books.clear()
            if own.greeted:
                self._send(i, frame)
        end = self._clock() + seconds
        missing = set(range(len(self.sites)))
        while missing and (left := end - self._clock()) > 0:
            event = self._mailbox.get(left)
            if event is not None and self._heard_at_end(event, frame):
                missing.discard(self._index[event.site])
        return len(self.sites) - len(missing)

    def _heard_at_end(self, event: Event, bye: bytes) -> bool:
        """Whether a site has kept what it needs; one that connects is told."""
        site = self._index[event.site]
        own = self.sites[site]
        if event.kind == "open":
            self._opened(own, event)
        if event.kind != "frame" or event.connection != own.connection:
            return False
        try:
            said = frames.to_server(event.frame)
        except RemoteProtocolError:
            return False
        if isinstance(said, frames.Hello) and not own.greeted and self._greet(site, said):
            self._send(site, bye)
        if isinstance(said, frames.Refuse):
            self.note(site, "declined", f"the end: {said.why}")
        return isinstance(said, frames.Done | frames.Refuse)

    def next(self, until: float | None) -> Heard | None:
        """What reaches the server next; None when the clock has passed ``until``.

        Frames that are refused are dealt with on the way.
        """
        while True:
            if self._more:
                return self._more.popleft()
            now = self._clock()
            if (gone := self._gone(now) or self._back(now)) is not None:
                return gone
            if until is not None and now >= until:
                return None
            event = self._mailbox.get(self._pause(now, until))
            if event is not None and (heard := self._heard(event)) is not None:
                return heard

    def _pause(self, now: float, until: float | None) -> float | None:
        ends = [own.since + self._patience for own in self.sites if leaving(own)]
        ends += [own.paused for own in self.sites if returning(own)]
        if until is not None:
            ends.append(until)
        return min(ends) - now if ends else None

    def _gone(self, now: float) -> Heard | None:
        for i, own in enumerate(self.sites):
            if leaving(own) and now >= own.since + self._patience:
                own.there = False
                if own.revoked:
                    return Heard("refused", i, own.revoked.encode())
                return Heard("down", i)
        return None

    def _back(self, now: float) -> Heard | None:
        for i, own in enumerate(self.sites):
            if returning(own) and now >= own.paused:
                return self._present(i)
        return None

    def _present(self, site: int) -> Heard:
        """A site counts as present from now on."""
        own = self.sites[site]
        own.there, own.paused = True, -math.inf
        return Heard("up", site)

    def _heard(self, event: Event) -> Heard | None:
        site = self._index[event.site]
        own = self.sites[site]
        if event.kind == "open":
            self._opened(own, event)
            return None
        if event.kind == "barred":
            own.revoked = own.revoked if own.connection else event.frame.decode()
            return None
        if event.connection != own.connection:  # of a connection that another one has replaced
            return None
        if event.kind == "closed":
            self._unwelcome(own)
            own.connection = 0
            return None
        own.received += len(event.frame)
        own.seen = self._clock()
        try:
            return self._said(site, frames.to_server(event.frame))
        except RemoteProtocolError as error:
            self.bad(site, error)
            return None

    def _opened(self, own: Standing, event: Event) -> None:
        self._unwelcome(own)
        own.connection, own.bad = event.connection, 0

    def _unwelcome(self, own: Standing) -> None:
        """From now on its absence counts; a connection without a greeting does not make it
        present.
        """
        if own.greeted:
            own.greeted, own.since = False, self._clock()

    def _said(self, site: int, said: frames.FromSite) -> Heard | None:
        own = self.sites[site]
        if isinstance(said, frames.Hello):
            return self._hello(site, said)
        if not own.greeted:
            raise RemoteProtocolError("it speaks before its greeting", "greeting")
        match said:
            case frames.Say(number, body):
                return self._answer(site, number, body)
            case frames.Stepped() if self.steps is not None:
                return self.steps(site, said)
            case frames.Stepped():
                self.note(site, "unasked", "a step of a secure sum, where there are none")
            case frames.Booked(number):
                if number in own.books:
                    return Heard("booked", site, number=number)
                self.note(site, "unasked", f"a booking of round {number}")
            case frames.Refuse(number, why):
                asked = own.ask is not None and own.ask.number == number
                if own.there and (asked or number == 0 or number in own.books):
                    return Heard("refused", site, why.encode(errors="replace"), number)
                self.note(site, "unasked", "a refusal of what it was not asked")
            case frames.Done():
                self.note(site, "unasked", "the end of a run that has not ended")
        return None

    def _answer(self, site: int, number: int, body: bytes) -> Heard | None:
        """An answer, or its refusal: the site keeps only this answer to the task, so the run goes
        on without it.
        """
        own = self.sites[site]
        if own.ask is None or own.ask.number != number:
            self.note(site, untimely(own, number), "an answer that nobody waits for")
            return None
        try:
            said = decode(body, dimension=self._dimension)
            reply = checked(site, number, said, self._unfit, self._most)
        except RemoteProtocolError as error:
            self.bad(site, error)
            why = f"its answer cannot be used: {error}".encode()
            return Heard("refused", site, why, number)
        own.answered, own.barred = number, 0
        return Heard("message", site, body, number, reply)

    def _hello(self, site: int, said: frames.Hello) -> Heard | None:
        own = self.sites[site]
        if own.greeted:
            raise RemoteProtocolError("it greets twice", "greeting")
        if not self._greet(site, said):
            return None
        if self._seals is not None and self.far is not None:
            bridged = partial(self.bridges, site, said.task[0])
            if ahead(self._seals, self.names[site], self.far(site), said, bridged):
                own.ask = None
                self._more.append(Heard("ahead", site, number=said.task[0]))
        for number, fact in self._owed(site, said.booked):
            own.books.setdefault(number, self._booking(site, number, fact))
        for _, frame in sorted(own.books.items()):
            self._send(site, frame)
        for asked in (own.ask, own.step):
            if asked is not None:
                self._send(site, frames.encode(asked))
        if not own.there and self._clock() >= own.paused:
            self._more.append(self._present(site))
        return None

    def _greet(self, site: int, said: frames.Hello) -> bool:
        """Welcome a site, or say why not."""
        error = differs(said, self._agreement)
        if self.sites[site].excluded:
            error = RemoteProtocolError(self.sites[site].excluded, "left out")
        self.sites[site].turned = "" if error is None else str(error)
        if error is not None:
            self.bad(site, error)
            self._send(site, frames.encode(frames.Reject(str(error))))
            return False
        self.sites[site].greeted, self.sites[site].revoked = True, ""
        self._send(site, frames.encode(frames.Welcome(self.run)))
        return True

    def bad(self, site: int, error: RemoteProtocolError) -> None:
        """Refuse a frame; after too many of one connection, end it."""
        own = self.sites[site]
        own.bad += 1
        self.note(site, error.what, str(error))
        if own.bad >= MOST_BAD:
            why = "too many frames that were refused"
            self.noted(self.names[site], "cut off", why)
            self._hub.drop(self.names[site], why)

    def note(self, site: int, what: str, why: str) -> None:
        """Name and count what a site has done that it must not."""
        counted = self.sites[site].refused
        key = printable(why, LONGEST)
        if key not in counted and len(counted) >= KINDS:
            key = "more kinds of refused frames"
        counted[key] += 1
        self.noted(self.names[site], what, key)
        if counted[key] == 1:
            self._refused(self.names[site], key)

    def _send(self, site: int, frame: bytes) -> None:
        self.sites[site].sent += len(frame)
        self._hub.send(self.names[site], frame)

    def _encoded(self, task: Task) -> bytes:
        """The bytes of a task; one that goes to everybody is encoded once."""
        if self._last is None or self._last[0] is not task:
            self._last = (task, encode(task))
        return self._last[1]
