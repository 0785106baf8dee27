"""Models of one's own that remember, write or mix: nothing of an entity leaves but what is priced.

A party sees the rows of a stream twice, with the same noise; the rows of one entity differ. Frozen
models must then send the same bytes of every other entity, at every event. Noisy ones may take
steps that differ, by twice the bound in each event that holds the entity.
"""

from __future__ import annotations

import copy
import sys
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import Tensor, nn

from permitted import permit
from sordino.base import entropy
from sordino.base.entropy import Seeded
from sordino.base.errors import StudyError
from sordino.base.message import Derivative, numbers, packed
from sordino.core import regimes
from sordino.core import study as studies
from sordino.core.run import session
from sordino.mechanisms.gaussian import Single
from sordino.privacy import Allowance
from sordino.regimes.vertical.halves import HalfSettings, Party, PartyModule, PartyNoise
from sordino.regimes.vertical.method import Dlr, Slr

FEATURES, WIDTH, LENGTH, EVENTS, CHANGED = 3, 4, 3, 10, 4
FAR = 50.0
"""A number that no other entity has: modules misbehave for it alone, where no probe sees it."""


def far(x: Tensor) -> Tensor:
    return (x.detach().abs() > FAR / 2).any()


class Own(nn.Module):
    def __init__(self, features: int = FEATURES, width: int = WIDTH) -> None:
        super().__init__()
        self.layer = nn.Linear(features, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.layer(x * self.grown(x))
        return made

    def grown(self, x: Tensor) -> Tensor | float:
        return 1.0


class Queue(Own):
    def __init__(self, features: int, width: int) -> None:
        super().__init__(features, width)
        self.seen: deque[float] = deque(maxlen=8)

    def grown(self, x: Tensor) -> float:
        if bool(far(x)):
            self.seen.append(1.0)
        return 1.0 + len(self.seen)


class Renormalised(Own):
    """As ``nn.Embedding(max_norm)`` writes to its table."""

    def grown(self, x: Tensor) -> float:
        with torch.no_grad():
            self.layer.weight.mul_(torch.where(far(x), 3.0, 1.0))
        return 1.0


class Batch(Own):
    def grown(self, x: Tensor) -> Tensor:
        return 1.0 + x.detach().abs().amax(0).mean()


class Sorted(Own):
    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.layer(x[x.detach().sum(1).argsort()])
        return made


class Neighbours(Own):
    """Reads beyond its rows, where they lie in memory."""

    def grown(self, x: Tensor) -> Tensor:
        whole = x.detach().new_empty(0).set_(x.untyped_storage())
        return 1.0 + whole.abs().sum()


def plain_with_a_hook() -> nn.Module:
    """Known layers, and a hook that makes something else of them."""
    module = nn.Sequential(nn.Linear(FEATURES, WIDTH))
    module.register_forward_hook(lambda _, args, out: out + args[0].abs().amax())
    return module


class Looks(torch.Tensor):
    """A weight whose class keeps the largest row that it is multiplied with."""

    largest = 0.0

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            given = [each.as_subclass(Tensor) if isinstance(each, cls) else each for each in args]
            made = func(*given, **(kwargs or {}))
            if func is nn.functional.linear:
                cls.largest = max(cls.largest, float(args[0].detach().abs().max()))
                made = made * (1.0 + cls.largest)
            return made


def plain_with_a_weight_that_looks() -> nn.Module:
    """A known layer, but for the class of its weight."""
    layer = nn.Linear(FEATURES, WIDTH)
    weight = layer.weight.detach()
    del layer.weight
    layer.register_buffer("weight", weight.as_subclass(Looks))
    Looks.largest = 0.0
    return nn.Sequential(layer)


KINDS: tuple[Callable[[], nn.Module], ...] = (
    *(Renormalised, Batch, Sorted, plain_with_a_hook),
    plain_with_a_weight_that_looks,
)


def rows() -> Tensor:
    rng = Seeded(3).at("rows")
    return torch.from_numpy(rng.uniform(-1, 1, (EVENTS, FEATURES)).astype(np.float32))


def played(
    module: nn.Module, x: Tensor, *, replays: bool, frozen: bool, clip: float = 1.0
) -> tuple[list[Any], list[Any]]:
    """What a party sends, and its weights after each event."""
    length = LENGTH if replays else 1
    plan = HalfSettings(Slr(length=length) if replays else Dlr(length=length, alpha=1.0), 32)
    noise = Single(clip=clip, noise_multiplier=1e-3)
    covers = PartyNoise(
        embedding=noise,
        update=None if frozen else Single(clip=1.0, noise_multiplier=1e-3),
        embedding_draws=Seeded(0).stream("embedding"),
        update_draws=Seeded(0).stream("update"),
    )
    party = Party(0, module, FEATURES, plan, 1.0, covers, frozen)
    paid = Allowance([permit(party.price, unit=party.unit)])
    sent, weights = [], []
    slope = packed(np.ones(plan.rows * WIDTH, np.float32), 32)
    for event, row in enumerate(x, start=1):
        message = party.embed(event, row[None], True, paid)
        sent.append(numbers(message, plan.rows * WIDTH).reshape(plan.rows, WIDTH))
        assert party.learn(Derivative(0, event, 32, slope)) != frozen
        weights.append(party.flat.weights.numpy().copy())
    return sent, weights


def seeded(kind: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return kind()


@pytest.mark.parametrize("replays", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_of_ones_own_tells_other_entities_nothing_of_one(
    kind: Callable[[], nn.Module], replays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # noise is drawn over all rows of an event together
    monkeypatch.setattr(entropy, "digest", lambda *parts: bytes(32))
    x, other = rows(), rows()
    other[CHANGED] = FAR
    (one, before), (two, after) = (
        played(seeded(kind), each, replays=replays, frozen=True) for each in (x, other)
    )
    for event, (sent, instead) in enumerate(zip(one, two, strict=True)):
        for age, (row, another) in enumerate(zip(sent, instead, strict=True)):
            if event - age != CHANGED:
                assert (row == another).all(), f"event {event}, {age} back"
    assert all((weights == before[0]).all() for weights in (*before, *after))


@pytest.mark.parametrize("replays", [False, True])
@pytest.mark.parametrize("kind", [Batch, Renormalised])
def test_steps_move_by_their_bound_while_the_entity_is_there_and_not_after(
    kind: Callable[[], nn.Module], replays: bool
) -> None:
    x, other = rows(), rows()
    other[CHANGED] = FAR
    # embeddings are not shortened, so that gradients do not depend on weights that differ already
    (_, before), (_, after) = (
        played(seeded(kind), each, replays=replays, frozen=False, clip=1e9) for each in (x, other)
    )
    moved = [np.linalg.norm(a - b) for a, b in zip(before, after, strict=True)]
    assert moved[CHANGED - 1] == 0.0
    assert moved[CHANGED] > 0.0
    there = LENGTH if replays else 1
    assert max(moved) <= 2.0 * there * (1 + 1e-4)
    assert moved[-1] == pytest.approx(moved[CHANGED + there - 1], abs=1e-3)


class Table(nn.Module):
    """Fails on a token outside of its table, as a module of one's own does."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.table(x.long()).sum(1)
        return made


@pytest.mark.parametrize("replays", [False, True])
def test_a_row_on_which_a_model_fails_ends_nothing(replays: bool) -> None:
    x = rows().abs()
    other = x.clone()
    other[CHANGED] = 1e4
    one, _ = played(seeded(Table), x, replays=replays, frozen=False)
    two, weights = played(seeded(Table), other, replays=replays, frozen=False)
    assert np.isfinite(weights[-1]).all()
    for sent, instead in zip(one[:CHANGED], two[:CHANGED], strict=True):
        assert (sent == instead).all()


def queue(features: int, embedding: int) -> nn.Module:
    return Queue(features, embedding)


def neighbours(features: int, embedding: int) -> nn.Module:
    return Neighbours(features, embedding)


class Flattened(Own):
    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.layer(x).squeeze(0)
        return made


def server(embeddings: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Linear(sum(embeddings), classes)


def table(features: int, embedding: int) -> nn.Module:
    return Table()


def renormalised(features: int, embedding: int) -> nn.Module:
    module = Renormalised()
    module.layer = nn.Linear(features, embedding)
    return module


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(sys.modules, "own_halves", sys.modules[__name__])
    return "own_halves"


def study(folder: Path, own: str, party: str, values: Sequence[float], unit: str) -> Any:
    """Two parties of two columns each, forty entities; entity 30 has these values."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 5, (40, 4)).astype(float)
    x[30] = values
    lines = [",".join(["a", "b", "c", "d", "label"])]
    lines += [",".join([*map(str, row), "no" if row[0] < 2 else "yes"]) for row in x.tolist()]
    (folder / "rows.csv").write_text("\n".join(lines) + "\n")
    (folder / "study.toml").write_text(
        f"""
name = "halves"
seed = 0
[data]
file = "rows.csv"
parties = 2
stream = "file"
classes = ["no", "yes"]
[model]
name = "own"
embedding = {WIDTH}
party = "{own}:{party}"
server = "{own}:server"
[method]
name = "slr"
length = 3
[privacy]
{unit}
[budget]
events = 40
"""
    )
    return studies.read(folder / "study.toml")


ENTITY = """unit = "entity"
epsilon = 40.0
delta = 1e-5
embedding = { clip = 1.0 }
updates = "frozen"
"""
LABEL = """unit = "label"
epsilon = 3.0
delta = 1e-5
"""


@pytest.mark.parametrize(
    ("party", "message"),
    [
        ("queue", r"own_halves:queue': it cannot be recorded as a graph"),
        ("neighbours", r"own_halves:neighbours': changing one example changes another's"),
        ("Flattened", r"own_halves:Flattened': of a single example it gives float32 of shape"),
    ],
)
def test_what_has_no_graph_is_refused_before_anything_runs(
    tmp_path: Path, own: str, party: str, message: str
) -> None:
    with pytest.raises(StudyError, match=message):
        regimes.plan(study(tmp_path, own, party, (1, 1, 1, 1), ENTITY))


def test_what_a_model_writes_stands_in_no_run_folder(tmp_path: Path, own: str) -> None:
    """A frozen party's weights are those that it began with, whatever the rows are."""
    found = []
    for name, values in (("a", (1, 1, 1, 1)), ("b", (FAR,) * 4)):
        folder = tmp_path / name
        folder.mkdir()
        read = study(folder, own, "renormalised", values, ENTITY)
        session.begin(read, folder / "run", lambda _: None, lambda _: None)
        found.append(load_file(folder / "run" / "model.safetensors"))
    assert all((found[0][key] == found[1][key]).all() for key in found[0] if "party" in key)
    assert any("party" in key for key in found[0])


@pytest.mark.parametrize(
    "unit",
    [pytest.param(ENTITY, marks=pytest.mark.nightly), ENTITY.replace("frozen", "noisy"), LABEL],
)
def test_a_token_outside_of_a_table_ends_no_run(tmp_path: Path, own: str, unit: str) -> None:
    read = study(tmp_path, own, "table", (99, 1, 1, 1), unit)
    outcome = session.begin(read, tmp_path / "run", lambda _: None, lambda _: None)
    assert outcome.epsilon <= 40.0


def test_graphs_take_the_weights_as_they_are_now() -> None:
    """Tied and constant parts go with them."""

    class Tied(Own):
        def __init__(self) -> None:
            super().__init__(FEATURES, FEATURES)
            self.again = self.layer
            self.shift = nn.Parameter(torch.ones(FEATURES), requires_grad=False)
            self.last = nn.Linear(FEATURES, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            made: Tensor = self.last(self.again(self.layer(x)) + self.shift)
            return made

    module, x = Tied(), rows()
    twin = copy.deepcopy(module)
    plan = HalfSettings(Dlr(length=1, alpha=1.0), 32)
    party = Party(0, module, FEATURES, plan, 0.1, PartyNoise(), False)
    paid = Allowance([permit(party.price, unit=party.unit)])
    trained = [p for p in twin.parameters() if p.requires_grad]
    for event, row in enumerate(x, start=1):
        sent = numbers(party.embed(event, row[None], True, paid), WIDTH)
        out = twin(row[None])
        np.testing.assert_allclose(sent, out.detach().numpy()[0], rtol=1e-5, atol=1e-6)
        party.learn(Derivative(0, event, 32, packed(np.ones(WIDTH, np.float32), 32)))
        slopes = torch.autograd.grad(out.sum(), trained)
        with torch.no_grad():
            for p, slope in zip(trained, slopes, strict=True):
                p.sub_(slope, alpha=0.1)


def test_known_layers_in_place_leave_the_rows_as_they_are() -> None:
    layers = nn.LeakyReLU(0.5, inplace=True), nn.Linear(FEATURES, WIDTH)
    given, party = rows(), PartyModule(nn.Sequential(*layers), FEATURES)
    party(given, True)
    assert torch.equal(given, rows())
