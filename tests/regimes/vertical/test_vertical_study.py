"""Studies of events: every mistake gets one clear message, every study comes back from its own
text, and its price is what it says.
"""

from __future__ import annotations

import math
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sordino.base.errors import StudyError
from sordino.core import regimes as builder
from sordino.core import statements
from sordino.core import study as studies
from sordino.core.run.folder import RunLog, Saved
from sordino.privacy import Gaussian, Pure, accountant
from sordino.regimes.vertical.regime import label_epsilon, promised, schedule
from sordino.regimes.vertical.study import TEMPLATE as VERTICAL
from sordino.regimes.vertical.study import VerticalPrivacy, VerticalStudy

LABEL = 'privacy={unit="label", epsilon=3.0, delta=1e-5}'
ENTITY = (
    'privacy={unit="entity", epsilon=40.0, delta=1e-5, embedding={clip=1.0}, '
    'updates="noisy", appearances=2}'
)
FILE = 'data={file="x.csv", parties=2, stream="file", classes=["a", "b"], entity="who"}'


def read(folder: Path, *changes: str) -> VerticalStudy:
    path = folder / "study.toml"
    path.write_text(VERTICAL)
    study = studies.read(path, changes)
    assert isinstance(study, VerticalStudy)
    return study


@pytest.mark.parametrize(
    "changes",
    [
        (),
        ('data.parts={kind="regions", rows=2, columns=2}', 'data.drift={kind="swap", every=30}'),
        (
            'data.parts={kind="columns", groups=[["age", "do\\"se"], [3], [4, "x"], ["y"]]}',
            "data.stream=replay",
        ),
        (
            FILE,
            'data.drift={kind="features", every=10, strength=0.25, sudden=true}',
            "data.scale=255",
            "data.label=what",
        ),
        ('data={name="higgs", stream="file"}', 'model.name="physics"'),
        ('data={name="susy", stream="file", drift={kind="classes", every=50}}',),
        (
            'method={name="dlr", buffer="server", schedule="inverse-root", '
            'activation={kind="event", threshold=0.2, mean=0.25, deviation=0.5}}',
        ),
        (
            'data.drift={kind="classes", every=7}',
            'method={name="ogd", batch=4, learning_rates=[0.1, 0.2, 0.3, 1e-4]}',
        ),
        ('data.drift="gradual"', 'method={name="slr", length=3, server_learning_rate=0.01}'),
        ('method.activation={kind="event", threshold=inf}',),
        ('method.activation={kind="event", threshold=-inf}',),
        (
            'method.activation={kind="count", k=0}',
            "world.dropout=0.25",
            "world.missing=skip",
            "world.precision=32",
        ),
        ('method.activation="full"', "execution.path=messages", "execution.evaluate_every=500"),
        ('model={name="own", party="my.package:party", server="my.package:server"}',),
        (LABEL, "privacy.label_epsilon=1.5", "privacy.memoised=false", "privacy.appearances=7"),
        (
            ENTITY,
            "privacy.update.clip=0.5",
            "privacy.embedding.noise_multiplier=2.5",
            "privacy.accountant=rdp@8",
        ),
        ('privacy={unit="none", epsilon=inf}',),
    ],
)
def test_every_section_comes_back_from_its_own_text(
    tmp_path: Path, changes: tuple[str, ...]
) -> None:
    study = read(tmp_path, *changes)
    assert studies.parse(tomllib.loads(studies.write(study)), source="again") == study


@pytest.mark.parametrize(
    ("change", "message"),
    [
        # keys of other regimes
        ("data.clients=4", "data.clients is not a key of a vertical study: say data.parties"),
        (
            "data.partition=iid",
            "data.partition is not a key of a vertical study: say data.parts, which features "
            "each party holds",
        ),
        (
            "data.validation=10",
            "data.validation is not a key of a vertical study: a stream has none",
        ),
        ("budget.rounds=5", "budget.rounds is not a key of a vertical study: say budget.events"),
        ("budget.updates=5", "budget.updates is not a key of a vertical study: say budget.events"),
        (
            "privacy.clip=1.0",
            "privacy.clip is not a key of a vertical study: say privacy.embedding.clip or "
            "privacy.update.clip",
        ),
        (
            "privacy.noise_multiplier=1",
            "say privacy.embedding.noise_multiplier or privacy.update.noise_multiplier",
        ),
        (
            "privacy.sampling_rate=0.1",
            "privacy.sampling_rate is not a key of a vertical study: every event is one entity",
        ),
        (
            'privacy.mechanism={kind="haar"}',
            "privacy.mechanism is not a key of a vertical study: labels have randomised response",
        ),
        ("method.window=3", "method.window is not a key of a vertical study: say method.length"),
        ("method.average=0.9", "method.average is not a key of a vertical study"),
        (
            'world.latency={kind="constant"}',
            "world.latency is not a key of a vertical study: time does not pass between events",
        ),
        (
            "participation.cohort=3",
            "participation is not a key of a vertical study. Known here: name, seed",
        ),
        # slips
        (
            "data.parts=slces",
            "data.parts.kind = 'slces' is not known; did you mean 'slices'? Known: slices, "
            "regions, columns",
        ),
        ("data.stream=reply", "data.stream.kind = 'reply' is not known; did you mean 'replay'?"),
        ("data.drift=swop", "data.drift.kind = 'swop' is not known; did you mean 'swap'?"),
        (
            'data.drift={kind="features", every=3, strenth=1}',
            "data.drift.strenth is not a key of a vertical study; did you mean 'strength'?",
        ),
        ("method.name=dlrr", "method.name = 'dlrr' is not known; did you mean 'dlr'?"),
        (
            'method.activation={kind="rndom"}',
            "method.activation.kind = 'rndom' is not known; did you mean 'random'?",
        ),
        (
            "method.activation={p=0.5}",
            "method.activation.kind is missing: it says which kind this is",
        ),
        (
            'method={name="slr", alpha=0.5}',
            "method.alpha is not a key of a vertical study. Known here: name,",
        ),
        ("model.name=cnn", "model.name = 'cnn' is not known. Known: mlp, physics, linear, own"),
        ("execution.path=fast", "execution.path = 'fast' is not known. Known: auto, messages"),
        ("world.missing=first", "world.missing = 'first' is not known. Known: last, zeros, skip"),
        ("privacy.unit=sample", "privacy.unit = 'sample' is not known"),
        ("world.precision=8", "world.precision = 8 is not known. Known: 16, 32"),
        # values
        ("data.drift=swap", "data.drift.every is missing"),
        (
            'data.stream={kind="deformed", size=3}',
            "data.stream.size: input should be greater than or equal to 4; got 3",
        ),
        ('data.parts={kind="regions", rows=2, columns=3}', "parts has 2 x 3 regions; parties is 4"),
        (
            'data.parts={kind="columns", groups=[["a"], ["b"]]}',
            "parts has 2 groups of columns; parties is 4: one group for each",
        ),
        (
            'data.parts={kind="columns", groups=[["a"], ["b"], [1.5], [true]]}',
            "data.parts.groups.2.0: a column is a name or a number from 0; got 1.5",
        ),
        (
            "method.activation.p=1.5",
            "method.activation.p: input should be less than or equal to 1; got 1.5",
        ),
        (
            'method.activation={kind="event", threshold=nan}',
            "method.activation.threshold: input should be greater than or equal to -inf; got nan",
        ),
        (
            'method.activation={kind="count", k=5}',
            "method.activation.k is 5, but there are 4 parties",
        ),
        (
            "method.learning_rates=[0.1, 0.2]",
            "method.learning_rates has 2 numbers; data.parties is 4: one for each party",
        ),
        (
            "method.learning_rates=[0.1, 0.2, 0.3, 0]",
            "method.learning_rates.3: input should be greater than 0; got 0",
        ),
        ("method.alpha=1.1", "method.alpha: input should be less than or equal to 1; got 1.1"),
        ("method.length=0", "method.length: input should be greater than or equal to 1; got 0"),
        ("world.dropout=1.0", "world.dropout: input should be less than 1; got 1.0"),
        ("budget.events=0", "budget.events: input should be greater than or equal to 1; got 0"),
        (
            'model.party="a:b"',
            "name 'own', party and server (package.module:factory each) go together",
        ),
        (
            'model={name="own", party="a:b"}',
            "name 'own', party and server (package.module:factory each) go together",
        ),
        # data
        (
            "data.stream=file",
            "stream 'file' reads a CSV or Parquet file in its own order: give file, or name "
            "'susy' or 'higgs'",
        ),
        ("data.name=susy", "data set 'susy' is read as a stream: set stream = 'file'"),
        (
            'data={file="x.csv", stream="file"}',
            "needs classes, the labels that there are: they are public",
        ),
        (
            'data={name="susy", stream="file", entity="who"}',
            "entity and classes are for files of your own",
        ),
        ('data.entity="who"', "entity is for files that are read as a stream: set stream = 'file'"),
        ("data.scale=255", "scale is for files: the features of 'digits' are scaled already"),
    ],
)
def test_every_mistake_is_said_once_with_place_value_and_remedy(
    tmp_path: Path, change: str, message: str
) -> None:
    with pytest.raises(StudyError) as told:
        read(tmp_path, change)
    lines = [line for line in str(told.value).splitlines() if message in line]
    assert len(lines) == 1, told.value
    # a second group that is wrong is a second mistake
    assert len(str(told.value).splitlines()) == 1 + ("true" in change)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            ('privacy={unit="label"}',),
            "unit 'label' needs epsilon and delta: a privacy guarantee has no default",
        ),
        ((LABEL, "privacy.epsilon=inf"), "for no promise set unit = 'none'"),
        ((LABEL, "privacy.label_epsilon=4.0"), "label_epsilon must not pass epsilon = 3; got 4"),
        (('privacy={unit="none", epsilon=1.0}',), "unit 'none' promises nothing"),
        (
            ('privacy={unit="none", updates="frozen"}',),
            "unit 'none' promises nothing: leave label_epsilon, embedding and updates out",
        ),
        (
            (LABEL, "privacy.updates=noisy"),
            "updates 'noisy' protects features only beside noise on the embeddings",
        ),
        (
            (LABEL, "privacy.unit=entity"),
            "unit 'entity' protects features, which needs embedding = { clip = 1.0 } and updates",
        ),
        ((ENTITY, "privacy.updates=raw"), "unit 'entity' protects features, which needs embedding"),
        ((ENTITY, "method.batch=2"), "method.batch must be 1 where embeddings carry noise"),
        (
            (ENTITY, "method.activation=event"),
            "which no noise hides: with unit 'entity' use 'random', 'count' or 'full'",
        ),
        (
            (ENTITY, "privacy.embedding.clip=0"),
            "privacy.embedding.clip: input should be greater than or equal to 0.0000",
        ),
        (
            (LABEL, "privacy.appearances=0"),
            "privacy.appearances: input should be greater than or equal to 1; got 0",
        ),
        # what would break the promise
        (
            (LABEL, "data.stream=replay", "data.drift=classes"),
            "so when it comes would tell its label: with unit 'label' use stream 'deformed'",
        ),
        ((ENTITY, "data.stream=replay", "data.drift=gradual"), "draws an entity by its label"),
        (
            (LABEL, "data.stream=replay", 'data.drift={kind="swap", every=9}'),
            "data.drift 'swap' changes it: set memoised = false",
        ),
        (
            (LABEL, FILE, 'data.drift={kind="swap", every=9}'),
            "data.drift 'swap' changes it: set memoised = false",
        ),
        (
            (LABEL, 'data={name="susy", stream="file", drift="classes"}'),
            "so when it comes would tell its label: with unit 'label' use stream 'deformed'",
        ),
        (
            ('data={name="susy", stream="file", drift="classes"}', "privacy.ledger=kept"),
            "shows rows of a file in another order",
        ),
        (
            (LABEL, "privacy.ledger=kept"),
            "every example counts as an entity of its own: set ledger = 'run'",
        ),
        (  # 200 answers about the label of one row, at the price of one
            (LABEL, 'data={file="x.npz", parties=2, stream="deformed", classes=["a", "b"]}'),
            "makes many examples of one row",
        ),
    ],
)
def test_what_is_promised_is_spelled_out_and_can_be_kept(
    tmp_path: Path, changes: tuple[str, ...], message: str
) -> None:
    with pytest.raises(StudyError) as told:
        read(tmp_path, *changes)
    assert message in str(told.value)
    assert len(str(told.value).splitlines()) == 1


def test_drift_is_allowed_where_it_tells_nothing(tmp_path: Path) -> None:
    for changes in (
        (LABEL, "data.drift=classes"),  # deformed images come once
        (LABEL, 'data.drift={kind="swap", every=9}'),
        (LABEL, "data.stream=replay", 'data.drift={kind="features", every=9}'),
        (
            LABEL,
            "data.stream=replay",
            'data.drift={kind="swap", every=9}',
            "privacy.memoised=false",
        ),
        (LABEL, "data.stream=replay", "privacy.ledger=kept"),
        ("data.stream=replay", "data.drift=classes"),
    ):
        assert read(tmp_path, *changes)


def test_the_template_is_a_study_without_a_promise(tmp_path: Path) -> None:
    study = read(tmp_path)
    assert (study.regime, study.privacy.unit, study.form, study.horizon) == (
        "vertical",
        "none",
        "sound",
        20_000,
    )
    assert study.stride == 200
    assert schedule(study).affordable(promised(study)) is None
    assert "No privacy guarantee" in statements.guarantee(study, None)


# What it costs


def test_the_price_of_labels(tmp_path: Path) -> None:
    once, _ = builder.plan(read(tmp_path, LABEL, "data.stream=replay"))
    assert (once.steps, once.epsilon) == (
        None,
        accountant("pld").epsilon([(Pure(epsilon=3.0), 1)], 1e-5),
    )
    assert {unit: epsilon for unit, _, epsilon in once.releases}["party:0"] == math.inf
    assert any("features are NOT protected" in warning for warning in once.warnings)
    each = read(
        tmp_path, LABEL, "data.stream=replay", "privacy.memoised=false", "privacy.appearances=4"
    )
    assert label_epsilon(each) == 0.75
    anew, _ = builder.plan(each)
    assert anew.epsilon == accountant("pld").epsilon([(Pure(epsilon=0.75), 4)], 1e-5) <= 3.0
    assert anew.steps is not None
    assert anew.steps >= 4


@pytest.mark.parametrize("updates", ["noisy", "frozen"])
@pytest.mark.parametrize("method", ["ogd", "slr"])
@pytest.mark.parametrize("memoised", [True, False])
def test_the_price_of_entities(tmp_path: Path, updates: str, method: str, memoised: bool) -> None:
    """One label and, at each of four parties and in each of two events, one or two releases, each l
    times with slr.
    """
    study = read(
        tmp_path, ENTITY, "data.stream=replay", f"privacy.updates={updates}",
        f"privacy.memoised={str(memoised).lower()}",
        f'method={{name="{method}"{", length=3" if method == "slr" else ""}}}',
    )  # fmt: skip
    assert label_epsilon(study) == (10.0 if memoised else 5.0)
    priced, _ = builder.plan(study)
    privacy = builder.calibrated(study).privacy
    assert isinstance(privacy, VerticalPrivacy)
    assert privacy.embedding is not None
    z, again = privacy.embedding.noise_multiplier or 0.0, 3 if method == "slr" else 1
    each = 4 * again * (2 if updates == "noisy" else 1)
    told: list[tuple[Any, int]] = (
        [(Pure(epsilon=10.0), 1)] if memoised else [(Pure(epsilon=5.0), 2)]
    )
    price = accountant("pld").epsilon([*told, (Gaussian(noise_multiplier=z), 2 * each)], 1e-5)
    assert priced.epsilon == pytest.approx(price, rel=1e-12)
    assert 35.0 < price <= 40.0
    # no more noise than is needed
    assert accountant("pld").epsilon([(Gaussian(noise_multiplier=z - 2e-4), 2 * each)], 1e-5) > 30.0
    assert priced.steps is not None
    assert priced.steps >= 2
    assert priced.noise_multiplier == z
    assert any("noise on embeddings costs dearly" in warning for warning in priced.warnings)


def test_a_budget_that_pays_for_less_is_shown_for_what_it_pays(tmp_path: Path) -> None:
    study = read(
        tmp_path,
        ENTITY,
        "data.stream=replay",
        "privacy.appearances=30",
        "privacy.embedding.noise_multiplier=2.0",
        "privacy.update.noise_multiplier=2.0",
    )
    priced, _ = builder.plan(study)
    assert priced.steps is not None
    assert 0 < priced.steps < 30
    assert priced.used == priced.steps
    assert priced.epsilon <= 40.0
    assert any(
        f"the budget pays for {priced.steps} appearances of an entity" in warning
        for warning in priced.warnings
    )
    # One Rényi order prices a lone answer above its epsilon: it is said, and the run refused before
    # it begins.
    poor, _ = builder.plan(read(tmp_path, LABEL, "data.stream=replay", "privacy.accountant=rdp@8"))
    assert poor.steps == 0
    assert poor.epsilon > 3.0
    with pytest.raises(StudyError, match="leaves nothing of epsilon"):
        builder.plan(read(tmp_path, ENTITY, "data.stream=replay", "privacy.label_epsilon=40.0"))


def test_what_a_guarantee_rests_on_is_said(tmp_path: Path) -> None:
    for changes, words in (
        ((LABEL,), "Each deformed image is taken for an entity of its own"),
        ((LABEL,), "The label of an entity never changes"),
        ((LABEL, 'method={name="slr"}'), "Checkpoints contain the last examples unprotected"),
    ):
        assert any(
            line.startswith(words) for line in statements.assumptions(read(tmp_path, *changes))
        )
    said = statements.guarantee(read(tmp_path, ENTITY), None)
    assert "the parties and the server" in said
    assert "epsilon = 40" in said
    assert "controls all other entities" in said
    assert "client" not in said


# Networks of one's own


def party(features: int, embedding: int) -> nn.Module:
    return nn.Sequential(nn.Linear(features, embedding), nn.Tanh())


def server(embeddings: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Linear(sum(embeddings), classes)


def mixing(features: int, embedding: int) -> nn.Module:
    return nn.Sequential(nn.Linear(features, embedding), nn.BatchNorm1d(embedding))


def forgetful(features: int, embedding: int) -> nn.Module:
    return nn.Sequential(nn.Linear(features, embedding), nn.Dropout(0.5))


def double(features: int, embedding: int) -> nn.Module:
    return nn.Linear(features, embedding, dtype=torch.float64)


def narrow(features: int, embedding: int) -> nn.Module:
    return nn.Linear(features + 1, embedding)


def deep(features: int, embedding: int) -> nn.Module:
    return nn.Sequential(nn.Linear(features, embedding), nn.Unflatten(1, (1, embedding)))


def broken(features: int, embedding: int) -> nn.Module:
    raise RuntimeError("no such layer")


def stray(embeddings: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Linear(sum(embeddings), classes + 1)


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(sys.modules, "my_halves", sys.modules[__name__])
    return "my_halves"


def test_halves_of_ones_own_are_used(tmp_path: Path, own: str) -> None:
    changes = (
        f'model={{name="own", party="{own}:party", server="{own}:server", embedding=5}}',
        "data.stream=replay",
    )
    priced, _ = builder.plan(read(tmp_path, *changes))
    assert priced.rounds == 20_000


@pytest.mark.parametrize(
    ("factories", "message"),
    [
        (
            ("mixing", "server"),
            r"model\.party = 'my_halves:mixing': layer '1' \(BatchNorm1d\) mixes the examples",
        ),
        (
            ("forgetful", "server"),
            r"model\.party = 'my_halves:forgetful': layer '1' \(Dropout\) draws its own "
            r"random numbers",
        ),
        (
            ("double", "server"),
            r"model\.party = 'my_halves:double': its parameters are float64; embeddings are "
            r"float32",
        ),
        (("narrow", "server"), r"model\.party = 'my_halves:narrow' does not fit 16 numbers"),
        (
            ("deep", "server"),
            r"must give a tensor of shape \(examples, numbers\); it gave torch\.Size\(\[2, "
            r"1, 64\]\)",
        ),
        (
            ("broken", "server"),
            r"model\.party = 'my_halves:broken': making it failed: .*, line .*no such layer",
        ),
        (("nobody", "server"), r"'my_halves:nobody': .*Write package\.module:factory"),
        (
            ("party", "stray"),
            r"model\.server = 'my_halves:stray' gives 11 scores; the data has 10 classes",
        ),
    ],
)
def test_halves_that_cannot_be_used_are_refused_before_anything_runs(
    tmp_path: Path, own: str, factories: tuple[str, str], message: str
) -> None:
    changes = (
        f'model={{name="own", party="{own}:{factories[0]}", server="{own}:{factories[1]}"}}',
        "data.stream=replay",
    )
    with pytest.raises(StudyError, match=message):
        builder.plan(read(tmp_path, *changes))


# Checkpoints


class Point:
    def __init__(self, number: int, ended: str | None = None) -> None:
        self.number, self.ended = number, ended


@pytest.mark.parametrize(
    ("begun", "numbers", "saved"),
    [
        (0, (40, 80, 120, 160, 170), [80, 120, 170]),
        (80, (120, 160, 170), [120, 170]),
        (0, (60, 120, 170), [60, 120, 170]),
        (0, (10, 20, 170), [170]),
    ],
)
def test_a_checkpoint_is_due_when_a_multiple_has_been_passed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    begun: int,
    numbers: tuple[int, ...],
    saved: list[int],
) -> None:
    """Counted from the start of the run and not of the session; and always at the end."""
    found: list[int] = []
    monkeypatch.setattr(
        "sordino.core.run.folder.write_checkpoint",
        lambda folder, kept: found.append(kept.moment.number),
    )
    start: Any = Point(begun)
    with RunLog(tmp_path, Saved(start, 0, "vertical", {}), 60, lambda row: None, dict) as recorder:
        for number in numbers:
            point: Any = Point(number, "done" if number == numbers[-1] else None)
            recorder.save(point)
    assert found == saved
