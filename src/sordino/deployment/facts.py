"""The record of a run: what its folder, its sites' proofs and the answers say."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from sordino.base import VERSION
from sordino.base.errors import LedgerError, StudyError
from sordino.base.files import MIB, read_below, readable
from sordino.base.frozen import Frozen
from sordino.core import regimes, statements
from sordino.core.records import Place, known, number
from sordino.core.run import reading
from sordino.core.run.folder import study_of
from sordino.core.run.reading import Run
from sordino.core.study.base import Study, tuned_sentence
from sordino.deployment import document as d
from sordino.deployment.document import QUESTIONS, WORDS, Answers
from sordino.network.kit import Agreed
from sordino.network.proof import Proof, Statement
from sordino.privacy.rounding import epsilon_text
from sordino.report import words

NOT_ANSWERED = "not answered"
SMALL = 1.0  # epsilon up to which an attacker's odds grow by less than e
Given = tuple[Path, Proof, Statement]
"""A site's folder, its proof, and what that states."""


class _Row(Frozen):
    name: str
    unit: str
    how: str
    low: float
    plain: float
    ledger: float | None
    delta: float


class _Printed(Frozen):
    """The fields that are read of the JSON of ``sordino audit``."""

    attack: str
    confidence: float
    intervals: tuple[_Row, ...]
    verdicts: tuple[str, ...]
    own_examples: bool = True


def read_attacks(path: Path) -> tuple[d.Attack, ...]:
    """Read what ``sordino audit --json`` printed.

    Raises:
        StudyError: if it cannot be read, or the attack looked at the study's own examples.
    """
    with readable(path, remedy="Give what `sordino audit --json` has printed"):
        found = msgspec.json.decode(read_below(path.parent, path.name, most=MIB), type=_Printed)
        rows = list(zip(found.intervals, found.verdicts, strict=True))
    if found.own_examples and found.attack != "mechanism":
        raise StudyError(
            f"{path}: this attack looked at the study's own examples. Its result is a release that "
            "is in no ledger, and a record is for others. Attack the mechanism, or the same study "
            "on public rows; what else was found, say in the answers"
        )
    return tuple(
        d.Attack(
            name=row.name,
            unit=row.unit,
            how=row.how,
            low=max(row.low, 0.0),
            plain=max(row.plain, 0.0),
            ledger=row.ledger,
            delta=row.delta,
            confidence=found.confidence,
            verdict=verdict,
        )
        for row, verdict in rows
    )


def made(
    folder: Path,
    answers: Answers,
    given: Sequence[Given],
    agreed: Agreed | None,
    modules: Path | None = None,
    attacks: tuple[d.Attack, ...] = (),
) -> d.Record:
    """Make the record of a run that has ended, without a signature.

    Args:
        folder: of the run, at a server or a site, or of a simulation.
        answers: of who writes the record.
        given: folders of sites, with their proofs, checked, and what these state.
        agreed: what the federation has agreed to, if it is one.
        modules: where modules lie that the study names, if they were moved.
        attacks: what an audit found; none if none ran.

    Raises:
        StudyError: if this is no run folder.
        LedgerError: if the run goes on, or a proof is about another run.
    """
    run = reading.load(folder)
    if not run.done:
        raise LedgerError(
            f"{folder}: this run has not ended, so nobody knows what it will have released. "
            f"Resume it (`sordino run --resume {folder}`), then make the record"
        )
    study = study_of(folder, known(run.about.modules), modules)
    name = known(run.about.run) or ""
    own = [folder] == [each for each, _, _ in given]
    if own:  # a site's folder has a number of its own
        name = given[0][2].run
    for _, _, each in given:
        if each.run != name:
            raise LedgerError(
                f"the proof of site {each.site} is about run {each.run}, and {folder} holds run "
                f"{name}"
            )
    sites = _sites(given, None if own else agreed)
    epsilon = _epsilon(run, study, sites)
    private = epsilon is not None
    promise = words.promise(run)
    if epsilon is not None:  # the promise of the run's page, with the record's own epsilon
        sentence = d.EPSILON.sub(d.stated(epsilon), promise.sentence)
    else:
        why = "A site's ledger has no bound." if promise.private else promise.sentence
        sentence = f"No privacy guarantee. {why}"
    said = {key: getattr(answers, key) or NOT_ANSWERED for key in QUESTIONS}
    place = known(run.about.ledger) or Place()
    unprotected = tuple(_unprotected(run, study))
    actors = tuple(_actors(study, agreed))
    missing = any(each.proof is None for each in sites)
    return d.Record(
        program=f"sordino {VERSION}",
        run=name,
        agreement=agreed.digest if agreed else "",
        begun=known(run.about.begun) or "",
        ended=known(run.about.ended) or "",
        private=private,
        guarantee=sentence,
        epsilon=epsilon,
        delta=number(run.about.delta) if private else None,
        accountant=known(run.about.accountant) or "",
        entries=known(place.seq) or 0,
        head=known(place.digest) or "",
        odds=d.odds(epsilon),
        attacks=attacks,
        points=tuple(_points(run, study, said, epsilon, missing, attacks)),
        actors=actors,
        unprotected=unprotected,
        assumptions=known(run.about.assumptions) or (),
        warnings=tuple(words.warnings(run)),
        questions=tuple(d.Answered(QUESTIONS[key], answer) for key, answer in said.items()),
        sites=sites,
        registry=_registry(
            run, study, answers, said, sentence, epsilon, unprotected, actors, bool(agreed)
        ),
    )


def _sites(given: Sequence[Given], agreed: Agreed | None) -> tuple[d.Site, ...]:
    """Return every site that is agreed or has given a proof, in the order of the agreement."""
    stated = {each.site: (proof, each) for _, proof, each in given}
    if len(stated) < len(given):
        raise StudyError("two proofs of one site were given: give the last one alone")
    proved = {
        name: d.Site(
            name=name,
            epsilon=known(said.epsilon),
            delta=known(said.delta),
            accountant=said.accountant,
            entries=said.entries,
            head=said.head,
            proof=proof,
        )
        for name, (proof, said) in stated.items()
    }
    names = agreed.agreement.names if agreed else proved
    return tuple(proved.get(name, d.Site(name=name)) for name in names)


def _epsilon(run: Run, study: Study, sites: Sequence[d.Site]) -> float | None:
    """Return what is guaranteed to everybody; None where that is nothing. Where labels alone are
    protected, parties that hold features state no epsilon.

    A site's ledger may have paid for more than the server knows of, as for a task that was booked
    and never answered: the larger figure counts.
    """
    if not words.promise(run).private or run.guaranteed is None:
        return None
    proved = [each for each in sites if each.proof is not None]
    if study.privacy.unit == "label":
        proved = [each for each in proved if each.epsilon is not None] or proved
    spent = (math.inf if each.epsilon is None else each.epsilon for each in proved)
    highest = max([run.guaranteed, *spent])
    return None if math.isinf(highest) else float(epsilon_text(highest, 6))


def _unprotected(run: Run, study: Study) -> Iterator[str]:
    """Yield what no epsilon covers."""
    if study.privacy.unit == "none":
        yield "Everything: nothing has noise."
    spoken = run.vocabulary
    held = "persons" if getattr(study, "clips_persons", False) else "examples"
    hidden = getattr(study, "hides_sizes", False)
    told = "" if hidden else f", and how many {held} each of them has"
    for each in WORDS["public"]["what"]:
        yield each.format(client=spoken.client, clients=spoken.clients, sizes=told)
    for each in statements.uncovered(study):
        yield each[:1].upper() + each[1:] + "."
    if exposed := regimes.teller(run.about.regime).exposed(run):
        yield exposed


def _actors(study: Study, agreed: Agreed | None) -> Iterator[d.Actor]:
    """Yield who takes part."""
    told = WORDS["actors"]
    if agreed is None:
        yield d.Actor(*told["simulation"])
    else:
        yield d.Actor(*told["site"])
        shared = getattr(study.privacy, "noise", "own") == "shared"
        seen = WORDS["server"]
        yield d.Actor(
            "The server", *seen.get("shared" if shared else study.privacy.unit, seen["sample"])
        )
        transport = agreed.agreement.transport
        if transport != "websocket":  # frames are open to who carries them
            yield d.Actor(*(each.format(transport=transport) for each in told["carrier"]))
        yield d.Actor(*told["authority"])
        yield d.Actor(*told["watcher"])
    yield d.Actor(*told["published"])


def _points(
    run: Run,
    study: Study,
    said: Mapping[str, str],
    epsilon: float | None,
    missing: bool,
    attacks: Sequence[d.Attack],
) -> Iterator[d.Point]:
    """Yield the points of NIST SP 800-226, from the top of its pyramid to its base; and whether
    attacks contradict what ledgers say.
    """
    privacy, spoken = study.privacy, run.vocabulary

    def answered(point: str, key: str, before: str = "") -> d.Point:
        return d.Point(
            point, "open" if said[key] == NOT_ANSWERED else "assumed", before + said[key]
        )

    if epsilon is None:
        yield d.Point("Size of epsilon", "open", "There is no guarantee: epsilon is infinite.")
    else:
        yield from _promised(run, study, said, epsilon)
    yield _unit(study)
    exposed = statements.uncovered(study)
    yield d.Point(
        "Facts without noise",
        "open" if exposed else "assumed",
        "; ".join(exposed) + "."
        if exposed
        else "What is not protected is listed in this record, and taken for public.",
    )
    tuned = "" if study.tuned is None else tuned_sentence(study.tuned, privacy.accountant) + " "
    yield answered("Choice of constants", "tuning", tuned)
    yield answered("Cleaning, looking and other uses outside of the ledger", "outside")
    yield d.Point(*WORDS["points"]["program"])
    yield d.Point(*WORDS["points"]["channels"])
    yield d.Point(
        "Model of trust",
        "assumed",
        f"{regimes.of(study).against(study)} The actors are listed in this record."
        if privacy.unit != "none"
        else "Everybody who sees an update is trusted with it.",
    )
    if missing:
        yield d.Point(
            "Ledgers of the sites",
            "open",
            f"Some {spoken.clients} have given no proof of what their own ledgers say.",
        )
    yield answered("Utility, and bias between groups", "harm")
    yield answered("Security of data, keys and folders", "security")
    yield answered("Collection of the data", "collection")
    yield answered("Use of the same data in future", "reuse")
    if wrong := [each.name for each in attacks if each.verdict in ("BROKEN", "not caught")]:
        yield d.Point("Attacks", "open", f"A claim is contradicted: {', '.join(wrong)}.")
    elif attacks:
        yield d.Point(
            "Attacks",
            "assumed",
            f"{len(attacks)} attacks contradict no ledger. A lower bound below epsilon proves "
            "nothing: another attack may reach further.",
        )


def _counted(study: Study) -> str:
    """Return which runs the ledger adds up."""
    return (
        "The ledger is of this run alone: other runs over the same records add to epsilon, and it "
        "does not count them"
        if study.privacy.ledger == "run"
        else "A ledger of the data adds up all runs over the same records, and refuses what would "
        "pass the budget"
    )


def _promised(run: Run, study: Study, said: Mapping[str, str], epsilon: float) -> Iterator[d.Point]:
    """Yield the points of a guarantee that there is."""
    privacy = study.privacy
    most = math.exp(min(epsilon, 700.0))
    yield d.Point(
        "Size of epsilon",
        "holds" if epsilon <= SMALL else "open",
        f"epsilon = {epsilon_text(epsilon, 6)}: no single outcome becomes more than "
        f"{most:.3g} times as likely by one unit, but for "
        f"delta. Justification: {said['justification']}",
    )
    if (delta := number(run.about.delta)) is not None:
        yield d.Point(
            "Size of delta",
            "assumed",
            f"delta = {delta:g}: with this probability the bound may fail. It must be well below "
            "one over the number of those who are protected.",
        )
    yield d.Point(
        "Comparison with other guarantees",
        "holds",
        f"Variant, relation and accountant are stated: (epsilon, delta), "
        f"{known(run.about.adjacency) or statements.adjacency(study)}, "
        f"{known(run.about.accountant) or '-'}. Compare it with guarantees of the same unit alone.",
    )
    yield d.Point(
        "Several releases of the same data",
        "holds" if privacy.ledger != "run" else "open",
        f"{_counted(study)}. Uses outside of every ledger are asked below.",
    )
    bounds, noise, proved = _noise(study)
    yield d.Point("Bounds on contributions", "holds" if proved else "open", bounds)
    yield d.Point("Floating-point numbers and noise", "holds" if proved else "open", noise)
    secret = privacy.entropy == "system"
    yield d.Point(
        "Random numbers",
        "holds" if secret else "open",
        "AES-256 under a key of the operating system, destroyed at the end of the run."
        if secret
        else "Noise comes from the study's seed: whoever knows it can subtract the noise. This "
        "protects nobody, and is for simulations.",
    )


PROVED = ("gaussian", "haar")


def _noise(study: Study) -> tuple[str, str, bool]:
    """Return what bounds contributions, how noise is made, and whether both are proved."""
    privacy = study.privacy
    kind = getattr(getattr(privacy, "mechanism", None), "kind", None)
    proved = kind in (None, *PROVED) and study.form == "sound"
    which = privacy.unit if privacy.unit in ("none", "label") else "proved" if proved else "open"
    bounds, noise = WORDS["noise"][which]
    return bounds, noise, which in ("label", "proved")


def _unit(study: Study) -> d.Point:
    point = "Unit of privacy"
    adjacency = f"Neighbouring data sets differ in {statements.adjacency(study)}."
    if study.privacy.unit == "none":
        return d.Point(point, "open", "Nobody is protected.")
    if study.of_persons:
        return d.Point(point, "holds", f"{adjacency} A column says whose each row is.")
    if study.privacy.unit == "sample":
        return d.Point(
            point,
            "assumed",
            f"{adjacency} A person with several rows is protected less: this holds for people "
            "where each has one row.",
        )
    return d.Point(point, "holds", adjacency)


def _registry(
    run: Run,
    study: Study,
    answers: Answers,
    said: Mapping[str, str],
    sentence: str,
    epsilon: float | None,
    unprotected: Sequence[str],
    actors: Sequence[d.Actor],
    network: bool,
) -> d.Registry:
    """Return a draft in the fields of the public registry of deployments."""
    spoken, about, unit = run.vocabulary, run.about, study.privacy.unit
    name = answers.name or run.name
    person = "one person with all examples" if study.of_persons else WORDS["units"].get(unit, unit)
    delta = number(about.delta) if epsilon is not None else None
    terms = "; ".join(f"{key}: {value}" for key, value in words.terms(run))
    secret = study.privacy.entropy == "system"
    return d.Registry(
        url_slug=re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "run",
        status="Draft",
        tier=3,
        deployment=d.Deployment(
            basic=d.Basic(
                name=name,
                data_curators=answers.curators or (NOT_ANSWERED,),
                intended_use=said["intended_use"],
                data_product_type="Machine learning model",
                data_product_region=said["region"],
                description=said["description"],
                publication_date=answers.published or (known(about.ended) or "")[:10],
                data_product_sector=answers.sector,
            ),
            dp_variant=d.Variant(
                variant_name="Custom" if epsilon is None else "Approximate DP",
                data_domain=f"All data sets of {run.headcount} {spoken.clients} with these "
                "public sizes, columns and classes.",
                unprotected_quantities="\n".join(f"* {each}" for each in unprotected),
            ),
            privacy_loss=d.Loss(
                privacy_unit=person.format(client=spoken.client),
                privacy_unit_details=f"Adjacent: {statements.adjacency(study)}.",
                privacy_parameters=d.Parameters(epsilon, delta),
                privacy_parameters_details=sentence,
            ),
            deployment_model=d.Model(
                model_name="Federated" if network else "Central",
                model_name_details="Sites keep their data; the server sees what they send."
                if network
                else "A simulation of federated learning on one machine.",
                actors="\n".join(f"* {a.who}: sees {a.sees} Trusted: {a.trusted}" for a in actors),
                release_type="One release",
                release_type_details=said["reuse"],
                data_source_type="Dynamic" if spoken.accuracy.streamed else "Static",
                access_type="Non-interactive",
            ),
            accounting=d.Accounting(
                post_processing="All that is computed from noisy releases: averages, steps of the "
                "optimizer, the choice of the published model.",
                composition=f"{known(about.accountant) or '-'} accountant over every release of "
                f"the run, each charged in a ledger before it happens. {_counted(study)}.",
            ),
            implementation=d.Implementation(
                preprocessing_and_hyperparameter_tuning=f"{said['tuning']}\n\n{said['outside']}",
                mechanisms=f"{run.method}, form {study.form}. {terms}. "
                f"{' '.join(_noise(study)[:2])} Random numbers from "
                f"{'the operating system' if secret else 'a known seed'}. Sordino {VERSION}.",
                justification=said["justification"],
            ),
            administrative=d.Administrative(
                registry_authors=answers.authors or (NOT_ANSWERED,),
                sources=answers.sources,
                notes=f"Run {known(about.run)}, made by Sordino {VERSION}.",
            ),
        ),
    )
