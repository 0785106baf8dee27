"""Federated DP-SGD as the code of ALI-DPFL's authors has it, with one thing changed at a time.

    python docs/experiments/authors.py clip=1 parts=shards steps=316

Ten clients of Fashion-MNIST. Sums of clipped gradients and noise are divided by 64 for clients of
every size, an empty batch changes nothing, and a quarter of each client's examples tests the model
if ``merged`` is 1, Fashion-MNIST's own test set if it is 0. It prints the accuracy on the whole
test set as (steps, per cent), and the best look at a fifth of it in the last 40 % of the rounds.
Nothing is private here: no ledger, and noise of torch's generator.
"""

from __future__ import annotations

import sys

import numpy as np
import torch

from sordino.data import partition, readers
from sordino.training.evaluate import Evaluation, Evaluator
from sordino.training.flat import Flat
from sordino.training.loss import loss_for
from sordino.training.models import build
from sordino.training.perexample.sums import ClippedSum, Examples

DIVISOR, CLIENTS = 64, 10
SETTING: dict[str, float | str] = {
    "model": "cnn-large",
    "parts": "dirichlet",
    "clip": 0.1,
    "rate": 0.5,
    "noise": 1.1,
    "q": 0.015,
    "tau": 2,
    "steps": 80,
    "merged": 1,
    "seed": 100,
    "tell": 10,  # rounds between two looks at the whole test set
}
WAYS = {
    "dirichlet": partition.Dirichlet(beta=0.05),
    "shards": partition.Shards(fragments=400, each=40),
}


def main(given: list[str]) -> None:
    """Train once, and print what came of it."""
    changed = dict(each.split("=", 1) for each in given)
    said = {key: type(value)(changed.pop(key, value)) for key, value in SETTING.items()}
    assert not changed, f"unknown: {changed}"
    model, clip, seed = str(said["model"]), float(said["clip"]), int(said["seed"])
    tau, steps, every = int(said["tau"]), int(said["steps"]), int(said["tell"])
    q = float(said["q"])
    torch.set_num_threads(1)
    corpus = readers.load("fashion-mnist")
    train, test = corpus.train, corpus.test
    x, y = np.concatenate([train.x, test.x]), np.concatenate([train.y, test.y])
    rng = np.random.default_rng(seed)
    named = y if said["merged"] else train.y
    dealt = WAYS[str(said["parts"])].split(named, CLIENTS, rng, None)
    mine, theirs = [], []
    for part in dealt:
        mixed = rng.permutation(part)
        kept = len(mixed) * 3 // 4 if said["merged"] else len(mixed)
        mine.append(np.sort(mixed[:kept]))
        theirs.append(mixed[kept:])
    held = np.concatenate(theirs) if said["merged"] else np.arange(len(train.y), len(y))
    clients = [Examples(torch.from_numpy(x[part]), torch.from_numpy(y[part])) for part in mine]
    shown, labels = torch.from_numpy(x[held]), torch.from_numpy(y[held])
    flat, loss = Flat(build(model, x.shape[1:], 10, rng)), loss_for(model)
    clipped, evaluate = ClippedSum(flat, loss), Evaluator(flat, loss)
    torch.manual_seed(seed)
    weights, total = flat.weights.clone(), torch.empty(flat.dim, dtype=torch.float64)
    done, best, looks = 0, 0.0, []
    while done < steps:
        local, mean = min(tau, steps - done), torch.zeros_like(weights)
        for client in clients:
            flat.load(weights)
            count = len(client)
            for _ in range(local):
                batch = torch.where(torch.rand(count) < int(count * q) / count)[0]
                if len(batch):
                    clipped.of(client, batch, clip, total, expected=count * q)
                    noise = float(said["noise"]) * clip * torch.randn(flat.dim)
                    flat.weights.add_(total.float() + noise, alpha=-float(said["rate"]) / DIVISOR)
            mean.add_(flat.weights, alpha=count / sum(map(len, clients)))
        weights, done = mean, done + local
        flat.load(weights)
        whole = done % (every * tau) == 0 or done >= steps
        some = torch.arange(len(held))
        if not whole:
            some = some[torch.randperm(len(held))[: len(held) // 5]]
        if whole or done > 0.6 * steps:
            counted = evaluate.counted(shown[some], labels[some])
            accuracy = 100 * Evaluation.of(counted).accuracy
            best = max(best, accuracy)
            looks += [(done, round(accuracy, 1))] if whole else []
    print(*given, looks, "best look", round(best, 1))


if __name__ == "__main__":
    main(sys.argv[1:])
