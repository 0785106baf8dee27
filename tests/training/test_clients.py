"""A client's local work: what leaves it is what was booked, and nothing raw."""

import itertools
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from pydantic import PrivateAttr

from permitted import permits
from sordino.base.entropy import Seeded
from sordino.base.errors import LocalProtocolError
from sordino.base.message import Train, TrainInOrder
from sordino.mechanisms.contract import looks_standard_normal
from sordino.mechanisms.gaussian import CountedGaussian, Gaussian
from sordino.privacy import NonPrivate, PoissonSampled
from sordino.training import client as clients
from sordino.training import models
from sordino.training.client import ModelKernels, PlainClient, PrivateClient, hidden, poisson
from sordino.training.flat import Flat
from sordino.training.loss import cross_entropy
from sordino.training.optimizer import Sgd, Steps
from sordino.training.passes import Passes
from sordino.training.perexample.plan import known
from sordino.training.perexample.sums import ClippedSum, Examples, MeanGradient

Q, ETA, N = 0.2, 0.5, 60


def client(
    examples: int = N,
    mechanism: Gaussian | CountedGaussian | None = None,
    seed: int = 0,
    scale: float = 1.0,
) -> PrivateClient:
    flat = Flat(models.build("mlp", (8, 8), 4, np.random.default_rng(0)))
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(scale * rng.standard_normal((examples, 8, 8)).astype(np.float32))
    return PrivateClient(
        index=3,
        unit="client:0",
        optimizer=Sgd(),
        examples=Examples(x, torch.from_numpy(rng.integers(0, 4, examples))),
        mechanism=mechanism or Gaussian(clip=0.5, noise_multiplier=1.2),
        sampling_rate=Q,
        learning_rate=ETA,
        kernels=ModelKernels(
            flat, ClippedSum(flat, cross_entropy), MeanGradient(flat, cross_entropy)
        ),
        entropy=Seeded(5),
    )


def plain() -> PlainClient:
    private = client()
    return PlainClient(
        index=3,
        unit="client:0",
        examples=private.examples,
        sampling_rate=Q,
        learning_rate=ETA,
        optimizer=Sgd(),
        kernels=private.kernels,
        entropy=Seeded(5),
    )


def task(one: PrivateClient | PlainClient, steps: int = 1, number: int = 1) -> Train:
    return Train(
        round=number,
        steps=steps,
        weights=np.zeros(one.kernels.flat.dim, np.float32) + 0.01,
        wants_first=True,
    )


def test_nothing_is_done_unless_exactly_its_price_was_booked() -> None:
    one = client()
    asked = task(one, steps=3)
    price = one.price(asked)
    assert price == ((PoissonSampled(sampling_rate=Q, event=one.mechanism.event()), 3),)
    wrong = [
        [],
        permits(price, number=2),
        permits(((price[0][0], 2),)),
        permits(((one.mechanism.event(), 3),)),
        permits((*price, *price)),
    ]
    for booked in wrong:
        with pytest.raises(LocalProtocolError, match="the ledger charged"):
            one.answer(asked, booked)
    one.answer(asked, permits(price))


def test_a_step_is_the_update_it_claims_to_be() -> None:
    """Against the formula, with the batch and the noise drawn again from their addresses."""
    one = client()
    asked = task(one)
    update = one.answer(asked, permits(one.price(asked)))
    chosen = poisson(N, Q, Seeded(5).at("client", 3, "round", 1, "batches"))
    flat, total = one.kernels.flat, torch.empty(one.kernels.flat.dim, dtype=torch.float64)
    flat.load(torch.from_numpy(asked.weights))
    clipped = one.kernels.clipped.of(one.examples, chosen, 0.5, total, expected=Q * N)
    contents = hidden(asked, total, clipped.clipped - len(chosen) / 2, None)
    noise = Seeded(5).stream("client", 3, "round", 1, "noise").over(1, contents)
    noisy, _ = Gaussian(clip=0.5, noise_multiplier=1.2).release_counted(total.float(), 0.0, noise)
    # divided by the expected batch, not by len(chosen)
    wanted = asked.weights - ETA / (Q * N) * noisy.numpy()
    assert len(chosen) != Q * N
    assert update.weights == pytest.approx(wanted, abs=1e-6)
    assert update.first == pytest.approx(noisy.numpy() / (Q * N), rel=1e-6)


class Doubles(torch.nn.Sequential):
    """Computes in float64."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.double())  # type: ignore[no-any-return,no-untyped-call]


def test_a_model_of_doubles_learns_what_one_of_floats_does() -> None:
    """It failed after its round was charged."""
    one = client(mechanism=Gaussian(clip=0.5, noise_multiplier=1e-6))
    flat = Flat(Doubles(models.build("mlp", (8, 8), 4, np.random.default_rng(0))).double())
    kernels = ModelKernels(flat, ClippedSum(flat, cross_entropy), MeanGradient(flat, cross_entropy))
    asked = task(one, steps=3)
    updates = [
        each.answer(asked, permits(one.price(asked)))
        for each in (one, replace(one, kernels=kernels))
    ]
    moved = [update.weights - asked.weights for update in updates]
    assert np.linalg.norm(moved[0]) > 0.01
    assert moved[1] == pytest.approx(moved[0], abs=1e-5)
    said = [update.statistics for update in updates]
    assert said[0] is not None
    assert said[1] is not None
    assert said[1].moved == pytest.approx(said[0].moved, rel=1e-3)
    assert said[1].slope_last == pytest.approx(said[0].slope_last, rel=1e-3)


def test_a_papers_form_divides_by_the_batch_as_drawn() -> None:
    expected, realised = client(), replace(client(), realised=True)
    asked = task(expected)
    drawn = len(poisson(N, Q, Seeded(5).at("client", 3, "round", 1, "batches")))
    both = expected, realised
    moved = [one.answer(asked, permits(one.price(asked))).weights - asked.weights for one in both]
    assert moved[1] == pytest.approx(moved[0] * Q * N / drawn, rel=1e-3, abs=1e-6)
    assert expected.length_bound(asked, None) is None
    # the noise shows how many rows were drawn, in the first round, too, which sends nothing raw
    told = [NonPrivate in {type(event) for event, _ in one.price(asked)} for one in both]
    assert told == [False, True]

    empty = replace(
        client(examples=1),
        realised=True,
        entropy=next(
            Seeded(s)
            for s in range(99)
            if not len(poisson(1, Q, Seeded(s).at("client", 3, "round", 1, "batches")))
        ),
    )
    update = empty.answer(asked, permits(empty.price(asked)))
    assert (update.weights == asked.weights).all()


def test_a_pass_is_charged_for_its_steps_alone() -> None:
    """Raw numbers left a client beside them, and the ledger held a finite price."""
    ordered = replace(client(), passes=Passes(2))
    weights = task(ordered).weights
    asked = TrainInOrder(1, 1, weights, taken=0)
    paid = permits(ordered.price(asked))
    ordered.answer(asked, paid)
    for more in ({"probe": weights}, {"loss_bound": 1.0, "loss_noise": 8.0}):
        other = replace(ordered, passes=Passes(2))
        with pytest.raises(LocalProtocolError, match="asks for more"):
            other.answer(TrainInOrder(1, 1, weights, taken=0, **more), paid)


@pytest.mark.parametrize(
    "mechanism",
    [Gaussian(clip=0.5, noise_multiplier=1.2), CountedGaussian(clip=0.5, noise_multiplier=1.2)],
)
def test_an_empty_batch_releases_noise_of_the_booked_scale(
    mechanism: Gaussian | CountedGaussian,
) -> None:
    one = client(examples=1, mechanism=mechanism)
    seed = next(
        s
        for s in range(99)
        if not len(poisson(1, Q, Seeded(s).at("client", 3, "round", 1, "batches")))
    )
    one = replace(one, entropy=Seeded(seed))
    asked = task(one)
    update = one.answer(asked, permits(one.price(asked)))
    multiplier = (
        mechanism.vector_multiplier
        if isinstance(mechanism, CountedGaussian)
        else mechanism.noise_multiplier
    )
    scale = ETA * multiplier * mechanism.clip / (Q * 1)
    noise = torch.from_numpy((asked.weights - update.weights) / scale)
    assert looks_standard_normal(noise)
    for wrong in (2 / 3, 3 / 2):
        assert not looks_standard_normal(noise * wrong)


def test_huge_examples_move_the_model_by_no_more_than_their_clip(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neighbours: one example more, of any size, and the same noise."""
    monkeypatch.setattr(clients, "hidden", lambda *parts: ())  # else another sum has other noise
    many, fewer = client(scale=1e4), client(scale=1e4)
    fewer = replace(fewer, examples=Examples(fewer.examples.x.clone(), fewer.examples.y))
    fewer.examples.x[7] = 0.0  # an example whose content differs: replaced, so twice the clip
    asked = task(many)
    for seed in range(5):
        a, b = (replace(c, entropy=Seeded(seed)) for c in (many, fewer))
        moved = (
            a.answer(asked, permits(a.price(asked))).weights
            - b.answer(asked, permits(b.price(asked))).weights
        )
        assert np.linalg.norm(moved) <= ETA * 2 * 0.5 / (Q * N) * (1 + 1e-4)


def test_the_same_address_gives_the_same_bytes_and_every_round_others() -> None:
    one = client(mechanism=CountedGaussian(clip=0.5, noise_multiplier=1.2))
    first, again = (one.answer(task(one, 2), permits(one.price(task(one, 2)))) for _ in range(2))
    assert first == again
    other = one.answer(task(one, 2, number=2), permits(one.price(task(one, 2)), number=2))
    assert not np.array_equal(first.weights, other.weights)


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("counted", [False, True])
def test_another_sum_in_the_same_step_has_other_noise(steps: int, counted: bool) -> None:
    """A library that was changed between a kill and a resume computes another sum for the same
    task, and no recorded fact shows it: the difference of the releases is not that of the sums.
    """
    kind = CountedGaussian if counted else Gaussian
    one = client(mechanism=kind(clip=0.5, noise_multiplier=1.2))
    asked = task(one, steps)

    def answered(shift: float) -> np.ndarray[Any, Any]:
        kernel = one.kernels.clipped
        exact = kernel.of

        def shifted(*args: Any, **options: Any) -> Any:
            clipped = exact(*args, **options)
            args[3].add_(shift)
            return clipped

        with mock.patch.object(type(kernel), "of", staticmethod(shifted)):
            return one.answer(asked, permits(one.price(asked))).weights

    first, again, other = answered(0.0), answered(0.0), answered(1e-9)
    assert np.array_equal(first, again)
    # one noise would leave 1e-9; the noise of a step is 0.06 ETA
    assert np.abs(other - first).max() > 1e-2 * ETA


def test_statistics_are_computed_from_the_noisy_gradients_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Replayed from what was released: weights after each step give every number."""
    monkeypatch.setattr(clients, "hidden", lambda *parts: ())  # tasks of any length have one noise
    one = client()
    asked = task(one, 3)
    seen = one.answer(asked, permits(one.price(asked)))
    path = [asked.weights]
    for steps in (1, 2, 3):
        part = task(one, steps)
        path.append(one.answer(part, permits(one.price(part))).weights)
    noisy = [(a - b).astype(np.float64) / ETA for a, b in itertools.pairwise(path)]
    moved = (path[2] - path[0]).astype(np.float64)
    assert seen.statistics is not None
    wanted = {
        "energy": np.mean([g @ g for g in noisy]),
        "first": noisy[0] @ noisy[0],
        "change": ((noisy[2] - noisy[0]) ** 2).sum(),
        "moved": moved @ moved,
        "slope_first": noisy[0] @ moved,
        "slope_last": noisy[2] @ moved,
    }
    for name, value in wanted.items():
        assert getattr(seen.statistics, name) == pytest.approx(value, rel=1e-3)
    assert seen.statistics.clipped is None


def test_the_clipped_fraction_is_noisy_and_unbiased() -> None:
    # every example is clipped
    one = client(mechanism=CountedGaussian(clip=1e-6, noise_multiplier=1.2))
    seen = []
    for number in range(200):
        update = one.answer(task(one, 2, number), permits(one.price(task(one, 2)), number))
        assert update.statistics is not None
        seen.append(update.statistics.clipped)
    values = np.array(seen, float)
    assert values.mean() == pytest.approx(1.0, abs=6 * values.std() / 200**0.5)
    deviation = CountedGaussian(clip=1, noise_multiplier=1.2).count_deviation * 2**0.5 / (2 * Q * N)
    assert values.std() > 0.8 * deviation


def test_raw_constants_are_priced_as_not_private() -> None:
    one = client()
    asked = Train(round=1, steps=1, weights=task(one).weights, probe=task(one).weights + 0.1)
    price = one.price(asked)
    assert isinstance(price[1][0], NonPrivate)
    with pytest.raises(LocalProtocolError):
        one.answer(asked, permits(price[:1]))
    raw = one.answer(asked, permits(price)).raw
    assert raw is not None
    assert raw.beta > 0


def test_plain_sgd_is_sgd_and_has_no_bound() -> None:
    one = plain()
    asked = task(one)
    assert isinstance(one.price(asked)[0][0], NonPrivate)
    update = one.answer(asked, permits(one.price(asked)))
    chosen = poisson(N, Q, Seeded(5).at("client", 3, "round", 1, "batches"))
    flat = one.kernels.flat.load(torch.from_numpy(asked.weights))
    loss = torch.nn.functional.cross_entropy(
        flat.module(one.examples.x[chosen]), one.examples.y[chosen]
    )
    loss.backward()  # type: ignore[no-untyped-call]
    grads = torch.cat([p.grad.reshape(-1) for p in flat.module.parameters() if p.grad is not None])
    assert update.weights == pytest.approx(
        (torch.from_numpy(asked.weights) - ETA * grads).numpy(), abs=1e-5
    )


def test_poisson_batches_are_poisson() -> None:
    rng = np.random.default_rng(0)
    sizes = np.array([len(poisson(400, 0.05, rng)) for _ in range(4000)])
    assert sizes.mean() == pytest.approx(20.0, abs=6 * (19.0 / 4000) ** 0.5)
    # 400 q (1 - q): a fixed size would have none
    assert sizes.var() == pytest.approx(19.0, rel=0.15)


class Counting(Sgd):
    """An optimizer that falls from one use to the next, in an attribute of its own."""

    _uses: int = PrivateAttr(0)

    def begin(self, learning_rate: float, like: torch.Tensor) -> Steps:
        """A round's steps, slower than the last time."""
        self._uses += 1
        return super().begin(learning_rate / self._uses, like)


def test_what_an_optimizer_remembers_covers_no_other_sum_with_the_same_noise() -> None:
    """After a kill it began anew: the same task had other steps under the same noise, and their
    difference was that of raw sums.
    """
    one = replace(client(), optimizer=Counting())
    asked = task(one, steps=2)
    first, again = (one.answer(asked, permits(one.price(asked))) for _ in range(2))
    assert np.array_equal(first.weights, again.weights)


def test_a_parameter_with_a_hook_is_in_no_known_layer() -> None:
    """Autograd would call it with raw gradients: it kept one row in all later releases."""
    for hooked in ("register_hook", "register_post_accumulate_grad_hook"):
        layer = torch.nn.Linear(3, 2)
        assert known(layer)
        getattr(layer.weight, hooked)(lambda gradient: gradient)
        assert not known(layer)


@pytest.mark.parametrize("private", [False, True])
def test_a_proximal_term_pulls_to_the_model_that_was_sent(private: bool) -> None:
    """Every step's pull is mu times the way so far (Li et al. 2020, FedProx)."""
    one = client() if private else plain()
    task_of = [task(one, steps) for steps in (1, 2)]
    with mock.patch.object(clients, "hidden", return_value=()):
        free, pulled = (
            [
                replace(one, proximal=mu).answer(asked, permits(one.price(asked))).weights
                for asked in task_of
            ]
            for mu in (0.0, 0.3)
        )
    assert np.array_equal(free[0], pulled[0])
    moved = free[0] - task_of[0].weights
    assert pulled[1] == pytest.approx(free[1] - ETA * 0.3 * moved, abs=1e-5)
