"""Signing a record, and checking one with nothing but the authority's certificate."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator
from pathlib import Path

import msgspec

from sordino.base.errors import LedgerError, printable
from sordino.core.records import known
from sordino.deployment.document import (
    EPSILON,
    WORDS,
    Record,
    Signature,
    Site,
    content,
    odds,
    signer,
    stated,
)
from sordino.network import certificates
from sordino.network import proof as proofs
from sordino.network.kit import AGREEMENT, STUDY, digest_of, read_agreement, serves
from sordino.privacy.rounding import epsilon_text

SERVER = "server"


def signed(record: Record, kit: Path, kind: str) -> Record:
    """The record with a signature by the key of a kit.

    Args:
        kind: "server" or "site": whose kit it is.

    Raises:
        StudyError: if the kit has no such key.
    """
    pair = certificates.read_pair(kit, kind)
    mark = Signature(
        certificate=pair.pem()[0].decode(),
        signature=base64.b64encode(certificates.signed(pair, content(record))).decode(),
    )
    return msgspec.structs.replace(record, signature=mark)


def check(record: Record, path: Path, authority: Path | None) -> list[str]:
    """Check proofs and signature of a record; return remarks on what nobody has signed.

    The page beside it is not judged, and neither are answers: people give them.

    Args:
        path: where it stands, for messages.
        authority: the federation's ``authority.pem``; a ``revoked.pem`` beside it counts, too.

    Raises:
        LedgerError: naming everything that does not hold.
        StudyError: if a proof cannot be read.
    """
    problems, remarks = list(_figures(record)), []
    proved = [each for each in record.sites if each.proof is not None]
    if authority is None:
        if proved or record.signature is not None:
            raise LedgerError(
                f"{path}: proofs and signature can be checked with the certificate of the "
                "federation's authority alone: give --authority authority.pem"
            )
    else:
        agreed = authority.parent / AGREEMENT
        if agreed.is_file() and not _alone(record):  # the reader knows who should be there
            names = read_agreement(agreed).names
            if [each.name for each in record.sites] != list(names):
                problems.append(f"its sites are not those of the agreement: {', '.join(names)}")
        beside = agreed.is_file() and (agreed.parent / STUDY).is_file()
        if beside and record.agreement != digest_of(agreed.parent):
            remarks.append("It is about another agreement than the one beside the certificate")
        for each in proved:
            problems += _proof(record, each, path, authority)
        if record.signature is not None:
            problems += _signature(record, record.signature, authority)
    if problems:
        raise LedgerError("\n".join(printable(f"{path}: {each}", 1000) for each in problems))
    if record.signature is None:
        remarks.append("Nobody has signed this record: anybody could have written or changed it")
    elif _alone(record):
        remarks.append(f"It speaks of site {printable(signer(record), 80)} alone")
    if bare := [each.name for each in record.sites if each.proof is None]:
        remarks.append(
            f"{len(bare)} of {len(record.sites)} sites have given no proof: "
            f"{printable(', '.join(bare[:10]), 300)}"
        )
    return remarks


def _figures(record: Record) -> Iterator[str]:
    """Yield where the document contradicts itself."""
    parameters = record.registry.deployment.privacy_loss.privacy_parameters
    if (record.epsilon, record.delta) != (parameters.epsilon, parameters.delta):
        yield "the registry's part states another epsilon or delta than the record"
    if record.private != (record.epsilon is not None):
        yield "it states a guarantee without an epsilon, or an epsilon without a guarantee"
    details = record.registry.deployment.privacy_loss.privacy_parameters_details
    if details != record.guarantee or record.odds != odds(record.epsilon):
        yield "its parts state different guarantees"
    said = {*EPSILON.findall(record.guarantee)}
    if record.epsilon is not None and said != {stated(record.epsilon)}:
        yield "the sentence of the guarantee states another epsilon than the record"
    if len({each.name for each in record.sites}) < len(record.sites):
        yield "a site stands in it twice"
    if record.epsilon is None:
        return
    if not 0 <= record.epsilon < math.inf or record.delta is None or not 0 <= record.delta < 1:
        yield f"epsilon {record.epsilon} and delta {record.delta} are no guarantee"
        return
    unit = record.registry.deployment.privacy_loss.privacy_unit
    for each in record.sites:
        if each.proof is None or (each.epsilon is None and unit == WORDS["units"]["label"]):
            continue  # where labels alone are protected, parties with features state none
        if each.epsilon is None or not 0 <= each.epsilon <= record.epsilon * (1 + 1e-9):
            yield (
                f"site {each.name} has spent epsilon {epsilon_text(each.epsilon, 6)}, more than "
                f"the record's {epsilon_text(record.epsilon, 6)}"
            )
        elif (each.delta, each.accountant) != (record.delta, record.accountant):
            yield (
                f"site {each.name} states another delta or accountant than the record: leave its "
                "proof out, and the record names it as a site without one"
            )


def _proof(record: Record, site: Site, path: Path, authority: Path) -> Iterator[str]:
    """Yield what does not hold of a site's proof."""
    assert site.proof is not None
    try:
        said = proofs.stated(site.proof, authority, path)
    except LedgerError as error:
        yield f"site {site.name}: {str(error).removeprefix(f'{path}: ')}"
        return
    facts = (said.site, said.run, said.agreement, said.entries, said.head, said.accountant)
    written = (site.name, record.run, record.agreement, site.entries, site.head, site.accountant)
    if facts != written or (known(said.epsilon), known(said.delta)) != (site.epsilon, site.delta):
        yield f"site {site.name}: its signed statement says something else than the record"


def _signature(record: Record, mark: Signature, authority: Path) -> Iterator[str]:
    """Yield what does not hold of the signature over all."""
    trusted = certificates.read_certificate(authority.parent, authority.name)
    try:
        certificate, signature = certificates.read_signature(mark.certificate, mark.signature)
    except ValueError as error:
        yield f"its signature cannot be read ({error})"
        return
    if not certificates.verified(certificate, trusted, content(record), signature):
        yield (
            "its signature does not hold: the record was changed after it was signed, or by "
            "somebody of another federation"
        )
        return
    if certificates.is_revoked(certificate, authority, trusted):
        yield "the certificate of who signed it is revoked"
    name, folder = certificates.common_name(certificate), authority.parent
    single = [each.name for each in record.sites] == [name] and certificates.of_site(certificate)
    if name != SERVER and not single:
        yield f"{name} has signed it, and a record over all sites is the server's"
    elif name == SERVER and (folder / AGREEMENT).is_file() and (folder / STUDY).is_file():
        agreement = read_agreement(folder / AGREEMENT)
        if record.agreement == digest_of(folder) and not serves(certificate, agreement):
            yield (
                "the server of another study of this authority has signed it: its certificate is "
                f"not for {agreement.server}"
            )


def _alone(record: Record) -> bool:
    """Return whether a record speaks of the one site that has signed it, as it says."""
    by = signer(record)
    return by != SERVER and [each.name for each in record.sites] == [by]
