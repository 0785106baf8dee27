"""Which studies can have their clients share the noise of a sum, and what they say about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sordino.core.world import Summing
from sordino.mechanisms.shared import FEWEST_BITS, MOST_BITS
from sordino.regimes.synchronous.methods.client_level import ClientLevel
from sordino.training.optimizer import Sgd

if TYPE_CHECKING:
    from sordino.regimes.synchronous.study import SynchronousStudy

BITS = 32
RELEASED = "Every opened sum of the clients' contributions, and all that the server publishes,"
SENDING = (
    "Every client sends in every round. Whether its data is in what it sends is its own secret. "
    "Privacy amplification by sampling depends on this: neither the time that a client takes nor "
    "anything else must show whether it was drawn."
)


def shared(study: SynchronousStudy) -> bool:
    """Whether clients share the noise."""
    return study.privacy.noise == "shared"


def honest(study: SynchronousStudy) -> int:
    """H: all clients unless the study says otherwise."""
    return study.privacy.honest or study.data.clients


def fewest(study: SynchronousStudy) -> int:
    """M: contributions below which a sum is not opened; H unless the study says otherwise."""
    return study.privacy.fewest or honest(study)


def bits(study: SynchronousStudy) -> int:
    """Of the modulus."""
    return study.privacy.bits or BITS


def summing(study: SynchronousStudy) -> Summing:
    """What secure sums of the study follow from."""
    least = fewest(study)
    return Summing(study.data.clients, least, least - honest(study), bits(study))


def refused(study: SynchronousStudy) -> str | None:
    """Why a study's noise cannot be shared as it asks; None if it can, or is not."""
    privacy = study.privacy
    if not shared(study):
        given = [
            name for name in ("honest", "fewest", "bits") if getattr(privacy, name) is not None
        ]
        if not given:
            return None
        return (
            f"privacy.{given[0]} is about sums whose noise the clients share: set privacy.noise = "
            "'shared', or leave it out"
        )
    if privacy.unit == "none":
        return "privacy.noise 'shared' with unit 'none': there is no noise to share"
    if study.form == "paper":
        return "privacy.noise 'shared' has no paper's literal form: use form = 'sound'"
    if getattr(privacy, "epsilons", None) is not None:
        return (
            "privacy.epsilons gives each client noise of its own, and with privacy.noise 'shared' "
            "all clients have the sum's"
        )
    if privacy.mechanism.kind != "gaussian":
        return (
            "privacy.noise 'shared' is proved for the plain Gaussian mechanism, and "
            f"privacy.mechanism is '{privacy.mechanism.kind}'"
        )
    if not FEWEST_BITS <= bits(study) <= MOST_BITS:
        return f"privacy.bits must lie between {FEWEST_BITS} and {MOST_BITS}; got {privacy.bits}"
    return (
        _too_few(study)
        or (_of_clients(study) if isinstance(study.method, ClientLevel) else _of_steps(study))
        or _of_grids(study)
    )


def _too_few(study: SynchronousStudy) -> str | None:
    asked, cohort = study.data.clients, study.participation.cohort
    if asked < 2:
        return "privacy.noise 'shared' needs at least two clients, and data.clients is 1"
    if honest(study) > asked:
        return (
            f"privacy.honest = {study.privacy.honest}: at most all {asked} clients can be honest "
            "and arrive"
        )
    if not honest(study) <= fewest(study) <= asked:
        return (
            f"privacy.fewest = {study.privacy.fewest}: it must lie between privacy.honest = "
            f"{honest(study)} and the {asked} clients"
        )
    if cohort is not None and cohort < fewest(study):
        return (
            f"participation.cohort = {cohort} asks fewer clients than the {fewest(study)} whose "
            "contributions a sum needs: every round would be void. Set privacy.honest or "
            f"privacy.fewest to at most {cohort}"
        )
    return None


def _of_clients(study: SynchronousStudy) -> str | None:
    if getattr(study.method, "clipping", None) == "adaptive":
        return (
            "method.clipping 'adaptive' follows a noisy count, which no sum of shared noise holds: "
            "use 'fixed' or 'proxy'"
        )
    return None


def _of_steps(study: SynchronousStudy) -> str | None:
    """Of single examples: only sums of one step's gradients have noise that can be shared."""
    name, tau = study.method.name, study.method.fixed_tau
    if study.method.adapts_noise or study.method.wants.loss is not None:
        return (
            f"method '{name}' reads each client's noisy loss, and with privacy.noise 'shared' only "
            "the sum of gradients is opened"
        )
    several = (
        "with privacy.noise 'shared' a round has one local step: after several, the noise of each "
        "is inside a client's own model, where nobody else's protects it (docs/shared-noise.md)"
    )
    if tau is not None and tau > 1:
        return f"{several}. Set method.tau = 1"
    if tau is None and (study.budget.steps is None or study.budget.steps > study.budget.rounds):
        return (
            f"{several}. Method '{name}' takes one where budget.steps is at most budget.rounds = "
            f"{study.budget.rounds}: set it"
        )
    if study.method.optimizer != Sgd():
        return (
            "method.optimizer works on each client's own noisy gradient, and with privacy.noise "
            "'shared' only their sum is ever opened: leave it out (method.momentum is the server's)"
        )
    return None


def _of_grids(study: SynchronousStudy) -> str | None:
    """A client knows by itself on which grid the others round, or they may hide less than it needs:
    a server that names each another clip would have up to half of the noise lost.
    """
    if not study.method.adapts_clip:
        return None
    return (
        f"method '{study.method.name}' lets earlier releases decide about the clip, and with "
        "privacy.noise 'shared' every client must know by itself on which grid the others round: "
        "use a method whose clip is fixed, or scheduled"
    )


def against(study: SynchronousStudy) -> str:
    """Against whom the promise holds."""
    colluding = fewest(study) - honest(study)
    held = (
        f"It holds against the server and up to {colluding} of the clients together, whoever drops "
        "out of a sum."
        if colluding
        else "It holds against the server, and not against another client, who knows its own part: "
        "for that, set privacy.honest below privacy.fewest."
    )
    return (
        "This holds even if an observer knows everything but the clients' parts of the noise. "
        f"{held} A single contribution has only a part of the noise: it must travel under a mask "
        "(secure aggregation)."
    )


def resting(study: SynchronousStudy, sizes: str, batches: str) -> tuple[str, ...]:
    """What the promise rests on that is particular to shared noise."""
    most, n, modulus = honest(study), study.data.clients, bits(study)
    seen = (
        "The server sees who contributes to a round, and of their contributions nothing but the "
        f"sum modulo 2^{modulus}, and no sum of fewer than {fewest(study)} of the {n} clients."
    )
    parts = (
        f"The noise is shared: every client adds 1/{most} of the variance that is booked, in whole "
        f"numbers. {most} clients of every opened sum are assumed to be honest: they add their "
        "part of the noise and keep it to themselves."
    )
    secret = SENDING if isinstance(study.method, ClientLevel) else batches
    return (seen, parts, sizes, secret)
