"""What does not fit is refused, with the name of who is to blame; the sum goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.base import residues
from sordino.base.errors import LocalProtocolError, RemoteProtocolError, StudyError
from sordino.mechanisms.secure import client
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
    Signed,
    Unopened,
    decode,
    encode,
    signed_keys,
)
from sordino.mechanisms.secure.secrets import LENGTH, deal
from sordino.mechanisms.secure.server import Opened, Sum, Void
from sums import Party, Signers, parties, setting, total

SIGNERS = Signers(5)
VECTORS = [np.array([i, -i, 7 * i]) for i in range(5)]
ZERO = bytes(32)
ORDER_8 = bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800")
replace = msgspec.structs.replace


class Game:
    """A sum in which some things may be changed on the way."""

    def __init__(self, **more: Any) -> None:
        self.own = setting(5, **{"honest": 3, **more})
        self.everybody = parties(self.own, VECTORS, SIGNERS)
        self.sums = Sum(self.own, SIGNERS.verify, waiting=frozenset(range(5)))
        self.told: Mapping[int, FromServer] = {}
        self.done: Opened | Void | None = None
        self.refused: list[str] = []

    def says(self, who: int) -> FromClient:
        """What a client answers now."""
        each = self.everybody[who]
        return each.answer(self.told[who]) if self.sums.phase else each.first()

    def hears(self, message: FromClient) -> None:
        """Give the server a message; a refusal leaves it as it was."""
        try:
            self.sums = self.sums.received(message)
        except RemoteProtocolError as error:
            self.refused.append(str(error))

    def phase(self, changed: Mapping[int, Callable[[Any], FromClient]] | None = None) -> None:
        """All who are asked answer, some of them in another way; those refused answer no more."""
        for who in sorted(self.sums.waiting):
            change, honest = (changed or {}).get(who), self.says(who)
            self.hears(honest if change is None else change(honest))
        done = self.sums.closed()
        if isinstance(done, tuple):
            self.sums, self.told = done
        else:
            self.done = done

    def until(self, phase: int) -> Game:
        """Honest phases up to this one."""
        while self.sums.phase < phase:
            self.phase()
        return self

    def end(self) -> Opened:
        """Honest phases to the end."""
        while self.done is None:
            self.phase()
        assert isinstance(self.done, Opened), self.done
        assert self.done.values.tolist() == total(VECTORS, self.done.clients, 32)
        return self.done


def _signed(game: Game, keys: Keys, who: int = 2) -> Keys:
    return replace(keys, signature=SIGNERS.sign(who, signed_keys(game.own, keys)))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda g, m: replace(m, mask=bytes(range(32))), "client 2: keys that its certificate has"),
        (lambda g, m: _signed(g, replace(m, mask=ZERO)), "client 2: a public key of small order"),
        (lambda g, m: _signed(g, replace(m, encrypt=ORDER_8)), "client 2: a public key of small"),
        (lambda g, m: _signed(g, replace(m, encrypt=b"short")), "client 2: a public key of small"),
        (lambda g, m: _signed(g, replace(m, commitment=b"")), "client 2: a commitment of another"),
        (lambda g, m: _signed(g, replace(m, mask=m.encrypt)), "client 2: a public key that some"),
        (lambda g, m: _signed(g, replace(m, round=2)), "client 2: Keys of round 2, in round 1"),
        (lambda g, m: Signed(2, 1, b""), "client 2: Signed of round 1, in round 1, which waits"),
        (
            lambda g, m: _signed(g, replace(m, mask=g.sums.keys[0].mask)),
            "client 2: a public key that somebody has already",
        ),
        (lambda g, m: replace(g.sums.keys[0], client=2), "client 2: keys that its certificate"),
        (lambda g, m: replace(m, client=7), "client 7: it is not waited for"),
    ],
)
def test_keys_that_are_refused(change: Callable[[Game, Any], FromClient], why: str) -> None:
    game = Game()
    game.phase({2: lambda m: change(game, m)})
    assert len(game.refused) == 1
    assert game.refused[0].startswith(why)
    assert 2 not in game.end().clients


def test_keys_of_a_client_beyond_the_last_are_refused() -> None:
    game = Game()
    keys = game.says(2)
    assert isinstance(keys, Keys)
    client.check_keys(game.own, keys, lambda *given: True)
    with pytest.raises(RemoteProtocolError, match="keys of round 1"):
        client.check_keys(game.own, replace(keys, client=game.own.clients), lambda *given: True)


@pytest.mark.parametrize("wrong", [{"bits": 0}, {"bits": 65}, {"dimension": 0}, {"round": 0}])
def test_numbers_out_of_range_make_no_sum(wrong: dict[str, int]) -> None:
    assert [setting(2, bits=bits).bits for bits in (1, 64)] == [1, 64]
    with pytest.raises(StudyError, match=r"bits must lie in 1\.\.64; dimension and round"):
        setting(2, **wrong)


def test_keys_of_another_sum_are_refused() -> None:
    for other in ({"round": 2}, {"study": "other"}, {"run": "other"}, {"dishonest": 1}):
        game = Game()
        theirs = Game(**other).says(2)
        assert isinstance(theirs, Keys)
        game.phase({2: lambda m, theirs=theirs: replace(theirs, round=1)})  # type: ignore[misc]
        assert game.refused == ["client 2: keys that its certificate has not signed"]


@pytest.mark.parametrize(
    ("phase", "change", "why"),
    [
        (1, lambda m: replace(m, sealed=m.sealed[1:]), "shares for 3 others; there are 4"),
        (1, lambda m: replace(m, sealed=(b"", *m.sealed[1:])), "shares of another length"),
        (1, lambda m: replace(m, prints=(b"", *m.prints[1:])), "shares of another length"),
        (1, lambda m: replace(m, prints=m.prints[1:]), "shares for 4 others"),
        (2, lambda m: replace(m, values=m.values[1:]), "a vector of 11 bytes; 3 numbers of 4"),
        (2, lambda m: replace(m, round=9), "MaskedInput of round 9, in round 1"),
        (3, lambda m: replace(m, signature=b"no"), "it has signed another set, or none"),
        (4, lambda m: replace(m, masks=m.masks[1:]), "shares that it was not asked for"),
        (4, lambda m: replace(m, keys=((0, bytes(LENGTH)),)), "shares that it was not asked"),
    ],
)
def test_what_the_server_refuses_later(
    phase: int, change: Callable[[Any], FromClient], why: str
) -> None:
    game = Game().until(phase)
    game.phase({2: change})
    assert [each.startswith(f"client 2: {why}") for each in game.refused] == [True], game.refused
    assert (2 in game.end().clients) == (phase > 2)


def test_answers_count_once() -> None:
    game = Game()
    for phase in range(4):
        first = game.says(0)
        game.hears(first)
        before = game.sums
        game.hears(first)
        assert game.refused[-1].startswith("client 0: it is not waited for, or has answered")
        assert game.sums is before
        assert game.sums.phase == phase
        game.phase()
    game.end()


def test_a_wrong_share_is_named_and_passed_over() -> None:
    game = Game().until(2)
    game.sums = game.sums.without(4)  # drops out: its key is to be recovered
    game.phase()
    game.until(4)
    game.phase(
        {
            1: lambda m: replace(m, masks=(m.masks[1], *m.masks[1:])),
            3: lambda m: replace(m, keys=((4, bytes(LENGTH)),)),
        }
    )
    # of four that reveal, three good shares are left of each
    done = game.end()
    assert done.clients == (0, 1, 2, 3)
    assert done.faults == (
        (1, "its share of client 0 is not as client 0 has dealt it"),
        (3, "its share of client 4 is not as client 4 has dealt it"),
    )


@pytest.mark.parametrize("gone", [False, True])
def test_a_dealer_of_wrong_shares_is_named(monkeypatch: pytest.MonkeyPatch, gone: bool) -> None:
    """Shares of another seed than the committed one, and of another key: the sum stays shut."""
    game = Game().until(1)

    def of_zero(own: Setting, mine: Any, who: Sequence[int]) -> tuple[dict[int, bytes], ...]:
        return tuple(deal(ZERO, own.threshold, who, bytes) for _ in range(2))

    def lies(honest: Any) -> FromClient:
        with monkeypatch.context() as patch:
            patch.setattr(client, "_dealt", of_zero)
            return game.says(2)

    game.phase({2: lies})
    if gone:
        game.sums = game.sums.without(2)
    while game.done is None:
        game.phase()
    assert isinstance(game.done, Void)
    assert game.done.why == "client 2: it has dealt shares of something else"
    assert {who for who, _ in game.done.faults} == {2}


def test_who_says_that_shares_fail_is_not_believed_against_all_others() -> None:
    """Client 4 says that it could open no shares, and two are silent: the sum is void, and no
    honest client is blamed.
    """
    game = Game().until(3)
    for wrong in ((4,), (7,)):
        with pytest.raises(RemoteProtocolError, match="it lacks shares that nobody has dealt"):
            game.sums.received(Unopened(4, 1, wrong))
    game.sums = game.sums.without(2).without(3)
    game.phase({4: lambda m: Unopened(4, 1, (0, 1, 2, 3))})
    assert game.done == Void("2 of 5 clients sent Signed, and 3 must", (), (4,))


def test_clients_that_have_not_answered_are_missing_but_for_shares_of_a_blamed_one() -> None:
    game = Game().until(1)
    game.hears(game.says(0))
    assert game.sums.missing({0, 1, 2}) == (1, 2)
    game = Game().until(3)
    game.hears(Unopened(4, 1, (0, 1)))
    assert game.sums.blamed() == (4,)
    assert game.sums.missing({0, 1, 2, 3, 4}) == (2, 3)


def test_inputs_that_were_added_up_elsewhere_count_in_their_phase_alone() -> None:
    game = Game().until(2)
    inputs = [residues.unpacked(game.says(i).values, 3, 32) for i in range(5)]  # type: ignore[union-attr]
    added = np.stack(inputs).sum(axis=0, dtype=np.uint64)
    with pytest.raises(LocalProtocolError, match="not asked for"):
        game.sums.counted((0, 5), added)
    game.sums = game.sums.counted((0, 1, 2, 3, 4), added)
    game.phase()
    with pytest.raises(LocalProtocolError, match="not asked for"):
        game.sums.counted((0, 1), added)
    assert game.end().clients == (0, 1, 2, 3, 4)


def test_who_reveals_wrong_shares_is_blamed_and_not_their_dealers() -> None:
    game = Game().until(4)
    game.sums = game.sums.without(2).without(3)
    game.phase({4: lambda m: replace(m, masks=m.masks[::-1])})
    assert isinstance(game.done, Void)
    assert "its secret cannot be recovered" in game.done.why
    assert game.done.blamed == (4,)


def _first(game: Game) -> tuple[Party, Any]:
    each = game.everybody[0]
    return each, game.told[0]


def _refused(game: Game, told: FromServer, why: str) -> None:
    """Client 0 refuses this, and its record stays as it was; then it goes on."""
    each, right = _first(game)
    before = each.record
    with pytest.raises(RemoteProtocolError, match=why):
        each.answer(told)
    assert each.record == before
    assert each.answer(right) == each.answer(right)


def _other(keys: tuple[Keys, ...], who: int, new: Keys) -> tuple[Keys, ...]:
    return tuple(new if each.client == who else each for each in keys)


def test_a_client_refuses_a_list_that_lies() -> None:
    strange = X25519PrivateKey.from_private_bytes(bytes(range(32))).public_key()
    for change, why in (
        (lambda k: _other(k, 1, replace(k[1], mask=strange.public_bytes_raw())), "client 1: keys"),
        (lambda k: _other(k, 1, replace(k[2], client=1)), "client 1: keys that its certificate"),
        (lambda k: _other(k, 0, replace(k[0], mask=ZERO)), "a list without this client's keys"),
        (lambda k: k[1:], "a list without this client's keys"),
        (lambda k: k[:2], "2 clients: a sum of fewer than 3 is not opened"),
        (lambda k: (k[0], *k), "clients out of order, twice"),
        (lambda k: (k[1], k[0], *k[2:]), "clients out of order"),
        (lambda k: (*k, replace(k[4], client=5)), "clients out of order, twice, or unknown"),
        (lambda k: _other(k, 1, replace(k[1], round=2)), "client 1: keys of round 2"),
    ):
        game = Game().until(1)
        keys = _first(game)[1].keys
        _refused(game, KeyList(1, change(keys)), why)
        _refused(game, KeyList(2, keys), "it is of round 2, and this is 1")
        _refused(game, KeyList(1, keys[:4]), "a second list of keys in one round")
        game.end()


def test_a_client_refuses_deliveries_that_lie() -> None:
    nonsense = bytes(148)
    for senders, change, why in (
        ((1,), lambda each: each[:1], "2 clients: a sum of fewer than 3"),
        ((0, 1, 2), lambda each: each[:3], "shares of client 0, who takes no part"),
        ((1, 1, 2), lambda each: each[:3], "twice"),
        ((1, 2, 3, 4), lambda each: each[:3], "shares that belong to nobody"),
        ((1, 2, 3, 4), lambda each: (each[0], *[nonsense] * 3), "shares of 1 clients open, and 2"),
        ((1, 2, 3, 4), lambda each: each[::-1], "shares of 0 clients open"),
    ):
        game = Game().until(2)
        told = Delivered(1, senders, change(_first(game)[1].sealed))
        _refused(game, told, why)
    game = Game().until(2)
    reflected = game.sums.shares[0].sealed  # what it has sealed for others itself
    told = _first(game)[1]
    _refused(game, Delivered(1, told.senders, reflected), "shares of 0 clients open")
    game.everybody[0].answer(told)
    _refused(game, Delivered(1, told.senders[:3], told.sealed[:3]), "a second delivery")
    game.everybody[0].vector = VECTORS[1]
    with pytest.raises(LocalProtocolError, match="two inputs to one secure sum"):
        game.everybody[0].answer(told)
    game.everybody[0].vector = VECTORS[0]
    game.end()


def test_shares_that_do_not_open_are_named_and_the_sum_goes_on() -> None:
    """Client 1 seals nonsense for client 0, which signs no set with client 1 in it; the others do,
    and the sum is opened.
    """
    game = Game().until(1)
    game.phase({1: lambda m: replace(m, sealed=(bytes(148), *m.sealed[1:]))})
    game.phase()
    assert game.everybody[0].failed == {1: "shares that do not open"}
    with pytest.raises(RemoteProtocolError, match="a set with client 1, of whom"):
        game.says(0)
    game.sums = game.sums.without(0)
    assert game.end().clients == (0, 1, 2, 3, 4)


def test_a_client_refuses_sets_that_lie() -> None:
    game = Game().until(2)
    early = Included(1, (0, 1, 2))
    with pytest.raises(RemoteProtocolError, match="a set with client 0, client 1, client 2"):
        game.everybody[0].answer(early)
    game.until(3)
    for members, why in (
        ((0, 1), "2 contributions: a sum of fewer than 3"),
        ((1, 2, 3), "a set without this client"),
        ((0, 1, 1, 2), "twice"),
        ((0, 1, 2, 3, 4, 5), "unknown"),
    ):
        _refused(Game().until(3), Included(1, members), why)
    with pytest.raises(RemoteProtocolError, match="signatures of a set, before a set"):
        game.everybody[0].answer(Signatures(1, (), ()))
    game.end()


def test_a_client_refuses_signatures_that_lie() -> None:
    game = Game().until(4)
    told = _first(game)[1]
    good, other = told.signatures, (told.signatures[1], *told.signatures[1:])
    for signers, signatures, why in (
        ((0, 1), good[:2], "2 have signed, and 3 must"),
        ((0, 1, 2), other[:3], "client 0 has not signed the set"),
        ((0, 1, 1), good[:3], "twice"),
        ((0, 1, 2), good[:2], "belong to nobody"),
    ):
        _refused(game, Signatures(1, signers, signatures), why)
    game.end()


def test_a_member_who_is_not_in_the_set_does_not_sign_for_it() -> None:
    game = Game().until(2)
    game.sums = game.sums.without(4)
    game.until(4)
    told = _first(game)[1]
    forged = SIGNERS.sign(4, b"whatever")
    _refused(
        game,
        Signatures(1, (*told.signers, 4), (*told.signatures, forged)),
        "client 4 has not signed the set",
    )
    game.end()


@given(st.integers(0, 4), st.integers(0, 2**32 - 1), st.booleans())
@settings(max_examples=60, deadline=None)
def test_bytes_that_were_changed_do_no_harm(phase: int, seed: int, whole: bool) -> None:
    """One client's message has other bytes: it is refused, or it changes nothing but that client's
    part; and never anything but a refusal is raised.
    """
    rng, game = np.random.default_rng(seed), Game().until(phase)
    honest = game.says(1)
    data = bytearray(encode(honest))
    if whole:
        data = bytearray(rng.bytes(len(data)))
    for place in rng.integers(0, len(data), 1 + int(rng.integers(3))):
        data[place] ^= 1 << int(rng.integers(8))
    try:
        found = decode(bytes(data))
    except RemoteProtocolError:
        found = None
    if isinstance(found, Keys | Shares | MaskedInput | Signed | Revealed) and found.client == 1:
        game.hears(found)
    game.sums = game.sums.without(1)
    for who in sorted(game.sums.waiting):
        game.hears(game.says(who))
    _to_the_end(game)
    if isinstance(game.done, Opened) and phase != 2:
        assert game.done.values.tolist() == total(VECTORS, game.done.clients, 32)


def _to_the_end(game: Game) -> None:
    while True:
        done = game.sums.closed()
        if not isinstance(done, tuple):
            game.done = done
            return
        game.sums, game.told = done
        for who in sorted(game.sums.waiting):
            try:
                game.hears(game.says(who))
            except RemoteProtocolError as error:
                game.refused.append(str(error))
                game.sums = game.sums.without(who)


@given(st.integers(1, 4), st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_changed_bytes_of_the_server_are_refused_or_harmless(phase: int, seed: int) -> None:
    rng, game = np.random.default_rng(seed), Game().until(phase)
    each, right = _first(game)
    data = bytearray(encode(right))
    for place in rng.integers(0, len(data), 1 + int(rng.integers(3))):
        data[place] ^= 1 << int(rng.integers(8))
    try:
        found = decode(bytes(data))
        if type(found) is type(right):
            each.answer(found)  # type: ignore[arg-type]
    except RemoteProtocolError:
        each.answer(right)
    _to_the_end(game)
    if isinstance(game.done, Opened) and phase < 2:
        assert game.done.values.tolist() == total(VECTORS, game.done.clients, 32)
