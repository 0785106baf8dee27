"""How well the released gradients tell mu, rho and xi: against the truth in the clipped model.

    python docs/experiments/estimators.py [cnn|logistic]

Ten Dirichlet(0.5) clients of Fashion-MNIST, tau = 3, 20 rounds, q = 0.015, sigma = 1.1, C = 1,
eta = 0.5. The truth is computed from up to 500 of each client's examples: mean clipped gradients at
the model received, w_0, and at the model of the last step, w'. No client could send it.
"""

from __future__ import annotations

import math
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from sordino.base.message import Train, Update
from sordino.core import regimes as builder
from sordino.core import study as studies
from sordino.privacy import Budget, Charge, LedgerSession
from sordino.regimes.synchronous import methods as estimating
from sordino.training.client import PrivateClient

TAU, ROUNDS = 3, 20


def study(model: str) -> studies.Study:
    """The setting."""
    changes = [
        f"model.name={model}",
        'data.partition={kind="dirichlet", beta=0.5}',
        'method={name="dp-sgd", tau=3, learning_rate=0.5}',
        "privacy.noise_multiplier=1.1",
        "privacy.epsilon=50",
        "privacy.clip=1.0",
    ]
    return studies.read(Path(__file__).with_name("table.toml"), changes)


def work(client: PrivateClient, task: Train, ledgers: LedgerSession) -> Update:
    """What the client sends, booked on a ledger of this experiment, which promises nothing."""
    price = client.price(task)
    charges = [
        Charge(
            unit=f"client:{client.index}",
            event=event,
            count=count,
            why="an experiment",
            method="dp-sgd",
            round=task.round,
            key=f"{client.index}/{task.round}/{task.steps}/{part}",
        )
        for part, (event, count) in enumerate(price)
    ]
    return client.answer(task, ledgers.charge(charges, Budget(math.inf, 1e-5, "rdp")))


def clipped_mean(client: PrivateClient, weights: np.ndarray) -> np.ndarray:
    """Mean clipped gradient (d,) over up to 500 examples."""
    flat, out = client.kernels.flat, torch.empty(client.kernels.flat.dim)
    flat.load(torch.from_numpy(weights))
    x, y = client.examples.x[:500], client.examples.y[:500]
    client.kernels.clipped(x, y, client.mechanism.clip, out)
    return (out / len(y)).double().numpy()


def main(model: str) -> None:
    """Print means over the rounds."""
    with tempfile.TemporaryDirectory() as folder:
        built = builder.build(study(model), Path(folder), "estimators")
        measure(built)


def measure(built: builder.Built) -> None:
    """See :func:`main`."""
    terms, clients = (
        built.simulation.regime.terms,
        [c for c in built.simulation.clients if isinstance(c, PrivateClient)],
    )
    weights = built.first.state.weights
    rows: dict[str, list[float]] = {}

    def note(name: str, value: float | None) -> None:
        rows.setdefault(name, []).append(float("nan") if value is None else value)

    for number in range(1, ROUNDS + 1):
        answers, true_mu, true_rho, first = [], 0.0, 0.0, []
        for client in clients:
            task = Train(round=number, steps=TAU, weights=weights, wants_first=True)
            answers.append(work(client, task, built.simulation.ledgers))
            last = work(
                client, replace_steps(task, TAU - 1), built.simulation.ledgers
            ).weights  # w': the same addresses give the same path
            start, end, moved = (
                clipped_mean(client, weights),
                clipped_mean(client, last),
                (last - weights).astype(np.float64),
            )
            p, distance = terms.weights[client.index], np.linalg.norm(moved)
            true_mu += p * float(((end - start) ** 2).sum()) / distance**2
            true_rho += p * float((start + end) @ moved) / (2 * distance)
            first.append((p, start))
        mean = sum((p * g for p, g in first), np.zeros(terms.dimension))
        note("mu^2, truth", true_mu)
        note("mu^2, E1", estimating.squared_curvature(answers, terms))
        note(
            "mu^2, not debiased",
            estimating.squared_curvature(answers, replace(terms, noise=0.0, clip=0.0)),
        )
        note("rho, truth (signed)", true_rho)
        note("rho, estimate", estimating.slope(answers, terms))
        note("xi^2, truth", sum(p * float(((g - mean) ** 2).sum()) for p, g in first))
        note("xi^2, estimate", estimating.squared_divergence(answers, terms))
        note(
            "xi^2, not debiased",
            estimating.squared_divergence(answers, replace(terms, noise=0.0, clip=0.0)),
        )
        weights = sum(
            (terms.weights[a.client] * a.weights.astype(np.float64) for a in answers),
            np.zeros(terms.dimension),
        ).astype(np.float32)
    for name, values in rows.items():
        seen = np.array(values)
        print(
            f"{name:22} mean {seen.mean():9.4f}   sd over rounds {seen.std():8.4f}   "
            f"negative {np.mean(seen < 0):5.0%}"
        )


def replace_steps(task: Train, steps: int) -> Train:
    """The same task with fewer steps."""
    return Train(round=task.round, steps=steps, weights=task.weights, wants_first=False)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cnn")
