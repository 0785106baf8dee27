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
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple

from sordino.base.errors import RemoteProtocolError, printable
from sordino.base.message import (
    Embedding,
    Gradient,
    Labels,
    Passive,
    Reply,
    Task,
    Update,
    decode,
    encode,
    vectors,
)
from sordino.core.effect import EventBlock, Request
from sordino.core.world import ServerSide
from sordino.network import frames
from sordino.network.kit import Agreed
from sordino.network.storage import Kind, ProgressTokens
from sordino.network.transport import IS_REVOKED, Event, Hub, Mailbox
from sordino.privacy import Event as Fact
from sordino.privacy import encode as written
from sordino.training.plausible import Length, length

KINDS, LONGEST = 64, 300
"""Reasons that are told apart for each site, and characters of one."""
MOST_BAD = 16
"""Frames of one connection that may be refused, before it is ended."""
REASON = 160
"""Characters of one site's reason in what everybody is told."""
AT_ONCE, LONGEST_OUT = 8, 600.0
"""Times that a site that was out may be back at once, and seconds that it waits at most then."""


@dataclass(slots=True)
class SiteStanding:
    """A site as the server knows it.

    Attributes:
        connection: number of its connection; 0 without one.
        answered: number of the last task that it has answered.
        answers: that were used, since this process began.
        greeted: whether it has said on this connection who it is and what it agreed to.
        there: whether it counts as present.
        since: since when it is not greeted, in seconds of the clock.
        ask: what it was last asked, and has not answered.
        step: the step of a secure sum that it was last asked for, and has not taken.
        out: why it takes part no more, until it connects again; empty while it does.
        barred: how often it was out since its last answer.
        turned: why its greeting was not accepted, until one is.
        excluded: why this process of the server admits it no more; empty while it does.
        paused: until when it is not counted as present, in seconds of the clock.
        revoked: that its certificate is revoked, until it greets with another.
        serial: of the certificate that it was last admitted with, where that is known.
        books: rounds that it has not booked yet.
        bad: frames of this connection that were refused.
        refused: counts of what was refused, by reason.
        flagged: answers that were longer than clipping and noise make plausible, and were used all
            the same; ``flag`` is about the last one.
        received, sent: bytes of frames.
        seen: when it was last heard from.
    """

    connection: int = 0
    answered: int = 0
    answers: int = 0
    greeted: bool = False
    there: bool = False
    since: float = 0.0
    ask: frames.Ask | None = None
    step: frames.Step | None = None
    out: str = ""
    barred: int = 0
    turned: str = ""
    excluded: str = ""
    paused: float = -math.inf
    revoked: str = ""
    serial: bytes = b""
    books: dict[int, bytes] = field(default_factory=dict)
    bad: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    flagged: int = 0
    flag: str = ""
    received: int = 0
    sent: int = 0
    seen: float = 0.0

    @property
    def leaving(self) -> bool:
        """True where it is counted out when it stays away for the agreed patience."""
        return not self.greeted and (self.there or (bool(self.revoked) and not self.out))

    @property
    def returning(self) -> bool:
        """True where it was left out for a while and is connected."""
        return self.greeted and not self.there and self.paused > -math.inf


class Heard(NamedTuple):
    """Something that reaches the server.

    Attributes:
        kind: see :class:`~sordino.network.storage.Input`; ``stop`` where a site knows of the end.
    """

    kind: Kind
    site: int
    body: bytes = b""
    number: int = 0


def refuse_reply(site: int, number: int, message: Reply, world: ServerSide[Any]) -> None:
    """Refuse a message that is not of this site about this task, or whose vectors are longer than
    ``world.most``, or whose numbers are not those of such vectors: no more than ``||v - w||^2``.

    Raises:
        RemoteProtocolError: saying so.
    """
    most = world.most
    if isinstance(message, Embedding | Labels | Passive):
        if (why := world.objection_to_reply(site, number, message)) is not None:
            raise RemoteProtocolError(why, "unfit")
        return
    if message.client != site:
        raise RemoteProtocolError(
            f"it speaks for client {message.client} and is client {site}", "for another"
        )
    quoted = message.task if isinstance(message, Gradient) else message.round
    if quoted != number:
        raise RemoteProtocolError(
            f"its frame is of task {number}, its message of {quoted}", "another task"
        )
    for name, vector in vectors(message):
        if (found := length(vector)) > most:
            raise RemoteProtocolError(
                f"its {name} has the length {found:.3g}, and a model takes {most:.3g} at most",
                "too large",
            )
    for numbers in (message.statistics, message.raw) if isinstance(message, Update) else ():
        for name in () if numbers is None else numbers.__struct_fields__:
            value = getattr(numbers, name)
            if not isinstance(value, float | int):
                continue
            if not math.isfinite(value):
                raise RemoteProtocolError(f"its {name} is not finite", "not finite")
            if abs(value) > 4.0 * most**2:
                raise RemoteProtocolError(
                    f"its {name} is {value:.3g}, and vectors that a model takes give "
                    f"{4.0 * most**2:.3g} at most",
                    "too large",
                )


def sendable(task: Request) -> Task:
    """Return a task that can be sent."""
    assert not isinstance(task, EventBlock)  # is played in one process
    return task


def reply_in(body: bytes, dimension: int) -> Reply:
    """Return the reply of a site in these bytes.

    Raises:
        RemoteProtocolError: if no site says that.
    """
    found = decode(body, dimension=dimension)
    if not isinstance(found, Reply):
        raise RemoteProtocolError(f"a site does not send {type(found).__name__}", "no answer")
    return found


class ServerSession:
    """The kernel's way to the sites.

    Args:
        hub, mailbox: the transport.
        agreed: what everybody has agreed to.
        dimension: d.
        run: the federation's run.
        noted: told of each refusal: which site, what it is, and the detail.
        world: the federation, which says what of a message about an event is refused.
        owed: rounds that were charged to a site after the one with this number, and their events:
            what a server that was restarted does not remember.
        tokens: of what sites were asked.

    Attributes:
        state: of the run, where the server can be behind its sites; the kernel knows it.
        steps: what is heard where a site takes a step of a secure sum, where there are any.
    """

    def __init__(
        self,
        hub: Hub,
        mailbox: Mailbox,
        agreed: Agreed,
        *,
        dimension: int,
        run: str,
        noted: Callable[[str, str, str], object] = lambda site, what, detail: None,
        world: ServerSide[Any] | None = None,
        owed: Callable[[int, int], Iterable[tuple[int, Fact]]] = lambda site, after: (),
        tokens: ProgressTokens | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._hub, self._mailbox, self.agreed, self.noted = hub, mailbox, agreed, noted
        self.names, self._patience = agreed.agreement.names, agreed.agreement.patience
        self.run, self.dimension = run, dimension
        self._world: ServerSide[Any] = ServerSide() if world is None else world
        self._clock, self._owed, self._tokens = clock, owed, tokens
        self._began = clock()
        self.state: Callable[[], Any] | None = None
        self.steps: Callable[[int, frames.Stepped], Heard | None] | None = None
        self._more: deque[Heard] = deque()
        self._index = {name: i for i, name in enumerate(self.names)}
        self.sites = [SiteStanding(since=clock()) for _ in self.names]
        self._last: tuple[object, bytes] | None = None
        self._bye = b""  # once the run is over

    def ask(self, site: int, task: Task, shares: bytes = b"") -> None:
        """Ask a site, now and whenever it connects again, until it has answered."""
        standing = self.sites[site]
        token = self._token("task", site, task.number)
        if self._last is None or self._last[0] is not task:  # that to everybody is encoded once
            self._last = task, encode(task)
        standing.ask = frames.Ask(task.number, self._last[1], token, shares)
        self._send(site, frames.encode(standing.ask))

    def step(self, site: int, step: frames.Step | None) -> None:
        """Ask a site for a step of a secure sum, likewise; or for none any more."""
        self.sites[site].step = step
        if step is not None:
            self._send(site, frames.encode(step))

    def book(self, site: int, number: int, fact: Fact) -> None:
        """Have a site book a round, likewise."""
        frame = self.sites[site].books[number] = self._booking(site, number, fact)
        self._send(site, frame)

    def _booking(self, site: int, number: int, fact: Fact) -> bytes:
        token = self._token("round", site, number)
        return frames.encode(frames.Book(number, written(fact), token))

    def _token(self, kind: Literal["task", "round"], site: int, number: int) -> bytes:
        return b"" if self._tokens is None else self._tokens.of(kind, self.names[site], number)

    def answered(self, site: int, number: int) -> None:
        """A site has answered a task."""
        self.sites[site].answered = max(self.sites[site].answered, number)
        self.close_ask(site, number)

    def answers(self) -> Iterator[tuple[int, int]]:
        """Yield who has answered which task last, where that is no secret."""
        for site, standing in enumerate(self.sites):
            if standing.answered and not self._world.charges_everybody:
                yield site, standing.answered

    def close_ask(self, site: int, number: int) -> None:
        """A site has answered or refused a task, or is not waited for any more."""
        standing = self.sites[site]
        if standing.ask is not None and standing.ask.number <= number:
            standing.ask = None

    def close_booking(self, site: int, number: int) -> None:
        """A site has booked a round, or refused to."""
        self.sites[site].books.pop(number, None)

    def barred(self, site: int, why: str, *, away: bool = False) -> None:
        """A site takes part no more until it connects again. One that is out again and again, and
        answers nothing between, waits twice as long each time: each is a row and a journal entry.
        One that is only ``away`` is not counted out.
        """
        standing = self.sites[site]
        out = "" if away else printable(why, LONGEST) or "no reason was given"
        standing.there, standing.out = False, out
        standing.barred += 1
        standing.paused = -math.inf
        if standing.barred > AT_ONCE:
            wait = min(2.0 ** min(standing.barred - AT_ONCE, 64), LONGEST_OUT)
            standing.paused = self._clock() + wait

    def exclude(self, site: int, why: str) -> None:
        """Admit a site no more while this process lives."""
        self.sites[site].excluded = why
        self.drop(site, why)

    def pause(self, site: int, seconds: float) -> None:
        """Count a site as absent for so long, connected or not."""
        standing = self.sites[site]
        standing.there, standing.paused = False, self._clock() + seconds
        self.note(site, "slow", f"it is asked for nothing for {seconds:.0f} s")

    def admitted(self, site: int, serial: bytes) -> None:
        """A site takes part again, by this certificate."""
        standing = self.sites[site]
        standing.out, standing.serial = "", serial or standing.serial

    def drop(self, site: int, why: str) -> None:
        """End a site's connection."""
        self._hub.drop(self.names[site], why)

    def flag_implausible(self, site: int, number: int, found: Length | None) -> None:
        """Flag an answer that is longer than an honest one is but by a chance below 10^-9."""
        if found is None or found.plausible:
            return
        standing = self.sites[site]
        standing.flagged += 1
        standing.flag = (
            f"task {number}: an answer of length {found.found:.4g}, where clipping and noise allow "
            f"{found.most:.4g}"
        )
        self.noted(self.names[site], "norm", f"flagged, and used: {standing.flag}")

    def missing(self) -> list[str]:
        """Names of the sites that are absent, once they have been for the agreed patience."""
        now = self._clock()
        late = now >= self._began + self._patience
        return [
            name
            for name, standing in zip(self.names, self.sites, strict=True)
            if late and not standing.there and not standing.out
        ]

    def hopeless(self, minimum: int, exhausted: Collection[int] = ()) -> str | None:
        """Return why fewer than ``minimum`` sites are left, or none that can be asked, who is out,
        and why; or None. ``exhausted`` sites have given all they can pay for. Where nobody may
        know who takes part, only the status names sites.
        """
        secret = self._world.charges_everybody
        out = {i: each.out for i, each in enumerate(self.sites) if each.out}
        left = len(self.sites) - len(out)
        turned = {
            i: each.turned or "its budget is spent"
            for i, each in enumerate(self.sites)
            if (each.turned or i in exhausted) and not each.out
        }
        lacks = [self.names[i] for i in out if self._world.indispensable(i)]
        if left < minimum:
            what = f"{left} of {len(self.sites)} sites are left, and {minimum} must take part"
        elif left == len(turned):
            what, out = "no site can be asked any more", out | turned
        elif lacks and not secret:
            what = f"nothing goes on without {lacks[0]}"
        else:
            return None
        who = "; ".join(f"{self.names[i]}: {why[:REASON]}" for i, why in sorted(out.items()))
        return f"{frames.STOPPED}{what}. " + (
            "The server's status names who is out" if secret else who
        )

    def expect(self, sites: Iterable[int]) -> None:
        """Count these as present: a server that was killed has them in its journal. Who stays away
        for the agreed patience is gone.
        """
        for site in sites:
            standing = self.sites[site]
            if not standing.there:
                standing.there, standing.since = True, self._clock()

    def bye(self, bye: frames.Bye, seconds: float) -> int:
        """Tell everybody that the run is over, and wait a while until they have kept what they
        need, or have refused what they were told: longer for who is connected, or was a moment ago,
        by as much as the model takes on a slow line that may break. How many have been heard.
        """
        self._bye = frames.encode(bye)
        for site, standing in enumerate(self.sites):
            standing.ask = standing.step = None
            standing.books.clear()
            self._send(site, self._bye)
        soon, missing = self._clock() + seconds, set(range(len(self.sites)))
        late = soon + len(self._bye) / frames.SLOWEST
        while missing:
            if any(self.sites[each].greeted for each in missing):
                soon = self._clock() + seconds
            until = min(soon, late)
            heard = self.next(min(until, self._clock() + 1.0))
            if heard is not None and heard.kind == "stop":
                missing.discard(heard.site)
            elif heard is None and self._clock() >= until:
                break
        return len(self.sites) - len(missing)

    def next(self, until: float | None) -> Heard | None:
        """Return what reaches the server next; None when the clock has passed ``until``.

        Frames that are refused are dealt with on the way.
        """
        while True:
            if self._more:
                return self._more.popleft()
            now = self._clock()
            if (due := self._due(now)) is not None:
                return due
            if until is not None and now >= until:
                return None
            ends = [each.since + self._patience for each in self.sites if each.leaving]
            ends += [each.paused for each in self.sites if each.returning]
            ends += [] if until is None else [until]
            event = self._mailbox.get(min(ends) - now if ends else None)
            if event is not None and (heard := self._heard(event)) is not None:
                return heard

    def _due(self, now: float) -> Heard | None:
        """Return that a site is gone by now, or back after it was left out for a while."""
        for i, standing in enumerate(self.sites):
            if standing.leaving and now >= standing.since + self._patience:
                standing.there = False
                revoked = standing.revoked.encode()
                return Heard("refused", i, revoked) if revoked else Heard("down", i)
            if standing.returning and now >= standing.paused:
                return self._present(i)
        return None

    def _present(self, site: int) -> Heard:
        """A site counts as present from now on."""
        standing = self.sites[site]
        standing.there, standing.paused = True, -math.inf
        return Heard("up", site, standing.serial)

    def _heard(self, event: Event) -> Heard | None:
        site = self._index[event.site]
        standing = self.sites[site]
        if event.kind == "open":
            self._unwelcome(standing)
            standing.connection, standing.bad, standing.serial = event.connection, 0, event.frame
            return None
        if event.kind == "barred":
            if not standing.connection and standing.serial in (b"", event.frame):
                standing.revoked = IS_REVOKED
            return None
        if event.connection != standing.connection:  # of a connection that another one has replaced
            return None
        if event.kind == "closed":
            self._unwelcome(standing)
            standing.connection = 0
            return None
        standing.received += len(event.frame)
        standing.seen = self._clock()
        try:
            return self._said(site, frames.to_server(event.frame))
        except RemoteProtocolError as error:
            self.bad(site, error)
            return None

    def _unwelcome(self, standing: SiteStanding) -> None:
        """From now on its absence counts; a connection without a greeting does not make it
        present.
        """
        if standing.greeted:
            standing.greeted, standing.since = False, self._clock()

    def _said(self, site: int, said: frames.FromSite) -> Heard | None:
        standing = self.sites[site]
        if isinstance(said, frames.Hello):
            return self._hello(site, said)
        if self._bye:
            if isinstance(said, frames.Refuse) and said.number:
                return None  # of a round that it owed: it is told the end all the same
            if isinstance(said, frames.Refuse):
                self.note(site, "declined", f"the end: {said.why}")
            return Heard("stop", site) if isinstance(said, frames.Done | frames.Refuse) else None
        if not standing.greeted:
            raise RemoteProtocolError("it speaks before its greeting", "greeting")
        match said:
            case frames.Say(number, body):
                return self._answer(site, number, body)
            case frames.Stepped() if self.steps is not None:
                return self.steps(site, said)
            case frames.Stepped():
                raise RemoteProtocolError("a step of a secure sum, where there are none", "unasked")
            case frames.Booked(number):
                if number in standing.books:
                    return Heard("booked", site, number=number)
                raise RemoteProtocolError(f"a booking of round {number}", "unasked")
            case frames.Refuse(number, why):
                asked = standing.ask is not None and standing.ask.number == number
                if standing.there and (asked or number == 0 or number in standing.books):
                    return Heard("refused", site, why.encode(errors="replace"), number)
                raise RemoteProtocolError("a refusal of what it was not asked", "unasked")
            case frames.Done():
                raise RemoteProtocolError("the end of a run that has not ended", "unasked")
        return None

    def _answer(self, site: int, number: int, body: bytes) -> Heard | None:
        """An answer, or its refusal: the site keeps only this answer to the task, so the run goes
        on without it.
        """
        standing = self.sites[site]
        asked = standing.ask.number if standing.ask else 0
        if standing.ask is None or asked != number:
            late = "stale" if number < max(standing.answered, asked) else "unasked"
            what = "replayed" if number == standing.answered else late
            self.note(site, what, "an answer that nobody waits for")
            return None
        standing.answered = number
        try:
            refuse_reply(site, number, reply_in(body, self.dimension), self._world)
        except RemoteProtocolError as error:
            self.bad(site, error)
            return Heard("refused", site, f"its answer cannot be used: {error}".encode(), number)
        standing.barred, standing.answers = 0, standing.answers + 1
        return Heard("message", site, body, number)

    def _hello(self, site: int, said: frames.Hello) -> Heard | None:
        standing = self.sites[site]
        if standing.greeted:
            raise RemoteProtocolError("it greets twice", "greeting")
        if not self._greet(site, said):
            return None
        for number, fact in self._owed(site, said.booked):
            standing.books.setdefault(number, self._booking(site, number, fact))
        for _, frame in sorted(standing.books.items()):
            self._send(site, frame)
        if self._bye:
            self._send(site, self._bye)
            return None
        if self._tokens is not None and self.state is not None:
            state, name = self.state(), self.names[site]
            known = self._world.regime.latest(state, site), state.number
            bridged = partial(self._world.booked_until, state, site, said.task[0])
            if self._tokens.prove_later(name, known, said, bridged):
                standing.ask = None
                self._more.append(Heard("ahead", site, number=said.task[0]))
        if standing.ask is not None:
            self._send(site, frames.encode(standing.ask))
        if standing.step is not None:
            self._send(site, frames.encode(standing.step))
        if not standing.there and self._clock() >= standing.paused:
            self._more.append(self._present(site))
        return None

    def _greet(self, site: int, said: frames.Hello) -> bool:
        """Welcome a site, or say why not."""
        standing = self.sites[site]
        why, what = standing.excluded, "left out"
        if not why and said.version != frames.VERSION:
            why = f"it speaks version {said.version} of the protocol, the server {frames.VERSION}"
            what = "another version"
        elif not why and said.agreement != self.agreed.digest:
            why = "it has agreed to something else: its agreement.toml or study.toml differs"
            what = "another study"
        if why:
            error = RemoteProtocolError(why, what)
            standing.turned = str(error)
            self.bad(site, error)
            self._hub.send(self.names[site], frames.encode(frames.Reject(str(error))))
            return False
        standing.greeted, standing.revoked, standing.turned = True, "", ""
        answered = dict(self.answers()).get(site, 0)
        if answered > said.last:
            why = f"it has answered task {answered}, and remembers task {said.last} as its last one"
            self.note(site, "older copy", why)
        later = answered if answered > said.last else 0
        self._send(site, frames.encode(frames.Welcome(self.run, later)))
        return True

    def bad(self, site: int, error: RemoteProtocolError) -> None:
        """Refuse a frame; after too many of one connection, end it."""
        standing = self.sites[site]
        standing.bad += 1
        self.note(site, error.what, str(error))
        if standing.bad >= MOST_BAD:
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

    def _send(self, site: int, frame: bytes) -> None:
        """Send a frame to a site that has greeted."""
        if self.sites[site].greeted:
            self.sites[site].sent += len(frame)
            self._hub.send(self.names[site], frame)
