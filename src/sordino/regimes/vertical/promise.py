"""What the promise of a study of events rests on."""

from __future__ import annotations

from sordino.core.promise import FLOATS, LOOKING, SIMULATED
from sordino.regimes.vertical.study import VerticalStudy

OF_EVENTS = (
    "Event times, active parties and missing answers are public, and assumed to be "
    "independent of all protected data.",
    "The server learns responded labels and what parties send, and parties learn "
    "derivatives, which follow from these: neither is trusted.",
    "The number of events, and which events are about one entity, is public.",
)
MEMOISED = (
    "The label of an entity never changes. Its randomised response is drawn once and used "
    "for the whole stream."
)
KEPT = (
    "Checkpoints contain the last examples unprotected until the run ends, because method 'slr' "
    "sends their embeddings again. Keep the folder secret until then."
)
SYNTHETIC = (
    "Each deformed image is taken for an entity of its own; the people behind the images "
    "that were deformed are not protected by this."
)
PREQUENTIAL = (
    "Errors and losses are computed from responded labels and from what the server was sent, so "
    "they tell nothing beyond the ledger; on labels that are not protected they are the "
    "simulation's own measurement, which no party releases."
)
RAW_ERRORS = (
    "Errors and losses are the simulation's own measurement on the labels as they are; no "
    "party of a federation releases them."
)


def resting_on(study: VerticalStudy) -> list[str]:
    """What the guarantee, or the run, rests on."""
    if study.privacy.unit == "none":
        return [SIMULATED, RAW_ERRORS]
    found = [*OF_EVENTS, SIMULATED, FLOATS, LOOKING, PREQUENTIAL]
    if study.privacy.memoised:
        found.append(MEMOISED)
    if study.method.resends > 1:
        found.append(KEPT)
    if study.data.stream.kind == "deformed":
        found.append(SYNTHETIC)
    return found
