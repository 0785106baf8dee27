"""An answer that is longer than clipping and noise make plausible is flagged, and used."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from federations import STUDIES, read_incidents
from sordino.base.message import Embedding, packed
from sordino.mechanisms.gaussian import CountedGaussian, Gaussian, Tailed
from sordino.mechanisms.haar.basis import Basis
from sordino.mechanisms.haar.gaussian import HaarGaussian
from sordino.mechanisms.knorm import KNorm
from sordino.network.server_session import ServerSession
from sordino.network.site_session import SiteSession
from sordino.training.optimizer import AdaGrad, Adam, Sgd
from sordino.training.plausible import drawn, length, sums

from .conftest import Makes

ENTITY = (
    'privacy={unit="entity",epsilon=64.0,delta=1e-6,label_epsilon=4.0,embedding={clip=1.0},'
    'updates="noisy"}'
)
CHANGES = {"events": [ENTITY]}
SEEN = [*(name for name in STUDIES if not name.startswith("shared")), "events"]
"""Studies whose answers the server sees; of one under masks nobody can say how long it is."""


def longer(said: Any, times: float) -> Any:
    """An answer with its vector so many times as long."""
    if isinstance(said, Embedding):
        values = np.frombuffer(said.values, "<f4") * np.float32(times)
        return msgspec.structs.replace(said, values=packed(values, 32))
    name = next(each for each in ("weights", "delta", "gradient") if hasattr(said, each))
    return msgspec.structs.replace(said, **{name: getattr(said, name) * np.float32(times)})


@pytest.mark.parametrize("name", SEEN)
def test_a_site_that_multiplies_its_answers_is_flagged_and_the_run_goes_on(
    name: str, federate: Makes, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = SiteSession._answered
    # of few updates a site may have made two, and those short
    times = 100.0 if name == "asynchronous" else 10.0

    def answered(own: SiteSession, task: Any) -> Any:
        said = real(own, task)
        liar = own._site.index == 1 and type(said).__name__ != "Passive"
        return longer(said, times) if liar else said

    usual, lengths = ServerSession.flag_implausible, list[Any]()

    def flag_implausible(own: ServerSession, site: int, number: int, length: Any) -> None:
        if site != 1 and length is not None:
            lengths.append(length)
        usual(own, site, number, length)

    monkeypatch.setattr(SiteSession, "_answered", answered)
    monkeypatch.setattr(ServerSession, "flag_implausible", flag_implausible)
    found = federate(name, CHANGES.get(name, []))
    found.start()
    found.wait()
    kernel = found.kernels[-1]
    assert set(found.done) == {"server", *found.names}
    flags = [each.flagged for each in kernel.session.sites]
    assert flags[1] > 0
    assert flags[0] == flags[2] == 0
    lines = [each for each in read_incidents(found.server) if each.what == "norm"]
    assert {each.site for each in lines} == {found.names[1]}
    assert all("task " in each.detail and "length" in each.detail for each in lines)
    assert not kernel.session.sites[1].out
    # those of the honest sites are plausible, and the bound is of some use
    assert all(each.plausible for each in lengths)
    assert np.median([each.found / each.most for each in lengths]) > 0.1


@pytest.mark.parametrize(
    "mechanism",
    [
        Gaussian(clip=2.0, noise_multiplier=1.5),
        CountedGaussian(clip=2.0, noise_multiplier=1.5),
        KNorm(clip=2.0, noise_multiplier=1.5, dimension=300),
        HaarGaussian.weighted(
            clip=2.0, noise_multiplier=1.5, basis=Basis.flat(300), weights=(1.0,) * 10
        ),
    ],
)
def test_noise_lies_within_its_bound_and_not_far_below(mechanism: Any) -> None:
    import torch

    rng = np.random.default_rng(0)
    zero = torch.zeros(300, dtype=torch.float64)
    assert mechanism.longest == 2.0
    drawn_ = [mechanism.release_counted(zero, 0.0, rng)[0].numpy() for _ in range(300)]
    lengths = np.linalg.norm(np.array(drawn_), axis=1)
    sums_ = np.linalg.norm(np.array(drawn_).reshape(75, 4, 300).sum(1), axis=1)
    for found, times in ((lengths, 1), (sums_, 4)):
        within = mechanism.noise_within(300, times, 0.01)
        assert (found > within).mean() < 0.03
        wide = 2.4 if times > 1 else 1.3  # lengths of K-norm noise are added up
        assert np.median(found) * wide > within
    assert mechanism.noise_within(300, 1, 1e-9) > lengths.max()
    assert isinstance(mechanism, Tailed)


def test_batches_are_as_large_as_is_plausible() -> None:
    rng = np.random.default_rng(1)
    seen = rng.binomial(5 * 200, 0.1, size=10_000)
    assert (seen > drawn(200, 0.1, 5, 1e-3)).mean() < 1e-3
    assert drawn(200, 0.1, 5, 1e-3) < 160
    assert drawn(3, 0.9, 1, 1e-9) == 3.0


def test_who_does_not_say_is_not_bounded() -> None:
    class Own:
        clip = 1.0

    assert sums(Own(), 3, 10, 1) is None  # type: ignore[arg-type]
    assert (Sgd(momentum=0.5).gain, AdaGrad().gain, Adam().gain) == (2.0, None, None)
    huge = np.full(3, 3e38, np.float32)
    assert length(huge, -huge) == float("inf")
