"""The promise of a run in words: the guarantee in one sentence, and what it rests on."""

from __future__ import annotations

from dataclasses import dataclass

from sordino.core import regimes
from sordino.core.study.base import Study, tuned_sentence
from sordino.privacy.rounding import epsilon_text

SIMULATED = (
    "This is a simulation: batches and noise come from the study's seed, and a person who "
    "knows the seed can subtract the noise."
)
FLOATS = (
    "What is released lies on a public grid, with noise in whole numbers whose distribution is "
    "proved. Sums and norms are in floating point: the clip keeps a margin that is proved to cover "
    "their rounding, if one example's values leave the bits of others alone."
)
LOOKING = (
    "If clip, learning rate or anything else was chosen from results on the same private "
    "data, epsilon does not cover that choice."
)
OTHERS = (
    "If anything else was chosen from results on the same private data, epsilon does not cover "
    "that choice."
)
DRAWN = (
    "Batches and noise come from AES-256 under a secret key of the operating system. Where "
    "releases must be repeatable (a simulation, a party that trains its own half of a model), the "
    "key lies in the run's folder until the run ends: who reads it can subtract the noise. Then it "
    "is destroyed."
)
RECOGNISED = (
    "The data's ledger recognises a record by all of its values, or by all of its features, in "
    "whatever file and order they stand. It does not recognise a record with changed values, "
    "unless data.person or `sordino ledger link` identifies its person."
)
RELEASED = {
    "sample": "Everything that the clients send and the server publishes",
    "client": "Everything that the aggregator publishes",
    "label": "Everything that the server sends and publishes",
    "entity": "Everything that the parties and the server send and publish",
}
ADJACENCY = {
    "sample": "one example's contribution replaced by none (sizes are public)",
    "client": "one client's contribution, with all its data, replaced by none (sizes and the "
    "number of clients are public)",
    "label": "replace one entity's label",
    "entity": "replace one entity's label and its features at every party",
    "none": "none",
}
PERSON = "all examples of one person replaced by none (sizes are public)"
PAPER = (
    "The study asks for the paper's literal form. It sends values without noise, or with "
    "noise that gives no bound."
)


@dataclass(frozen=True, slots=True)
class SiteScope:
    """The part of a run that one site of a network speaks for.

    Attributes:
        released: what its promise is about; it knows nothing of what others release.
        unprotected: why what it has is not protected; None where it is.
    """

    released: str
    unprotected: str | None = None


def adjacency(study: Study) -> str:
    """Which data sets are neighbours, in words."""
    return PERSON if study.of_persons else ADJACENCY[study.privacy.unit]


def guarantee(study: Study, epsilon: float | None, own: SiteScope | None = None) -> str:
    """The promise in words; with ``epsilon`` what was spent, without it the budget.

    Args:
        own: whose promise it is, where it is that of one site of a network.
    """
    privacy = study.privacy
    if own is not None and own.unprotected is not None and privacy.unit != "none":
        return (
            f"No privacy guarantee for what this site has: {own.unprotected}, and epsilon is "
            "infinite."
        )
    if privacy.unit == "none":
        return regimes.of(study).plain
    if study.method.unpriced is not None:
        return f"No privacy guarantee: epsilon is infinite. {PAPER}"
    if study.form == "paper":
        true = "far above what it claims" if epsilon is None else epsilon_text(epsilon)
        return (
            "No privacy guarantee: the study asks for the literal form of a mechanism; its true "
            f"epsilon is {true}."
        )
    value = privacy.epsilon if epsilon is None else guaranteed(study, epsilon)
    shown = "inf" if value is None else epsilon_text(value, 6)
    evaluated = ", and every evaluation on private test rows," if study.pays_to_test else ""
    regime = regimes.of(study)
    usual = regime.released(study) or RELEASED[privacy.unit]
    released = usual if own is None else own.released
    what, verb = f"{released}{evaluated}", "will be" if epsilon is None else "is"
    return (
        f"{what} {verb} (epsilon = {shown}, delta = {privacy.delta:g})-differentially private, by "
        f"the {privacy.accountant} accountant. Neighbouring data sets: {adjacency(study)}. "
        f"{regime.against(study)}"
    )


def looked(study: Study) -> bool:
    """Return whether releases decide how many steps are taken, or with how much noise.

    What was spent in the end is then a value chosen by looking, and no bound in itself: only the
    budget was fixed in advance, and the ledger stops the run before it (Rogers et al. 2016, on
    filters and odometers).
    """
    method = study.method
    return study.privacy.unit != "none" and (method.adapts_steps or method.adapts_noise)


def guaranteed(study: Study, spent: float) -> float:
    """The epsilon that is a bound: what was spent, or the budget where releases chose that."""
    budget = study.privacy.epsilon
    return (
        spent
        if study.form != "sound" or budget is None or not looked(study)
        else max(budget, spent)
    )


def assumptions(study: Study) -> list[str]:
    """Return what the guarantee, or the run, rests on."""
    found = regimes.of(study).assumptions(study)
    if study.privacy.ledger != "run":
        found = [*found, RECOGNISED]
    if study.tuned is not None:
        said = f"{tuned_sentence(study.tuned, study.privacy.accountant)} {OTHERS}"
        found = [said if each == LOOKING else each for each in found]
    return [
        DRAWN if each == SIMULATED and study.privacy.entropy == "system" else each for each in found
    ]


UNSTATED = (
    "which classes there are was read from the private rows (data.classes is not stated), and no "
    "epsilon covers that: a label that a single row has becomes an output of the model. State "
    "classes = [...] in [data] if the list is public"
)


DEALT = (
    "private rows are dealt to clients by their labels (data.partition), and no epsilon covers "
    "that: the numbers of rows of clients are public, and one other label changes them. This is "
    'allowed with privacy.entropy = "seed" only; the kinds "iid" and "column" tell no labels'
)


def uncovered(study: Study) -> list[str]:
    """List what is taken from private rows and not covered by the guarantee."""
    if study.privacy.unit == "none":
        return []
    tuned_sentence = ((study.data.reads_classes, UNSTATED), (study.data.deals_by_label, DEALT))
    return [text for holds, text in tuned_sentence if holds]
