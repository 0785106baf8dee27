"""What a server that colludes with clients learns: the sum, and nothing else.

The joint view of server and colluding clients is enumerated over all masks of a tiny modulus: each
mask that follows from a key which they do not learn is replaced by a uniform table, and the keys
that they do learn are those with which the server opens the sum.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from sordino.base import residues
from sordino.base.errors import RemoteProtocolError
from sordino.mechanisms.secure import secrets
from sordino.mechanisms.secure.messages import (
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
)
from sordino.mechanisms.secure.secrets import masked, own_key, pair_key, recover
from sordino.mechanisms.secure.server import Opened, Sum
from sums import Party, Signers, Vector, parties, played, setting, total

BITS = 2
SIGNERS = Signers(6)


class Recorded:
    """The keys with which inputs were masked, and with which a sum was opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[list[bytes], list[bytes]]] = []
        real = masked

        def recorded(
            values: residues.Residues, bits: int, *, plus: Iterable[bytes], minus: Iterable[bytes]
        ) -> residues.Residues:
            self.calls.append((list(plus), list(minus)))
            return real(values, bits, plus=self.calls[-1][0], minus=self.calls[-1][1])

        monkeypatch.setattr(secrets, "masked", recorded)


def _view(
    inputs: Sequence[int],
    sent: Sequence[tuple[list[bytes], list[bytes]]],
    table: dict[bytes, int],
    learnt: Sequence[bytes],
) -> tuple[int, ...]:
    """Masked inputs of one number each, and the masks that are learnt."""
    said = [
        (x + sum(table.get(key, 0) for key in plus) - sum(table.get(key, 0) for key in minus))
        % 2**BITS
        for x, (plus, minus) in zip(inputs, sent, strict=True)
    ]
    return (*said, *(table[key] for key in learnt if key in table))


def _distribution(
    inputs: Sequence[int],
    sent: Sequence[tuple[list[bytes], list[bytes]]],
    learnt: Sequence[bytes],
    known: set[bytes],
) -> Counter[tuple[int, ...]]:
    """Over all masks that the colluding clients do not know of themselves; theirs count as 0, since
    whoever knows a mask takes it off.
    """
    hidden = sorted({key for plus, minus in sent for key in (*plus, *minus)} - known)
    return Counter(
        _view(inputs, sent, dict(zip(hidden, drawn, strict=True)), learnt)
        for drawn in itertools.product(range(2**BITS), repeat=len(hidden))
    )


def _run(
    monkeypatch: pytest.MonkeyPatch, own: Setting, late: int | None
) -> tuple[list[tuple[list[bytes], list[bytes]]], list[bytes], set[bytes]]:
    """Keys of the inputs of clients 0, 1 and 2, those of the opening, and those of client 3.

    The server has the input of the ``late`` client, and claims that it did not arrive.
    """
    recorded = Recorded(monkeypatch)
    everybody = parties(own, [np.zeros(1, np.int64)] * own.clients, SIGNERS)
    gone = {} if late is None else {late: 3}
    received = Sum.received

    def lies(self: Sum, message: FromClient) -> Sum:
        if isinstance(message, MaskedInput) and message.client == late:
            return self.without(message.client)
        return received(self, message)

    with monkeypatch.context() as patch:
        patch.setattr(Sum, "received", lies)
        done = played(everybody, gone)
    assert isinstance(done, Opened)
    *sent, (plus, minus) = recorded.calls
    colluding = {key for each in sent[3:] for key in (*each[0], *each[1])}
    return sent[:3], [*plus, *minus], colluding


@pytest.mark.parametrize("late", [None, 2])
@pytest.mark.parametrize("colluding", [0, 1])
def test_equal_sums_look_the_same(
    monkeypatch: pytest.MonkeyPatch, late: int | None, colluding: int
) -> None:
    """Three honest clients, none or one that colludes; perhaps a late input that the server keeps
    though it says that it never came.
    """
    own = setting(3 + colluding, honest=2, dishonest=colluding, bits=BITS, dimension=1)
    sent, learnt, known = _run(monkeypatch, own, late)
    first = _distribution((1, 2, 3), sent, learnt, known)
    # who is left out may have sent anything; of those who are in, only the sum is the same
    other = (3, 3, 0) if late is None else (0, 3, 1)
    assert first == _distribution(other, sent, learnt, known)
    unequal = (1, 3, 3)
    assert first != _distribution(unequal, sent, learnt, known)
    # the own mask of one more client, and it is no longer so
    if late is not None:
        own_mask = next(key for key in sent[2][0] if all(key not in p + m for p, m in sent[:2]))
        more = [*learnt, own_mask]
        assert _distribution((1, 2, 3), sent, more, known) != _distribution(
            (0, 3, 1), sent, more, known
        )


class Split:
    """A server that shows some clients one set, and others another one."""

    def __init__(self, own: Setting, vectors: Sequence[Vector]) -> None:
        self.own = own
        self.everybody = parties(own, vectors, SIGNERS)
        self.inputs: dict[int, bytes] = {}
        sums = Sum(own, SIGNERS.verify, waiting=frozenset(range(own.clients)))
        told: dict[int, FromServer] = {}
        for phase in range(3):
            for each in self.everybody:
                said = each.answer(told[each.number]) if phase else each.first()
                if isinstance(said, MaskedInput):
                    self.inputs[each.number] = said.values
                sums = sums.received(said)
            self.sums = sums
            done = sums.closed()
            assert isinstance(done, tuple)
            sums, told = done[0], dict(done[1])

    def asked(self, members: tuple[int, ...], group: Sequence[int]) -> list[Revealed]:
        """What a group reveals that is told of these members; only its own signatures exist."""
        number, signed = self.own.round, {}
        for i in group:
            said = self.everybody[i].answer(Included(number, members))
            signed[i] = said.signature  # type: ignore[union-attr]
        told = Signatures(number, tuple(signed), tuple(signed.values()))
        return [self.everybody[i].answer(told) for i in group]  # type: ignore[misc]

    def opened(self, victim: int) -> list[int]:
        """The victim's input, from shares of both of its secrets."""
        own, t, keys = self.own, self.own.threshold, self.sums.keys
        members = tuple(range(own.clients))
        rest = tuple(i for i in members if i != victim)
        half = len(members) // 2
        first = self.asked(members, members[:half])
        second = self.asked(rest, members[half:])
        seed = recover({each.client: each.masks[victim] for each in first}, t, 32)
        found = recover({each.client: dict(each.keys)[victim] for each in second}, t, 32)
        private = X25519PrivateKey.from_private_bytes(found)
        pairs = {i: pair_key(own, private, keys[victim], keys[i]) for i in rest}
        values = masked(
            residues.unpacked(self.inputs[victim], own.dimension, own.bits),
            own.bits,
            plus=[key for i, key in pairs.items() if i < victim],
            minus=[own_key(own, victim, seed), *(key for i, key in pairs.items() if i > victim)],
        )
        return [int(each) for each in values]


def test_a_server_that_shows_two_sets_opens_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four clients and t = 3; with t = 2, which no setting has, both secrets of a client come out,
    and with them its input.
    """
    vectors = [np.array([i + 40]) for i in range(4)]
    own = setting(4, honest=1, dimension=1)
    assert own.threshold == 3
    with pytest.raises(RemoteProtocolError, match="2 have signed, and 3 must"):
        Split(own, vectors).opened(0)
    monkeypatch.setattr(Setting, "threshold", 2)
    assert Split(own, vectors).opened(1) == [41]


def test_nobody_signs_twice_or_reveals_for_another_set() -> None:
    split = Split(setting(4, honest=1, dimension=1), [np.array([i]) for i in range(4)])
    everybody = split.everybody
    first = [each.answer(Included(1, (0, 1, 2, 3))) for each in everybody]
    with pytest.raises(RemoteProtocolError, match="a second set in one round"):
        everybody[1].answer(Included(1, (1, 2, 3)))
    assert everybody[1].answer(Included(1, (0, 1, 2, 3))) == first[1]
    everybody[0].record = everybody[1].record
    signatures = tuple(each.signature for each in first)  # type: ignore[union-attr]
    said = everybody[1].answer(Signatures(1, (0, 1, 2, 3), signatures))
    assert isinstance(said, Revealed)
    assert (len(said.masks), said.keys) == (4, ())
    swapped = (signatures[0], signatures[1], signatures[3])
    with pytest.raises(RemoteProtocolError, match="client 2 has not signed the set"):
        everybody[1].answer(Signatures(1, (0, 1, 2), swapped))


def _keys(party: Party) -> Keys:
    said = party.first()
    assert isinstance(said, Keys)
    return said


def _shares(party: Party, told: KeyList) -> Shares:
    said = party.answer(told)
    assert isinstance(said, Shares)
    return said


def test_keys_of_an_earlier_run_are_found_out() -> None:
    """A server that plays a client's old keys, whose secrets came out then, is trusted by nobody:
    the old client does not seal shares for the new keys of others.
    """
    own = setting(4, honest=2, dimension=1)
    vectors = [np.array([i]) for i in range(4)]
    before = Split(own, vectors)
    now = parties(own, vectors, SIGNERS)
    keys = [_keys(each) for each in now]
    old = before.everybody[3].record
    assert old is not None
    keys[3] = old.own
    told = KeyList(1, tuple(keys))
    said = [_shares(each, told) for each in now[:3]]
    # client 0 gets what 1 and 2 have sealed for it, and what 3 sealed for its old keys
    packets = (said[1].sealed[0], said[2].sealed[0], before.sums.shares[3].sealed[0])
    now[0].answer(Delivered(1, (1, 2, 3), packets))
    assert list(now[0].failed) == [3]
    with pytest.raises(RemoteProtocolError, match="a set with client 3, of whom"):
        now[0].answer(Included(1, (0, 1, 2, 3)))
    now[0].answer(Included(1, (0, 1, 2)))


def test_who_is_shown_only_absent_clients_sends_nothing() -> None:
    """With fewer than t - 1 shares that open, the masks may be known to the server."""
    own = setting(4, honest=2, dimension=1)
    now = parties(own, [np.array([i]) for i in range(4)], SIGNERS)
    told = KeyList(1, tuple(_keys(each) for each in now))
    good = [_shares(each, told) for each in now][1].sealed[0]
    with pytest.raises(RemoteProtocolError, match="shares of 1 clients open, and 2 must"):
        now[0].answer(Delivered(1, (1, 2, 3), (good, bytes(148), good)))
    assert now[0].record is not None
    assert not now[0].record.input


def test_the_sum_is_all_that_equal_runs_differ_in() -> None:
    """A whole run of two rounds: the total, as Python adds."""
    for number in (1, 2):
        own = setting(4, honest=2, round=number)
        vectors = [np.arange(3) * i - number for i in range(4)]
        done = played([Party(own, i, each, SIGNERS) for i, each in enumerate(vectors)], {1: 2})
        assert isinstance(done, Opened)
        assert done.values.tolist() == total(vectors, (0, 2, 3), 32)
