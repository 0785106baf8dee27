"""A site's side of the conversation: its answer to each frame of the server. It knows no
connection.

A site refuses, with a reason that it writes in its log: a task of another clip, less noise, more
steps, another question or another model than agreed; a second task under one number, or under one
that is past; whatever its own budget does not pay for; a final model that cannot be used.

Where it is a secret who takes part in a round (:attr:`sordino.core.world.RegimeRules.secret`), what
a site leaves behind follows from the rounds that it has booked, which are all rounds, and not from
those that it was asked in: rows, steps, the model, the proof, and what the answer store holds at
the end.
"""

# Theory of operation
#
# A site answers each task once. Whoever gets two answers to one task, or the same noise on two
# answers, learns what the noise hides; and an answer that no ledger holds is a release for
# nothing. So each task goes through the same steps, and each step is on disk before the next one
# begins:
#
#     take     the task's number and digest go into the answer store (a slot without an answer)
#     book     the site's own ledger is charged, within the site's own limit, or the task is refused
#     compute  the client of the simulation works on it, under permits of that charge
#     save     the answer goes into the answer store
#     say      the frame is sent
#
# Killed between two of them, the site connects again, the server asks again whatever it has no
# answer to, and _asked tells by the store where the site stands:
#
#     asked a lower number              refuse: it is past
#     asked the same, other bytes       refuse: a second task under one number
#     the same, and an answer is saved  say the same bytes again
#     the same, and none is saved       book and compute again: nothing of what the killed process
#                                       had drawn was sent, and noise is drawn anew
#     asked a higher number             a new task
#
# A charge of a killed process that led to no answer stays in the ledger: a ledger may hold more
# than was said, never less.
#
# Sites that remember. Where work changes the site (a party of events learns from derivatives),
# the order is another one: book, write the task into the site's own journal, compute, hold the
# answer in memory, say. The journal leads from the last saved moment to the present: __init__
# goes through its tasks again (_replay), gets the same permits, draws the same noise, which is
# numbered by events, and so holds the same answers again. Nothing is sent meanwhile. A task that
# was refused left no record: it was booked first. Every so many rows the moment is saved, with
# what the site carries from task to task, and the journal begins anew (_save). The count of a
# moment says which inputs it holds, so that a kill between save and cut skips them.
#
# Numbered noise must never meet another input. If the machine itself fails, the journal may have
# lost its end, and the same event could come again on other weights; so it could where the file is
# damaged, emptied or missing. The replay guard's note is on disk before that (storage.ReplayGuard):
# up to the noted number the site answers nothing that its store does not hold, and says so; the
# server goes on with later events.
#
# A ledger that cannot be read or written (LedgerError) ends the process, and is no refusal: the
# server would count the site out, where it can come back once its ledger is well.
#
# Rounds that are charged to everybody are booked by _book, drawn or not, in order; a task below a
# booked round is past. Secure sums put their own steps before the answer (secure_client): whether
# a sum was begun is in the store before its first word, and its secrets are in memory alone.
#
# The tokens that come with tasks and bookings are shown at the next greeting: they tell a server
# whose folder was put back from an older copy that it has asked more than it knows
# (storage.ProgressTokens).

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from sordino.base.arrays import below
from sordino.base.errors import (
    BudgetExceeded,
    HeldBack,
    LedgerError,
    LocalProtocolError,
    ProtocolError,
    RemoteProtocolError,
    StudyError,
    printable,
)
from sordino.base.frozen import Frozen
from sordino.base.message import Compute, Reply, Task, Train, Turn, Vector, decode, encode
from sordino.core import records
from sordino.core.effect import Book, Permits
from sordino.core.world import Arrays, ChargeRequest, EncodedSnapshot, SiteSide
from sordino.network import frames
from sordino.network.secure_client import INPUTS
from sordino.network.status import Incidents
from sordino.network.storage import (
    AnswerStore,
    Input,
    Journal,
    ReplayGuard,
    SiteProgress,
    TaskBlockNote,
    digest,
)
from sordino.network.transport import Lost
from sordino.privacy import Charge, Permit
from sordino.privacy import decode as fact_of
from sordino.training.passes import place_of, steps_of

if TYPE_CHECKING:
    from sordino.network.site import Site

CARRIED = "carried."
SERVER = "server"
MOST_TOLD = 1_000
"""Refusals of one connection or another that stand in the log; later ones are only answered."""
OWN = "this site's own budget does not allow it"
SPOKEN = frames.Book | frames.Ask | frames.Step | frames.Bye
MOST_LOST = 3
"""Lives in a row that may end between a task and its answer: each may have paid for it."""
MOST_UNPAID = 3
"""Times that a site refuses what its budget does not pay for, before it takes nothing more of a
run: each refusal costs nothing, and tells the server something of what the data has spent.
"""


class _Rest(Frozen, forbid_unknown_fields=True):
    """The part of a moment that is no vector."""

    number: int
    steps: int
    ended: str | None
    count: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class SiteMoment:
    """A site between two tasks.

    Attributes:
        number: of the last task.
        taken: local steps, or gradients, so far.
        model: the last one that it was sent (d,); at the end the one that is handed out.
        ended: why the run is over, or None.
        count: tasks that ``carried`` knows of, where a site remembers.
        carried: what it carries from one task to the next; see
            :meth:`~sordino.core.world.SiteSide.carried`.
    """

    number: int
    taken: int
    model: Vector
    ended: str | None = None
    count: int = 0
    carried: Arrays = field(default_factory=dict)

    def pack(self) -> EncodedSnapshot:
        rest = _Rest(self.number, self.taken, self.ended, self.count)
        own = {f"{CARRIED}{name}": values for name, values in self.carried.items()}
        return EncodedSnapshot({"model": self.model, **own}, msgspec.json.encode(rest))


def unpacked(packed: EncodedSnapshot) -> SiteMoment:
    """A moment that was kept.

    Raises:
        ValueError: if it cannot be one.
    """
    rest, model = msgspec.json.decode(packed.rest, type=_Rest), packed.vectors["model"]
    carried = below(CARRIED, packed.vectors)
    return SiteMoment(rest.number, rest.steps, model, rest.ended, rest.count, carried)


class SiteSession:
    """A site's side of the conversation, over all of its connections.

    Attributes:
        moment: where the site stands.
        answers: what it has promised and said.
        heard: whether the last frame of this connection could be read; false before the first.
        welcomed: whether it has said which run it speaks of.
    """

    def __init__(self, site: Site, moment: SiteMoment, watcher: Any, answers: AnswerStore) -> None:
        self._site, self._watcher, self.answers = site, watcher, answers
        self._world: SiteSide[Any] = site.inner
        progress = answers.progress
        known = 0 if self._world.remembers else progress.number
        if self._world.regime.secret:
            known = progress.booked
            moment = replace(moment, taken=self._world.regime.steps_by(max(moment.number, known)))
        self._guard = ReplayGuard(site.folder) if self._world.repeats_noise else None
        self.moment = replace(moment, number=max(moment.number, known))
        self.dimension = moment.model.size
        self.heard = self.welcomed = False
        self._incidents = Incidents(site.folder)
        self._paid: Permits = ()
        self._refused: set[tuple[int, str]] = set()
        self._priced: dict[Any, float] = {}
        secret = site.agreed.study.privacy.entropy == "system"
        history = self._world.regime.history if secret else None
        self._tasks: Journal | None = None
        if self._world.remembers:
            forget = None if self._guard is None else partial(self._guard.forget, moment.count)
            self._tasks = Journal(site.folder, history=history, lost=forget)
            if self._tasks.damage:
                self._incidents.note("", "journal", self._tasks.damage)
        if self._guard is not None and self._guard.lost:
            why = f"what this site has answered up to task {self._guard.lost} is lost"
            self._incidents.note("", "forgotten", why)
        self._count, self._due, self._worked = moment.count, False, False
        own = site.ledgers
        self._note = TaskBlockNote(own.ledger.path, own.run) if self._world.in_blocks else None
        try:
            if self._note is not None:
                self._paid = self._charged(self._world.block_requests(site.index, self._note.key))
            self._replay(moment)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the site's files."""
        if self._note is not None:
            self._note.close(over=self.moment.ended is not None)
        if self._tasks is not None and self.moment.ended is None:
            self._tasks.close()
        elif self._tasks is not None:
            self._tasks.destroy()

    def _replay(self, moment: SiteMoment) -> None:
        """Go through the tasks since the moment again: the answers are as they were, and nothing is
        sent.

        Raises:
            LedgerError: if the ledger cannot be written now. Each of these tasks was paid for: to
                pass one over would give other answers to those that follow, under the same noise.
        """
        if self._tasks is None:
            return
        self._world.restore(self._site.index, moment.carried)
        self._tasks.enter(self._tasks.before(moment.count))
        for each in self._tasks.after(moment.count):
            self._count = each.seq
            self._tasks.enter([each])
            try:
                task = self._task(each.number, each.body)
                self._pay(task)
                self._world.apply_derivative(self._site.index, task)
                body = encode(self._answered(task))
                self._count_task(task)
            except ProtocolError:
                continue  # it was refused, and is again
            known = self.answers.progress
            if each.number > known.number:  # else the store knows of it
                self.answers.set_unsaved(known.with_answer(each.number, digest(each.body), body))

    def said(self, frame: bytes) -> Iterator[frames.FromSite]:
        """Yield the site's answers to a frame of the server.

        Raises:
            StudyError: if the server does not talk to this site.
            Lost: if the frame cannot be read. A refusal would have the server count this site out;
                who connects again is asked again.
        """
        try:
            found = frames.to_site(frame)
        except RemoteProtocolError as error:
            self.heard = False  # the next attempts wait longer and longer
            self._incidents.note(SERVER, error.what, str(error))
            raise Lost(str(error)) from error
        self.heard = True
        if not self.welcomed and isinstance(found, SPOKEN):
            # meant for a connection that this one has replaced: sent again after the greeting
            return
        match found:
            case frames.Welcome(run, answered):
                if not self.welcomed:  # each is a line for people
                    self._welcome(run, answered)
            case frames.Reject(why):
                raise StudyError(f"the server does not work with this site: {why[:500]}")
            case frames.Book(number, event, seal):
                yield self._book(number, event, seal)
            case frames.Ask():
                if (answer := self._asked(found)) is not None:
                    yield answer
                if isinstance(answer, frames.Refuse) and answer.why == frames.FORGOTTEN:
                    raise Lost(frames.FORGOTTEN)  # who connects again is asked what comes then
            case frames.Step():
                yield self._stepped(found)
            case frames.Bye(why, model):
                yield self._over(why, model)

    def _welcome(self, run: str, answered: int) -> None:
        progress = self.answers.progress
        if progress.run and progress.run != run:
            raise StudyError(
                f"the server has begun another run ({run[:64]}) than this site has "
                f"({progress.run}). Join it with a folder of its own: sordino join KIT --out FOLDER"
            )
        if not progress.run:
            self.answers.save(msgspec.structs.replace(progress, run=run))
        if answered > progress.number and not self._world.remembers:
            self._recall(answered)
        self.welcomed = True
        self._site.log.info("connected")

    def _recall(self, answered: int) -> None:
        """Book what this site has answered and forgotten. Its machine has failed, and the ledger
        holds it; or the folder was put back from an older copy.

        Raises:
            StudyError: if it cannot be booked.
        """
        progress, folder = self.answers.progress, self._site.folder
        if answered > (last := self._site.agreed.study.horizon):  # it asks for no more than these
            raise StudyError(
                f"the server says that it has this site's answer to task {answered}, and the study "
                f"ends with task {last}: the server is wrong, and nothing was booked"
            )
        why = (
            f"the server has this site's answer to task {answered}, and the folder ends with task "
            f"{progress.number}"
        )
        requests = self._world.forgotten_requests(self._site.index, answered)
        remedy = (
            "it was put back from an older copy, and what was answered since is in no ledger. Put "
            "back the newest copy of the folder and of the ledger, or take no further part"
        )
        if requests is None or progress.refusals >= MOST_UNPAID:
            raise StudyError(f"{folder}: {why}: {remedy}")
        try:
            self._charged(requests)
        except HeldBack as refusal:
            raise StudyError(
                f"{folder}: {why}: it was put back from an older copy, and what was answered since "
                f"cannot be booked now. {refusal}. After that, join again"
            ) from refusal
        except BudgetExceeded as refusal:  # the server sees that this site is gone
            self.answers.save(msgspec.structs.replace(progress, unpaid=progress.refusals + 1))
            raise StudyError(f"{folder}: {why}: {remedy} ({refusal})") from refusal
        if requests:
            why += ": it was put back from an older copy. What was answered since is booked again"
        self._incidents.note(SERVER, "older copy", why)
        self._site.log.warning(why)
        self.answers.save(msgspec.structs.replace(progress, number=answered, task="", answer=None))

    def _asked(self, ask: frames.Ask) -> frames.FromSite | None:
        """Answer a task, or refuse it; None for one that nobody waits for any more."""
        number, body, secure = ask.number, ask.body, self._site.secure
        progress, task_digest = self.answers.progress, digest(body)
        if number < progress.number:
            why = f"task {number}, and this site was asked task {progress.number} before"
            return self._refuse(number, why, "past task")
        if number < progress.booked:  # a server that goes on sends it again to who was away
            if not self._world.regime.secret:  # it tells when this site was drawn
                why = f"task {number}, and round {progress.booked} is charged"
                self._incidents.note(SERVER, "past task", why)
            return None
        if number == progress.number and task_digest != progress.task:
            return self._refuse(number, "a second task under the same number", "second task")
        if number == progress.number and progress.answer is not None:
            return frames.Say(number, progress.answer)
        if self._guard is not None and number <= self._guard.lost:
            return self._refuse(number, frames.FORGOTTEN, "forgotten")
        if progress.refusals >= MOST_UNPAID:
            return self._unpaid(number)
        try:
            task = self._task(number, body)
            try:
                if secure is not None:
                    secure.refuse_unready(progress, number, ask.shares)
            except RemoteProtocolError as error:
                return self._declined(number, INPUTS, error)
            return frames.Say(number, self._work(task, ask, task_digest))
        except BudgetExceeded as refusal:
            return self._unpaid(number, refusal)
        except ProtocolError as error:
            return self._refuse(number, str(error), "task")

    def _stepped(self, step: frames.Step) -> frames.Stepped:
        """Take a step of a secure sum; that it begins one is saved before it says so."""
        progress = self.answers.progress
        try:
            if self._site.secure is None:
                raise RemoteProtocolError("this study has no secure sums")
            after, body = self._site.secure.step(progress, step)
        except RemoteProtocolError as error:
            return self._declined(step.number, step.phase, error)
        if after is not progress:
            self.answers.save(after)
        return frames.Stepped(step.number, step.phase, body)

    def _declined(self, number: int, phase: int, error: RemoteProtocolError) -> frames.Stepped:
        """Take no part in a sum, before anything is computed or booked for it. It is no refusal of
        the task: whoever has dealt wrong shares must not take others out of the run.
        """
        why = self._refuse(number, str(error), "secure sum").why
        lacking = b"" if self._site.secure is None else self._site.secure.lacking(number)
        return frames.Stepped(number, phase, lacking, why)

    def _task(self, number: int, body: bytes) -> Task:
        """The task in these bytes, which asks for what was agreed.

        Raises:
            RemoteProtocolError: naming what it asks for beyond that.
            BudgetExceeded: where that is all right, and this site's own budget is too small.
        """
        found = decode(body, dimension=self.dimension)
        if not isinstance(found, Task):
            raise RemoteProtocolError(f"a server does not send {type(found).__name__}")
        if found.number != number:
            raise RemoteProtocolError(f"the frame is of task {number}, the task of {found.number}")
        if (objection := self._world.regime.objection(self._site.index, found)) is not None:
            raise RemoteProtocolError(f"task {number}: {objection}")
        return found

    def _work(self, task: Task, ask: frames.Ask, task_digest: str) -> bytes:
        """Note the task, book it, compute, and keep the answer. A site that remembers books first:
        what is refused leaves no trace in what it goes through again.
        """
        body, number = ask.body, task.number
        progress = msgspec.structs.replace(self.answers.progress, asked=(number, ask.seal))
        save, lost = self.answers.save if self._tasks is None else self.answers.set_unsaved, False
        if not self._worked and progress.task and progress.answer is None and self._tasks is None:
            progress, lost = self._after_loss(progress), True
        self._worked = True
        if self._tasks is not None:
            self._pay(task)
            self._remember(task, body)
        if progress.number != number or lost:
            save(msgspec.structs.replace(progress, number=number, task=task_digest, answer=None))
        if self._tasks is None:
            self._pay(task)
        said = self._answered(task)
        if (secure := self._site.secure) is not None:
            said, failed = secure.masked(progress, said, ask.shares)
            for other, why in failed.items():
                self._incidents.note(self._site.agreed.agreement.names[other], "shares", why)
        answer = encode(said)
        save(progress.with_answer(number, task_digest, answer))
        if not self._world.regime.secret and self._count_task(task):
            self._tell()
        return answer

    def _after_loss(self, progress: SiteProgress) -> SiteProgress:
        """Count a life that ended between a task, which it may have paid for, and its answer.

        Raises:
            StudyError: for some in a row. A service starts a site again that ends for want of disk
                or memory, and each life pays, until nothing is left.
        """
        lost = (progress.lost or 0) + 1
        if lost < MOST_LOST:
            return msgspec.structs.replace(progress, lost=lost)
        self.answers.save(msgspec.structs.replace(progress, lost=msgspec.UNSET))
        raise StudyError(
            f"{self._site.folder}: {lost} times in a row, this site ended in the midst of a task, "
            "and each may have been paid for without an answer. Look for the cause (disk, memory, "
            "the model's own code), and then join again"
        )

    def _answered(self, task: Task) -> Reply:
        """Compute the answer of a task that is booked."""
        answer = self._world.answer(self._site.index, task.number, task, self._paid)
        if not isinstance(answer, Reply):
            raise LocalProtocolError(f"task {task.number} has no answer that is sent")
        return answer

    def _pay(self, task: Task) -> None:
        """Book what of the task is not booked yet: a block, or a pass, of the life before holds no
        step that this life may have taken.
        """
        site, number, note, paid = self._site.index, task.number, self._note, self._paid
        if note is not None and place_of(task) < note.before:
            paid = tuple(permit for permit in paid if permit.new)
        requests = self._world.site_requests(site, task, paid)
        held = self._world.needed_permits(site, number, self._paid)
        if note is not None:
            blocks: list[Permit | Charge] = [*held, *(request.charge for request in requests)]
            last = max(blocks, key=lambda each: each.round + each.count)
            note.save(last.key, place_of(task) + steps_of(task))
        self._paid = (*held, *self._charged(requests))

    def _remember(self, task: Task, body: bytes) -> None:
        """Take in what a task says of the past, save where that is due, and write the task down."""
        assert self._tasks is not None
        site = self._site.index
        noted = Input(self._count + 1, 0.0, "message", site, body, task.number)
        self._tasks.enter([noted])
        self._world.apply_derivative(site, task)
        for _, why in self._world.faults():
            self._incidents.note(SERVER, "derivative", why)
        if self._due and not (isinstance(task, Turn) and task.asked):
            self._due = False
            if self._save():  # the task is the first one after the history that was kept
                self._tasks.enter([noted])
        if self._guard is not None:
            self._guard.note_before(task.number)
        self._count += 1
        self._tasks.append(noted)

    def _save(self) -> bool:
        """Keep where a site stands that remembers; return whether its journal began anew."""
        assert self._tasks is not None
        site, before = self._site.index, self._watcher.saved
        self.moment = replace(
            self.moment,
            model=self._world.model_of(site, self.moment.model),
            count=self._count,
            carried=self._world.carried(site),
        )
        self.answers.save(self.answers.progress)  # the journal tells what came since
        self._watcher.save(self.moment)
        if self._watcher.saved == before:
            return False
        self._tasks.cut(self._count, ())
        return True

    def _charged(self, requests: Sequence[ChargeRequest]) -> Permits:
        """Book what is promised within this site's limit, and the rest beside it."""
        found: list[Permit] = []
        for in_epsilon in (True, False):
            own = [request for request in requests if request.in_epsilon == in_epsilon]
            if own:
                budget = self._site.budget if in_epsilon else own[0].budget
                found += self._site.ledgers.charge([request.charge for request in own], budget)
        return tuple(found)

    def _book(self, number: int, event: str, seal: bytes) -> frames.FromSite:
        """Book a round that is charged to everybody, whether this site was drawn or not."""
        if self.answers.progress.refusals >= MOST_UNPAID:
            return self._unpaid(number)
        try:
            effect = Book(number, fact_of(event))
        except LedgerError as error:
            return self._refuse(number, str(error), "round")
        try:
            if (objection := self._world.regime.objection_to_round(effect)) is not None:
                return self._refuse(number, objection, "round")
            permits = self._charged(self._world.round_requests(self._site.index, effect))
        except BudgetExceeded as refusal:
            return self._unpaid(number, refusal)
        except StudyError as refusal:
            return self._refuse(number, str(refusal), "round")
        held = self._world.needed_permits(self._site.index, number, self._paid)
        self._paid = (*held, *(permit for permit in permits if permit.new))
        if number > self.answers.progress.booked:
            own = msgspec.structs.replace(self.answers.progress, booked=number, due=(number, seal))
            self.answers.save(own)
            if self._world.regime.secret:
                steps = self._world.regime.steps_by(number)
                self.moment = replace(self.moment, number=number, taken=steps)
                self._tell()
        return frames.Booked(number)

    def _unpaid(self, number: int, refusal: BudgetExceeded | None = None) -> frames.Refuse:
        """Refuse what the budget does not allow, for good after some times."""
        progress = self.answers.progress
        if refusal is not None:
            progress = msgspec.structs.replace(progress, unpaid=progress.refusals + 1)
            self.answers.save(progress)
        why = "" if refusal is None else str(refusal)
        if progress.refusals >= MOST_UNPAID:
            why += (
                f" This site has refused {MOST_UNPAID} times what its budget does not pay for, and "
                "takes no further part in this run: else the server could find out how much is left"
            )
        return self._refuse(number, OWN, "budget", why.lstrip())

    def _refuse(
        self, number: int, why: str, what: str, details: str | None = None
    ) -> frames.Refuse:
        """Refuse; ``details``, such as what its data has spent, are for this site alone."""
        why = printable(why)  # it may quote the server
        self._incidents.note(SERVER, what, why if details is None else details)
        if (number, why) not in self._refused and len(self._refused) < MOST_TOLD:
            self._refused.add((number, why))
            owner = None if details is None else f"refused: {details}"
            self._site.log.warning(f"refused: {why}", extra={"owner": owner})
            row = records.Declined(
                round=number, client=self._site.index, why=(details or why)[:500]
            )
            if (shown := self._world.visible_row(row)) is not None:
                self._watcher.row(shown)
        return frames.Refuse(number, why)

    def _count_task(self, task: Task) -> bool:
        """Count what was done; whether the task is one by itself, and not a query or a farewell."""
        if isinstance(task, Turn) and (task.asked or task.over):
            return False
        steps = task.steps if isinstance(task, Train) else 1
        number = task.number if isinstance(task, Train | Compute) else task.event
        model = task.weights if isinstance(task, Train | Compute) else self.moment.model
        self.moment = replace(
            self.moment, number=number, taken=self.moment.taken + steps, model=model
        )
        return True

    def _tell(self) -> None:
        """A row of the log, where one is due."""
        if self.moment.number % self._site.every:
            return
        self._watcher.row(self._row())
        self._due = True
        if self._tasks is None:
            self._watcher.save(self.moment)

    def _row(self) -> records.Round:
        histories = self._site.ledgers.histories(self._site.unit)
        epsilon = max((self._price(spent) for spent in histories), default=0.0)
        return records.Round(round=self.moment.number, steps=self.moment.taken, epsilon=epsilon)

    def _price(self, spent: Any) -> float:
        if spent not in self._priced:
            own = self._site
            self._priced[spent] = self._world.price(own.unit, spent, own.budget)
        return self._priced[spent]

    def _over(self, why: str, model: bytes) -> frames.FromSite:
        """The end. A model that cannot be used is refused, and the one before is kept: the server
        has no other, so that asking again would not help.
        """
        wrong, found = None, self.moment.model
        if len(model) != 4 * (self.dimension if self._world.hands_out else 0):
            wrong = f"the final model has {len(model)} bytes"
        elif not np.isfinite(np.frombuffer(model, dtype="<f4")).all():
            wrong = "the final model holds numbers that are not finite"
        if wrong is None:
            found = np.frombuffer(model, dtype="<f4").astype(np.float32)
            ended = why[:500] or "the run is over"
        else:
            which = "first one" if self._world.regime.secret else "last one that it was sent"
            ended = f"{frames.STOPPED}{wrong}, and the {which} is kept ({why[:300]})"
        found = self._world.model_of(self._site.index, found)
        self.moment = replace(self.moment, model=found, ended=ended)
        if self.moment.number % self._site.every:
            self._watcher.row(self._row())
        self.answers.end(secret=self._world.regime.secret)
        self._watcher.row(records.End(round=self.moment.number, why=ended))
        self._watcher.save(self.moment)
        return frames.Done() if wrong is None else self._refuse(0, wrong, "end")
