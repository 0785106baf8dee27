"""An Opacus training loop that books what it releases in Sordino's ledger.

The ledger is a file that outlives the loop: tomorrow's loop over the same data, and every Sordino
run on a ledger of the data, spends from the same budget. Run it twice: the second time it is
refused, and nothing is trained.

    python examples/opacus_loop.py [LEDGER] [MODEL]

Opacus draws its batches and noise from PyTorch's generator here, which anybody can repeat who knows
its state: this is an example, and not for people's data. With ``secure_mode=True`` (package
torchcsprng) Opacus draws from the operating system.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import torch
from opacus import PrivacyEngine
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import sordino as so

EPSILON, DELTA = 3.0, 1e-4
SIGMA, CLIP, BATCH, EPOCHS = 1.0, 1.0, 64, 5


def main(ledger: Path, name: str) -> float:
    """Train one model within the budget; its accuracy on the digits that it was trained on."""
    digits = load_digits()
    x = torch.tensor(digits.data / 16, dtype=torch.float32)
    y = torch.tensor(digits.target)
    model = nn.Linear(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=4.0)
    loader = DataLoader(TensorDataset(x, y), batch_size=BATCH)
    model, optimizer, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=optimizer,
        data_loader=loader,
        noise_multiplier=SIGMA,
        max_grad_norm=CLIP,
    )
    # Opacus puts each example into a batch with this probability.
    step = so.privacy.PoissonSampled(
        sampling_rate=1 / len(loader), event=so.privacy.Gaussian(noise_multiplier=SIGMA)
    )
    prints = {"digits": so.fingerprint(x.numpy().tobytes(), public=True)}
    with so.Ledger.create(ledger, prints) as book:
        for epoch in range(EPOCHS):
            # First the charge, then the work: what is not booked is not released.
            book.charge(
                step,
                count=len(loader),
                epsilon=EPSILON,
                delta=DELTA,
                why=f"Opacus, DP-SGD: {name}",
                round=epoch + 1,
            )
            for examples, labels in loader:
                optimizer.zero_grad()
                if len(labels):
                    nn.functional.cross_entropy(model(examples), labels).backward()
                    optimizer.step()
        spent = book.epsilon(DELTA)
    accuracy = float((model(x).argmax(1) == y).float().mean())
    print(f"{name}: accuracy {accuracy:.3f}, epsilon {spent:.4f} of {EPSILON:g} at delta {DELTA:g}")
    return accuracy


if __name__ == "__main__":
    warnings.filterwarnings("ignore", "Full backward hook|Secure RNG turned off")
    given = sys.argv[1:]
    try:
        main(Path(given[0] if given else "digits.sqlite"), given[1] if given[1:] else "model-1")
    except so.BudgetExceeded as refused:
        sys.exit(f"refused: {refused}")
