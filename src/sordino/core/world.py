"""The world of a kernel, a federation: everything that is particular to its regime; its moments, as
they are kept, and who listens to a run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, Self, TypeVar

import msgspec
from numpy.typing import NDArray

from sordino.base.entropy import Transcript
from sordino.base.errors import StudyError
from sordino.base.frozen import Frozen
from sordino.base.message import Vector
from sordino.core import records
from sordino.core.effect import Book, Effects, Event, Learn, Learned, Overtaken, Request, Said, Skip
from sordino.core.records import Row
from sordino.mechanisms.secure.messages import MOST_CLIENTS, lowest_threshold
from sordino.privacy import Budget, Charge, LedgerSession, Permits
from sordino.privacy.accounting import Spent

if TYPE_CHECKING:
    from sordino.training.plausible import Length


Arrays = Mapping[str, NDArray[Any]]
"""By names."""


class EncodedSnapshot(Frozen, eq=False):
    """A moment as it is kept on disk: named arrays, and the rest as JSON."""

    vectors: dict[str, NDArray[Any]]
    rest: bytes


class Snapshot(Protocol):
    """A run, or the state of its regime, at a point from which it may be resumed."""

    @property
    def number(self) -> int:
        """Rounds begun, updates done, or events played."""

    @property
    def taken(self) -> int:
        """Local steps, or tasks, of the client that took most."""

    @property
    def model(self) -> Vector:
        """The model that is evaluated and handed out, (d,)."""

    @property
    def ended(self) -> str | None:
        """Return why the run is over, or None."""

    def pack(self) -> EncodedSnapshot:
        """Return it as it is kept: arrays by name, and the rest as JSON."""


class RunListener(Protocol):
    """A listener to a run while it goes on; written to by the simulation only."""

    def row(self, row: Row) -> None:
        """A finished row for the log."""

    def due(self, number: int, ended: str | None) -> bool:
        """Return whether a moment is wanted after so many rounds, or at the end: each takes time
        for all sites.
        """

    def save(self, moment: Any) -> None:
        """A point from which the run may be resumed."""


class RunPlayer(Protocol):
    """A player of a run of any regime: a simulation, a server or a site. Its moments are of its own
    kind.
    """

    @property
    def ledgers(self) -> LedgerSession:
        """Return where charges go."""

    @property
    def units(self) -> Sequence[str]:
        """Ledger unit of each client."""

    @property
    def budget(self) -> Budget:
        """Return what a client may spend in all, at most."""

    @property
    def affordable_steps(self) -> list[int] | None:
        """Steps, or rounds of all, that clients could pay for at the beginning; None: no limit."""

    def unpack(self, packed: EncodedSnapshot) -> Any:
        """A moment that was kept.

        Raises:
            ValueError: if it cannot be one.
        """

    def run(self, moment: Any, watcher: RunListener) -> Any:
        """Play from ``moment`` to the end of the run."""


Flight = tuple[float, int, int, int, str]
"""When; order among equals; whose answer; to which number (0: a site is back); an alarm's tag."""

PermitRange = tuple[int, int]
"""Number of the first release of a permit, and how many."""


S = TypeVar("S", bound=Snapshot)


MEMORY = "memory."
"""The beginning of the names of arrays that clients carry from task to task."""


class KernelSnapshot(Frozen, Generic[S], eq=False, forbid_unknown_fields=True, omit_defaults=True):
    """A run between two events. A state that is changed in place goes on changing: pack it at once.

    Attributes:
        state: of the regime.
        time: virtual seconds.
        flights: answers, returns and alarms to come.
        away: absent sites, and the number whose beginning finds them back.
        blocks: of each site, the permits that it has not worked off.
        count: flights so far.
        epsilon: highest so far, over all units.
        memories: arrays that clients carry from task to task, by name.
    """

    state: S
    time: float
    flights: tuple[Flight, ...]
    away: dict[int, int]
    blocks: dict[int, tuple[PermitRange, ...]]
    count: int
    epsilon: records.Real
    memories: Mapping[str, Any] = {}

    @classmethod
    def initial(cls, state: S) -> Self:
        """Return the moment before anything happened."""
        return cls(state, 0.0, (), {}, {}, 0, 0.0)

    @property
    def number(self) -> int:
        """Rounds begun, or updates done."""
        return self.state.number

    @property
    def ended(self) -> str | None:
        """Return why the run is over, or None."""
        return self.state.ended

    @property
    def taken(self) -> int:
        """Local steps, or tasks, of the client that took most."""
        return self.state.taken

    @property
    def model(self) -> Vector:
        """The model that is handed out, (d,)."""
        return self.state.model

    def pack(self) -> EncodedSnapshot:
        """Return the moment as it is kept on disk."""
        own = self.state.pack()
        rest = msgspec.structs.replace(
            self, state=msgspec.Raw(own.rest), epsilon=records.simple(self.epsilon), memories={}
        )
        more = {f"{MEMORY}{name}": each for name, each in self.memories.items()}
        return EncodedSnapshot({**own.vectors, **more}, msgspec.json.encode(rest))


def unpacked(packed: EncodedSnapshot, state: Callable[[EncodedSnapshot], S]) -> KernelSnapshot[S]:
    """Return the moment that was packed; ``state`` unpacks that of the regime.

    Raises:
        ValueError: if it cannot be one.
    """
    kind: Any = KernelSnapshot
    kept = msgspec.json.decode(packed.rest, type=kind[msgspec.Raw], dec_hook=records.real)
    vectors, memories = dict[str, NDArray[Any]](), dict[str, NDArray[Any]]()
    for name, each in packed.vectors.items():
        place = memories if name.startswith(MEMORY) else vectors
        place[name.removeprefix(MEMORY)] = each
    own = state(EncodedSnapshot(vectors, bytes(kept.state)))
    found: KernelSnapshot[S] = msgspec.structs.replace(kept, state=own, memories=memories)
    return found


class Absence(Frozen):
    """A site that takes a task and vanishes.

    Attributes:
        seconds: until it is back.
        until: the number whose :class:`Begin` finds it back, where rounds are counted and not
            seconds.
    """

    seconds: float = 0.0
    until: int | None = None


@dataclass(frozen=True, slots=True)
class ChargeRequest:
    """A charge, and who may work when it is booked.

    Attributes:
        sites: who gets the permit; None: everybody.
        charge: what is booked.
        budget: what it is held against.
        in_epsilon: whether what it comes to is part of the epsilon that rows show.
    """

    sites: tuple[int, ...] | None
    charge: Charge
    budget: Budget
    in_epsilon: bool = True


Charges = Sequence[ChargeRequest]
Paid = Mapping[int, Permits]
"""The permits that sites hold."""
Faults = Sequence[tuple[int, str]]
"""Sites whose answers could not be used, and why."""


class Summing(Frozen):
    """A sum of which the server learns nothing else: what everybody knows of it.

    Attributes:
        clients: n.
        fewest: contributions whose noise a sum needs.
        dishonest: clients that may collude with the server, which opens at most one sum in a round
            all the same.
        bits: of the modulus 2^bits.
        deadline: seconds after which a round ends, where the study sets any.
    """

    clients: int
    fewest: int
    dishonest: int
    bits: int
    deadline: float | None = None

    def refuse_splitting(self) -> None:
        """Refuse sums so small that a server which shows clients different sets could open two of
        them; see :mod:`sordino.mechanisms.secure.messages`.

        Raises:
            StudyError: if they are, or there are more clients than a secure sum takes.
        """
        if self.clients > MOST_CLIENTS:
            raise StudyError(
                f"{self.clients} clients: on a network, a secure sum takes at most {MOST_CLIENTS}"
            )
        least = lowest_threshold(self.clients, self.dishonest)
        if self.fewest < least:
            raise StudyError(
                f"privacy.fewest = {self.fewest} (privacy.honest unless it is given): of "
                f"{self.clients} clients a server could open two sums in a round, and so learn "
                "what one client has sent. On a network, privacy.honest and privacy.fewest "
                f"together must be more than {self.clients}"
            )


class RegimeRules(Generic[S]):
    """The rules of a regime, pure: what follows from an event, and what a site may be asked."""

    def step(self, state: S, event: Event, /) -> tuple[S, Effects]:
        """Return what follows from one event."""
        raise NotImplementedError

    def expects(self, state: S, site: int, number: int, /) -> bool:
        """Return whether an answer of this site to this number would be used if it came now."""
        return True

    def asked(self, state: S, /) -> Mapping[int, Request]:
        """Return the task that each site holds in a state that was kept."""
        return {}

    def latest(self, state: S, site: int, /) -> int:
        """Return the highest number of a task that this site can have been asked so far."""
        return state.number

    def steps_by(self, number: int, /) -> int:
        """Return the local steps of a site that takes part in so many rounds."""
        return number

    def exhausted(self, state: S, /) -> bool:
        """Return whether budgets allow no further round, however many sites come."""
        return False

    @property
    def secret(self) -> bool:
        """Secrecy of who takes part in a round: then nothing that stays says it, or how often
        somebody did, and no row has a time that tells of it.
        """
        return False

    @property
    def history(self) -> Transcript | None:
        """The history that noise is drawn over, where others may have it drawn again; or None."""
        return None

    def objection(self, site: int, task: Request, /) -> str | None:
        """Return why a site refuses a task: what it asks for beyond the study, or None.

        Raises:
            BudgetExceeded: where only the site's own budget is too small for it. The refusal says
                no more than that, and is counted.
        """
        raise NotImplementedError

    def objection_to_round(self, effect: Book, /) -> str | None:
        """Return why no site books a round that is charged to everybody, or None."""
        return "no round of this method is charged to everybody"


class World(Generic[S]):
    """A federation, as the kernel sees it. What a regime has no need of is answered here.

    Attributes:
        regime: its rules.
        ledgers: where charges go.
        widest: numbers in the longest vector of a message, where it may be longer than the model.
        hands_out: whether sites are given the model when the run is over.
        continuous: whether tasks follow each other without a moment at which nobody works.
        saves_anytime: whether a run can be saved between any two inputs, and not only where a row
            is due.
    """

    saves_anytime: ClassVar[bool] = False
    regime: RegimeRules[S]
    ledgers: LedgerSession
    widest: int = 0
    hands_out: bool = True
    continuous: bool = False

    def step(self, state: S, event: Event, /) -> tuple[S, Effects]:
        """Return what follows by the rules."""
        return self.regime.step(state, event)

    def answer(
        self, site: int, number: int, task: Request | None, permits: Permits, /
    ) -> Said | None:
        """Let the site work, and what it sends; None if it sends nothing.

        It was last asked for ``task``, if for anything.
        """
        raise NotImplementedError

    def trip(self, site: int, task: Request, /) -> float | Absence:
        """Seconds until the answer is there, or how the site vanishes."""
        return 0.0

    def requests(self, state: S, effects: Effects, paid: Paid, /) -> Charges:
        """Return what must be booked before these effects; sites hold the permits ``paid``."""
        raise NotImplementedError

    def reissued(self, state: S, blocks: Mapping[int, Sequence[PermitRange]], /) -> Charges:
        """Return what was booked for these blocks: a run goes on, and its permits are looked up."""
        return ()

    def unused_permits(self, state: S, site: int, permits: Permits, /) -> Permits:
        """Those that the site has not worked off."""
        return ()

    def memories(self) -> Arrays:
        """Return what clients of this process carry from task to task, by names; nothing where
        their work follows from their tasks alone.
        """
        return {}

    def remember(self, memories: Arrays, /) -> None:
        """Have clients carry what :meth:`memories` gave."""

    def price(self, unit: str, spent: Spent, budget: Budget, /) -> float:
        """Return what a history comes to."""
        return budget.check(unit, spent)

    def measured(self, state: S, number: int, /) -> Mapping[str, Any]:
        """Return what is told of the model when ``number`` is closed."""
        return {}

    def learn(self, effect: Learn | Skip, /) -> Learned:
        """Let the server's own model work, where it has one."""
        raise NotImplementedError

    def visible_row(self, row: records.Row, /) -> records.Row | None:
        """Return what of a row may be shown; None if nothing."""
        return row

    @property
    def charges_everybody(self) -> bool:
        """Return whether each round is charged to all sites, whoever takes part."""
        return False

    def faults(self) -> Faults:
        """Sites whose answers were taken and could then not be used, and why; each is told once."""
        return ()


class ServerSide(World[S]):
    """A federation, as the server of a network sees it: what it holds against the answers of
    sites, and how it goes on after a failure.
    """

    def resumed(self, moment: KernelSnapshot[S], /) -> KernelSnapshot[S]:
        """Stand at ``moment``, and return it, or a copy that may be changed."""
        return moment

    def account(self, site: int, /) -> tuple[str, Budget]:
        """Return the ledger's unit of a site's own answers, and what they may cost."""
        raise NotImplementedError

    def booked_until(self, state: S, site: int, number: int, /) -> bool:
        """Return whether the ledger holds what this site proves that it was asked, so that the run
        can go on after it.
        """
        return False

    def forgotten(self, state: S, /) -> int | None:
        """The last task that the ledger knows of, where all sites' tasks have the same numbers and
        this state does not lead to it; else None.
        """
        return None

    def overtaken(self, site: int, number: int, /) -> Overtaken:
        """Return what the regime is told of tasks that were forgotten."""
        return Overtaken(number, site)

    def exhausted_sites(self, state: S, /) -> Collection[int]:
        """The sites that have given all that their budgets pay for, and are not asked again."""
        return ()

    def indispensable(self, site: int, /) -> bool:
        """Return whether nothing goes on without this site."""
        return False

    def objection_to_reply(self, site: int, number: int, said: Said, /) -> str | None:
        """Return why what a site says to task ``number`` is refused before anybody acts on it, or
        None.
        """
        return f"no site of this study sends {type(said).__name__}"

    @property
    def most(self) -> float:
        """Return how long a vector of an answer may be: a longer one is refused, as one that is not
        finite.
        """
        return math.inf

    def length_bound(self, site: int, task: Request | None, said: Said, /) -> Length | None:
        """Return how long an answer is, and how long clipping and noise let an honest one be; None
        where nothing bounds it.
        """
        return None


class SiteSide(World[S]):
    """A federation, as a site of a network sees it: what the site does with a task, and what it
    refuses.

    Attributes:
        remembers: whether a site's work changes what the site has, so that it must go through its
            tasks again when it is started anew.
        repeats_noise: whether a site's noise is numbered by its tasks, so that it may answer each
            only once.
        in_blocks: whether a site books blocks of tasks, or passes, and each task says where in
            their order it begins.
    """

    remembers: bool = False
    repeats_noise: bool = False
    in_blocks: ClassVar[bool] = False

    def site_requests(self, site: int, task: Request, permits: Permits, /) -> Charges:
        """Return what a site books in its own ledger before it works on a task; it holds
        ``permits``.
        """
        raise NotImplementedError

    def block_requests(self, site: int, key: str, /) -> Charges:
        """Return the block of tasks, or the pass, with this key again, if a site's ledger holds
        it.
        """
        return ()

    def forgotten_requests(self, site: int, answered: int, /) -> Charges | None:
        """Return what a site has to book that has answered tasks up to this one and does not
        remember it; None where only a newer ledger tells.
        """
        return ()

    def round_requests(self, site: int, effect: Book, /) -> Charges:
        """Return what a site books in its own ledger for a round that is charged to everybody."""
        return ()

    def needed_permits(self, site: int, number: int, permits: Permits, /) -> Permits:
        """The permits that a site still needs at task ``number``."""
        return [each for each in permits if each.round + each.count > number]

    def apply_derivative(self, site: int, task: Request, /) -> None:
        """Let a site learn from the derivative of the event before, which a task brings."""

    def carried(self, site: int, /) -> Arrays:
        """Return what a site must carry from one task to the next, between
        :meth:`apply_derivative` and :meth:`answer`, where it remembers.
        """
        return {}

    def restore(self, site: int, carried: Arrays, /) -> None:
        """Take back what :meth:`carried` gave."""

    def model_of(self, site: int, given: Vector, /) -> Vector:
        """The model that a site has, where ``given`` is what it was last sent."""
        return given
