"""Constants of raw data, as the papers' literal forms send them. Booked as not private."""

from __future__ import annotations

import numpy as np
import torch

from sordino.base.errors import LocalProtocolError
from sordino.base.message import Raw, Train
from sordino.training.kernels import Examples, ModelKernels

RAW_CONSTANTS = (
    "raw curvature, Lipschitz constant and gradient are sent, as the paper's own form asks"
)


def measure_raw(kernels: ModelKernels, examples: Examples, task: Train) -> Raw:
    """The constants that the papers' literal forms send: from raw data, without noise.

    They compare the client's own last model w_i (``task.probe``) with the global model w,
    over all of the client's data.
    """
    if task.probe is None:
        raise LocalProtocolError("there is no model to compare with")
    flat = kernels.flat
    gradients, losses = [], []
    for vector in (task.probe, task.weights):
        flat.load(torch.from_numpy(vector).to(flat.weights))
        total, loss = torch.zeros_like(flat.weights), 0.0
        part = torch.empty_like(flat.weights)
        for chunk in torch.arange(len(examples), device=flat.weights.device).split(512):  # type: ignore[no-untyped-call]
            loss += float(kernels.mean.of(examples, chunk, part)) * len(chunk)
            total.add_(part, alpha=float(len(chunk)))
        gradients.append(total / len(examples))
        losses.append(loss / len(examples))
    distance = max(float(np.linalg.norm(task.probe - task.weights)), 1e-12)
    return Raw(
        beta=float((gradients[0] - gradients[1]).norm()) / distance,
        rho=abs(losses[0] - losses[1]) / distance,
        gradient=gradients[1].cpu().numpy(),
    )
