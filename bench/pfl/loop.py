"""Seconds a round of pfl 0.6 for the work of bench/clients.py, or of a task that FLUTE has
published (bench/workers.py).

Runs in an environment of its own, without sordino.
"""

from __future__ import annotations

import gzip
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.central_evaluation import CentralEvaluationCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from pfl.privacy import CentrallyAppliedPrivacyMechanism, GaussianMechanism
from torch import nn

CLIENTS, BATCH = 1000, 10


def images(name: str, offset: int) -> np.ndarray:
    """An IDX file, gzipped or not."""
    path = Path("/usr/share/datasets/fashion-mnist") / name
    data = (
        path.read_bytes()
        if path.exists()
        else gzip.decompress(path.with_name(name + ".gz").read_bytes())
    )
    return np.frombuffer(data, np.uint8, offset=offset)


def pixels(name: str) -> torch.Tensor:
    """Images in [-1, 1], (n, 1, 28, 28)."""
    return torch.from_numpy(
        images(name, 16).reshape(-1, 1, 28, 28).astype(np.float32) / 127.5 - 1.0
    )


class Counted(nn.Sequential):
    """A network as pfl wants it."""

    def loss(self, x: torch.Tensor, y: torch.Tensor, eval: bool = False) -> torch.Tensor:  # noqa: A002
        """Mean cross entropy."""
        return nn.functional.cross_entropy(self(x), y)

    @torch.no_grad()
    def metrics(self, x: torch.Tensor, y: torch.Tensor, eval: bool = True) -> dict:  # noqa: A002
        """Accuracy."""
        return {"accuracy": Weighted((self(x).argmax(1) == y).sum().item(), len(y))}


def cnn() -> Counted:
    """The CNN with 26 010 parameters."""
    return Counted(
        nn.Conv2d(1, 16, 8, 2, 3), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Conv2d(16, 32, 4, 2),
        nn.ReLU(), nn.MaxPool2d(2, 1), nn.Flatten(), nn.Linear(512, 32), nn.ReLU(),
        nn.Linear(32, 10),
    )  # fmt: skip


def linear() -> Counted:
    """One linear layer."""
    return Counted(nn.Flatten(), nn.Linear(784, 10))


TASKS = {"clients": (cnn, 100, 5, 0.1, 1), "flute": (linear, 10, 6, 0.03, 20)}
"""Network, cohort, local steps, learning rate, rounds between two evaluations."""


def main(rounds: int, task: str) -> None:
    """Time ``rounds`` after as many that warm up."""
    make, cohort, steps, rate, every = TASKS[task]
    torch.set_num_threads(1)
    x = pixels("train-images-idx3-ubyte")
    y = torch.from_numpy(images("train-labels-idx1-ubyte", 8).astype(np.int64))
    test_x = pixels("t10k-images-idx3-ubyte")
    test_y = torch.from_numpy(images("t10k-labels-idx1-ubyte", 8).astype(np.int64))
    order = torch.randperm(len(x)).split(len(x) // CLIENTS)
    users = {
        i: Dataset([x[part[: steps * BATCH]], y[part[: steps * BATCH]]], user_id=i)
        for i, part in enumerate(order)
    }
    data = FederatedDataset(users.__getitem__, get_user_sampler("random", list(users)))
    network = make()
    model = PyTorchModel(
        network, local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0)
    )  # fmt: skip
    noise = CentrallyAppliedPrivacyMechanism(
        GaussianMechanism(clipping_bound=0.3, relative_noise_stddev=1.0)
    )
    taken, wall = [], []
    for _ in range(2):
        start, since = time.process_time(), time.perf_counter()
        FederatedAveraging().run(
            algorithm_params=NNAlgorithmParams(
                central_num_iterations=rounds,
                evaluation_frequency=every,
                train_cohort_size=cohort,
                val_cohort_size=0,
            ),
            backend=SimulatedBackend(training_data=data, val_data=data, postprocessors=[noise]),
            model=model,
            model_train_params=NNTrainHyperParams(
                local_num_epochs=1, local_learning_rate=rate, local_batch_size=BATCH
            ),
            model_eval_params=NNEvalHyperParams(local_batch_size=1000),
            callbacks=[
                CentralEvaluationCallback(
                    Dataset([test_x, test_y]),
                    model_eval_params=NNEvalHyperParams(local_batch_size=1000),
                    frequency=every,
                )
            ],
        )
        taken.append(time.process_time() - start)
        wall.append(time.perf_counter() - since)
    found = {"cpu_seconds_a_round": min(taken) / rounds, "seconds_a_round": min(wall) / rounds}
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
