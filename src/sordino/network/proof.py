"""A signed statement of what a site sent, which anybody can hold against its ledger.

It names the agreement, the run, how many answers the site sent, where it is no secret who takes
part, and the last entry of its ledger with what was spent by then. It is signed with the key of
the site's certificate, and has no date: it holds after the certificate has ended, and no more once
it is on the list of those that were revoked. It holds no answer, no data, and no digest of either:
whoever can compute what a site has answered for each guess of a row would find the right guess by a
digest.
"""

from __future__ import annotations

import base64
import math
from contextlib import closing
from pathlib import Path

import msgspec

from sordino.base.errors import LedgerError, StudyError, printable
from sordino.base.files import MIB, read_below, readable
from sordino.base.frozen import Frozen
from sordino.core.files import replace_file
from sordino.core.records import Count, Maybe, Place, known
from sordino.core.run import reading
from sordino.core.run.session import Outcome
from sordino.core.run.verify import GRIDS
from sordino.network import certificates
from sordino.network.kit import BROKER, SERVER, Agreed
from sordino.network.storage import AnswerStore
from sordino.privacy import Ledger
from sordino.privacy.chain import BEGIN, RECORDS
from sordino.privacy.rounding import epsilon_text

NAME = "proof.json"
KEPT = "proofs"
"""Folder in a server's run folder: a folder for each site, with its proof."""


class Statement(Frozen, forbid_unknown_fields=True, omit_defaults=True):
    """A site's statement.

    Attributes:
        agreement: SHA-256 (hex) of agreement and study.
        run: of the federation.
        site: its name.
        answers: how many it sent; null where it is a secret who takes part.
        digest: over all of them, in proofs of older versions.
        entries: of its ledger; ``head`` is the digest of the last one.
        epsilon, delta, accountant: what the site's data has spent; null without privacy. With a
            ledger of the data it is by all runs on the same rows. Where releases chose what was
            spent, in this run or in an earlier one, it is the budget, which is the bound.
    """

    agreement: str
    run: str
    site: str
    answers: Count | None
    entries: Count
    head: str
    epsilon: Maybe[float]
    delta: Maybe[float]
    accountant: str
    digest: str = ""


class Proof(Frozen, forbid_unknown_fields=True):
    """A statement as it was signed, with the certificate and the signature (base64)."""

    statement: str
    certificate: str
    signature: str


def write(kit: Path, folder: Path, agreed: Agreed, index: int, outcome: Outcome) -> Path:
    """Sign what a site's folder says of its run, and put it there."""
    with closing(AnswerStore(folder)) as answers:
        progress = answers.progress
    place = known(reading.load(folder).about.ledger) or Place()
    finite = outcome.epsilon != math.inf
    statement = msgspec.json.encode(
        Statement(
            agreement=agreed.digest,
            run=progress.run,
            site=agreed.agreement.names[index],
            answers=progress.sent,
            entries=known(place.seq) or 0,
            head=known(place.digest) or "",
            epsilon=outcome.epsilon if finite else None,
            delta=outcome.delta,
            accountant=outcome.accountant,
        )
    )
    pair = certificates.read_pair(kit, "site")
    made = Proof(
        statement=statement.decode(),
        certificate=pair.pem()[0].decode(),
        signature=base64.b64encode(certificates.signed(pair, statement)).decode(),
    )
    replace_file(folder / NAME, msgspec.json.format(msgspec.json.encode(made)))
    return folder / NAME


def read(folder: Path) -> Proof:
    """Read the ``proof.json`` of a folder; nothing of it is checked.

    Raises:
        StudyError: if there is none that can be read.
    """
    missing = "there is no proof; a site writes it when its run ends"
    with readable(folder / NAME, remedy="Get it from the site again", missing=missing):
        return msgspec.json.decode(read_below(folder, NAME, most=MIB), type=Proof)


def stated(proof: Proof, authority: Path, path: Path) -> Statement:
    """Return what a proof states, if a site of this federation has signed it.

    Args:
        authority: the federation's ``authority.pem``; a ``revoked.pem`` beside it counts, too.
        path: where the proof stands, for messages.

    Raises:
        StudyError: if it cannot be read.
        LedgerError: if the signature is not a site's.
    """
    try:
        content = proof.statement.encode()
        statement = msgspec.json.decode(content, type=Statement)
        certificate, signature = certificates.read_signature(proof.certificate, proof.signature)
    except (msgspec.MsgspecError, ValueError) as error:
        raise StudyError(f"{path}: this is no proof ({error})") from error
    trusted = certificates.read_certificate(authority.parent, authority.name)
    site = certificates.of_site(certificate)
    if not (site and certificates.verified(certificate, trusted, content, signature)):
        raise LedgerError(f"{path}: the signature is not of a site of this federation")
    if statement.site in (SERVER, BROKER):  # over a broker, its certificate is of a site's kind
        raise LedgerError(f"{path}: it is signed by the {statement.site}, and not by a site")
    if certificates.common_name(certificate) != statement.site:
        raise LedgerError(
            f"{path}: it speaks of site {statement.site}, and "
            f"{certificates.common_name(certificate)} has signed it"
        )
    if certificates.is_revoked(certificate, authority, trusted):
        raise LedgerError(f"{path}: the certificate of site {statement.site} is revoked")
    if statement.entries < 1:
        raise LedgerError(f"{path}: it states no entry of a ledger, and every run begins with one")
    if (known(statement.epsilon) or 0.0) < 0.0:
        raise LedgerError(f"{path}: it states epsilon {statement.epsilon}, and none is negative")
    return statement


def save(folder: Path, statement: Statement, run: Path) -> Path:
    """Put a site's proof, which has been verified, into the run folder of the server.

    Raises:
        StudyError: if it is about another run.
    """
    about = reading.load(run).about
    if known(about.run) != statement.run:
        raise StudyError(
            f"{folder / NAME}: it is about run {statement.run}, and {run} holds run "
            f"{known(about.run)}"
        )
    target = run / KEPT / statement.site
    target.mkdir(parents=True, exist_ok=True)
    replace_file(target / NAME, read_below(folder, NAME, most=MIB))
    return target


def saved(run: Path) -> list[Path]:
    """Return the folders of proofs that a server's run folder holds."""
    return sorted(each.parent for each in run.glob(f"{KEPT}/*/{NAME}"))


def verify(folder: Path, authority: Path, ledger: Path | None = None) -> Statement:
    """Return what a proof states, if it holds.

    Args:
        folder: with ``proof.json``.
        authority: the federation's ``authority.pem``; a ``revoked.pem`` beside it counts, too.
        ledger: the site's ledger, to hold the statement against; that of the folder if there is
            one.

    Raises:
        StudyError: if a file cannot be read.
        LedgerError: if the signature is not a site's, or the ledger says otherwise.
    """
    statement = stated(read(folder), authority, folder / NAME)
    where = ledger or folder / "ledger.sqlite"
    if where.is_file():
        with Ledger.open(where, readonly=True) as found:
            if not found.stands((statement.entries, statement.head)):
                raise LedgerError(
                    f"{where}: it has no entry {statement.entries} with the digest that the proof "
                    "states: it is another ledger, or it was changed"
                )
            _refuse_less(statement, found)
    elif ledger is not None:
        raise StudyError(f"{ledger}: there is no such ledger")
    return statement


def _refuse_less(statement: Statement, ledger: Ledger) -> None:
    """Refuse a statement of less than what the run's ledger comes to, by the promise that stands in
    it. A ledger of the data with several runs has no price of one: what `sordino ledger verify`
    holds against its seals.

    Raises:
        LedgerError: if it states less, or by another delta or accountant than was promised.
    """
    begun, records = ledger.notes(BEGIN), bool(ledger.notes(RECORDS))
    if records and len(begun) > 1:
        return
    if len(begun) != 1:
        raise LedgerError(f"{ledger.path}: a run's own ledger knows one run; this one {len(begun)}")
    promise, units = begun[0].facts["promise"], begun[0].facts["units"]
    delta, accountant = promise.get("delta"), promise["accountant"]
    epsilon, unit = known(statement.epsilon), promise["unit"]
    if unit == "none" or delta is None:
        spent = math.inf
    else:
        from sordino.privacy.records import Prices, spendings  # arrays take a while to import

        found = spendings(ledger, rest=Prices(ledger).rest())
        asked = found if records else {name: found[name] for name in units.values()}
        prices = (
            ledger.price(name, history, delta, accountant)
            for name, histories in asked.items()
            for history in histories
        )
        spent = max(prices, default=0.0) * (1.0 - GRIDS if records else 1.0)
    if (known(statement.delta), statement.accountant) != (delta, accountant):
        raise LedgerError(
            f"{ledger.path}: the run promised delta {delta} by {accountant}, and the proof of site "
            f"{statement.site} states delta {known(statement.delta)} by "
            f"{printable(statement.accountant)}"
        )
    if epsilon is not None and not spent <= epsilon * (1.0 + 1e-9):
        raise LedgerError(
            f"{ledger.path}: epsilon {epsilon_text(spent, 6)} is spent, and the proof of site "
            f"{statement.site} states {epsilon_text(epsilon, 6)}"
        )
