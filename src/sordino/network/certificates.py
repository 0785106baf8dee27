"""Certificates of a federation: an authority of its own, the server, and one for each site.

Keys are P-256. Nobody but the authority of this federation is trusted, on either side, and TLS 1.3
is the lowest version that is spoken. Who a site is, its certificate says (common name). A revoked
certificate stands in a list that the authority signs; both sides look at it at every connection.
"""

from __future__ import annotations

import base64
import datetime as dt
import ipaddress
import os
import ssl
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sordino.base.errors import StudyError
from sordino.base.files import MIB, read_below, readable, there

DAYS = 365
AUTHORITY_DAYS = 3650
REVOKED = "revoked.pem"
Kind = Literal["server", "site"]
T = TypeVar("T")
COPY = "Copy the whole kit again, or certificate and key of an earlier kit of this authority"
_SKEW = dt.timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def pem(self) -> tuple[bytes, bytes]:
        """Both in PEM; the key without a password: the file's permissions protect it."""
        return (
            self.certificate.public_bytes(serialization.Encoding.PEM),
            self.key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ),
        )


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    name: str, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: dt.datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder(issuer_name=issuer, subject_name=_name(name), public_key=key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + dt.timedelta(days=days))
    )


def authority(name: str, now: dt.datetime) -> Pair:
    """A new authority, which trusts itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key()
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    made = (
        _builder(name, _name(name), public, now, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )
    return Pair(made.sign(key, hashes.SHA256()), key)


def certify(
    by: Pair,
    name: str,
    kind: Kind,
    now: dt.datetime,
    *,
    hosts: Sequence[str] = (),
    days: int = DAYS,
    key: ec.EllipticCurvePrivateKey | None = None,
) -> Pair:
    """A certificate valid for so many days: for who listens at ``hosts`` (kind ``server``), or for
    who connects (``site``). The key is a new one unless it is given.
    """
    key = key or ec.generate_private_key(ec.SECP256R1())
    use = ExtendedKeyUsageOID.SERVER_AUTH if kind == "server" else ExtendedKeyUsageOID.CLIENT_AUTH
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(by.key.public_key())
    made = (
        _builder(name, by.certificate.subject, key.public_key(), now, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([use]), critical=True)
        .add_extension(issuer, critical=False)
    )
    if kind == "server":
        named = x509.SubjectAlternativeName([_host(each) for each in hosts])
        made = made.add_extension(named, critical=False)
    return Pair(made.sign(by.key, hashes.SHA256()), key)


def is_address(host: str) -> bool:
    """Return whether a host is an address, and no name."""
    return isinstance(_host(host), x509.IPAddress)


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def revoked(by: Pair, serials: Sequence[int], now: dt.datetime) -> bytes:
    """The authority's list of revoked certificates, in PEM."""
    made = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(by.certificate.subject)
        .last_update(now - _SKEW)
        .next_update(now + dt.timedelta(days=AUTHORITY_DAYS))
    )
    for serial in serials:
        made = made.add_revoked_certificate(
            x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now).build()
        )
    return made.sign(by.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _read(folder: Path, name: str, load: Callable[[bytes], T], what: str, remedy: str = COPY) -> T:
    """Return what a file holds.

    Raises:
        StudyError: if it is missing or none, with the remedy.
    """
    with readable(folder / name, remedy=remedy, missing=f"the {what} is missing. {remedy}"):
        return load(read_below(folder, name, most=MIB))


def _list(content: bytes) -> x509.CertificateRevocationList:
    """The list in PEM, and nothing beside it: OpenSSL would trust a certificate that stands there,
    or take an older list.
    """
    found = x509.load_pem_x509_crl(content)
    if content.split() != found.public_bytes(serialization.Encoding.PEM).split():
        raise ValueError("something else stands beside the list")
    return found


def read_revoked(folder: Path, trusted: x509.Certificate) -> frozenset[int]:
    """Serial numbers in a list of revoked certificates.

    Raises:
        StudyError: if it cannot be read, or the authority has not signed it.
    """
    remedy = "Copy it from the authority's folder"
    found = _read(folder, REVOKED, _list, "list of revoked certificates", remedy)
    signer = trusted.public_key()
    if not isinstance(signer, ec.EllipticCurvePublicKey) or not found.is_signature_valid(signer):
        raise StudyError(
            f"{folder / REVOKED}: this list of revoked certificates is not the authority's"
        )
    return frozenset(each.serial_number for each in found)


def is_revoked(certificate: x509.Certificate, authority: Path, trusted: x509.Certificate) -> bool:
    """Return whether a list of revoked certificates beside ``authority.pem`` has this one."""
    folder = authority.parent
    if not (folder / REVOKED).exists():
        return False
    return certificate.serial_number in read_revoked(folder, trusted)


def read_certificate(folder: Path, name: str) -> x509.Certificate:
    """A certificate in PEM.

    Raises:
        StudyError: if it is missing or none.
    """
    return _read(folder, name, x509.load_pem_x509_certificate, "certificate")


def read_pair(folder: Path, name: str) -> Pair:
    """A certificate and its key, ``NAME.pem`` and ``NAME.key``.

    Raises:
        StudyError: if one of them is missing, or none.
    """
    load = partial(serialization.load_pem_private_key, password=None)
    key = _read(folder, f"{name}.key", load, "private key")
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise StudyError(f"{folder / name}.key: not a key on an elliptic curve")
    return Pair(read_certificate(folder, f"{name}.pem"), key)


class Revoked:
    """The server's list of revoked certificates, read again when its file has changed."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._path = folder, str(folder / REVOKED)
        self._trusted = read_certificate(folder, "authority.pem")
        self._stamp: tuple[int, int] = (0, 0)
        self._serials: frozenset[int] = frozenset()
        self(0)

    def issued(self, certificate: x509.Certificate) -> bool:
        """Return whether the authority of the list has issued a certificate."""
        return issued_by(certificate, self._trusted)

    def __call__(self, serial: int) -> bool:
        """Return whether the certificate with this number is revoked.

        Raises:
            StudyError: while the list cannot be read.
        """
        with readable(self._path):
            found = os.stat(self._path)  # for every frame: a Path would take longer than the call
        stamp = (found.st_mtime_ns, found.st_ino)
        if stamp != self._stamp:
            self._serials = read_revoked(self._folder, self._trusted)
            self._stamp = stamp
        return serial in self._serials


def common_name(certificate: x509.Certificate) -> str:
    """Return the name that a certificate is for."""
    (found,) = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found.value)


def of_site(certificate: x509.Certificate) -> bool:
    """Return whether a certificate is for a site, and not for the server or the authority."""
    try:
        use = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except (x509.ExtensionNotFound, x509.DuplicateExtension, ValueError):
        return False
    return list(use) == [ExtendedKeyUsageOID.CLIENT_AUTH]


def listens_at(certificate: x509.Certificate, host: str) -> bool:
    """Return whether the certificate of who listens is for this host."""
    try:
        named = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return False
    return _host(host) in named


def refuse_expired(folder: Path, name: str, now: dt.datetime) -> None:
    """Refuse a certificate that has ended, or has not begun, with the remedy.

    Raises:
        StudyError: if it has.
    """
    found = read_certificate(folder, name)
    begins, ends = found.not_valid_before_utc, found.not_valid_after_utc
    if now < begins:
        raise StudyError(
            f"{folder / name}: this certificate begins on {begins:%Y-%m-%d %H:%M} UTC, and by the "
            f"clock of this machine it is {now:%Y-%m-%d %H:%M} UTC. Set the clock"
        )
    if ends <= now:
        raise StudyError(
            f"{folder / name}: this certificate ended on {ends:%Y-%m-%d}. Ask for a new one: "
            "`sordino network renew` makes it where the authority's folder is"
        )


def refuse_other_authority(folder: Path, name: str) -> None:
    """Refuse a kit whose certificate is of another authority than its own: nobody would talk to it.

    Raises:
        StudyError: if it is.
    """
    found, trusted = read_certificate(folder, name), read_certificate(folder, "authority.pem")
    if not issued_by(found, trusted):
        raise StudyError(
            f"{folder / name}: this certificate is of another authority than authority.pem beside "
            "it, so nobody of this federation would talk to it. Take certificate and key of an "
            "earlier kit of this authority, or ask for the whole kit again"
        )


def context(folder: Path, kind: Kind, *, connects: bool | None = None) -> ssl.SSLContext:
    """Mutual TLS 1.3 for the server or a site, from its kit. By default sites connect and the
    server listens; with a broker the server connects as well.

    Who connects makes one for each connection, and so refuses whoever listens with a certificate
    that is on the list of revoked ones in its kit then. Kits of before have no list.

    TLS trusts the certificate that all checks look at, and no other one in a file: a kit without
    secrets may have come by any way.
    """
    connects = kind == "site" if connects is None else connects
    trusted = read_certificate(folder, "authority.pem")
    if listed := connects and there(folder, REVOKED):
        read_revoked(folder, trusted)
    found = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT if connects else ssl.PROTOCOL_TLS_SERVER)
    found.minimum_version = ssl.TLSVersion.TLSv1_3
    found.verify_mode = ssl.CERT_REQUIRED
    if not connects:  # a ticket would admit a certificate that has ended since
        found.num_tickets = 0
    try:
        found.load_verify_locations(cadata=trusted.public_bytes(serialization.Encoding.DER))
        if listed:
            found.load_verify_locations(folder / REVOKED)
            found.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
        found.load_cert_chain(folder / f"{kind}.pem", folder / f"{kind}.key")
    except (OSError, ssl.SSLError) as error:
        raise StudyError(
            f"{folder}: its certificates cannot be used ({error}). Copy the whole kit again"
        ) from error
    return found


def keys_pem(certificates: Sequence[x509.Certificate]) -> bytes:
    """The public keys of certificates, in PEM, one after the other."""
    return b"".join(
        each.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        for each in certificates
    )


def read_keys(folder: Path, name: str = "keys.pem") -> tuple[ec.EllipticCurvePublicKey, ...]:
    """Public keys in PEM.

    Raises:
        StudyError: if one is none.
    """

    def load(content: bytes) -> tuple[ec.EllipticCurvePublicKey, ...]:
        end = b"-----END PUBLIC KEY-----\n"
        found = [serialization.load_pem_public_key(each + end) for each in content.split(end)[:-1]]
        keys = tuple(key for key in found if isinstance(key, ec.EllipticCurvePublicKey))
        if len(keys) < len(found):
            raise ValueError("a key that is not on an elliptic curve")
        return keys

    return _read(folder, name, load, "public keys")


def signed_by(key: ec.EllipticCurvePublicKey, content: bytes, signature: bytes) -> bool:
    """Return whether the private key of this public key has signed the content."""
    try:
        key.verify(signature, content, ec.ECDSA(hashes.SHA256()))
    except (InvalidSignature, ValueError):
        return False
    return True


def signed(by: Pair, content: bytes) -> bytes:
    """An ECDSA signature (SHA-256) over content."""
    return by.key.sign(content, ec.ECDSA(hashes.SHA256()))


def read_signature(certificate: str, signature: str) -> tuple[x509.Certificate, bytes]:
    """Return a certificate (PEM) and a signature (base64) that stand in a document.

    Raises:
        ValueError: for what is none, and for another spelling than this program's: it would change
            a document that is signed, and what stands beside a certificate nobody has signed.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # about odd numbers in it
        try:
            found = x509.load_pem_x509_certificate(certificate.encode())
        except (x509.InvalidVersion, Warning) as error:
            raise ValueError(str(error)) from error
    mark = base64.b64decode(signature, validate=True)
    written = found.public_bytes(serialization.Encoding.PEM), base64.b64encode(mark)
    if written != (certificate.encode(), signature.encode()):
        raise ValueError("a certificate or a signature is not spelled as it was written")
    return found, mark


def verified(
    certificate: x509.Certificate, trusted: x509.Certificate, content: bytes, signature: bytes
) -> bool:
    """Return whether the holder of a certificate of this authority has signed the content."""
    if not issued_by(certificate, trusted):
        return False  # its key need not be one
    key = certificate.public_key()
    return isinstance(key, ec.EllipticCurvePublicKey) and signed_by(key, content, signature)


def issued_by(certificate: x509.Certificate, trusted: x509.Certificate) -> bool:
    """Return whether this authority has signed a certificate."""
    try:
        certificate.verify_directly_issued_by(trusted)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True
