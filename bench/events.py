"""Online vertical learning: events a second, in the loop and by other ways, against loops by
hand; and two million from end to end.
"""

from __future__ import annotations

import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from bench.arrivals import Silent, row
from sordino.core import regimes as builder
from sordino.core import study as studies
from sordino.privacy import Allowance
from sordino.regimes.vertical.regime import BLOCK
from sordino.regimes.vertical.run import Events

STUDY = """
name = "bench"
[data]
name = "digits"
parties = {parties}
stream = {{ kind = "deformed", size = 28 }}
[method]
name = "{method}"
learning_rate = 0.01
{more}
[model]
{model}
[privacy]
unit = "none"
[budget]
events = {events}
[execution]
path = "{path}"
"""


OWN = 'name = "own"\nparty = "bench.events:party"\nserver = "bench.events:server"'


def party(features: int, embedding: int) -> nn.Module:
    """A party's half that the loop does not know: the paper's, with a layer that does
    nothing.
    """
    return nn.Sequential(nn.Linear(features, embedding), nn.ReLU(), nn.Identity())


def server(embeddings: tuple[int, ...], classes: int) -> nn.Module:
    """The server's half."""
    return nn.Sequential(nn.Linear(sum(embeddings), 256), nn.ReLU(), nn.Linear(256, classes))


def built(folder: str, **options: Any) -> Events:
    """A simulation of the paper's network: parties 784/M-64, server 64M-256-10."""
    told = {
        "parties": 4,
        "method": "dlr",
        "more": "length = 10",
        "events": 2_000_000,
        "path": "auto",
        "model": 'name = "mlp"',
        **options,
    }
    path = Path(folder) / "study.toml"
    path.write_text(STUDY.format(**told))
    simulation = builder.build(studies.read(path), Path(folder), "bench").simulation
    assert isinstance(simulation, Events)
    return simulation


def learning(pieces: int = 20, **options: Any) -> float:
    """CPU seconds of an event of learning, every party active, without the stream: the quickest of
    some pieces of a thousand.
    """
    with tempfile.TemporaryDirectory() as folder:
        world = built(folder, **options)
        engine, taken = world.engine(), []
        active = np.ones((BLOCK, len(world.activity.columns)), bool)
        paid = Allowance(
            world.ledgers.charge(
                [request.charge for request in world.appearances.charges([("bench", 1, 1, 1)])],
                world.unlimited,
            )
        )
        for number in range(pieces):
            piece = world.stream.read(number * BLOCK, BLOCK)
            start = time.process_time()
            engine.run(piece.x, piece.y, active, ~active, paid)
            taken.append(time.process_time() - start)
        world.ledgers.close()
    return min(taken[2:]) / BLOCK


def end_to_end(events: int = 2_000_000) -> float:
    """Wall seconds of a whole run: stream, learning, metrics, rows."""
    with tempfile.TemporaryDirectory() as folder:
        world = built(folder, events=events)
        start = time.perf_counter()
        world.run(world.first(), Silent())
        taken = time.perf_counter() - start
        world.ledgers.close()
    return taken


def torch_loop(events: int = 400, length: int = 10) -> float:
    """CPU seconds of an event in a plain PyTorch loop that keeps a window of gradients."""
    torch.manual_seed(0)
    parties = [nn.Sequential(nn.Linear(196, 64), nn.ReLU()) for _ in range(4)]
    server = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    parameters = [p for half in (*parties, server) for p in half.parameters()]
    window: deque[tuple[torch.Tensor, ...]] = deque(maxlen=length)
    x, y = torch.randn(events, 784), torch.randint(0, 10, (events,))
    powers = [0.95**i for i in range(length)]
    start = time.process_time()
    for t in range(events):
        h = torch.cat(
            [half(x[t, 196 * m : 196 * m + 196].unsqueeze(0)) for m, half in enumerate(parties)], 1
        )
        loss = nn.functional.cross_entropy(server(h), y[t : t + 1])
        window.appendleft(torch.autograd.grad(loss, parameters))
        with torch.no_grad():
            for place, parameter in enumerate(parameters):
                for power, gradients in zip(powers, window, strict=False):
                    parameter.add_(gradients[place], alpha=-0.01 * power / sum(powers))
    return (time.process_time() - start) / events


def numpy_loop(events: int = 2000, length: int = 10, alpha: float = 0.95) -> float:
    """CPU seconds of an event in plain NumPy, with the window's sum kept by its recursion."""
    rng = np.random.default_rng(0)
    shapes = [(64, 196)] * 4 + [(256, 256), (10, 256)]
    weights = [
        (rng.standard_normal(shape) / shape[1] ** 0.5).astype(np.float32) for shape in shapes
    ]
    sums = [np.zeros(shape, np.float32) for shape in shapes]
    old: deque[list[tuple[Any, Any]]] = deque(maxlen=length)
    x, y = rng.standard_normal((events, 4, 196)).astype(np.float32), rng.integers(0, 10, events)
    step = np.float32(0.01 / sum(alpha**i for i in range(length)))
    start = time.process_time()
    for t in range(events):
        h = np.concatenate([np.maximum(weights[m] @ x[t, m], 0) for m in range(4)])
        z = np.maximum(weights[4] @ h, 0)
        scores = weights[5] @ z
        slope = np.exp(scores - scores.max())
        slope /= slope.sum()
        slope[y[t]] -= 1
        back = (weights[5].T @ slope) * (z > 0)
        down = (weights[4].T @ back) * (h > 0)
        factors = [
            *((down[64 * m : 64 * m + 64], x[t, m]) for m in range(4)),
            (back, h),
            (slope, z),
        ]
        gone = old[-1] if len(old) == length else None
        for place, (u, a) in enumerate(factors):
            sums[place] *= np.float32(alpha)
            sums[place] += np.outer(u, a)
            if gone is not None:
                sums[place] -= np.float32(alpha**length) * np.outer(*gone[place])
            weights[place] -= step * sums[place]
        old.appendleft(factors)
    return (time.process_time() - start) / events


def measure() -> list[dict[str, Any]]:
    """All rows."""
    by_torch = 1.0 / min(torch_loop() for _ in range(3))
    by_numpy = 1.0 / min(numpy_loop() for _ in range(3))
    ten, long = 1.0 / learning(), 1.0 / learning(more="length = 150")
    rows = [
        row(
            "events a second: dlr, l = 10, four parties, all active (peer: PyTorch loop)",
            by_torch,
            ten,
            ">= 40000",
            ten >= 40_000,
        ),
        row("the same (peer: NumPy loop)", by_numpy, ten, ">= 40000", ten >= 40_000),
        row("the same with l = 150", None, long, ">= 20000", long >= 20_000),
    ]
    anything = 1.0 / learning(model=OWN)
    rows.append(
        row(
            "the same with any torch modules, l = 10",
            by_torch,
            anything,
            ">= 1500",
            anything >= 1500,
        )
    )
    messages = 1.0 / learning(path="messages")
    rows.append(row("the same message by message", by_torch, messages, "-", True))
    static = 1.0 / learning(method="slr")
    rows.append(row("slr, l = 10", None, static, "-", True))
    four, sixteen = 4 * (197 * 64) + 257 * 256 + 257 * 10, 16 * (50 * 64) + 1025 * 256 + 257 * 10
    many = learning(parties=16) * ten / (sixteen / four)
    rows.append(
        row(
            "an event with 16 parties over one with 4, over the ratio of their parameters",
            None,
            many,
            "<= 1",
            many <= 1.0,
        )
    )
    whole = end_to_end()
    rows.append(
        row(
            "seconds for 2 000 000 events end to end, endless stream and metrics included",
            None,
            whole,
            "<= 90",
            whole <= 90,
        )
    )
    return rows
