"""Certificates of a federation: an authority of its own, the server, and one for each site.

Keys are P-256. Nobody but the authority of this federation is trusted, on either side, and TLS 1.3
is the lowest version that is spoken. Who a site is, its certificate says (common name). A revoked
certificate stands in a list that the authority signs; the server looks at it at every connection.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sordino.base.errors import StudyError
from sordino.base.files import MIB, read_below

DAYS = 365
AUTHORITY_DAYS = 3650
Kind = Literal["server", "site"]
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


def authority(name: str, now: dt.datetime) -> Pair:
    """A new authority, which trusts itself."""
    key = ec.generate_private_key(ec.SECP256R1())
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
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(_name(name))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + dt.timedelta(days=AUTHORITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Pair(made, key)


def certify(
    by: Pair,
    name: str,
    kind: Kind,
    now: dt.datetime,
    *,
    host: str = "",
    days: int = DAYS,
    key: ec.EllipticCurvePrivateKey | None = None,
) -> Pair:
    """A certificate valid for so many days: for who listens at ``host`` (kind ``server``), or for
    who connects (``site``). The key is a new one unless it is given.
    """
    key = key or ec.generate_private_key(ec.SECP256R1())
    use = ExtendedKeyUsageOID.SERVER_AUTH if kind == "server" else ExtendedKeyUsageOID.CLIENT_AUTH
    made = (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(by.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + dt.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([use]), critical=True)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(by.key.public_key()), critical=False
        )
    )
    if kind == "server":
        made = made.add_extension(x509.SubjectAlternativeName(_hosts(host)), critical=False)
    return Pair(made.sign(by.key, hashes.SHA256()), key)


def _hosts(host: str) -> list[x509.GeneralName]:
    try:
        return [x509.IPAddress(ipaddress.ip_address(host))]
    except ValueError:
        return [x509.DNSName(host)]


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


def read_revoked(folder: Path, name: str, trusted: x509.Certificate) -> frozenset[int]:
    """Serial numbers in a list of revoked certificates.

    Raises:
        StudyError: if it cannot be read, or the authority has not signed it.
    """
    path = folder / name
    try:
        found = x509.load_pem_x509_crl(read_below(folder, name, most=MIB))
        signer = trusted.public_key()
        if not isinstance(signer, ec.EllipticCurvePublicKey) or not found.is_signature_valid(
            signer
        ):
            raise StudyError(f"{path}: this list of revoked certificates is not the authority's")
    except FileNotFoundError:
        raise StudyError(
            f"{path}: the list of revoked certificates is missing. Copy it from the authority's "
            "folder"
        ) from None
    except ValueError as error:
        raise StudyError(f"{path}: no list of revoked certificates ({error})") from error
    return frozenset(each.serial_number for each in found)


def read_certificate(folder: Path, name: str) -> x509.Certificate:
    """A certificate in PEM.

    Raises:
        StudyError: if it is missing or none.
    """
    try:
        return x509.load_pem_x509_certificate(read_below(folder, name, most=MIB))
    except FileNotFoundError:
        raise StudyError(
            f"{folder / name}: the certificate is missing. Copy the whole kit again"
        ) from None
    except ValueError as error:
        raise StudyError(f"{folder / name}: no certificate ({error})") from error


def read_pair(folder: Path, name: str) -> Pair:
    """A certificate and its key, ``NAME.pem`` and ``NAME.key``.

    Raises:
        StudyError: if one of them is missing, or none.
    """
    certificate = read_certificate(folder, f"{name}.pem")
    try:
        key = serialization.load_pem_private_key(
            read_below(folder, f"{name}.key", most=MIB), password=None
        )
    except FileNotFoundError:
        raise StudyError(f"{folder / name}.key: the private key is missing") from None
    except (ValueError, TypeError) as error:
        raise StudyError(f"{folder / name}.key: no private key ({error})") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise StudyError(f"{folder / name}.key: not a key on an elliptic curve")
    return Pair(certificate, key)


def common_name(certificate: x509.Certificate) -> str:
    """Return the name that a certificate is for."""
    (found,) = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found.value)


def of_site(certificate: x509.Certificate) -> bool:
    """Return whether a certificate is for a site, and not for the server or the authority."""
    try:
        use = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return False
    return list(use) == [ExtendedKeyUsageOID.CLIENT_AUTH]


def expires(certificate: x509.Certificate) -> dt.datetime:
    """Return the end of a certificate, in UTC."""
    return certificate.not_valid_after_utc


def refuse_expired(folder: Path, name: str, now: dt.datetime) -> None:
    """Refuse a certificate that has ended, with the remedy.

    Raises:
        StudyError: if it has.
    """
    ends = expires(read_certificate(folder, name))
    if ends <= now:
        raise StudyError(
            f"{folder / name}: this certificate ended on {ends:%Y-%m-%d}. Ask for a new one: "
            "`sordino network renew` makes it where the authority's folder is"
        )


def context(folder: Path, kind: Kind, *, connects: bool | None = None) -> ssl.SSLContext:
    """Mutual TLS 1.3 for the server or a site, from its kit. By default sites connect and the
    server listens; with a broker the server connects as well.
    """
    connects = kind == "site" if connects is None else connects
    side = ssl.PROTOCOL_TLS_CLIENT if connects else ssl.PROTOCOL_TLS_SERVER
    found = ssl.SSLContext(side)
    found.minimum_version = ssl.TLSVersion.TLSv1_3
    found.verify_mode = ssl.CERT_REQUIRED
    try:
        found.load_verify_locations(folder / "authority.pem")
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
    end = b"-----END PUBLIC KEY-----\n"
    found = []
    try:
        for each in read_below(folder, name, most=MIB).split(end)[:-1]:
            key = serialization.load_pem_public_key(each + end)
            if not isinstance(key, ec.EllipticCurvePublicKey):
                raise ValueError("a key that is not on an elliptic curve")
            found.append(key)
    except ValueError as error:
        raise StudyError(f"{folder / name}: no public keys ({error})") from error
    return tuple(found)


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


def verified(
    certificate: x509.Certificate, trusted: x509.Certificate, content: bytes, signature: bytes
) -> bool:
    """Return whether the holder of a certificate of this authority has signed the content."""
    key = certificate.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        return False
    try:
        certificate.verify_directly_issued_by(trusted)
        key.verify(signature, content, ec.ECDSA(hashes.SHA256()))
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True
