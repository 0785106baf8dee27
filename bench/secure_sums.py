"""What a secure sum costs: milliseconds of a client and of the server, and bytes that a client
sends and gets in a round.

    python bench/secure_sums.py [--clients N] [--dimension D] [--bits B] [--gone K] [--repeats R]

``--gone`` clients drop out after they have dealt their shares; the median of the rounds counts.
"""

from __future__ import annotations

import argparse
import datetime as dt
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sordino.base import residues
from sordino.mechanisms.secure import client
from sordino.mechanisms.secure.client import Record
from sordino.mechanisms.secure.messages import (
    Delivered,
    FromClient,
    FromServer,
    Included,
    KeyList,
    Setting,
    Signatures,
    encode,
)
from sordino.mechanisms.secure.server import Opened, Sum
from sordino.network import certificates


class Site:
    """One client, with a certificate, and what it has spent."""

    def __init__(self, number: int, sign: Callable[[bytes], bytes], verify: Any) -> None:
        self.number, self.sign, self.verify = number, sign, verify
        self.seconds = 0.0
        self.sent = self.got = 0
        self.record: Record | None = None

    def answer(
        self, setting: Setting, told: FromServer | None, values: residues.Residues
    ) -> FromClient:
        """What it says to a step; None invites it."""
        start = time.process_time()
        said = self._said(setting, told, values)
        self.seconds += time.process_time() - start
        self.sent += len(encode(said))
        self.got += 0 if told is None else len(encode(told))
        return said

    def _said(
        self, setting: Setting, told: FromServer | None, values: residues.Residues
    ) -> FromClient:
        said: FromClient
        if told is None:
            self.record = client.begin(setting, self.number, np.random.bytes(32), self.sign)
            return self.record.own
        assert self.record is not None
        match told:
            case KeyList():
                self.record, said = client.share(setting, self.record, told, self.verify)
            case Delivered():
                opened, _ = client.open_shares(setting, self.record, told)
                self.record, said = client.mask(setting, opened, values)
            case Included():
                self.record, said = client.sign(setting, self.record, told, self.sign)
            case Signatures():
                said = client.reveal(setting, self.record, told, self.verify)
            case _:
                raise TypeError(type(told).__name__)
        return said


def played(
    setting: Setting, sites: list[Site], gone: int, values: list[residues.Residues]
) -> float:
    """One sum; seconds of the server."""
    spent = 0.0
    sums = Sum(setting, sites[0].verify, waiting=frozenset(range(len(sites))))
    told: Mapping[int, FromServer | None] = dict.fromkeys(range(len(sites)))
    while True:
        for i in sorted(sums.waiting):
            if sums.phase < 2 or i >= gone:
                said = sites[i].answer(setting, told[i], values[i])
                start = time.process_time()
                sums = sums.received(said)
                spent += time.process_time() - start
        start = time.process_time()
        done: Any = sums.closed()
        spent += time.process_time() - start
        if not isinstance(done, tuple):
            assert isinstance(done, Opened), done
            assert len(done.clients) == len(sites) - gone
            return spent
        sums, told = done
        assert isinstance(sums, Sum)


def main() -> None:
    """Measure, and print one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, usual in (("clients", 10), ("dimension", 40_000), ("bits", 32), ("gone", 0)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--repeats", type=int, default=5)
    told = parser.parse_args()
    n, now = told.clients, dt.datetime.now(dt.UTC)
    by = certificates.authority("bench", now)
    pairs = [certificates.certify(by, f"s{i}", "site", now) for i in range(n)]
    publics = [each.key.public_key() for each in pairs]

    def verify(who: int, content: bytes, signature: bytes) -> bool:
        return certificates.signed_by(publics[who], content, signature)

    sites = [
        Site(i, lambda content, pair=pair: certificates.signed(pair, content), verify)  # type: ignore[misc]
        for i, pair in enumerate(pairs)
    ]
    rng = np.random.default_rng(0)
    values = [residues.reduced(rng.integers(0, 2**62, told.dimension), told.bits) for _ in range(n)]
    servers, clients = [], []
    for number in range(1, told.repeats + 1):
        setting = Setting(
            study="bench",
            run="bench",
            round=number,
            clients=n,
            fewest=n - told.gone,
            bits=told.bits,
            dimension=told.dimension,
        )
        before = sites[-1].seconds
        servers.append(played(setting, sites, told.gone, values))
        clients.append(sites[-1].seconds - before)
    last = sites[-1]
    print(
        f"{n} clients, d = {told.dimension}, {told.bits} bits, {told.gone} gone: client "
        f"{1e3 * statistics.median(clients):.1f} ms, server {1e3 * statistics.median(servers):.1f} "
        f"ms; a client sends {last.sent / told.repeats / 1e3:.1f} kB and gets "
        f"{last.got / told.repeats / 1e3:.1f} kB a round"
    )


if __name__ == "__main__":
    main()
