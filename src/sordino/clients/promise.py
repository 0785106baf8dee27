"""The assumptions of a study's promise in which every client has examples of its own."""

from __future__ import annotations

from sordino.clients.study import HorizontalStudy, SampledPromise
from sordino.core.statements import FLOATS, LOOKING, SIMULATED
from sordino.core.study.data import SHARE
from sordino.privacy.rounding import epsilon_text

SIZES = (
    "The sizes of the clients' data sets are public: they weight the average and set the "
    "expected batch."
)
BATCHES = (
    "The choice of the examples in a batch is secret. Privacy amplification by sampling "
    "depends on this."
)
DIVIDED = "The partition of the examples among the clients and the set of classes are public."
IDEAL = (
    "The price of K-norm noise assumes an ideal sampler. It is not known what its "
    "floating-point sampler may reveal."
)
TESTS = {
    "published": "The test set is public and used for reporting only.",
    "file": "The rows of the test file were declared public: models are measured on them exactly, "
    "and often.",
    "public share": (
        "{share} of the file's rows were set aside and DECLARED PUBLIC (data.test = 'public "
        "share'): models are measured on them exactly, and the people in these rows get no privacy "
        "guarantee."
    ),
    "private share": (
        "{share} of the file's rows were set aside to measure models on. They are private: an "
        "evaluation releases how many of them a model gets right, with Gaussian noise and at a "
        "price, charged to the unit 'test', and the promise holds for each of them."
    ),
    "none": "No row of the file is declared public, and no model is measured: there "
    "is no accuracy.",
}
OWN_TEST = (
    "The test half of the data set {name} counts as public: models are measured on its rows "
    "exactly, and the people in them get no privacy guarantee. Data of people belongs in a file."
)
FEATURES = (
    "The model sees features of an example in its place: data.features = {front}, a fixed function "
    "of one example that learns nothing from data. Budgets and ledgers belong to the examples."
)
EQUAL = (
    "The ledger of the data takes equal rows at two clients of one run for two people's: each is "
    "in one client's releases, whose prices do not add up. Name data.person where one person may "
    "have rows at several clients."
)
OWN = (
    "Each client's data has an epsilon of its own, from {least} to {most} (privacy.epsilons). "
    "These numbers are public, as sizes are: they set each client's noise{weights}. The guarantee "
    "names the largest; the ledger holds each client to its own."
)
WEIGHED = ", and its weight in the average, which is the usual one over its noise squared"
VALIDATION = "The validation examples set aside from the training data are treated as public."
DIVISION = (
    "How this public data set was divided among the clients (sizes and label counts) is "
    "shown, and treated as public."
)


def resting_on(study: HorizontalStudy, first: tuple[str, ...] = (SIZES, BATCHES)) -> list[str]:
    """Return what the guarantee, or the run, rests on; ``first`` is particular to a regime."""
    found = [*first, SIMULATED, FLOATS, LOOKING, DIVIDED]
    if study.data.validation or study.data.client_validation:
        found.append(VALIDATION)
    if (front := study.data.features) is not None:
        keys = ", ".join(f"{name} {value}" for name, value in front.settings)
        found.append(FEATURES.format(front=f"'{front.kind}'{f' ({keys})' if keys else ''}"))
    if takes_equal_rows_apart(study):
        found.append(EQUAL)
    if (own := study.given_epsilons) is not None:
        found.append(
            OWN.format(
                least=epsilon_text(min(own)),
                most=epsilon_text(max(own)),
                weights=WEIGHED if isinstance(study.privacy, SampledPromise) else "",
            )
        )
    found.append(testing(study))
    if study.privacy.mechanism.simulated and study.privacy.unit != "none":
        found.append(IDEAL)
    if study.data.file is None and study.privacy.unit != "none":
        found.append(DIVISION)
    return found


def takes_equal_rows_apart(study: HorizontalStudy) -> bool:
    """Return whether the ledger may know one person's equal rows as those of several."""
    several = study.data.clients > 1 and not study.pooled
    return study.privacy.ledger != "run" and study.data.person is None and several


def testing(study: HorizontalStudy) -> str:
    """Return what models are measured on, and who pays for it."""
    if study.data.file is None and not study.data.published:
        return OWN_TEST.format(name=study.data.name)
    share = study.data.test_share or SHARE
    return TESTS[study.data.testing].format(share=f"{100 * share:.3g} %")
