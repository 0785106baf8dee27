r"""Clip and learning rate without trials: from numbers that are public before anything runs.

For logistic regression on features that are normalised in each example, the length of an example is
known without looking at any: features of variance 1, divided by :data:`LIMIT`, have length
rho = sqrt(features) / LIMIT. A gradient of one example is (p - y) x and has length |p - y| rho.

**Clip.** Gradients are normalised (Bu, Wang, Zha and Karypis 2023, "Automatic clipping"): with
C = rho / 20 every example whose |p - y| is above 1/20 counts with the same length C, and others
less, which is their stability constant. Clip and learning rate then matter by their product only.

**Learning rate.** In one step the average of the clients' models gets noise of deviation eta C s in
each weight, with s = sqrt(sum_i (p_i sigma_i / (q n_i))^2), or sigma sqrt(N / H) / (q n) where N
clients share the noise and H parts of it are enough. After T steps a logit of an example has noise
of deviation

    nu = eta C s rho sqrt(T)                     (eta / (1 - m) under a momentum m of the server),

sqrt(T) being how noise adds up that is independent from step to step; correlated noise adds up to
less (``Correlation.together``),

and what is learned grows with eta T at most, so that their quotient does not depend on eta. What
eta decides is how far logits get: the loss is flat where they are large, and keeps little of what
they learn where they are small. The rule is nu = :data:`NOISE`, a number chosen on the public
digits, where 1.5 and 3 do equally well; how far that is from the best stands in docs/tuning.md.
"""

from __future__ import annotations

import math

from sordino.base.errors import StudyError
from sordino.clients.division import examples, federation
from sordino.clients.study import HorizontalStudy
from sordino.core.regimes import calibrated
from sordino.data.scattering import LIMIT, RandomConvolutions, Scattering
from sordino.regimes.synchronous.regime import REGIME, weights
from sordino.regimes.synchronous.study import SynchronousStudy
from sordino.training.optimizer import Sgd
from sordino.tune.grid import again

NOISE = 2.0
SHORT = 20.0
DIGITS = 3


def ruled(study: HorizontalStudy) -> tuple[HorizontalStudy, list[str]]:
    """The study with clip and learning rate by the rules, and how they came about, in words.

    Raises:
        StudyError: for a study that the rules are not for.
    """
    full = calibrated(_fits(study))
    assert isinstance(full, SynchronousStudy)
    privacy, divided = full.privacy, federation(examples(full))
    features = math.prod(full.data.seen(divided.test.shape))
    length = math.sqrt(features) / LIMIT
    count = REGIME.wanted(full)
    noise = _noise(full, divided.sizes)
    clip = _rounded(length / SHORT)
    correlation = REGIME.correlation(full, divided.sizes, 0)
    added = math.sqrt(count) if correlation is None else correlation.together(count)
    rate = _rounded(NOISE * (1.0 - full.method.momentum) / (clip * noise * length * added))
    found = again(
        study,
        "the tuned study",
        privacy={"clip": clip},
        method={"learning_rate": rate},
        tuned={"source": "rules", "chosen": {"privacy.clip": clip, "method.learning_rate": rate}},
    )
    return found, [
        f"length of an example: {length:.4g} ({features} normalised features)",
        f"noise of one averaged step: {noise:.4g} C in each weight (noise multiplier "
        f"{privacy.noise_multiplier:g}), {count} steps",
        f"clip {clip:g}: a twentieth of that length; learning rate {rate:g}: then the noise of a "
        f"logit is {NOISE:g} in the end",
    ]


def _fits(study: HorizontalStudy) -> SynchronousStudy:
    what = None
    if not isinstance(study, SynchronousStudy) or study.privacy.unit != "sample":
        what = "a synchronous method that protects single examples (privacy.unit = 'sample')"
    elif study.model.name != "logistic" or not isinstance(
        study.data.features, Scattering | RandomConvolutions
    ):
        what = (
            "model 'logistic' behind data.features 'scattering' or 'random', whose features are "
            "normalised: of others the length of an example is not known without looking"
        )
    elif study.shared and study.method.weights == "equal":
        what = "method.weights = 'size', where noise is shared"
    elif study.method.optimizer != Sgd():
        what = "plain SGD steps (leave method.optimizer out)"
    elif study.method.server is not None:
        what = "w + Delta as the server's step (leave method.server out)"
    elif study.privacy.epsilon is None or math.isinf(study.privacy.epsilon):
        what = "a finite privacy.epsilon"
    if what is not None:
        raise StudyError(f"--rules is for studies with {what}. Tune this one on public data")
    assert isinstance(study, SynchronousStudy)
    return study


def _noise(study: SynchronousStudy, sizes: tuple[int, ...]) -> float:
    """s: noise of one step of the averaged model, in each weight, in units of eta C."""
    rate, sigma = study.privacy.sampling_rate, study.privacy.noise_multiplier or 0.0
    if study.shared:  # one noise for the sum of all, in parts of which ``honest`` are enough
        return sigma * math.sqrt(len(sizes) / study.honest) / (rate * sum(sizes))
    return math.hypot(
        *(
            p * each / (rate * n)
            for p, each, n in zip(weights(study, sizes), study.multipliers, sizes, strict=True)
            if n
        )
    )


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
