"""The server's part in a secure sum: it collects, phase by phase, and opens the sum at the end.

A :class:`Sum` holds nobody's input: masked inputs are added up as they come. Whatever does not fit
is refused with its sender's name, and the sum stays as it was. A phase ends when the caller closes
it, with all answers or without some: who has not answered is out from then on. Where too few are
left, the sum is :class:`Void`: nothing of it was released.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from sordino.base import residues
from sordino.base.errors import LocalProtocolError, RemoteProtocolError
from sordino.base.residues import Residues
from sordino.mechanisms.secure import secrets
from sordino.mechanisms.secure.client import Verify, check_keys
from sordino.mechanisms.secure.messages import (
    DIGEST,
    Delivered,
    FromClient,
    FromServer,
    Included,
    KeyList,
    Keys,
    MaskedInput,
    Revealed,
    Setting,
    Shares,
    Signatures,
    Signed,
    Unopened,
    fingerprint,
    signed_set,
    transcript,
)

# Theory of operation
#
# One sum takes five exchanges. In each the server sends everybody the same kind of message and
# collects one answer of each client that is still in:
#
#     1 Keys         two public keys (one for sealing, one for masks) and a commitment, signed
#     2 Shares       shares of two secrets for every other client, sealed so that only it can open
#                    them: of the seed of the client's own mask, and of its private mask key
#     3 MaskedInput  vector + own mask + the sum over pairs of +-mask, modulo 2^bits
#     4 Signed       a signature over the set of those whose inputs the server holds
#     5 Revealed     of who is in the set, the share of the own mask's seed; of who dealt shares and
#                    is not in it, the share of the private mask key
#
# Then the server adds: the masks of pairs cancel inside the set. From t shares each it recovers the
# seeds of the own masks of those inside, and the private keys of those who left, and takes the
# masks that follow from them off the total.
#
#     Keys -> Shares -> MaskedInput -> Signed -> Revealed -> opened
#       \_______\__________\____________\_________\________> Void
#
# A phase ends when the caller closes it. Who has not answered is out for good; with fewer than
# ``threshold`` left the sum is void. An answer of another phase, a second one, or one that does not
# fit is refused with its sender's name, and changes nothing.
#
# What must hold (docs/secure-sums.md has the proofs):
#
# * Both secrets of one client are never revealed: the own mask would go with one, the masks of
#   pairs with the other, and its vector would stand alone. So a client reveals one secret of each
#   other client, by a set that at least t others have signed, and a client signs one set in one
#   round.
# * 2 t > n + c, with c clients that may help a dishonest server: two different sets would both need
#   t signatures, so some honest client would have signed both.
# * Masks, secrets and shares are of one round. Secrets follow from a seed that is in memory alone:
#   a client that was killed misses the sum, and no copy of a folder can be asked a second time.
# * The threshold is also what noise needs: each input carries a share of it, and a sum of fewer
#   than ``fewest`` inputs would have less than was booked.
#
# The server here believes no client and the client (:mod:`.client`) believes no server; this module
# holds no input, since inputs are added to the total as they come. Who dealt shares that nobody can
# open is found from pairs that accuse each other (:class:`Unopened`).

PHASES: tuple[type[FromClient], ...] = (Keys, Shares, MaskedInput, Signed, Revealed)
"""The messages of clients, one after the other."""


Fault = tuple[int, str]


@dataclass(frozen=True, slots=True)
class Void:
    """The sum is not opened, and why.

    Attributes:
        faults: as of :class:`Opened`.
        blamed: clients whose shares are to blame for it, as far as can be known.
    """

    why: str
    faults: tuple[Fault, ...] = ()
    blamed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Opened:
    """The sum.

    Attributes:
        clients: whose inputs are in it, ascending.
        values: (d,) modulo 2^bits.
        faults: clients that have done what they must not, and what.
    """

    clients: tuple[int, ...]
    values: Residues
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Sum:
    """A secure sum at the server.

    Attributes:
        phase: which of :data:`PHASES` is open.
        keys, shares, signatures, revealed: what came, by client.
        inputs: whose masked inputs came, and ``total`` (d,) their sum.
        waiting: who is still asked in this phase.
        faults: clients that have done what they must not, and what.
        doubts: pairs of clients between whom a share has failed: one of the two is to blame.
    """

    setting: Setting
    verify: Verify
    phase: int = 0
    waiting: frozenset[int] = frozenset()
    keys: Mapping[int, Keys] = field(default_factory=dict)
    shares: Mapping[int, Shares] = field(default_factory=dict)
    inputs: frozenset[int] = frozenset()
    total: Residues | None = None
    signatures: Mapping[int, bytes] = field(default_factory=dict)
    revealed: Mapping[int, Revealed] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()
    doubts: frozenset[tuple[int, int]] = frozenset()

    @property
    def listed(self) -> tuple[Keys, ...]:
        """The keys of all who take part, in order."""
        return tuple(self.keys[each] for each in sorted(self.keys))

    def without(self, client: int) -> Sum:
        """Wait for this client no more."""
        return replace(self, waiting=self.waiting - {client})

    def counted(self, clients: tuple[int, ...], total: Residues) -> Sum:
        """With these inputs, which somebody else has added up to ``total`` (d,).

        Raises:
            LocalProtocolError: if this phase does not wait for them.
        """
        if self.phase != PHASES.index(MaskedInput) or not self.shares.keys() >= {*clients}:
            raise LocalProtocolError("inputs are counted that were not asked for")
        found = residues.reduced(total, self.setting.bits)
        return replace(self, inputs=frozenset(clients), total=found, waiting=frozenset())

    def received(self, message: FromClient) -> Sum:
        """Take in an answer; who sent it is who it says.

        Raises:
            RemoteProtocolError: naming the client, if it does not fit.
        """
        try:
            if message.client not in self.waiting:
                raise RemoteProtocolError("it is not waited for, or has answered", "not waited for")
            if message.round == self.setting.round and isinstance(message, Unopened):
                return self._unopened(message)
            if message.round != self.setting.round or not isinstance(message, PHASES[self.phase]):
                raise RemoteProtocolError(
                    f"{type(message).__name__} of round {message.round}, in round "
                    f"{self.setting.round}, which waits for {PHASES[self.phase].__name__}",
                    "another phase",
                )
            return self._taken(message).without(message.client)
        except RemoteProtocolError as error:
            raise RemoteProtocolError(f"client {message.client}: {error}", error.what) from error

    def _taken(self, message: FromClient) -> Sum:
        match message:
            case Keys():
                return self._keys(message)
            case Shares():
                self._refuse_shares(message)
                return replace(self, shares={**self.shares, message.client: message})
            case MaskedInput():
                setting = self.setting
                found = residues.unpacked(message.values, setting.dimension, setting.bits)
                total = (
                    found if self.total is None else residues.added(self.total, found, setting.bits)
                )
                return replace(self, inputs=self.inputs | {message.client}, total=total)
            case Signed():
                content = signed_set(
                    self.setting, transcript(self.setting, self.listed), self.members
                )
                if not self.verify(message.client, content, message.signature):
                    raise RemoteProtocolError("it has signed another set, or none", "signature")
                return replace(
                    self, signatures={**self.signatures, message.client: message.signature}
                )
            case Revealed():
                return self._revealed(message)
        raise RemoteProtocolError(f"{type(message).__name__} is no answer", "another phase")

    def _unopened(self, message: Unopened) -> Sum:
        """A client that takes part no more; its inputs are waited for until they are counted."""
        if {*message.dealers} - self.shares.keys() or message.client in message.dealers:
            raise RemoteProtocolError("it lacks shares that nobody has dealt", "shares")
        found = replace(
            self, doubts=self.doubts | {(message.client, each) for each in message.dealers}
        )
        return found if self.phase == PHASES.index(MaskedInput) else found.without(message.client)

    def blamed(self) -> tuple[int, ...]:
        """The clients between whom and the most others shares have failed: more than may be
        dishonest. Honest clients have no doubts about each other, so an honest
        one is in no more pairs than there are dishonest ones, whatever these say.
        """
        count = Counter(one for pair in self._pairs for one in pair)
        most = max(count.values(), default=0)
        if most <= self.setting.dishonest:
            return ()
        return tuple(sorted(one for one, times in count.items() if times == most))

    def missing(self, invited: Set[int]) -> tuple[int, ...]:
        """Clients of the ``invited`` ones that have not taken this phase's step, whatever they say,
        and not because of shares of who is :meth:`blamed`.
        """
        blamed = {*self.blamed()}
        excused = {one for pair in self._pairs if pair & blamed for one in pair}
        return tuple(sorted(invited - self.answered - excused))

    @property
    def _pairs(self) -> set[frozenset[int]]:
        return {frozenset(pair) for pair in self.doubts if pair[0] != pair[1]}

    @property
    def answered(self) -> Set[int]:
        """The clients that have taken this phase's step."""
        came = self.keys, self.shares, self.inputs, self.signatures, self.revealed
        return frozenset(came[self.phase])

    def _keys(self, message: Keys) -> Sum:
        check_keys(self.setting, message, self.verify)
        known = {key for each in self.keys.values() for key in (each.encrypt, each.mask)}
        if {message.encrypt, message.mask} & known or message.encrypt == message.mask:
            raise RemoteProtocolError("a public key that somebody has already", "keys")
        return replace(self, keys={**self.keys, message.client: message})

    def _refuse_shares(self, message: Shares) -> None:
        count = len(self.keys)
        if len(message.sealed) != count - 1 or len(message.prints) != count:
            raise RemoteProtocolError(
                f"shares for {len(message.sealed)} others; there are {count - 1}", "shares"
            )
        if any(len(each) != secrets.SEALED for each in message.sealed) or any(
            len(each) != 2 * DIGEST for each in message.prints
        ):
            raise RemoteProtocolError("shares of another length", "shares")

    def _revealed(self, message: Revealed) -> Sum:
        """Return the shares that are as they were dealt; pass over the rest, and name it."""
        inside = self.members
        out = [each for each in sorted(self.shares) if each not in self.inputs]
        if len(message.masks) != len(inside) or not {i for i, _ in message.keys} <= set(out):
            raise RemoteProtocolError("shares that it was not asked for", "shares")
        if len({i for i, _ in message.keys}) < len(message.keys):
            raise RemoteProtocolError("two shares of the same key", "shares")
        shares = (*zip(inside, message.masks, strict=True), *message.keys)
        wrong = [each for each, share in shares if not self._dealt(each, message.client, share)]
        faults = tuple(
            (message.client, f"its share of client {each} is not as client {each} has dealt it")
            for each in wrong
        )
        lacking = {*out} - {i for i, _ in message.keys}
        return replace(
            self,
            revealed={**self.revealed, message.client: message},
            faults=self.faults + faults,
            doubts=self.doubts | {(message.client, each) for each in (*wrong, *lacking)},
        )

    def _dealt(self, dealer: int, holder: int, share: bytes) -> bool:
        """Tell whether a share, of the secret that is revealed of a dealer, is as it was dealt."""
        both = self.shares[dealer].prints[sorted(self.keys).index(holder)]
        return fingerprint(share) == (both[:DIGEST] if dealer in self.inputs else both[DIGEST:])

    @property
    def members(self) -> tuple[int, ...]:
        """The clients whose inputs came, ascending."""
        return tuple(sorted(self.inputs))

    def closed(self) -> tuple[Sum, Mapping[int, FromServer]] | Opened | Void:
        """End the phase: what each client is told next, or what came of the sum."""
        answered = self.answered
        few = self.setting.least if self.phase < 3 else self.setting.threshold
        if len(answered) < few:
            what = PHASES[self.phase].__name__
            why = f"{len(answered)} of {self.setting.clients} clients sent {what}, and {few} must"
            # those whom shares have failed would have been enough
            failed = len({one for one, _ in self.doubts} | answered) >= few
            return Void(why, self.faults, self.blamed() if failed else ())
        if self.phase == len(PHASES) - 1:
            return self._open()
        told = self._told()
        return replace(self, phase=self.phase + 1, waiting=frozenset(told)), told

    def _told(self) -> dict[int, FromServer]:
        number = self.setting.round
        if self.phase == 0:
            listed = KeyList(number, self.listed)
            return dict.fromkeys(sorted(self.keys), listed)
        if self.phase == 1:
            return {each: self._delivered(each) for each in sorted(self.shares)}
        if self.phase == 2:
            return dict.fromkeys(self.members, Included(number, self.members))
        signers = tuple(sorted(self.signatures))
        every = Signatures(number, signers, tuple(self.signatures[each] for each in signers))
        return dict.fromkeys(signers, every)

    def _delivered(self, client: int) -> Delivered:
        """Return what the others have sealed for this client."""
        senders = tuple(each for each in sorted(self.shares) if each != client)
        place = sorted(self.keys).index(client)  # a sender has no packet for itself
        packets = tuple(self.shares[each].sealed[place - (each < client)] for each in senders)
        return Delivered(self.setting.round, senders, packets)

    def _open(self) -> Opened | Void:
        """Take the masks off."""
        assert self.total is not None  # no phase before was closed without inputs
        setting, out = self.setting, sorted(set(self.shares) - self.inputs)
        taken: list[bytes] = []
        added: list[bytes] = []
        try:
            for each in self.members:
                taken.append(secrets.own_key(setting, each, self._secret(each)))
            for each in out:
                private = X25519PrivateKey.from_private_bytes(self._secret(each))
                for other in self.members:
                    key = secrets.pair_key(setting, private, self.keys[each], self.keys[other])
                    (taken if each > other else added).append(key)
        except _Unusable as error:
            why = f"client {error.dealer}: {error}"
            if not error.proven:
                return Void(why, self.faults, self.blamed())
            return Void(why, (*self.faults, (error.dealer, str(error))), (error.dealer,))
        values = secrets.masked(self.total, setting.bits, plus=added, minus=taken)
        return Opened(self.members, values, self.faults)

    def _secret(self, dealer: int) -> bytes:
        """The secret that shares were revealed of: the own mask's seed of a client that is in, the
        private key of one that dropped out.
        """
        inside, found = dealer in self.inputs, dict[int, bytes]()
        for holder, told in self.revealed.items():
            shares = {**dict(zip(self.members, told.masks, strict=True)), **dict(told.keys)}
            if dealer in shares and self._dealt(dealer, holder, shares[dealer]):
                found[holder] = shares[dealer]
        try:
            secret = secrets.recover(found, self.setting.threshold, 32)
        except RemoteProtocolError as error:
            why = f"its secret cannot be recovered ({error})"
            enough = len(found) >= self.setting.threshold
            raise _Unusable(dealer, why, proven=enough) from error
        keys = self.keys[dealer]
        fits = (
            secrets.commitment(self.setting, dealer, secret) == keys.commitment
            if inside
            else secrets.public(X25519PrivateKey.from_private_bytes(secret)) == keys.mask
        )
        if not fits:
            raise _Unusable(dealer, "it has dealt shares of something else")
        return secret


class _Unusable(Exception):
    """A client's secret cannot be recovered from the shares that it has dealt; ``proven`` where
    these are as it has dealt them.
    """

    def __init__(self, dealer: int, why: str, *, proven: bool = True) -> None:
        super().__init__(why)
        self.dealer, self.proven = dealer, proven
