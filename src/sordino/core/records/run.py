"""``run.json`` and ``environment.json``: what a run promised, to whom, and how it ended.

And under which assumptions it promised that.

``run.json`` is one flat object: what every run says (:class:`About`), and what its regime adds
(:class:`Facts`, tagged by "regime").
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from sordino.core import regimes
from sordino.core.records.base import Count, Maybe, Open, Real, Record

FORMAT = 1
"""Of ``run.json``, and of the log beside it."""


class Client(Record, frozen=True, kw_only=True):
    """A participant: its number, and its unit in the ledger."""

    client: Maybe[int | str] = UNSET
    unit: Maybe[str] = UNSET


class Facts(Record, frozen=True, kw_only=True, tag_field="regime"):
    """What a regime adds, in a subclass whose tag is its name.

    Attributes:
        classes: names of the labels.
        dimension: d, numbers of the model.
        clip: C, S, G of the first stage, or the bound of an embedding.
        R_c: steps that are planned; null where something else ends the run.
        title: the method's name in tables.
    """

    classes: Maybe[tuple[str, ...]] = UNSET
    dimension: Maybe[Count] = UNSET
    clip: Maybe[Real] = UNSET
    R_c: Maybe[Count] = UNSET
    title: Maybe[str] = UNSET

    @property
    def members(self) -> tuple[Client, ...]:
        """Who takes part."""
        return ()


def _usual() -> Facts:
    """Of the first regime, with nothing said."""
    return regimes.facts(None)()


class Module(Record, frozen=True, kw_only=True):
    """Code that the study names: its file, its digest, and whether it lay beside the study."""

    file: Maybe[str] = UNSET
    sha256: Maybe[str] = UNSET
    beside: Maybe[bool] = UNSET


class Result(Record, frozen=True, kw_only=True):
    """How a run ended.

    Attributes:
        rounds: closed rounds, updates done or events played.
        steps: of who did most.
        accuracy: in [0, 1]; null where nothing measured it.
        epsilon: what is guaranteed.
        seconds: wall time of the last session that played, whole ones; absent where ``begun`` is.
        why: what ended it.
        spent: epsilon of each unit; null without privacy.
        test_epsilon: of test rows that are paid for.
        rmse: instead of accuracy, where labels are numbers, in their units.
    """

    rounds: Maybe[Count] = UNSET
    steps: Maybe[Count] = UNSET
    accuracy: Maybe[Real] = UNSET
    epsilon: Maybe[Real] = UNSET
    seconds: Maybe[Real] = UNSET
    why: Maybe[str] = UNSET
    spent: Maybe[tuple[Real, ...]] = UNSET
    test_epsilon: Maybe[Real] = UNSET
    rmse: Maybe[Real] = UNSET


class Place(Record, frozen=True, kw_only=True):
    """Where in its ledger a run was sealed: entries, the last digest, and whose ledger it is."""

    seq: Maybe[Count] = UNSET
    digest: Maybe[str] = UNSET
    scope: Maybe[str] = UNSET


class About(Open, frozen=True, kw_only=True):
    """``run.json``.

    Attributes:
        format: of the run's records.
        run: its identifier.
        name, method, form: of the study.
        status: "running" or "done".
        unit, adjacency: what is protected.
        epsilon_budget: what may be spent; infinite without a promise.
        chosen: whether releases decide what is spent: then only the budget is a bound.
        claimed_epsilon: what a paper claims.
        batch: expected size.
        R_s: rounds, updates or events that are planned.
        payable: steps that each client can pay for, or rounds or appearances that all can.
        modules: code that the study names.
        facts: what the regime adds.
        guarantee, assumptions, warnings: in words.
        result: null until the run has ended; ``ledger`` is absent until then.
        begun, ended: UTC, ISO 8601, to the second; absent from a run that was chosen on private
            data, because they would tell how many trials there were.
        data: SHA-256 over the fingerprints of all units' data, as the ledger of the run has them;
            absent where sites keep their data, or a ledger belongs to the data.
    """

    format: Count | UnsetType = UNSET
    run: Maybe[str] = UNSET
    name: Maybe[str] = UNSET
    method: Maybe[str] = UNSET
    form: Maybe[str] = UNSET
    status: Maybe[str] = UNSET
    unit: Maybe[str] = UNSET
    adjacency: Maybe[str] = UNSET
    epsilon_budget: Maybe[Real] = UNSET
    chosen: Maybe[bool] = UNSET
    claimed_epsilon: Maybe[Real] = UNSET
    delta: Maybe[Real] = UNSET
    accountant: Maybe[str] = UNSET
    noise_multiplier: Maybe[Real] = UNSET
    learning_rate: Maybe[Real] = UNSET
    batch: Maybe[Real] = UNSET
    R_s: Maybe[Count] = UNSET
    payable: Maybe[tuple[Count, ...]] = UNSET
    modules: Maybe[dict[str, Module]] = UNSET
    facts: Facts = msgspec.field(default_factory=_usual)
    guarantee: Maybe[str] = UNSET
    assumptions: Maybe[tuple[str, ...]] = UNSET
    warnings: Maybe[tuple[str, ...]] = UNSET
    result: Maybe[Result] = UNSET
    ledger: Maybe[Place] = UNSET
    begun: Maybe[str] = UNSET
    ended: Maybe[str] = UNSET
    data: Maybe[str] = UNSET

    @property
    def regime(self) -> str:
        """Whose facts these are."""
        return str(type(self.facts).__struct_config__.tag)


class Environment(Open, frozen=True, kw_only=True):
    """``environment.json``: what the bits of a result depend on besides the study.

    Attributes:
        modules: digests of code that the study names.
        sordino, python, torch, numpy, numba: versions.
        numerics: the number of what studies compute.
        code: digest of this package's sources; recorded alone.
        machine, system, device, threads, cpu_capability: where it runs.
        cpu: the processor's name and abilities, for which loops are compiled; absent where unknown.
        settings: environment variables that tell libraries how to compute; absent without any.
        companions: versions of packages beside this one. They are recorded, and change no result.
    """

    modules: dict[str, str] | UnsetType = UNSET
    sordino: str | UnsetType = UNSET
    numerics: str | UnsetType = UNSET
    code: str | UnsetType = UNSET
    python: str | UnsetType = UNSET
    torch: str | UnsetType = UNSET
    numpy: str | UnsetType = UNSET
    numba: str | UnsetType = UNSET
    machine: str | UnsetType = UNSET
    system: str | UnsetType = UNSET
    device: str | UnsetType = UNSET
    threads: Count | UnsetType = UNSET
    cpu_capability: str | UnsetType = UNSET
    cpu: str | UnsetType = UNSET
    settings: dict[str, str] | UnsetType = UNSET
    companions: dict[str, str] | UnsetType = UNSET
