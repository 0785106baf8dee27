"""A client's part in a secure sum (Bonawitz et al. 2017, the variant against an active server).

Every step takes the client's record and what the server says, and gives the record after it and
what is to be said. Whoever calls holds the record in memory, and writes it down nowhere: asked the
same again, the client says the same bytes; asked for something else in the same phase, it refuses.
So with one record it sends one masked input, signs one set, and never reveals both secrets of one
client. A record that was put back from a copy would do all that a second time.

All refusals name the client that is to blame as far as it can be known; the record stays as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from sordino.base import residues
from sordino.base.errors import LocalProtocolError, RemoteProtocolError
from sordino.base.frozen import Frozen
from sordino.base.residues import Residues
from sordino.mechanisms.secure import secrets
from sordino.mechanisms.secure.messages import (
    Delivered,
    Included,
    KeyList,
    Keys,
    MaskedInput,
    Revealed,
    Setting,
    Shares,
    Signatures,
    Signed,
    encode,
    fingerprint,
    signed_keys,
    signed_set,
    transcript,
)

Sign = Callable[[bytes], bytes]
"""Signs by the key of this client's certificate."""
Verify = Callable[[int, bytes, bytes], bool]
"""Returns whether this client's certificate has signed this content so: as everybody knows from the
kit, and not from the server.
"""


class Record(Frozen, forbid_unknown_fields=True):
    """Secrets and state of a client in one sum, in its memory alone.

    Attributes:
        seed: of all its secrets.
        own: its public keys, as it has sent them.
        listed: the keys of all who take part; empty before the second phase.
        senders: who has dealt shares, and so whose masks are in the input.
        shares: what opened: of whom, the share of the own mask's seed, and of the private key.
        delivered: digest of what was delivered; empty before the third phase.
        input: digest of the masked input that was sent.
        signed: the set; empty before the fourth phase.
        signature: over it.
    """

    seed: bytes
    own: Keys
    listed: tuple[Keys, ...] = ()
    senders: tuple[int, ...] = ()
    shares: tuple[tuple[int, bytes, bytes], ...] = ()
    delivered: bytes = b""
    input: bytes = b""
    signed: tuple[int, ...] = ()
    signature: bytes = b""


def begin(setting: Setting, client: int, seed: bytes, sign: Sign) -> Record:
    """Take part in a sum: ``record.own`` is to be sent.

    Args:
        seed: 32 bytes that are used for no other sum.
    """
    found = secrets.secrets(setting, client, seed)
    own = Keys(
        client=client,
        round=setting.round,
        encrypt=secrets.public(found.encrypt),
        mask=secrets.public(found.mask),
        commitment=secrets.commitment(setting, client, found.own),
        signature=b"",
    )
    signed = msgspec.structs.replace(own, signature=sign(signed_keys(setting, own)))
    return Record(seed=seed, own=signed)


def share(setting: Setting, record: Record, told: KeyList, verify: Verify) -> tuple[Record, Shares]:
    """Check everybody's keys, and deal shares of this client's secrets.

    Raises:
        RemoteProtocolError: if keys are not their client's, this client's are not among them, too
            few take part, or it is a second list.
    """
    _refuse_round(setting, told.round)
    if record.listed and record.listed != told.keys:
        raise RemoteProtocolError("a second list of keys in one round", "second list")
    if not record.listed:
        _refuse_keys(setting, record.own, told.keys, verify)
    own, agreed = record.own, transcript(setting, told.keys)
    mine = secrets.secrets(setting, own.client, record.seed)
    of_own, of_mask = _dealt(setting, mine, [each.client for each in told.keys])
    packets = []
    for each in told.keys:
        if each.client != own.client:
            key = secrets.sealing_key(setting, mine.encrypt, each, own, each, agreed)
            packets.append(secrets.sealed(key, of_own[each.client], of_mask[each.client]))
    prints = tuple(
        fingerprint(of_own[each.client]) + fingerprint(of_mask[each.client]) for each in told.keys
    )
    made = Shares(client=own.client, round=setting.round, sealed=tuple(packets), prints=prints)
    return msgspec.structs.replace(record, listed=told.keys), made


def open_shares(setting: Setting, record: Record, told: Delivered) -> tuple[Record, dict[int, str]]:
    """Open the shares that were sealed for this client; and whose do not open, and why.

    Raises:
        RemoteProtocolError: if too few have dealt shares, or this is a second delivery.
    """
    _refuse_round(setting, told.round)
    delivered = fingerprint(encode(told))
    if record.delivered and record.delivered != delivered:
        raise RemoteProtocolError("a second delivery in one round", "second delivery")
    known = {each.client: each for each in record.listed}
    _refuse_senders(setting, record, told, known)
    own, agreed = record.own, transcript(setting, record.listed)
    mine = secrets.secrets(setting, own.client, record.seed)
    found, failed = [], {}
    for sender, packet in zip(told.senders, told.sealed, strict=True):
        other = known[sender]
        try:
            key = secrets.sealing_key(setting, mine.encrypt, other, other, own, agreed)
            found.append((sender, *secrets.opened(key, packet)))
        except RemoteProtocolError as error:
            failed[sender] = str(error)
    kept = msgspec.structs.replace(
        record, senders=told.senders, shares=tuple(found), delivered=delivered
    )
    return kept, failed


def refuse_unopened(setting: Setting, record: Record) -> None:
    """Refuse a sum in which fewer than t clients, this one included, have shown to be there.

    Raises:
        RemoteProtocolError: naming the others.
    """
    there = {sender for sender, _, _ in record.shares}
    if len(there) + 1 < setting.threshold:
        others = [each for each in record.senders if each not in there]
        raise RemoteProtocolError(
            f"shares of {len(there)} clients open, and {setting.threshold - 1} must: the others "
            f"({_names(others)}) may not be there",
            "shares",
        )


def mask(setting: Setting, record: Record, values: Residues) -> tuple[Record, MaskedInput]:
    """Mask this client's vector (d,) of whole numbers, once shares are opened.

    Raises:
        RemoteProtocolError: if shares of fewer than t clients have opened: the others may not be
            there at all.
        LocalProtocolError: if another vector was masked before.
    """
    refuse_unopened(setting, record)
    own, known = record.own, {each.client: each for each in record.listed}
    mine = secrets.secrets(setting, own.client, record.seed)
    pairs = {i: secrets.pair_key(setting, mine.mask, own, known[i]) for i in record.senders}
    hidden = secrets.masked(
        residues.reduced(values, setting.bits),
        setting.bits,
        plus=[secrets.own_key(setting, own.client, mine.own)]
        + [key for other, key in pairs.items() if other > own.client],
        minus=[key for other, key in pairs.items() if other < own.client],
    )
    packed = residues.packed(hidden, setting.bits)
    if record.input and record.input != fingerprint(packed):
        raise LocalProtocolError("two inputs to one secure sum")
    kept = msgspec.structs.replace(record, input=fingerprint(packed))
    return kept, MaskedInput(client=own.client, round=setting.round, values=packed)


def sign(setting: Setting, record: Record, told: Included, signs: Sign) -> tuple[Record, Signed]:
    """Sign the set of those who are in, once.

    Raises:
        RemoteProtocolError: if this client has sent no input, is not in the set, somebody is in it
            whose shares did not open, it is too small, or it is a second one.
    """
    _refuse_round(setting, told.round)
    own = record.own.client
    if record.signed and record.signed != told.clients:
        raise RemoteProtocolError("a second set in one round", "second set")
    live = {own, *(each for each, _, _ in record.shares)} if record.input else set()
    _refuse_order(told.clients, setting.clients)
    if unknown := [each for each in told.clients if each not in live]:
        raise RemoteProtocolError(
            f"a set with {_names(unknown)}, of whom this client has no shares", "set"
        )
    if own not in told.clients:
        raise RemoteProtocolError("a set without this client", "set")
    _refuse_few(setting, len(told.clients), "contributions")
    signature = record.signature or signs(
        signed_set(setting, transcript(setting, record.listed), told.clients)
    )
    kept = msgspec.structs.replace(record, signed=told.clients, signature=signature)
    return kept, Signed(client=own, round=setting.round, signature=signature)


def reveal(setting: Setting, record: Record, told: Signatures, verify: Verify) -> Revealed:
    """Reveal the shares that open the sum over the set that t clients have signed: of each client
    that is in, the share of its own mask's seed; of each that dropped out, that of its private key.

    Nothing has to be kept: whatever signatures come, the set is the one that was signed.

    Raises:
        RemoteProtocolError: if this client has signed no set, or t clients have not signed the
            same.
    """
    _refuse_round(setting, told.round)
    if not record.signed:
        raise RemoteProtocolError("signatures of a set, before a set", "set")
    _refuse_order(told.signers, setting.clients)
    if len(told.signers) != len(told.signatures):
        raise RemoteProtocolError("signatures that belong to nobody", "signatures")
    content = signed_set(setting, transcript(setting, record.listed), record.signed)
    for signer, signature in zip(told.signers, told.signatures, strict=True):
        if signer not in record.signed or not verify(signer, content, signature):
            raise RemoteProtocolError(
                f"client {signer} has not signed the set that this client has signed", "signatures"
            )
    if len(told.signers) < setting.threshold:
        raise RemoteProtocolError(
            f"{len(told.signers)} have signed, and {setting.threshold} must", "signatures"
        )
    own = record.own.client
    mine = secrets.secrets(setting, own, record.seed)
    of_own, of_mask = _dealt(setting, mine, [own])
    held = {own: (of_own[own], of_mask[own]), **{i: (b, s) for i, b, s in record.shares}}
    return Revealed(
        client=own,
        round=setting.round,
        masks=tuple(held[each][0] for each in record.signed),
        keys=tuple(
            (each, held[each][1])
            for each in record.senders
            if each in held and each not in record.signed
        ),
    )


def _dealt(
    setting: Setting, mine: secrets.Secrets, clients: Sequence[int]
) -> tuple[dict[int, bytes], dict[int, bytes]]:
    """This client's shares for these: of the own mask's seed, and of the private key."""
    of_mask, of_own = mine.draws
    t = setting.threshold
    return (
        secrets.deal(mine.own, t, clients, of_own),
        secrets.deal(mine.mask.private_bytes_raw(), t, clients, of_mask),
    )


def _refuse_keys(setting: Setting, own: Keys, keys: tuple[Keys, ...], verify: Verify) -> None:
    _refuse_order(tuple(each.client for each in keys), setting.clients)
    if own not in keys:
        raise RemoteProtocolError("a list without this client's keys", "keys")
    _refuse_few(setting, len(keys), "clients")
    for each in keys:
        try:
            check_keys(setting, each, verify)
        except RemoteProtocolError as error:
            raise RemoteProtocolError(f"client {each.client}: {error}", error.what) from error
    publics = [key for each in keys for key in (each.encrypt, each.mask)]
    if len(set(publics)) < len(publics):
        raise RemoteProtocolError("two clients with the same public key", "keys")


def check_keys(setting: Setting, keys: Keys, verify: Verify) -> None:
    """Tell whether keys are a client's own, of this round.

    Raises:
        RemoteProtocolError: if they are not, or nobody can agree on a secret with them.
    """
    if keys.round != setting.round or not 0 <= keys.client < setting.clients:
        raise RemoteProtocolError(f"keys of round {keys.round}", "another round")
    secrets.refuse_weak(keys)
    if not verify(keys.client, signed_keys(setting, keys), keys.signature):
        raise RemoteProtocolError("keys that its certificate has not signed", "signature")


def _refuse_senders(
    setting: Setting, record: Record, told: Delivered, known: dict[int, Keys]
) -> None:
    _refuse_order(told.senders, setting.clients)
    if len(told.senders) != len(told.sealed):
        raise RemoteProtocolError("shares that belong to nobody", "shares")
    others = known.keys() - {record.own.client}
    if unknown := [each for each in told.senders if each not in others]:
        raise RemoteProtocolError(f"shares of {_names(unknown)}, who takes no part", "shares")
    _refuse_few(setting, len(told.senders) + 1, "clients")


def _refuse_round(setting: Setting, number: int) -> None:
    if number != setting.round:
        raise RemoteProtocolError(
            f"it is of round {number}, and this is {setting.round}", "another round"
        )


def _refuse_order(clients: Sequence[int], count: int) -> None:
    """Clients are named in ascending order, each once."""
    if list(clients) != sorted(set(clients)) or any(not 0 <= each < count for each in clients):
        raise RemoteProtocolError("clients out of order, twice, or unknown", "order")


def _refuse_few(setting: Setting, count: int, what: str) -> None:
    if count < setting.least:
        raise RemoteProtocolError(
            f"{count} {what}: a sum of fewer than {setting.least} is not opened", "too few"
        )


def _names(clients: Sequence[int]) -> str:
    return ", ".join(f"client {each}" for each in clients) or "nobody"
