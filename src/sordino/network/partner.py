"""A site's half of secure sums: what it keeps and says in each step (:mod:`sordino.secure.client`).

Whatever it says is kept in its outbox first, on the disk. What it is asked it holds against the
public keys of its kit: a server that replaces keys, or lies about who takes part, is refused.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from sordino import residues
from sordino.engine.world import Summing
from sordino.errors import LocalProtocolError, RemoteProtocolError
from sordino.message import Masked, Reply
from sordino.network import certificates, frames
from sordino.network.agreement import Agreed
from sordino.network.certificates import Pair
from sordino.network.outbox import Kept, Outbox
from sordino.secure import client
from sordino.secure.client import Record
from sordino.secure.messages import (
    Delivered,
    Included,
    Invitation,
    KeyList,
    MaskedInput,
    Message,
    Signatures,
    decode,
    encode,
)
from sordino.secure.server import PHASES
from sordino.secure.setting import Setting


def setting(agreed: Agreed, summing: Summing, dimension: int, run: str, number: int) -> Setting:
    """The sum of a round."""
    return Setting(
        study=agreed.digest,
        run=run,
        round=number,
        clients=summing.clients,
        fewest=summing.fewest,
        dishonest=summing.dishonest,
        bits=summing.bits,
        dimension=dimension,
    )


def stepped(
    partner: Partner | None,
    outbox: Outbox,
    step: frames.Step,
    refuse: Callable[[int, str, str], frames.Refuse],
) -> frames.Stepped:
    """A site's answer to a step; what it leads to is kept before it is said."""
    try:
        if partner is None:
            raise RemoteProtocolError("this study has no secure sums")
        kept, body = partner.step(outbox.kept, step)
    except RemoteProtocolError as error:
        why = refuse(step.number, str(error), "secure sum").why
        return frames.Stepped(step.number, step.phase, b"", why)
    if kept is not outbox.kept:
        outbox.keep(kept)
    return frames.Stepped(step.number, step.phase, body)


def declined(
    partner: Partner | None,
    kept: Kept,
    ask: frames.Ask,
    refuse: Callable[[int, str, str], frames.Refuse],
) -> frames.Stepped | None:
    """That a site takes no part in a sum, before it computes or books anything for it; or None. It
    is no refusal of the task: whoever has dealt wrong shares must not take others out of the run.
    """
    try:
        if partner is not None:
            partner.refuse_unready(kept, ask.number, ask.shares)
    except RemoteProtocolError as error:
        why = refuse(ask.number, str(error), "secure sum").why
        return frames.Stepped(ask.number, PHASES.index(MaskedInput), b"", why)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Partner:
    """See the module's docstring.

    Attributes:
        agreed: what everybody has agreed to, with the public keys of all sites.
        index: which client the site is.
        summing: what everybody knows of a sum, and ``dimension`` d.
        pair: the site's certificate and its key.
    """

    agreed: Agreed
    index: int
    summing: Summing
    dimension: int
    pair: Pair

    def _setting(self, kept: Kept, number: int) -> Setting:
        return setting(self.agreed, self.summing, self.dimension, kept.run, number)

    def _sign(self, content: bytes) -> bytes:
        return certificates.signed(self.pair, content)

    def step(self, kept: Kept, told: frames.Step) -> tuple[Kept, bytes]:
        """What is to be kept, and then said, after a step of the server.

        Raises:
            RemoteProtocolError: if this site does not do that.
        """
        found, number = decode(told.body), told.number
        if getattr(found, "round", 0) != number:
            raise RemoteProtocolError("a step of another round than its frame", "another round")
        if isinstance(found, Invitation):
            record = self._begun(kept, number)
            return msgspec.structs.replace(kept, sum=record), encode(record.own)
        return self._next(kept, self._record(kept, number), found)

    def _begun(self, kept: Kept, number: int) -> Record:
        """The record of a round's sum; a fresh one where this is the first that is said of it."""
        record = kept.sum
        if record is not None and record.own.round == number:
            return record
        if number <= max(kept.number, 0 if record is None else record.own.round):
            raise RemoteProtocolError(f"round {number} is over", "another round")
        seed = secrets.token_bytes(32)
        return client.begin(self._setting(kept, number), self.index, seed, self._sign)

    def _record(self, kept: Kept, number: int) -> Record:
        if kept.sum is None or kept.sum.own.round != number:
            raise RemoteProtocolError(
                f"a step of round {number}, to whose sum this site has sent no keys",
                "another round",
            )
        return kept.sum

    def _next(self, kept: Kept, record: Record, told: Message) -> tuple[Kept, bytes]:
        own, verify = self._setting(kept, record.own.round), self.agreed.verify
        match told:
            case KeyList():
                record, shares = client.share(own, record, told, verify)
                said = encode(shares)
            case Included():
                record, signed = client.sign(own, record, told, self._sign)
                said = encode(signed)
            case Signatures():
                said = encode(client.reveal(own, record, told, verify))
            case _:
                raise RemoteProtocolError(f"no step of the server: {type(told).__name__}", "unfit")
        return msgspec.structs.replace(kept, sum=record), said

    def refuse_unready(self, kept: Kept, number: int, shares: bytes) -> Delivered:
        """What the others have sealed for this site, which comes with a task.

        Raises:
            RemoteProtocolError: if the server has not gone through the steps before, or too few of
                the shares open.
        """
        record, found = self._record(kept, number), decode(shares)
        if not isinstance(found, Delivered):
            raise RemoteProtocolError("a task without the shares of its sum", "shares")
        client.open_shares(self._setting(kept, number), record, found)
        return found

    def masked(
        self, kept: Kept, answer: Reply, shares: bytes
    ) -> tuple[Kept, Masked, dict[int, str]]:
        """What is to be kept; the answer to a task under this site's masks; and whose shares do not
        open, and why.

        Raises:
            RemoteProtocolError: if the server has not gone through the steps before.
        """
        if not isinstance(answer, Masked):
            raise LocalProtocolError(f"{type(answer).__name__} does not go into a secure sum")
        told = self.refuse_unready(kept, answer.round, shares)
        record = self._record(kept, answer.round)
        own = self._setting(kept, answer.round)
        values = residues.unpacked(answer.values, own.dimension, own.bits)
        record, hidden, failed = client.mask(own, record, told, values)
        return (
            msgspec.structs.replace(kept, sum=record),
            msgspec.structs.replace(answer, values=hidden.values),
            failed,
        )
