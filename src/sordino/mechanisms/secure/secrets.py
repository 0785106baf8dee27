"""A client's secrets of one sum, and the keys that two clients agree on.

All of a client's secrets follow from one seed (32 bytes, from the operating system) by
HKDF-SHA256 (RFC 5869), so that who keeps the seed can say the same bytes again. Keys are agreed on
by X25519 (RFC 7748); a public key of small order, with which everybody agrees on zero, is refused.
Shares are sealed by AES-256-GCM. A key of a sealing is used for one message alone, so its nonce is
zero.

**Shares** are those of Shamir (1979) over the prime field of 2^521 - 1. A secret s < 2^512 is the
value at 0 of a polynomial of degree t - 1 whose other coefficients are uniform; the share of client
i is its value at i + 1. Any t shares give s; t - 1 of them are uniform and independent of s. The
arithmetic is Python's, whose time depends on the numbers: a client's shares are computed once, from
fresh secrets, and nobody can have them computed again.

>>> shares = deal(bytes(31) + b"*", 2, range(3), lambda count: bytes(count))
>>> recover({0: shares[0], 2: shares[2]}, 2, 32)[-1:]
b'*'

**Masks** hide vectors modulo 2^bits (:mod:`sordino.base.residues`). A mask is the key stream of
AES-256 in counter mode (NIST SP 800-38A) under a key that is used for nothing else, cut into
numbers of 32 bits, or of 64 where the modulus is larger.

>>> pad = stream(bytes(32), 3, 16)
>>> int(((np.array([1, 2, 3], np.uint32) + pad - pad) & 0xFFFF)[0])
1
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

from sordino.base.errors import RemoteProtocolError
from sordino.base.residues import Residues, kind, within
from sordino.mechanisms.secure.messages import DIGEST, Keys, Setting

PRIME = 2**521 - 1
LENGTH = 66
"""Bytes of a share, big-endian."""
_DRAWN = LENGTH + 16  # drawn bytes of a coefficient: its bias modulo the prime is below 2^-128


def deal(
    secret: bytes, threshold: int, clients: Iterable[int], draws: Callable[[int], bytes]
) -> dict[int, bytes]:
    """A share of the secret (up to 64 bytes) for each client, of which ``threshold`` recover it.

    Args:
        draws: gives so many uniform bytes that nobody else knows.
    """
    if not 1 <= len(secret) <= 64:
        raise ValueError(f"a secret has 1 to 64 bytes; got {len(secret)}")
    drawn = draws(_DRAWN * (threshold - 1))
    rest = [
        int.from_bytes(drawn[i : i + _DRAWN], "big") % PRIME for i in range(0, len(drawn), _DRAWN)
    ]
    coefficients = [int.from_bytes(secret, "big"), *rest]
    return {i: _at(coefficients, i + 1).to_bytes(LENGTH, "big") for i in clients}


def _at(coefficients: list[int], x: int) -> int:
    found = 0
    for each in reversed(coefficients):
        found = (found * x + each) % PRIME
    return found


def recover(shares: Mapping[int, bytes], threshold: int, length: int) -> bytes:
    """The secret (``length`` bytes) from the shares of ``threshold`` clients or more.

    Raises:
        RemoteProtocolError: if a share is none, there are too few, or they give no such secret:
            somebody's share is wrong.
    """
    if len(shares) < threshold:
        raise RemoteProtocolError(f"{len(shares)} shares, and {threshold} are needed", "shares")
    used = sorted(shares)[:threshold]
    found = 0
    for i in used:
        above = below = 1
        for j in used:
            if j != i:
                above = above * (j + 1) % PRIME
                below = below * (j - i) % PRIME
        found += number(shares[i]) * above * pow(below, -1, PRIME)
    try:
        return (found % PRIME).to_bytes(length, "big")
    except OverflowError:
        raise RemoteProtocolError("the shares do not belong together", "shares") from None


def number(share: bytes) -> int:
    """A share as a number below the prime.

    Raises:
        RemoteProtocolError: if it is none.
    """
    found = int.from_bytes(share, "big")
    if len(share) != LENGTH or found >= PRIME:
        raise RemoteProtocolError(f"a share of {len(share)} bytes is none", "shares")
    return found


KEY, TAG = 32, 16
SEALED = 2 * LENGTH + TAG
"""Bytes of two sealed shares."""
_NONCE = bytes(12)


@dataclass(frozen=True, slots=True, eq=False)
class Secrets:
    """The secrets of a client, which leave it in shares alone.

    Attributes:
        encrypt: opens what others seal for the client; nobody gets shares of it.
        mask: pairwise masks follow from it; shared.
        own: seed of the client's own mask; shared.
        draws: uniform bytes for the coefficients of ``mask`` and of ``own``.
    """

    encrypt: X25519PrivateKey
    mask: X25519PrivateKey
    own: bytes
    draws: tuple[Callable[[int], bytes], Callable[[int], bytes]]


def secrets(setting: Setting, client: int, seed: bytes) -> Secrets:
    """The secrets that follow from a seed (32 bytes)."""
    if len(seed) != KEY:
        raise ValueError(f"a seed has {KEY} bytes; got {len(seed)}")

    def derived(what: str) -> bytes:
        info = setting.context(what, b"%d" % client)
        return HKDFExpand(hashes.SHA256(), KEY, info).derive(seed)

    return Secrets(
        X25519PrivateKey.from_private_bytes(derived("encrypt")),
        X25519PrivateKey.from_private_bytes(derived("mask")),
        derived("own mask"),
        (_drawn(derived("shares of mask")), _drawn(derived("shares of own mask"))),
    )


def _drawn(key: bytes) -> Callable[[int], bytes]:
    def draws(count: int) -> bytes:
        return Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(count))

    return draws


def public(key: X25519PrivateKey) -> bytes:
    """The public key, 32 bytes."""
    return key.public_key().public_bytes_raw()


def commitment(setting: Setting, client: int, own: bytes) -> bytes:
    """A digest of the seed of a client's own mask, from which nobody finds the seed."""
    return setting.context("commitment", b"%d" % client, own)


def own_key(setting: Setting, client: int, own: bytes) -> bytes:
    """The key of a client's own mask, from its seed."""
    return HKDFExpand(hashes.SHA256(), KEY, setting.context("own", b"%d" % client)).derive(own)


def pair_key(setting: Setting, private: X25519PrivateKey, own: Keys, other: Keys) -> bytes:
    """The key of the mask that two clients have in common; the same for both."""
    low, high = sorted((own, other), key=lambda each: each.client)
    return _agreed(setting, private, other.mask, "pair", low, high)


def sealing_key(
    setting: Setting,
    private: X25519PrivateKey,
    other: Keys,
    sender: Keys,
    receiver: Keys,
    agreed: bytes,
) -> bytes:
    """The key of what ``sender`` seals for ``receiver``; the private key is that of one of them,
    and ``other`` is the other one. ``agreed`` is the digest of all keys that its owner was shown.
    """
    return _agreed(setting, private, other.encrypt, "seal", sender, receiver, agreed)


def _agreed(
    setting: Setting,
    private: X25519PrivateKey,
    peer: bytes,
    what: str,
    first: Keys,
    second: Keys,
    *more: bytes,
) -> bytes:
    bound = [b"%d" % first.client, first.encrypt, first.mask]
    bound += [b"%d" % second.client, second.encrypt, second.mask]
    found = private.exchange(X25519PublicKey.from_public_bytes(peer))  # refuse_weak has seen it
    return HKDF(hashes.SHA256(), KEY, None, setting.context(what, *bound, *more)).derive(found)


def refuse_weak(keys: Keys) -> None:
    """Refuse public keys with which nobody can agree on a secret.

    Raises:
        RemoteProtocolError: if one has another length or is of small order.
    """
    probe = X25519PrivateKey.from_private_bytes(bytes(range(KEY)))
    for each in (keys.encrypt, keys.mask):
        try:
            probe.exchange(X25519PublicKey.from_public_bytes(each))
        except ValueError:
            raise RemoteProtocolError("a public key of small order or none", "keys") from None
    if len(keys.commitment) != DIGEST:
        raise RemoteProtocolError("a commitment of another length", "keys")


def sealed(key: bytes, own: bytes, mask: bytes) -> bytes:
    """Two shares, for who has the key."""
    return AESGCM(key).encrypt(_NONCE, own + mask, None)


def opened(key: bytes, found: bytes) -> tuple[bytes, bytes]:
    """The two shares that were sealed.

    Raises:
        RemoteProtocolError: if they were not, by who has this key.
    """
    try:
        plain = AESGCM(key).decrypt(_NONCE, found, None)
    except (InvalidTag, ValueError):
        raise RemoteProtocolError("shares that do not open", "shares") from None
    if len(plain) != 2 * LENGTH:
        raise RemoteProtocolError(f"shares of {len(plain)} bytes", "shares")
    return plain[:LENGTH], plain[LENGTH:]


def stream(key: bytes, count: int, bits: int) -> Residues:
    """``count`` residues that only who knows the key (32 bytes) can tell from uniform ones."""
    cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    drawn = np.frombuffer(cipher.update(bytes(count * kind(bits).itemsize)), kind(bits))
    return drawn if bits == 8 * drawn.itemsize else within(drawn.copy(), bits)


def masked(
    values: Residues, bits: int, *, plus: Iterable[bytes], minus: Iterable[bytes]
) -> Residues:
    """Values with the masks of some keys added, and those of others taken away."""
    found = values.astype(kind(bits))
    for key in plus:
        found += stream(key, len(found), bits)
    for key in minus:
        found -= stream(key, len(found), bits)
    return within(found, bits)
