"""The record: how it is written, signed, read, and checked with nothing but the certificate of an
authority; and the facts of a deployment that a program cannot know, asked of the people who answer
for it.
"""

from __future__ import annotations

import base64
import math
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import msgspec
import yaml

from sordino.base.errors import LedgerError, StudyError, printable
from sordino.base.files import MIB, read_below, readable, toml_of
from sordino.base.frozen import Frozen
from sordino.core.files import replace_file
from sordino.core.records import known
from sordino.network import certificates
from sordino.network import proof as proofs
from sordino.network.kit import AGREEMENT, SERVER, STUDY, digest_of, read_agreement, serves
from sordino.privacy.rounding import epsilon_text
from sordino.report.canvas import clean
from sordino.report.page import template

FORMAT = 1
SECTORS = ("Technology", "Healthcare", "Education", "Government", "Energy", "Finance")

WORDS = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))
QUESTIONS: dict[str, str] = WORDS["questions"]
MOST = 8 * MIB
PRIORS = (0.01, 0.1, 0.5)
EPSILON = re.compile(r"\(epsilon = [^,]+,")
"""The beginning of a guarantee's sentence, with its epsilon; see :func:`stated`."""
State = Literal["holds", "assumed", "open"]


class Answers(Frozen, forbid_unknown_fields=True):
    """Answers by the key of their question; ``curators`` publish the model, ``authors`` write the
    record.
    """

    curators: tuple[str, ...] = ()
    authors: tuple[str, ...] = ()
    name: str = ""
    description: str = ""
    intended_use: str = ""
    region: str = ""
    published: str = ""
    sector: str = ""
    sources: str = ""
    justification: str = ""
    outside: str = ""
    tuning: str = ""
    reuse: str = ""
    collection: str = ""
    security: str = ""
    audit: str = ""
    harm: str = ""


def read_answers(path: Path) -> Answers:
    """Read answers from a TOML file.

    Raises:
        StudyError: naming the key and what is wrong.
    """
    with readable(path, remedy="`sordino record RUN --questions` prints one to fill in"):
        content = read_below(path.parent, path.name, most=MIB)
        found = msgspec.convert(toml_of(content.decode()), Answers)
    if found.sector not in ("", *SECTORS):
        raise StudyError(f"{path}: sector must be one of {', '.join(SECTORS)}, or empty")
    return found


def blank_answers() -> str:
    """A TOML file with every question, to fill in."""
    lines = [
        "# Who publishes the model, and who writes this record?",
        "curators = []",
        "authors = []",
    ]
    for key, question in QUESTIONS.items():
        lines += ["", f"# {question}", f'{key} = ""']
    return "\n".join(lines) + "\n"


class Part(Frozen, forbid_unknown_fields=True, omit_defaults=True):
    """A part of the document: what has its default is left out."""


class Basic(Part):
    """The registry's ``basic``."""

    name: str
    data_curators: tuple[str, ...]
    intended_use: str
    data_product_type: str
    data_product_region: str
    description: str
    publication_date: str
    data_product_sector: str = ""


class Variant(Part):
    """The registry's ``dp_variant``."""

    variant_name: str
    data_domain: str
    unprotected_quantities: str


class Parameters(Part):
    """Epsilon and delta; none where nothing is guaranteed."""

    epsilon: float | None = None
    delta: float | None = None


class Loss(Part):
    """The registry's ``privacy_loss``."""

    privacy_unit: str
    privacy_unit_details: str
    privacy_parameters: Parameters
    privacy_parameters_details: str


class Model(Part):
    """The registry's ``deployment_model``."""

    model_name: str
    model_name_details: str
    actors: str
    release_type: str
    release_type_details: str
    data_source_type: str
    access_type: str


class Accounting(Part):
    """The registry's ``accounting``."""

    post_processing: str
    composition: str


class Implementation(Part):
    """The registry's ``implementation``."""

    preprocessing_and_hyperparameter_tuning: str
    mechanisms: str
    justification: str


class Administrative(Part):
    """The registry's ``administrative``."""

    registry_authors: tuple[str, ...]
    sources: str = ""
    notes: str = ""


class Deployment(Part):
    """A deployment as the registry knows it, all three tiers."""

    basic: Basic
    dp_variant: Variant
    privacy_loss: Loss
    deployment_model: Model
    accounting: Accounting
    implementation: Implementation
    administrative: Administrative


class Registry(Part):
    """A draft of the registry's own document (opendp/deployments-registry-data)."""

    url_slug: str
    status: str
    tier: int
    deployment: Deployment


class Point(Part):
    """One point of NIST SP 800-226: whether it holds, is assumed, or is open, and why."""

    point: str
    state: State
    why: str


class Actor(Part):
    """The participants: what they see, and what they are trusted for."""

    who: str
    sees: str
    trusted: str


class Odds(Part):
    """The most an attacker can gain.

    Attributes:
        before: probability that a record is in the data, before the release is seen.
        after: the highest probability that the release may lead to.
    """

    before: float
    after: float


class Attack(Part, kw_only=True):
    """The findings of an attack of ``sordino audit``.

    Attributes:
        low: lower bound of epsilon, taking the trade-off between hits and false alarms to be of the
            kind that is claimed; ``plain`` takes it for nothing.
        ledger: epsilon that the ledger books for the same releases; None without a bound.
        confidence: that all lower bounds of one audit hold together.
    """

    name: str
    unit: str
    how: str
    low: float
    plain: float
    ledger: float | None
    delta: float
    confidence: float
    verdict: str


class Site(Part):
    """A site, with what it spent by its own ledger; and its proof, where there is one."""

    name: str
    epsilon: float | None = None
    delta: float | None = None
    accountant: str = ""
    entries: int = 0
    head: str = ""
    proof: proofs.Proof | None = None


class Answered(Part):
    """A question to people, and their answer."""

    question: str
    answer: str


class Signature(Part):
    """Signature (base64) over :func:`content`, and the certificate (PEM) of its key."""

    certificate: str
    signature: str


class Record(Part, kw_only=True):
    """The whole document.

    Attributes:
        format: of the document.
        program: that made it.
        run: identifier of the run; ``agreement``: SHA-256 of a federation's agreement and study.
        begun, ended: of the run, UTC.
        private: whether anything is guaranteed.
        guarantee: in one sentence.
        epsilon, delta, accountant: that are guaranteed, over all sites; None without a guarantee.
        entries, head: of the ledger of who made the record, and its last digest.
        questions: what no program knows, with people's answers.
    """

    format: Literal[1] = 1
    program: str
    run: str
    agreement: str = ""
    begun: str = ""
    ended: str = ""
    private: bool
    guarantee: str
    epsilon: float | None
    delta: float | None
    accountant: str
    entries: int = 0
    head: str = ""
    odds: tuple[Odds, ...] = ()
    attacks: tuple[Attack, ...] = ()
    points: tuple[Point, ...] = ()
    actors: tuple[Actor, ...] = ()
    unprotected: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    questions: tuple[Answered, ...]
    sites: tuple[Site, ...] = ()
    registry: Registry
    signature: Signature | None = None


def stated(epsilon: float) -> str:
    """Return how a guarantee's sentence begins with its epsilon."""
    return f"(epsilon = {epsilon_text(epsilon, 6)},"


def odds(epsilon: float | None) -> tuple[Odds, ...]:
    """The most that the probability of a record's presence can rise to.

    By Bayes' rule, p e^eps / (1 - p + p e^eps), but for events of probability delta (Wasserman and
    Zhou, 2010; Desfontaines, 2018).
    """
    if epsilon is None:
        return ()
    gain = math.exp(min(epsilon, 700.0))
    if not math.isfinite(gain):  # of what is no number
        return ()
    after = (before * gain / (1.0 - before + before * gain) for before in PRIORS)
    return tuple(Odds(p, math.ceil(1e4 * q) / 1e4) for p, q in zip(PRIORS, after, strict=True))


def plain(record: Record) -> dict[str, object]:
    """The document as plain tables, ``format`` first."""
    found: dict[str, object] = msgspec.to_builtins(record)
    return {"format": FORMAT, **found}


def content(record: Record) -> bytes:
    """The bytes that are signed: JSON with sorted keys, without the signature."""
    return msgspec.json.encode(
        plain(msgspec.structs.replace(record, signature=None)), order="sorted"
    )


def write(record: Record, path: Path) -> None:
    """Write the document as YAML."""
    text = yaml.safe_dump(plain(record), sort_keys=False, allow_unicode=True, width=100)
    replace_file(path, text.encode())


def signer(record: Record) -> str:
    """Return who has signed a record, as it says; empty if nobody, or if that cannot be read."""
    if record.signature is None:
        return ""
    with suppress(ValueError):
        mark = record.signature
        return certificates.common_name(
            certificates.read_signature(mark.certificate, mark.signature)[0]
        )
    return ""


def write_page(record: Record, path: Path) -> None:
    """Write the document as HTML."""
    html: str = template("record.html", Path(__file__).parent).render(
        title=record.registry.deployment.basic.name,
        record=record,
        epsilon_text=epsilon_text,
        clean=clean,
        rows=lambda several: [msgspec.structs.astuple(each) for each in several],
        signer=signer(record),
    )
    replace_file(path, html.encode("utf-8", "replace"))


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # the library has no types
    """Reads YAML without aliases, by which a short text stands for a huge one, and without a key
    that stands twice in a table or is merged into it: people and other programs read the first one,
    and what is signed would be the last.
    """

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        for key, times in Counter(str(each.value) for each, _ in node.value).items():
            if times > 1 or key == "<<":
                raise yaml.YAMLError(f"the key {key[:80]!r} stands twice, or is merged")
        return super().construct_mapping(node, deep)

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("a record has no aliases")
        return super().compose_node(parent, index)


def read(path: Path) -> Record:
    """Read a document.

    Raises:
        StudyError: if there is none, or it is of another format, or damaged: it names the field.
    """
    with readable(path, remedy="A record is YAML: `sordino record RUN` writes one"):
        found = yaml.load(read_below(path.parent, path.name, most=MOST), _Loader)
    number = found.get("format") if isinstance(found, dict) else None
    if number != FORMAT:
        raise StudyError(
            f"{path}: this is no record of format {FORMAT}; `sordino record RUN` writes one"
        )
    try:
        record = msgspec.convert(found, Record)
        content(record)
    except (msgspec.ValidationError, UnicodeError) as error:
        raise StudyError(f"{path}: {error}") from error
    return record


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
