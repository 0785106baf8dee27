"""All that a run leaves in files and says meanwhile, as frozen typed values with one codec.

A key that is absent is another thing than a null: absent keys are :data:`msgspec.UNSET` and are not
written, nulls are None. Infinity is the string "inf" in JSON and a float in a record; NaN is
written as null. What is read is held against the types of its record, and what does not fit is
named: key, what belongs there, what stands there.

>>> row(b'{"kind": "round", "round": 3, "epsilon": "inf", "mu": 0.5}').extra
{'mu': 0.5}
>>> row(b'{"kind": "round", "round": "x"}')
Traceback (most recent call last):
    ...
sordino.core.records.Misfit: round must be a whole number; got 'x'
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Annotated, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from sordino.base.errors import SordinoError, StudyError
from sordino.base.files import Malformed, json_of, object_of
from sordino.base.frozen import Frozen
from sordino.core import regimes

T = TypeVar("T")

if TYPE_CHECKING:
    Real = float
else:

    class _Numbers(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, (int, float)) and not isinstance(value, bool)

    class Real(metaclass=_Numbers):
        """A number that may be infinite, "inf" in JSON. Whole numbers stay whole, as written."""


Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Maybe: TypeAlias = T | UnsetType | None
"""A value that may be null, or absent."""
Number: TypeAlias = Maybe[Real]
Whole: TypeAlias = Maybe[Count]
Text: TypeAlias = Maybe[str]
Written: TypeAlias = str | UnsetType
"""A text, or absent."""
Counted: TypeAlias = Count | UnsetType


class Record(Frozen, kw_only=True):
    """A typed piece of what a run leaves in its files."""


class Open(Record, kw_only=True):
    """A record that may have keys beyond those it names; they stand beside the others in the file.

    Attributes:
        extra: the further keys and their values, as JSON has them.
    """

    extra: Mapping[str, object] = msgspec.field(default_factory=dict)


def number(value: object) -> float | None:
    """A number of a record, None where there is none.

    >>> [number(value) for value in (math.inf, UNSET, None, math.nan, 10**400, True)]
    [inf, None, None, None, inf, None]
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        found = float(value)
    except OverflowError:  # an integer that no float holds
        return math.inf if value > 0 else -math.inf
    return None if math.isnan(found) else found


def known(value: T | UnsetType | None) -> T | None:
    """A value that is there, else None.

    >>> known(2), known(UNSET), known(None)
    (2, None, None)
    """
    return None if value is UNSET else value


def at(record: msgspec.Struct, key: str) -> object:
    """Return what stands under a key of the file, in the record or beside it; UNSET if nothing
    does.
    """
    found: object = getattr(record, key, UNSET)
    return record.extra.get(key, UNSET) if found is UNSET and isinstance(record, Open) else found


class OfClass(Record, kw_only=True):
    """The quality with which examples of one class are told from all others; shares in [0, 1].

    Attributes:
        name: of the class.
        rows: that are of it.
        precision: of rows that were taken for it, those that are.
        recall: of rows that are of it, those that were taken for it.
        f1: their harmonic mean.
        auroc, average_precision: by the class's score; null where the test set lacks it, or holds
            nothing else.
    """

    name: Text = UNSET
    rows: Whole = UNSET
    precision: Number = UNSET
    recall: Number = UNSET
    f1: Number = UNSET
    auroc: Number = UNSET
    average_precision: Number = UNSET


class OfOwner(Record, kw_only=True):
    """The quality for one client: accuracy, or root mean squared error, on ``rows`` rows."""

    name: Text = UNSET
    rows: Whole = UNSET
    value: Number = UNSET


class Owners(Record, kw_only=True):
    """The evenness with which clients are served.

    Attributes:
        by: "rows", test rows of their own; or "labels", the recall of each class, weighted by how
            often a client has it, where that is public.
        each: by client.
        worst_decile: mean over the tenth of them that is served worst, at least one.
        spread: standard deviation over them.
    """

    by: Text = UNSET
    each: Maybe[tuple[OfOwner, ...]] = UNSET
    worst_decile: Number = UNSET
    spread: Number = UNSET


class Metrics(Open, kw_only=True):
    """``metrics.json``. What does not suit the task is absent.

    Attributes:
        format: of the run's records.
        task: "classes", "binary" (two classes) or "number".
        rows: of the test set.
        loss: mean of what the model was trained with.
        accuracy, balanced_accuracy, f1: in [0, 1]; balanced accuracy is the mean recall of the
            classes that occur, f1 their mean, too.
        auroc, average_precision: of the second class, where there are two; else means over the
            classes that occur, each against all others.
        calibration_error: expected, of the likeliest class, in 15 equal bins of its probability;
            null where scores are no probabilities.
        rmse, mae: in units of the label.
        r2: 1 is perfect, 0 as good as the mean of the test labels.
        classes: by class.
        confusion: rows are true classes, columns those that were told.
        clients: how evenly they are served; absent where nothing public tells.
    """

    format: Whole = UNSET
    task: Text = UNSET
    rows: Whole = UNSET
    loss: Number = UNSET
    accuracy: Number = UNSET
    balanced_accuracy: Number = UNSET
    f1: Number = UNSET
    auroc: Number = UNSET
    average_precision: Number = UNSET
    calibration_error: Number = UNSET
    rmse: Number = UNSET
    mae: Number = UNSET
    r2: Number = UNSET
    classes: Maybe[tuple[OfClass, ...]] = UNSET
    confusion: Maybe[tuple[tuple[Count, ...], ...]] = UNSET
    clients: Maybe[Owners] = UNSET


class Row(Open, kw_only=True, tag_field="kind"):
    """A row of the log.

    Attributes:
        round: closed rounds, updates or events, in whose course it was written.
        time: virtual seconds; absent between sites, where seconds are real: how long a round takes
            depends on batches, whose sizes are secret.
    """

    round: Counted = UNSET
    time: Real | UnsetType = UNSET

    @property
    def kind(self) -> str:
        """The tag."""
        return str(type(self).__struct_config__.tag)


class Round(Row, kw_only=True, tag="round"):
    """A round, as every regime says it.

    Attributes:
        steps: local steps, gradients or activations of who did most.
        epsilon: highest so far, over all clients.
        accuracy: in [0, 1], where it was measured; on a stream since the row before, which may be
            estimated and lie outside.
        loss: mean of an example.
        note: the method's remark.
    """

    steps: Counted = UNSET
    epsilon: Number = UNSET
    accuracy: Number = UNSET
    loss: Number = UNSET
    note: Text = UNSET


class OfClient(Row, kw_only=True):
    """A row about one client. None is written where it is secret who takes part."""

    client: Counted = UNSET


class Late(OfClient, kw_only=True, tag="late"):
    """An answer that came after its round was closed; ``released``: what it says is out."""

    released: bool | UnsetType = UNSET


class Lost(OfClient, kw_only=True, tag="lost"):
    """A client that vanished with its task."""

    released: bool | UnsetType = UNSET


class Joined(OfClient, kw_only=True, tag="joined"):
    """A client that was given up and is back."""


class Left(OfClient, kw_only=True, tag="left"):
    """An edge that has left for good, after so many updates."""

    updates: Counted = UNSET
    why: Written = UNSET


class Stale(OfClient, kw_only=True, tag="stale"):
    """A gradient that was too stale to be applied."""

    staleness: Counted = UNSET
    released: bool | UnsetType = UNSET


class Dropped(OfClient, kw_only=True, tag="dropped"):
    """An answer that nobody had asked for."""

    task: Counted = UNSET
    why: Written = UNSET


class Declined(OfClient, kw_only=True, tag="declined"):
    """A site that refused what it was asked for, and why. Only where sites are real."""

    why: Written = UNSET


class Refused(Row, kw_only=True, tag="refused"):
    """The ledger refused a charge; the run went no further."""

    why: Written = UNSET


class End(Row, kw_only=True, tag="end"):
    """The run is over; ``accuracy`` on a stream, of all its events."""

    why: Written = UNSET
    accuracy: Number = UNSET


class Unknown(Open, kw_only=True):
    """A row of a kind that this version does not know; all of it stands in ``extra``."""

    @property
    def kind(self) -> str:
        """As it stands in the row; empty if it has none."""
        found = self.extra.get("kind")
        return found if isinstance(found, str) else ""


PERSON = "all examples of one person replaced by none (sizes are public)"
"""The adjacency of runs that protect persons."""
KINDS: dict[str, type[Row]] = {
    str(kind.__struct_config__.tag): kind
    for kind in (Late, Lost, Joined, Left, Stale, Dropped, Declined, Refused, End)
}


class Begin(Record, kw_only=True):
    """The facts that a run begins with.

    Attributes:
        study: calibrated, as TOML, without ``[execution]``.
        environment: ``environment.json``.
        promise: what ``run.json`` says before the run ends, by dotted key.
        key: digest of its secret key; absent without one.
    """

    study: str
    environment: dict[str, object]
    promise: dict[str, object]
    key: Written = UNSET


class Spent(Record, kw_only=True):
    """The epsilon that was spent when a run ended.

    Attributes:
        each: by each unit of the run, the highest among its records.
        test: by the rows of a test set that is paid for.
    """

    each: tuple[Real, ...]
    test: Real | None


class Seal(Record, kw_only=True):
    """The end of a run: files' digests by name, ``run.json`` by dotted key, what was spent."""

    files: dict[str, str]
    run: dict[str, object]
    spent: Spent


FORMAT = 1
"""Of ``run.json``, and of the log beside it."""


class Client(Record, kw_only=True):
    """A participant: its number, and its unit in the ledger."""

    client: Maybe[int | str] = UNSET
    unit: Text = UNSET


class Facts(Record, kw_only=True, tag_field="regime"):
    """The facts that a regime adds, in a subclass whose tag is its name.

    Attributes:
        classes: names of the labels.
        dimension: d, numbers of the model.
        clip: C, S, G of the first stage, or the bound of an embedding.
        R_c: steps that are planned; null where something else ends the run.
        title: the method's name in tables.
    """

    classes: Maybe[tuple[str, ...]] = UNSET
    dimension: Whole = UNSET
    clip: Number = UNSET
    R_c: Whole = UNSET
    title: Text = UNSET

    @property
    def members(self) -> tuple[Client, ...]:
        """Return who takes part, as far as they are listed."""
        return ()

    @property
    def headcount(self) -> int:
        """Return how many take part."""
        return len(self.members)


class Module(Record, kw_only=True):
    """Code that the study names: its file, its digest, and whether it lay beside the study."""

    file: Text = UNSET
    sha256: Text = UNSET
    beside: Maybe[bool] = UNSET


class Result(Record, kw_only=True):
    """The end of a run.

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
        early: whether others ended it before all was done that was planned, or decided how much
            it is: then only the budget is a bound. Absent where nobody else could.
    """

    rounds: Whole = UNSET
    steps: Whole = UNSET
    accuracy: Number = UNSET
    epsilon: Number = UNSET
    seconds: Number = UNSET
    why: Text = UNSET
    spent: Maybe[tuple[Real, ...]] = UNSET
    test_epsilon: Number = UNSET
    rmse: Number = UNSET
    early: Maybe[bool] = UNSET


class Place(Record, kw_only=True):
    """The place in its ledger where a run was sealed: entries, the last digest, and whose ledger it
    is.
    """

    seq: Whole = UNSET
    digest: Text = UNSET
    scope: Text = UNSET


class About(Open, kw_only=True):
    """``run.json``.

    Attributes:
        format: of the run's records.
        run: its identifier.
        name, method, form: of the study.
        status: "running" or "done".
        unit, adjacency: what is protected.
        epsilon_budget: what may be spent; infinite without a promise.
        chosen: whether releases decide what is spent: then only the budget is a bound.
        others: whether others can end it early, as in a federation.
        claimed_epsilon: what a paper claims.
        batch: expected size.
        R_s: rounds, updates or events that are planned.
        affordable_steps: steps that each client can pay for, or rounds or appearances that all can.
        modules: code that the study names.
        facts: what the regime adds.
        guarantee, assumptions, warnings: in words.
        result: null until the run has ended; ``ledger`` is absent until then.
        begun, ended: UTC, ISO 8601, to the second; absent from a run that was chosen on private
            data, because they would tell how many trials there were.
        data: SHA-256 over the fingerprints of all units' data, as the ledger of the run has them;
            absent where sites keep their data, or a ledger belongs to the data.
    """

    format: Counted = UNSET
    run: Text = UNSET
    name: Text = UNSET
    method: Text = UNSET
    form: Text = UNSET
    status: Text = UNSET
    unit: Text = UNSET
    adjacency: Text = UNSET
    epsilon_budget: Number = UNSET
    chosen: Maybe[bool] = UNSET
    others: Maybe[bool] = UNSET
    claimed_epsilon: Number = UNSET
    delta: Number = UNSET
    accountant: Text = UNSET
    noise_multiplier: Number = UNSET
    learning_rate: Number = UNSET
    batch: Number = UNSET
    R_s: Whole = UNSET
    affordable_steps: Maybe[tuple[Count, ...]] = msgspec.field(default=UNSET, name="payable")
    modules: Maybe[dict[str, Module]] = UNSET
    facts: Facts = msgspec.field(default_factory=lambda: regimes.facts(None)())  # with nothing said
    guarantee: Text = UNSET
    assumptions: Maybe[tuple[str, ...]] = UNSET
    warnings: Maybe[tuple[str, ...]] = UNSET
    result: Maybe[Result] = UNSET
    ledger: Maybe[Place] = UNSET
    begun: Text = UNSET
    ended: Text = UNSET
    data: Text = UNSET

    @property
    def protected(self) -> str:
        """Return whom the promise is for: a person, or the unit; empty where it is not known."""
        return "person" if known(self.adjacency) == PERSON else known(self.unit) or ""

    @property
    def regime(self) -> str:
        """The client or edge that these facts are of."""
        return str(type(self.facts).__struct_config__.tag)


class Environment(Open, kw_only=True):
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
    sordino: Written = UNSET
    numerics: Written = UNSET
    code: Written = UNSET
    python: Written = UNSET
    torch: Written = UNSET
    numpy: Written = UNSET
    numba: Written = UNSET
    machine: Written = UNSET
    system: Written = UNSET
    device: Written = UNSET
    threads: Counted = UNSET
    cpu_capability: Written = UNSET
    cpu: Written = UNSET
    settings: dict[str, str] | UnsetType = UNSET
    companions: dict[str, str] | UnsetType = UNSET


S = TypeVar("S", bound=msgspec.Struct)
O = TypeVar("O", bound=Open)  # noqa: E741

WORDS = {
    "array": "a list",
    "object": "an object",
    "int": "a whole number",
    "str": "text",
    "bool": "true or false",
    "null": "null",
    "Real": "a number",
    "float": "a number",
}
_PATH = re.compile(r"\.(\w+)|\[(\d+)\]|(\[\.\.\.\])")


class Misfit(Malformed):
    """JSON that does not fit its record; says where and why."""


def simple(value: object) -> object:
    """A value as JSON can hold it: records as objects, tuples as lists, infinity as a word, no NaN.

    >>> simple({"epsilon": math.inf, "spent": (1.0, math.nan)})
    {'epsilon': 'inf', 'spent': [1.0, None]}
    """
    if value is None or type(value) in (str, int, bool):  # most of what there is
        return value
    if isinstance(value, float):
        if math.isnan(value):
            return None
        return ("inf" if value > 0 else "-inf") if math.isinf(value) else value
    if isinstance(value, Mapping):
        return {str(key): simple(item) for key, item in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
        return [simple(item) for item in value]
    if isinstance(value, msgspec.Struct):
        return plain(value)
    if is_dataclass(value) and not isinstance(value, type):
        return simple({each.name: getattr(value, each.name) for each in fields(value)})
    return value


def plain(record: msgspec.Struct) -> dict[str, object]:
    """A record as the object that stands in its file.

    >>> plain(Round(round=2, extra={"mu": 0.5}))
    {'kind': 'round', 'round': 2, 'mu': 0.5}
    """
    builtins = msgspec.to_builtins(record, enc_hook=_own)
    found: dict[str, object] = {}
    for key, value in builtins.items():
        if key == "facts" and isinstance(record, About):
            found |= value
        elif key != "extra" or not isinstance(record, Open):
            found[key] = value
    if isinstance(record, Open):
        found |= {key: value for key, value in record.extra.items() if key not in found}
    return {key: simple(value) for key, value in found.items()}


def _own(value: object) -> object:
    """Numbers of NumPy's, which are Python's as well."""
    if isinstance(value, (int, float)):
        return float(value) if isinstance(value, float) else int(value)
    raise NotImplementedError(f"{type(value).__name__} is nothing that JSON knows")


def dumped(value: object, *, indent: int | None = None) -> str:
    """Return a record, or another value, as JSON with infinity as the string "inf" and no NaN.

    >>> dumped({"epsilon": float("inf"), "tau": 2})
    '{"epsilon": "inf", "tau": 2}'
    """
    return json.dumps(simple(value), indent=indent, allow_nan=False, ensure_ascii=False)


def row(line: bytes | str, regime: str | None = None) -> Row | Unknown:
    """A row of the log of a run of this regime; of the first one where none is named.

    Raises:
        StudyError: if there is no such regime.
        Malformed: if it is not JSON; :class:`Misfit` if it is no row.
    """
    found = json_of(line)
    if not isinstance(found, dict):
        raise Misfit(f"it must be an object; got {_shown(found)}")
    kind = found.get("kind")
    if kind == "round":
        return _open(found, regimes.row(regime), "kind")
    known = KINDS.get(kind) if isinstance(kind, str) else None
    return Unknown(extra=found) if known is None else _open(found, known, "kind")


def about(content: str | bytes, place: object) -> About:
    """Return what a ``run.json`` says; raises as :func:`about_of`."""
    return about_of(object_of(content, place), place)


def about_of(
    found: Mapping[str, object], place: object, error: type[SordinoError] = StudyError
) -> About:
    """Return what the object in a ``run.json`` says.

    Raises:
        SordinoError: of this kind, naming the place, the key and what stands there.
    """
    try:
        regime = found.get("regime")
        if regime is not None and not isinstance(regime, str):
            raise Misfit(f"regime must be text; got {_shown(regime)}")
        kind = regimes.facts(regime)  # of the first regime, where none is said
        facts, rest = _split({key: value for key, value in found.items() if key != "regime"}, kind)
        if (version := rest.get("format", FORMAT)) != FORMAT:
            raise Misfit(
                f"format must be {FORMAT}, which this version reads; got {_shown(version)}"
            )
        if "facts" in rest:
            raise Misfit("facts must not stand there by that name")
        return msgspec.structs.replace(_open(rest, About), facts=fitted(facts, kind))
    except Misfit as misfit:
        raise error(f"{place}: {misfit}. Restore it from a copy") from misfit
    except StudyError as unknown:  # of a regime
        raise error(f"{place}: {unknown}") from None


def record_of(content: str | bytes, place: object, kind: type[O]) -> O:
    """Return what a file such as ``environment.json`` or ``metrics.json`` says.

    Raises:
        StudyError: naming the place, the key and what stands there.
    """
    try:
        return _open(object_of(content, place, StudyError), kind)
    except Misfit as misfit:
        raise StudyError(f"{place}: {misfit}. Restore it from a copy") from misfit


def _split(
    found: Mapping[str, object], kind: type[msgspec.Struct]
) -> tuple[dict[str, object], dict[str, object]]:
    """The keys that a record names, and all others."""
    own = {key: value for key, value in found.items() if key in kind.__struct_encode_fields__}
    return own, {key: value for key, value in found.items() if key not in own}


def _open(found: Mapping[str, object], kind: type[O], tag: str | None = None) -> O:
    """A record that may have further keys."""
    own, others = _split({key: value for key, value in found.items() if key != tag}, kind)
    if "extra" in own:
        others["extra"] = own.pop("extra")
    return msgspec.structs.replace(fitted(own, kind), extra=others)


def fitted(found: object, kind: type[T]) -> T:
    """JSON that was read, as a record of this kind.

    Raises:
        Misfit: naming the key and what stands there.
    """
    try:
        return msgspec.convert(found, kind, dec_hook=real)
    except (msgspec.ValidationError, OverflowError, UnicodeEncodeError) as error:
        # keys may hold halves of surrogates
        raise Misfit(_said(str(error), found)) from error


def real(kind: type, value: object) -> object:
    """Return a :class:`Real`, for a decoder."""
    if kind is object:
        return value
    if value in ("inf", "-inf"):
        return math.inf if value == "inf" else -math.inf
    if isinstance(value, Real):
        return value
    raise ValueError("Expected `Real`")


def _said(error: str, found: object) -> str:
    """A message of the decoder in words: the key, what belongs there, what stands there."""
    expected, _, path = error.partition(" - at ")
    key, value, inside = "", found, True
    for name, index, rest in _PATH.findall(path):
        key += rest or (f"[{index}]" if index else f".{name}")
        inside = inside and not rest  # which of an object's values it is the decoder does not say
        if inside and isinstance(value, list):
            value = value[int(index)]
        elif inside and isinstance(value, dict):
            value = value.get(name)
    return f"{key.lstrip('.') or 'it'} must be {_wanted(expected)}; got {_shown(value)}"


def _wanted(expected: str) -> str:
    """
    >>> _wanted("Expected `array | null`, got `int`"), _wanted("Expected `int` >= 0")
    ('a list or null', 'a whole number, at least 0')
    """
    match = re.match(r"Expected `([^`]*)`(?: ([<>])= (-?\d+))?", expected)
    if match is None:
        return f"something else ({expected})"
    kinds = " or ".join(WORDS.get(kind, kind) for kind in match[1].split(" | "))
    if match[2] is None:
        return kinds
    return f"{kinds}, at {'least' if match[2] == '>' else 'most'} {match[3]}"


def _shown(value: object) -> str:
    try:
        return repr(value)[:40]
    except ValueError:  # a whole number of more digits than Python prints
        return "a number of many digits"
