"""What a run promises, in words: the guarantee in one sentence, and what it rests on."""

from __future__ import annotations

from sordino.engine.study.base import Study
from sordino.engine.study.sections import SHARE
from sordino.federation.study import HorizontalStudy
from sordino.privacy.rounding import epsilon_text
from sordino.regimes.asynchronous.study import AsynchronousStudy
from sordino.regimes.vertical.study import VerticalStudy

ASSUMPTIONS = (
    "The sizes of the clients' data sets are public: they weigh the average and set the expected batch.",
    "Which examples a batch holds stays secret inside a client; amplification by sampling rests on it.",
    "This is a simulation: batches and noise come from the study's seed, and whoever knows the seed can subtract the noise.",
    "What is released lies on a public grid, with noise in whole numbers whose distribution is proved. Sums and norms are in floating"
    " point: the clip keeps a margin that is proved to cover their rounding, if one example's values leave the bits of others alone.",
    "Choosing clip, learning rate or anything else by looking at results on the same private data is not accounted for.",
    "How the examples are divided among the clients is taken as given, and which classes there are is public.",
)
DRAWN = (
    "Batches and noise come from AES-256 under a secret key of the operating system, which is destroyed when the run ends. Until then it"
    " lies in the run's folder: whoever reads it can subtract the noise."
)
RECOGNISED = (
    "The data's ledger recognises a record by all of its values, or by all of its features, in whatever file and order they stand."
    " A record whose values changed is another one to it, unless data.person names its person or `sordino ledger link` its files."
)
IDEAL = "K-norm noise is priced for an ideal sampler: what its floating-point sampler may give away is not known."
TESTS = {
    "published": "The test set is public and used for reporting only.",
    "file": "The rows of the test file were declared public: models are measured on them exactly, and often.",
    "public share": (
        "{share} of the file's rows were set aside and DECLARED PUBLIC (data.test = 'public share'): models are measured on them exactly,"
        " and nothing is promised to the people in these rows."
    ),
    "private share": (
        "{share} of the file's rows were set aside to measure models on. They are private: an evaluation releases how many of them a model"
        " gets right, with Gaussian noise and at a price, booked under the unit 'test', and the promise holds for each of them."
    ),
    "none": "No row of the file is declared public, and no model is measured: there is no accuracy.",
}
MEASURE = "For an accuracy set data.test = 'private share' (with noise, at a price), 'public share' or 'file'."
OF_EDGES = (
    "The sizes of the edges' data sets are public: with the expected batch b they set the sampling rates b / n_k.",
    "When an edge answers, and how often, is public, and taken to depend on nothing in its data.",
)
OF_CLIENTS = (
    "The aggregator is trusted with single bounded updates, or sees only their sum (secure aggregation); all else sees the noisy sum.",
    "Which clients a cohort holds, and how many, stays secret; amplification by sampling rests on it. Checkpoints know: keep them.",
    "The number of clients and their weights are public and fixed: they make the divisor of every sum.",
)
OF_EVENTS = (
    "When events come, whom they activate and who does not answer is public, and taken to depend on nothing that is protected.",
    "The server learns responded labels and what parties send, and parties learn derivatives, which follow from these: neither is trusted.",
    "The number of events, and which events are about one entity, is public.",
)
MEMOISED = "An entity's label never changes: its response is drawn once and used for as long as the stream goes on."
KEPT = "Checkpoints keep the last examples as they are, for method 'slr' sends their embeddings again: whoever has them knows these."
SYNTHETIC = (
    "Each deformed image is taken for an entity of its own; the people behind the images that were deformed are not protected by this."
)
WORDS = {
    "sample": ("any client sends", "training example's contribution is replaced by none (sizes are public)"),
    "client": (
        "the aggregator publishes",
        "client's contribution, with all its data, is replaced by none (sizes and the number of clients are public)",
    ),
    "label": ("the server sends and publishes", "entity's label is another"),
    "entity": ("parties and server send and publish", "entity's row, its label and its features at every party, is another"),
}
ADJACENCY = {
    "sample": "one example's contribution replaced by none (sizes are public)",
    "client": "one client's contribution, with all its data, replaced by none (sizes and the number of clients are public)",
    "label": "replace one entity's label",
    "entity": "replace one entity's label and its features at every party",
    "none": "none",
}
PERSON = (
    "training data of one person, all of it, adds nothing (sizes are public)",
    "all examples of one person replaced by none (sizes are public)",
)
PREQUENTIAL = (
    "Errors and losses are computed from responded labels and from what the server was sent, so they tell nothing beyond the ledger;"
    " on labels that are not protected they are the simulation's own measurement, which no party releases."
)
RAW_ERRORS = "Errors and losses are the simulation's own measurement on the labels as they are; no party of a federation releases them."
VALIDATION = "The validation examples set aside from the training data are treated as public."
DIVISION = "How this public data set was divided among the clients (sizes and label counts) is shown, and treated as public."
PAPER = "The paper's literal form was asked for; what it sends has no noise, or noise that bounds nothing."


def of_persons(study: Study) -> bool:
    """Whether what is promised holds for persons, who may have several examples, and not for single examples only."""
    return isinstance(study, HorizontalStudy) and study.data.person is not None and study.privacy.unit == "sample"


def adjacency(study: Study) -> str:
    """Which data sets are neighbours, in words."""
    return PERSON[1] if of_persons(study) else ADJACENCY[study.privacy.unit]


def guarantee(study: Study, epsilon: float | None) -> str:
    """The promise in one sentence; with ``epsilon`` what was spent, without it the budget."""
    privacy = study.privacy
    if privacy.unit == "none":
        if isinstance(study, VerticalStudy):
            return "No privacy guarantee: embeddings, labels and updates are used without noise, and epsilon is infinite."
        return "No privacy guarantee: the clients' updates were computed without noise, and epsilon is infinite."
    if study.method.unpriced is not None:
        return f"No privacy guarantee: epsilon is infinite. {PAPER}"
    if study.form == "paper":
        true = "far above what it claims" if epsilon is None else epsilon_text(epsilon)
        return f"No privacy guarantee worth the name: the mechanism's literal form was asked for, and its true epsilon is {true}."
    chosen = looked(study)
    value = privacy.epsilon if epsilon is None else guaranteed(study, epsilon)
    shown = "inf" if value is None else epsilon_text(value, 6)
    what, change = WORDS[privacy.unit]
    one = f"one {change}"
    if of_persons(study):
        one = PERSON[0]
    if isinstance(study, HorizontalStudy) and study.data.testing == "private share":
        what = f"{what}, or an evaluation releases of a row that tests,"
        one = one.replace("training example", "example")
    others = "entities" if isinstance(study, VerticalStudy) else "clients"
    verb = "will differ by at most" if epsilon is None else "differs by at most" if chosen else "differs by"
    return (
        f"What {what} {verb} (epsilon = {shown}, delta = {privacy.delta:g}) in the sense of differential privacy"
        f" when {one}, by the {privacy.accountant} accountant,"
        f" whatever else an observer knows and with all other {others} against it."
    )


def looked(study: Study) -> bool:
    """Whether releases decide how many steps are taken, or with how much noise.

    What was spent in the end is then a value chosen by looking, and no bound in itself: only the budget was fixed in advance, and
    the ledger stops the run before it (Rogers et al. 2016, on filters and odometers).
    """
    adapts = bool(getattr(study.method, "adapts_noise", False))
    return study.privacy.unit != "none" and (getattr(study.method, "fixed_tau", 1) is None or adapts)


def guaranteed(study: Study, spent: float) -> float:
    """The epsilon that is a bound: what was spent, or the budget where that was chosen by looking."""
    budget = study.privacy.epsilon
    return spent if study.form != "sound" or budget is None or not looked(study) else max(budget, spent)


def assumptions(study: Study) -> list[str]:
    """What the guarantee, or the run, rests on."""
    found = _resting_on(study)
    if study.privacy.ledger != "run":
        found = [*found, RECOGNISED]
    return [DRAWN if each == ASSUMPTIONS[2] and study.privacy.entropy == "system" else each for each in found]


def _resting_on(study: Study) -> list[str]:
    if isinstance(study, VerticalStudy):
        return _of_events(study)
    found = [*OF_CLIENTS, *ASSUMPTIONS[2:]] if study.privacy.unit == "client" else list(ASSUMPTIONS)
    if isinstance(study, AsynchronousStudy):
        found = [*OF_EDGES, *ASSUMPTIONS[1:]]
    if isinstance(study, HorizontalStudy) and (study.data.validation or study.data.client_validation):
        found.append(VALIDATION)
    if isinstance(study, HorizontalStudy):
        found.append(testing(study))
    if isinstance(study, HorizontalStudy) and study.privacy.mechanism.simulated and study.privacy.unit != "none":
        found.append(IDEAL)
    if study.data.file is None and study.privacy.unit != "none":
        found.append(DIVISION)
    return found


def testing(study: HorizontalStudy) -> str:
    """What models are measured on, and who pays for it."""
    share = study.data.test_share or SHARE
    return TESTS[study.data.testing].format(share=f"{100 * share:.3g} %")


def remarks(study: Study) -> list[str]:
    """What is said of the test set before a run, where its rows are a user's own."""
    if not isinstance(study, HorizontalStudy) or study.data.testing == "published":
        return []
    return [testing(study) + (f" {MEASURE}" if study.data.testing == "none" else "")]


def _of_events(study: VerticalStudy) -> list[str]:
    if study.privacy.unit == "none":
        return [ASSUMPTIONS[2], RAW_ERRORS]
    found = [*OF_EVENTS, *ASSUMPTIONS[2:5], PREQUENTIAL]
    if study.privacy.memoised:
        found.append(MEMOISED)
    if study.method.resends > 1:
        found.append(KEPT)
    if study.data.stream.kind == "deformed":
        found.append(SYNTHETIC)
    return found
