"""The record as it is written and signed, and as a page that opens anywhere; and the facts of a
deployment that a program cannot know, asked of the people who answer for it.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import msgspec
import yaml

from sordino.base.errors import StudyError
from sordino.base.files import MIB, read_below, readable, toml_of
from sordino.base.frozen import Frozen
from sordino.core.files import replace_file
from sordino.network import certificates
from sordino.network.proof import Proof
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
    proof: Proof | None = None


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
