"""The public facts of one secure sum, and the condition under which it protects.

**Condition.** Of n clients, c collude with the server (it may send anything to anybody, and claim
of anybody that he did not answer). A sum is opened only where ``threshold`` t clients have signed
which set U it is over, and where

    2 t > n + c     and     |U| >= max(t, ``fewest``).

Then at most the sum over *one* set can be opened in a round, and at least ``fewest`` - c of its
contributions are honest. docs/secure-sums.md has the whole proof; its core: an honest client signs
one set in a round. Two sets that are opened have t signers each; who has signed both colludes. So
2 t <= n + c, which the condition excludes.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from sordino.base.errors import StudyError

MOST_CLIENTS = 256
"""Clients of one sum: messages grow with their number, and all work with its square."""
DIGEST = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One secure sum.

    Attributes:
        study: digest of what all have agreed to.
        run: identifier of the run.
        round: number of the sum in the run, from 1.
        clients: n, numbered from 0.
        fewest: contributions that an opened sum must hold, at least.
        dishonest: c, clients that may collude with the server.
        bits: of the modulus 2^bits, 1 to 64.
        dimension: numbers of a vector.
        threshold: t; 0 for the lowest that is sound.

    Raises:
        StudyError: if the condition does not hold, or a number is out of range.
    """

    study: str
    run: str
    round: int
    clients: int
    fewest: int
    dishonest: int = 0
    bits: int = 32
    dimension: int
    threshold: int = 0

    def __post_init__(self) -> None:
        n, c = self.clients, self.dishonest
        if not 2 <= n <= MOST_CLIENTS:
            raise StudyError(f"a secure sum takes 2 to {MOST_CLIENTS} clients; there are {n}")
        if not self.threshold:
            object.__setattr__(self, "threshold", lowest_threshold(n, c))
        if self.fewest < 1 or self.fewest > n or c < 0:
            raise StudyError(
                f"a secure sum of {n} clients cannot hold {self.fewest} contributions, where {c} "
                "clients are dishonest"
            )
        if not (n + c < 2 * self.threshold and self.threshold <= n):
            raise StudyError(
                f"a threshold of {self.threshold} lets a server split {n} clients of which {c} "
                f"are dishonest: it must be more than {n + c}/2, and at most {n}"
            )
        if not 1 <= self.bits <= 64 or self.dimension < 1 or self.round < 1:
            raise StudyError("bits must lie in 1..64; dimension and round are positive")

    @property
    def least(self) -> int:
        """Contributions below which a sum is not opened: max(t, fewest)."""
        return max(self.threshold, self.fewest)

    def context(self, what: str, *parts: bytes) -> bytes:
        """Return what a signature or a key is bound to: ``what`` it is for, this sum, and
        ``parts``.

        A digest (32 bytes) of all of them with their lengths.
        """
        numbers = (
            self.round,
            self.clients,
            self.fewest,
            self.dishonest,
            self.threshold,
            self.bits,
            self.dimension,
        )
        told = (
            b"sordino secure sum 1",
            what.encode(),
            self.study.encode(),
            self.run.encode(),
            b",".join(b"%d" % each for each in numbers),
            *parts,
        )
        found = hashlib.sha256()
        for part in told:
            found.update(len(part).to_bytes(8, "little") + part)
        return found.digest()


def lowest_threshold(clients: int, dishonest: int) -> int:
    """The lowest t with 2 t > n + c.

    >>> lowest_threshold(10, 0), lowest_threshold(10, 3), lowest_threshold(3, 0)
    (6, 7, 2)
    """
    return (clients + dishonest) // 2 + 1
