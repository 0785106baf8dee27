"""A site's half of secure sums: what it says in each step (``mechanisms.secure.client``).

The secrets of a sum are drawn by the process that takes part in it, and stay in its memory: nothing
of them is ever written down. So whoever has a copy of the site's folder cannot take a mask off, and
a process that is started again, on the folder or on a copy of it, cannot mask another input like
the one before it, sign a second set or reveal other shares. Which sum was begun is in the answers
before the first word of it is said. Of a sum that an earlier process has begun, a site repeats the
bytes of its answer, if it has sent any, and declines everything else; in the next round it takes
part again. On a copy that does not know of the sum, it takes part with other keys, which are those
of another site to everybody who has seen the first ones.

What it is asked it holds against the public keys of its kit: a server that replaces keys, or lies
about who takes part, is refused.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

import msgspec

from sordino.base import residues
from sordino.base.errors import LocalProtocolError, RemoteProtocolError
from sordino.base.message import Masked, Reply
from sordino.core.world import Summing
from sordino.mechanisms.secure import client, messages
from sordino.mechanisms.secure.server import PHASES
from sordino.network import certificates, frames
from sordino.network.kit import Agreed
from sordino.network.storage import SiteProgress

INPUTS = PHASES.index(messages.MaskedInput)
"""The phase of a sum in which its inputs are the answers to tasks."""


def setting(
    agreed: Agreed, summing: Summing, dimension: int, run: str, number: int
) -> messages.Setting:
    """The sum of a round."""
    return messages.Setting(
        study=agreed.digest,
        run=run,
        round=number,
        clients=summing.clients,
        fewest=summing.fewest,
        dishonest=summing.dishonest,
        bits=summing.bits,
        dimension=dimension,
    )


@dataclass(slots=True, eq=False)
class SecureSumClient:
    """A site's half of secure sums, for as long as its process lives.

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
    pair: certificates.Pair
    _record: client.Record | None = None
    _failed: dict[int, str] = field(default_factory=dict)

    def _setting(self, progress: SiteProgress, number: int) -> messages.Setting:
        return setting(self.agreed, self.summing, self.dimension, progress.run, number)

    def _sign(self, content: bytes) -> bytes:
        return certificates.signed(self.pair, content)

    def step(self, progress: SiteProgress, message: frames.Step) -> tuple[SiteProgress, bytes]:
        """Return what is to be saved, and then said, after a step of the server.

        Raises:
            RemoteProtocolError: if this site does not do that.
        """
        found, number = messages.decode(message.body), message.number
        if found.round != number:
            raise RemoteProtocolError("a step of another round than its frame", "another round")
        if number < 1:
            raise RemoteProtocolError(f"there is no round {number}", "another round")
        facts, verify = self._setting(progress, number), self.agreed.verify
        if isinstance(found, messages.Invitation):
            if self._record is None or self._record.own.round != number:
                self._refuse_past(progress, number)
                self._record = client.begin(facts, self.index, secrets.token_bytes(32), self._sign)
                self._failed = {}
                progress = msgspec.structs.replace(progress, begun=number)
            return progress, messages.encode(self._record.own)
        record = self._of(number)
        match found:
            case messages.KeyList():
                self._record, shares = client.share(facts, record, found, verify)
                return progress, messages.encode(shares)
            case messages.Included():
                self._record, signed = client.sign(facts, record, found, self._sign)
                return progress, messages.encode(signed)
            case messages.Signatures():
                return progress, messages.encode(client.reveal(facts, record, found, verify))
        raise RemoteProtocolError(f"no step of the server: {type(found).__name__}", "unfit")

    def _refuse_past(self, progress: SiteProgress, number: int) -> None:
        """Refuse to begin a sum that this site's folder knows of."""
        if number < max(progress.number, progress.begun):
            raise RemoteProtocolError(f"round {number} is over", "another round")
        if number in (progress.number, progress.begun):
            raise RemoteProtocolError(
                f"the sum of round {number} was begun before this site was started again. It takes "
                "part in the next one",
                "begun before",
            )

    def _of(self, number: int) -> client.Record:
        """The sum of a round that this process takes part in."""
        if self._record is None or self._record.own.round != number:
            raise RemoteProtocolError(
                f"a step of round {number}, to whose sum this site has sent no keys since it was "
                "started",
                "another round",
            )
        return self._record

    def refuse_unready(self, progress: SiteProgress, number: int, shares: bytes) -> client.Record:
        """Open what the others have sealed for this site, which comes with a task.

        Raises:
            RemoteProtocolError: if the server has not gone through the steps before, or too few of
                the shares open.
        """
        record, found = self._of(number), messages.decode(shares)
        if not isinstance(found, messages.Delivered):
            raise RemoteProtocolError("a task without the shares of its sum", "shares")
        facts = self._setting(progress, number)
        self._record, self._failed = client.open_shares(facts, record, found)
        client.refuse_unopened(facts, self._record)
        return self._record

    def lacking(self, number: int) -> bytes:
        """Return whose shares of a round's sum this site could not open, to be said where it takes
        part in it no more; empty where all did.
        """
        if not self._failed or self._record is None or self._record.own.round != number:
            return b""
        return messages.encode(messages.Unopened(self.index, number, tuple(sorted(self._failed))))

    def masked(
        self, progress: SiteProgress, answer: Reply, shares: bytes
    ) -> tuple[Masked, dict[int, str]]:
        """The answer to a task under this site's masks; and whose shares do not open, and why.

        Raises:
            RemoteProtocolError: if the server has not gone through the steps before.
        """
        if not isinstance(answer, Masked):
            raise LocalProtocolError(f"{type(answer).__name__} does not go into a secure sum")
        record = self.refuse_unready(progress, answer.round, shares)
        facts = self._setting(progress, answer.round)
        values = residues.unpacked(answer.values, facts.dimension, facts.bits)
        self._record, hidden = client.mask(facts, record, values)
        return msgspec.structs.replace(answer, values=hidden.values), self._failed
