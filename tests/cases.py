"""A small study for every method, in every form and regime that it has, with every mechanism and
engine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from pixels import pixels
from sordino.core import study as studies
from sordino.core.regimes import named
from sordino.core.study.base import Study

DELTA = 1e-5

SAMPLE = [
    "data.clients=3",
    'data.partition={kind="iid"}',
    "model.name=logistic",
    "budget.rounds=2",
    "budget.steps=4",
    "privacy.epsilon=8",
    f"privacy.delta={DELTA}",
    "privacy.noise_multiplier=1.5",
]
CLIENT = [*SAMPLE, "privacy.unit=client", "data.clients=6", "privacy.sampling_rate=0.5"]
ARRIVAL = ["data.clients=3", "budget.updates=12", *SAMPLE[5:]]
EVENTS = [
    "data.parties=2",
    "budget.events=40",
    "data.stream=replay",
    "privacy.epsilon=8",
    f"privacy.delta={DELTA}",
]
NONE = ["privacy.unit=none", "privacy.epsilon=inf"]
PAPER = "method.form=paper"
NOISY = "privacy.embedding={clip=1.0, noise_multiplier=2.0}"
HAAR = 'privacy.mechanism={kind="haar"}'

Case = tuple[str, str, list[str]]

METHODS: Mapping[
    str, Case
] = {  # regime, method, changes; what stands behind a slash is another form or mechanism
    "fedavg": ("synchronous", "fedavg", [*SAMPLE[:5], *NONE]),
    "dp-sgd": ("synchronous", "dp-sgd", SAMPLE),
    "dp-sgd/haar": ("synchronous", "dp-sgd", [*SAMPLE, HAAR]),
    "dp-sgd/k-norm": (
        "synchronous",
        "dp-sgd",
        [*SAMPLE, 'privacy.mechanism={kind="k-norm"}', "privacy.epsilon=100"],
    ),
    "adap-dpfl": (
        "synchronous",
        "adap-dpfl",
        [*SAMPLE, "data.validation=50", "privacy.accountant=rdp@8"],
    ),
    "adap-dpfl/paper": ("synchronous", "adap-dpfl", [*SAMPLE, "data.validation=50", PAPER]),
    "ali-dpfl": ("synchronous", "ali-dpfl", SAMPLE),
    "ali-dpfl/paper": ("synchronous", "ali-dpfl", [*SAMPLE, PAPER]),
    "als-dpfl": ("synchronous", "als-dpfl", SAMPLE),
    "als-dpfl/paper": ("synchronous", "als-dpfl", [*SAMPLE, PAPER]),
    "dynamic-dp-sgd": ("synchronous", "dynamic-dp-sgd", SAMPLE),
    "dp-fedavg": ("synchronous", "dp-fedavg", CLIENT),
    "dynamic-dp-fedavg": ("synchronous", "dynamic-dp-fedavg", CLIENT),
    "pe-dpfl": ("synchronous", "pe-dpfl", CLIENT),
    "pe-dpfl/paper": ("synchronous", "pe-dpfl", [*CLIENT, PAPER, "privacy.sampling_rate=1.0"]),
    "csgd": ("asynchronous", "csgd", [*ARRIVAL[:2], *NONE]),
    "asgd": ("asynchronous", "asgd", [*ARRIVAL[:2], *NONE]),
    "audp": ("asynchronous", "audp", ARRIVAL),
    "audp/paper": ("asynchronous", "audp", [*ARRIVAL, PAPER]),
    "mapa": ("asynchronous", "mapa", ARRIVAL),
    "mapa/paper": ("asynchronous", "mapa", [*ARRIVAL, PAPER]),
    "ogd": ("vertical", "ogd", [*EVENTS[:3], *NONE]),
    "slr/label": ("vertical", "slr", [*EVENTS, "privacy.unit=label"]),
    "dlr/label": ("vertical", "dlr", [*EVENTS, "privacy.unit=label"]),
    "dlr/entity": (
        "vertical",
        "dlr",
        [*EVENTS, "privacy.unit=entity", NOISY, "privacy.updates=frozen", "method.activation=full"],
    ),
}

IMAGES = [each for each in SAMPLE if not each.startswith("model.")]

MORE: Mapping[str, Case] = {  # other paths through the same methods; /cnn have images of their own
    "fedavg/momentum": (
        "synchronous",
        "fedavg",
        [*SAMPLE[:5], *NONE, "method.momentum=0.5", "method.average=0.5"],
    ),
    "dp-sgd/cnn": (
        "synchronous",
        "dp-sgd",
        [*IMAGES, "model.name=cnn-small", 'data.test="public share"'],
    ),
    "dp-sgd/cnn, private share": (
        "synchronous",
        "dp-sgd",
        [*IMAGES, "model.name=mlp", 'data.test="private share"', "privacy.evaluation_epsilon=2"],
    ),
    "dp-sgd/mlp": (
        "synchronous",
        "dp-sgd",
        [*IMAGES, "model.name=mlp", 'data.partition={kind="dirichlet", beta=0.5}'],
    ),
    "dp-sgd/shards, late": (
        "synchronous",
        "dp-sgd",
        [
            *SAMPLE,
            'data.partition={kind="shards", fragments=30, each=5}',
            "budget.rounds=6",
            "budget.steps=30",
            "participation.deadline=1.5",
            'world.latency={kind="exponential", typical=1.0}',
            "world.dropout=0.3",
        ],
    ),
    "ali-dpfl/longer": (
        "synchronous",
        "ali-dpfl",
        [*SAMPLE, "budget.rounds=12", "budget.steps=40", "privacy.noise_multiplier=3"],
    ),
    "als-dpfl/longer": (
        "synchronous",
        "als-dpfl",
        [*SAMPLE, "budget.rounds=12", "budget.steps=40", "privacy.noise_multiplier=3"],
    ),
    "dp-fedavg/haar": ("synchronous", "dp-fedavg", [*CLIENT, HAAR, "budget.rounds=4"]),
    "mapa/mlp, late": (
        "asynchronous",
        "mapa",
        [
            *ARRIVAL,
            "model.name=mlp",
            "world.dropout=0.2",
            "participation.buffer=2",
            'world.latency={kind="pareto", shape=1.5}',
            "method.average=0.5",
        ],
    ),
    "audp/haar": ("asynchronous", "audp", [*ARRIVAL, HAAR]),
    "ogd/drift": (
        "vertical",
        "ogd",
        [
            *EVENTS[:3],
            *NONE,
            'data.drift={kind="classes", every=10}',
            'method.activation={kind="count", k=1}',
        ],
    ),
    "slr/deformed": (
        "vertical",
        "slr",
        [*EVENTS[:2], *NONE, 'data.stream={kind="deformed", size=8}', "world.dropout=0.3"],
    ),
    "dlr/event": (
        "vertical",
        "dlr",
        [
            *EVENTS[:2],
            *NONE,
            'method.activation={kind="event", threshold=-0.5}',
            "world.missing=skip",
        ],
    ),
    "dlr/zeros, batch": (
        "vertical",
        "dlr",
        [*EVENTS[:2], *NONE, "method.batch=2", "world.dropout=0.5", "world.missing=zeros"],
    ),
    "dlr/linear": (
        "vertical",
        "dlr",
        [*EVENTS[:3], *NONE, "model.name=linear", "method.length=4", "world.precision=32"],
    ),
}

BATCHES = ['privacy.sampling="passes"', "privacy.batches=5", "budget.rounds=8"]
ORDERED: Mapping[str, Case] = {  # batches, or clients, in a public order
    "dp-sgd/passes": ("synchronous", "dp-sgd", [*SAMPLE, *BATCHES]),
    "dp-sgd/banded": ("synchronous", "dp-sgd", [*SAMPLE, *BATCHES, "privacy.correlation=banded"]),
    "als-dpfl/blt": ("synchronous", "als-dpfl", [*SAMPLE, *BATCHES, "privacy.correlation=blt"]),
    "mapa/passes": (
        "asynchronous",
        "mapa",
        [*ARRIVAL, BATCHES[0], "method.batch=20", "privacy.correlation=blt"],
    ),
    "dp-fedavg/banded": (
        "synchronous",
        "dp-fedavg",
        [*CLIENT[:-1], *BATCHES, "privacy.correlation=banded"],
    ),
}


def study_of(case: Case, folder: Path, changes: Sequence[str] = ()) -> Study:
    """The study of a case, written to ``folder`` first."""
    regime, method, own = case
    text = re.sub(r"\[method\]\n(.+\n)+", "[method]\n", pixels(named(regime).template))
    if any(change in case[2] for change in ("model.name=cnn-small", 'data.test="private share"')):
        rng = np.random.default_rng(0)
        np.savez(
            folder / "images.npz",
            x=rng.random((200, 16, 16)).astype(np.float32),
            y=rng.integers(0, 3, 200),
        )
        text = re.sub(r'name = "digits".*', f'file = "{folder / "images.npz"}"', text)
    (folder / "study.toml").write_text(text)
    return studies.read(folder / "study.toml", [f"method.name={method}", *own, *changes])
