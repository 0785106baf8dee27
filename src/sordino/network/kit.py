"""Provisioning: from ``FEDERATION.toml`` to a start-up kit for the server and for each site.

::

    authority/   authority.key, authority.pem, revoked.pem, serials.toml, certificates/
    server/      agreement.toml, study.toml, server.pem, server.key, authority.pem, revoked.pem
    NAME/        agreement.toml, study.toml, site.pem, site.key, authority.pem, revoked.pem
    broker/      mosquitto.conf, acl, broker.pem, broker.key, authority.pem, revoked.pem

The authority's folder stays with who provisions; every site has a folder of its own. The broker's
kit is there where the transport has a broker (``transport = "mqtt"``). Whoever listens refuses
revoked certificates of those who connect, and they its own. Where the server learns nothing but
sums, every kit holds ``keys.pem`` as well: the public keys of all sites.

Every kit holds a private key: give each to its site alone. The authority's folder makes new
certificates; keep it where no network reaches it.

One authority may serve several studies. Where it has given a site a key before, the kit of another
study holds none: the site has its certificate and its key already.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import shutil
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

import tomli_w
from cryptography import x509

from sordino.base import modules as code
from sordino.base.errors import StudyError, printable
from sordino.base.files import MIB, read_below, readable, there, toml_of
from sordino.core import regimes
from sordino.core import study as studies
from sordino.core.files import replace_file, said_clearly
from sordino.core.network import Agreement, NetworkRegime
from sordino.core.study.base import Study, refuse_repeated
from sordino.core.world import Summing
from sordino.network import certificates, frames, transport
from sordino.network.certificates import REVOKED, Pair, read_keys, signed_by

AGREEMENT, STUDY, KEYS, RUN = "agreement.toml", "study.toml", "keys.pem", "run"
AGAIN = "start the same command again: it goes on where it was"
"""The way to go on after an interruption, of server and site, for people."""
MOST = 2 * MIB
"""Bytes of either: a table may have thousands of columns, each with its name."""
AUTHORITY, SERVER, BROKER = "authority", "server", "broker"
SERIALS, ISSUED = "serials.toml", "certificates"
RESERVED = (AUTHORITY, SERVER, BROKER)


def read_table(path: Path, missing: str = "there is no such file") -> dict[str, Any]:
    """The table in a file.

    Raises:
        StudyError: if it is missing or none.
    """
    with readable(path, remedy="Correct it", missing=missing):
        return toml_of(read_below(path.parent, path.name, most=MOST).decode())


def read_agreement(path: Path) -> Agreement:
    """The agreement in a file.

    Raises:
        StudyError: naming the file, the key and what is wrong.
    """
    return agreement_of(read_table(path), path)


def agreement_of(table: dict[str, Any], source: Path) -> Agreement:
    """The agreement in a table.

    Raises:
        StudyError: naming the key and what is wrong.
    """
    try:
        return Agreement(**table)
    except StudyError as error:
        raise StudyError(f"{source}: {error}") from None


def agreement_bytes(agreement: Agreement) -> bytes:
    """The bytes of ``agreement.toml``."""
    return tomli_w.dumps(agreement.model_dump(mode="json", exclude_defaults=False)).encode()


def digest_of(folder: Path) -> str:
    """The digest of what a folder says is agreed: SHA-256 (hex) of agreement, study and keys."""
    found = hashlib.sha256()
    for name in (AGREEMENT, STUDY, *([KEYS] if there(folder, KEYS) else [])):
        content = read_below(folder, name, most=MOST)
        found.update(f"{name} {len(content)}\n".encode() + content)
    return found.hexdigest()


class Agreed:
    """An agreement, its study, and the digest of both.

    Args:
        folder: of a kit.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.agreement = read_agreement(folder / AGREEMENT)
        self.study: Study = studies.read(folder / STUDY, as_written=True)
        if self.study.privacy.ledger != "run":
            raise StudyError(
                f"{folder / STUDY}: privacy.ledger = {printable(self.study.privacy.ledger)!r}: a "
                "kit does not say where a ledger is kept. Each site does, with --ledger"
            )
        here = code.digests(studies.named_modules(self.study))
        for name in sorted({*here, *self.agreement.modules}):
            if here.get(name) != self.agreement.modules.get(name):
                raise StudyError(
                    f"{folder / STUDY}: it names the module {name}, and the code of that module "
                    "here is not what was agreed to. Code never comes over the network: copy the "
                    "agreed version beside the study, or install it"
                )
        self.keys = read_keys(folder) if there(folder, KEYS) else ()
        self.digest = digest_of(folder)

    @property
    def network(self) -> NetworkRegime[Any]:
        """The study on this network."""
        return regimes.of(self.study).network(self.agreement, self.study)

    @property
    def summing(self) -> Summing | None:
        """The secure sums of the study, where the server learns nothing else; or None."""
        return regimes.of(self.study).summing(self.study)

    @property
    def minimum(self) -> int:
        """Sites that must be there: as agreed, and enough for a sum to be opened."""
        return max(self.agreement.minimum, 0 if self.summing is None else self.summing.fewest)

    def verify(self, site: int, content: bytes, signature: bytes) -> bool:
        """Return whether the site with this number has signed the content."""
        return 0 <= site < len(self.keys) and signed_by(self.keys[site], content, signature)


def provision(path: Path, out: Path, now: dt.datetime, authority: Path | None = None) -> Agreement:
    """The kits of a federation, in a new folder.

    Args:
        authority: folder of an authority that is there already; a new one unless it is given.

    Raises:
        StudyError: if the file does not fit; nothing is written then.
    """
    if path.is_dir():
        raise StudyError(f"{path}: this is a folder; give the FEDERATION.toml in it")
    table = read_table(path, "there is no such file. docs/federation.md shows one to begin with")
    named = table.pop("study", None)
    if not isinstance(named, str):
        raise StudyError(f'{path}: study: name the study file, such as study = "study.toml"')
    for key in ("modules", "rehearsal"):
        if key in table:
            raise StudyError(f"{path}: {key}: this is found out here. Leave the key out")
    study = studies.read(path.parent / named, as_written=True)
    return write(agreement_of(table, path), study, out, now, authority)


def write(
    agreement: Agreement, study: Study, out: Path, now: dt.datetime, authority: Path | None = None
) -> Agreement:
    """The kits of an agreement, in a new folder; the study is completed first.

    Args:
        authority: as of :func:`provision`.

    Raises:
        StudyError: if they do not fit; nothing is written then.
    """
    refuse_repeated(study.tuned)
    # folders: where letters of both cases mean the same file, as on some systems, keys would be
    # written over each other
    if taken := [each for each in agreement.names if each.lower() in RESERVED]:
        raise StudyError(f"a site cannot be called {taken[0]!r}: this is a folder of its own")
    full: Study = regimes.of(study).network(agreement, study).agreed()
    agreement = agreement.model_copy(update={"modules": code.digests(studies.named_modules(full))})
    if out.exists():
        raise StudyError(f"{out}: this folder exists already. Choose another with --out")
    draft = out.with_name(f".{out.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        with said_clearly(out):
            known = _fill(draft, agreement, full, now, authority)
            _put(authority or draft / AUTHORITY, known)  # whoever has a kit can be revoked
            draft.rename(out)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return agreement


def _fill(
    out: Path, agreement: Agreement, study: Study, now: dt.datetime, before: Path | None
) -> dict[str, bytes]:
    """Make the kits; return the files of the authority's folder."""
    by = certificates.authority(agreement.name, now) if before is None else _pair(before)
    authority, key = by.pem()
    regime, travels = regimes.of(study), transport.of(agreement.transport)
    shared = {
        AGREEMENT: agreement_bytes(agreement),
        STUDY: studies.write(study).encode(),
        "authority.pem": authority,
    }
    if before is None:
        lists = {REVOKED: certificates.revoked(by, (), now)}
        serials, had = dict[str, list[str]](), set[str]()
    else:
        lists = {REVOKED: read_below(before, REVOKED, most=MOST)}
        serials, had = _serials(before), set(keyed(before, agreement, now))
    issued = {name: _issued(by, agreement, name, now) for name in _known(agreement) - had}
    if regime.summing(study) is not None:  # sites verify each other then
        public = [
            issued[name].certificate if name in issued else _certificate(before, name)
            for name in agreement.names
        ]
        shared[KEYS] = certificates.keys_pem(public)
    for name in _known(agreement):
        pair = {} if name in had else _named(_file(name), issued[name])
        files = {**shared, **pair}
        if name == BROKER:
            files = {"authority.pem": authority, **pair}
            limit = frames.limit(regime.network(agreement, study).widest())
            files |= travels.broker_files(agreement, limit)
        _put(out / name, files | lists)
    for name, made in issued.items():
        serials[name] = [*serials.get(name, []), str(made.certificate.serial_number)]
    kept = {_last_pem(agreement, name): made.pem()[0] for name, made in issued.items()}
    kept[SERIALS] = tomli_w.dumps(serials).encode()
    return {**shared, **lists, **kept, "authority.key": key} if before is None else kept


def keyed(authority: Path, agreement: Agreement, now: dt.datetime) -> list[str]:
    """Return who of an agreement has a certificate of this authority that can be used for it, and
    so needs no new key. Who listens needs one for the agreed host. Who connects is known by its
    name alone, a server to a broker as well, so that another key would not make it another server.
    """
    before, by, listens = read_agreement(authority / AGREEMENT), _pair(authority), admits(agreement)
    revoked = certificates.read_revoked(authority, by.certificate)
    found = []
    for name in _known(agreement) & _serials(authority).keys():
        if (kept := authority / _last_pem(agreement, name)).exists():
            last = certificates.read_certificate(kept.parent, kept.name)
            usable = now < last.not_valid_after_utc and last.serial_number not in revoked
            usable &= name != listens or certificates.listens_at(last, agreement.host)
        else:  # of a version that kept none
            usable = not revoked.intersection(map(int, _serials(authority)[name]))
            same = admits(before) == listens and (name != listens or before.host == agreement.host)
            usable &= name not in (SERVER, BROKER) or same
        if usable:
            found.append(name)
    return sorted(found)


def _last_pem(agreement: Agreement, name: str) -> str:
    """Return where an authority keeps somebody's last certificate: a server's to a broker apart
    from one to listen with.
    """
    folder = f"{ISSUED}/{BROKER}" if name == SERVER != admits(agreement) else ISSUED
    return f"{folder}/{name}.pem"


def _certificate(authority: Path | None, name: str) -> x509.Certificate:
    """The certificate that an authority has given a site last.

    Raises:
        StudyError: if its folder holds none, or one that the authority has not made for this name.
    """
    assert authority is not None
    folder = authority / ISSUED
    if not there(folder, f"{name}.pem"):
        raise StudyError(
            f"{folder / name}.pem: the certificate of {name} is missing, and a sum of secrets "
            f"needs its public key. Copy site.pem of the kit of {name} there; it is no secret"
        )
    found = certificates.read_certificate(folder, f"{name}.pem")
    trusted = certificates.read_certificate(authority, "authority.pem")
    if not certificates.issued_by(found, trusted) or certificates.common_name(found) != name:
        raise StudyError(
            f"{folder / name}.pem: this authority has not made this certificate for {name}. Copy "
            f"site.pem of the kit of {name} there"
        )
    return found


def _pair(authority: Path) -> Pair:
    return certificates.read_pair(authority, AUTHORITY)


def renew(authority: Path, name: str, out: Path, now: dt.datetime, host: str = "") -> None:
    """A new certificate for the server, the broker or a site, into its kit ``out``; the old one
    stays valid until it ends or is revoked.

    Args:
        host: of the server or the broker, if it is not the agreed one any more.

    Raises:
        StudyError: if nobody of the authority has the name; where a new certificate must be for a
            key that was revoked, or that is not in ``out``; or if ``out`` is somebody else's kit.
    """
    agreement, by = _authority(authority, name)
    folder = authority
    if name not in RESERVED and there(out, "site.pem"):
        whose = certificates.common_name(certificates.read_certificate(out, "site.pem"))
        if whose != name:
            raise StudyError(f"{out}: this is the kit of {whose}, whose key would be lost")
    if there(out, AGREEMENT):  # of one of several studies
        agreement, folder = read_agreement(out / AGREEMENT), out
    serials, key = _serials(authority), None
    revoked = certificates.read_revoked(authority, by.certificate)
    if name in agreement.names and there(folder, KEYS):  # it must be for the key that all kits have
        key = certificates.read_pair(out, _file(name))
        known = certificates.read_keys(folder, KEYS)[agreement.names.index(name)]
        if key.key.public_key() != known:
            raise StudyError(
                f"{out}: its key is not the one of {name} that all kits have ({KEYS}), against "
                "which sites hold what others sign. Give the kit that has it, or provision a new "
                "federation"
            )
        # its other certificates may have been for other keys, which were revoked before
        if key.certificate.serial_number in revoked:
            raise StudyError(
                f"a certificate of {name} was revoked, and a new one would be for the same key, "
                f"which all kits have ({KEYS}). Somebody else may have it: provision the study "
                "again with --authority, which makes a new key"
            )
    made = _issued(by, agreement, name, now, key, host=host)
    with said_clearly(out):
        _put(out, _named(_file(name), made))
    serials[name] = [*serials.get(name, []), str(made.certificate.serial_number)]
    kept = {_last_pem(agreement, name): made.pem()[0], SERIALS: tomli_w.dumps(serials).encode()}
    _put(authority, kept)


def revoke(authority: Path, name: str, now: dt.datetime) -> Path:
    """Revoke all certificates so far of a site, or of who listens; the list to copy into the kit of
    who :func:`admits`, or into the kits of all others.

    Raises:
        StudyError: if the agreement does not know the name.
    """
    _, by = _authority(authority, name)
    before = certificates.read_revoked(authority, by.certificate)
    own = {int(each) for each in _serials(authority).get(name, [])}
    _put(authority, {REVOKED: certificates.revoked(by, sorted(before | own), now)})
    return authority / REVOKED


def _authority(folder: Path, name: str) -> tuple[Agreement, Pair]:
    """The agreement that an authority was made for, and the authority, which knows this name."""
    agreement = read_agreement(folder / AGREEMENT)
    if name not in (known := _serials(folder)):
        raise StudyError(f"{name!r} is nobody of this federation. Known: {', '.join(known)}")
    return agreement, _pair(folder)


def _known(agreement: Agreement) -> Set[str]:
    return dict.fromkeys((SERVER, admits(agreement), *agreement.names)).keys()


def admits(agreement: Agreement) -> str:
    """Return the name of the kit that listens and refuses certificates that are revoked."""
    return BROKER if transport.of(agreement.transport).brokered else SERVER


def serves(certificate: x509.Certificate, agreement: Agreement) -> bool:
    """Return whether a certificate of a server is for this agreement, and not for another one of
    the authority: it listens at the agreed host, or connects to a broker.
    """
    connects = certificates.of_site(certificate)
    if admits(agreement) != SERVER:
        return connects
    return not connects and certificates.listens_at(certificate, agreement.host)


def _issued(
    by: Pair,
    agreement: Agreement,
    name: str,
    now: dt.datetime,
    before: Pair | None = None,
    host: str = "",
) -> Pair:
    kind: certificates.Kind = "server" if name == admits(agreement) else "site"
    key = None if before is None else before.key
    # the agreed host as well: by that its server is told from those of other studies
    hosts = dict.fromkeys((agreement.host, host or agreement.host))
    return certificates.certify(by, name, kind, now, hosts=tuple(hosts), key=key)


def _file(name: str) -> str:
    return name if name in RESERVED else "site"


def _serials(authority: Path) -> dict[str, list[str]]:
    return {name: [*map(str, own)] for name, own in read_table(authority / SERIALS).items()}


def _named(kind: str, pair: Pair) -> dict[str, bytes]:
    certificate, key = pair.pem()
    return {f"{kind}.pem": certificate, f"{kind}.key": key}


def _put(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files into a folder; keys are for their owner alone."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        replace_file(folder / name, content, mode=0o600 if name.endswith(".key") else 0o644)
