"""Bytes and numbers of a secure sum are those of before: parties of two versions understand each
other, and what is at a border is on its side.
"""

from __future__ import annotations

import hashlib

import msgspec
import numpy as np
import pytest

from sordino.base.errors import RemoteProtocolError, StudyError
from sordino.mechanisms.secure import client, messages, secrets
from sordino.mechanisms.secure.messages import Invitation, Keys, Setting, decode, encode
from sums import parties, setting

OWN = setting(3, study="s", run="r", bits=17, dimension=4)
SEEDS = [bytes([i] * 32) for i in range(3)]


def short(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def test_messages_and_what_is_bound_to_a_sum_have_the_same_bytes() -> None:
    assert encode(Invitation(7)) == msgspec.msgpack.encode(["Invitation", 7])
    for wrong in (["Invitation", 7, 8], {"type": "Invitation", "round": 7}, [7], ["Invitation"]):
        with pytest.raises(RemoteProtocolError):
            decode(msgspec.msgpack.encode(wrong))
    assert OWN.context("what", b"a", b"").hex() == CONTEXT
    assert (Setting(study="", run="", round=1, clients=2, fewest=1, dimension=1)) == Setting(
        study="", run="", round=1, clients=2, fewest=1, dimension=1, dishonest=0, bits=32
    )


def test_a_sum_with_known_seeds_has_the_same_bytes() -> None:
    everybody = parties(OWN, [np.array([1, 2, 3, i]) for i in range(3)])
    said = []
    for each, seed in zip(everybody, SEEDS, strict=True):
        each.seed = seed
        said.append(each.first())
    listed = messages.KeyList(1, tuple(one for one in said if isinstance(one, Keys)))
    shares = [each.answer(listed) for each in everybody]
    dealt = [one for one in shares if isinstance(one, messages.Shares)]
    told = messages.Delivered(1, (1, 2), (dealt[1].sealed[0], dealt[2].sealed[0]))
    masked = everybody[0].answer(told)
    signed = everybody[0].answer(messages.Included(1, (0, 1)))
    found = [short(encode(each)) for each in (*said, *shares, masked, signed)]
    assert found == BYTES
    record = everybody[0].record
    assert record is not None
    assert short(msgspec.msgpack.encode(record)) == RECORD


def test_shares_and_masks_of_known_secrets() -> None:
    def draws(count: int) -> bytes:
        return bytes(i % 251 for i in range(count))

    dealt = secrets.deal(b"secret", 3, (0, 5), draws)
    assert [short(dealt[i]) for i in (0, 5)] == SHARES
    assert {len(each) for each in dealt.values()} == {66}
    assert (secrets.PRIME, secrets.KEY, secrets.SEALED, secrets._DRAWN) == (2**521 - 1, 32, 148, 82)
    assert (messages.MOST_CLIENTS, messages.DIGEST) == (256, 32)
    for bits, numbers in MASKS.items():
        assert secrets.stream(bytes(32), 3, bits).tolist() == numbers
    with pytest.raises(RemoteProtocolError, match="a share of 66 bytes is none"):
        secrets.number(secrets.PRIME.to_bytes(66, "big"))
    assert secrets.number((secrets.PRIME - 1).to_bytes(66, "big")) == secrets.PRIME - 1
    with pytest.raises(RemoteProtocolError, match="a share of 67 bytes is none"):
        secrets.number(bytes(67))


def test_settings_at_their_borders() -> None:
    for clients, fewest, dishonest in ((2, 1, 0), (256, 256, 0), (5, 5, 4), (5, 1, 0), (2, 2, 1)):
        Setting(
            study="",
            run="",
            round=1,
            clients=clients,
            fewest=fewest,
            dishonest=dishonest,
            dimension=1,
        )
    for clients, fewest, dishonest in ((257, 1, 0), (5, 0, 0), (5, 6, 0), (5, 5, 5), (5, 5, -1)):
        with pytest.raises(StudyError):
            Setting(
                study="",
                run="",
                round=1,
                clients=clients,
                fewest=fewest,
                dishonest=dishonest,
                dimension=1,
            )
    for order, fine in (
        ((0, 1, 4), True),
        ((0, 5), False),
        ((-1, 2), False),
        ((1, 0), False),
        ((1, 1), False),
    ):
        if fine:
            client._refuse_order(order, 5)
        else:
            with pytest.raises(RemoteProtocolError, match="out of order"):
                client._refuse_order(order, 5)


CONTEXT = "44c1be1845571862649522b51037fafd3de52c2d8feb70a1010df07184848bc0"
BYTES = [
    "b2eb778f2b2cb17d",
    "a8dbb0530db8e219",
    "edbacb549b2f6a70",
    "bb7f65fdcbee2cd5",
    "119ca0d384d46577",
    "15ccbf6c78ec0841",
    "e7aa29cdd7a48140",
    "ed2291de7c4f3b16",
]
RECORD = "5dba3d211b6a5b45"
SHARES = ["cbce279857f79751", "24fb78bc44d8f14d"]
MASKS = {
    7: [92, 34, 45],
    32: [2025887196, 2307473570, 346179757],
    33: [2025887196, 346179757, 8515096403],
    64: [9910523521560253916, 9736928157321283757, 13345931270979981139],
}
