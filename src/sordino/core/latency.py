r"""Times that clients take, and when they are away: seeded models for the virtual clock.

Each model of latency is a class that is the ``world.latency`` table of a study; one of your own is
a class with a registration, or ``kind = "package.module:Class"`` (docs/own-tables.md).

A task of tau steps at client i costs  scale_i (base_i + tau step)  seconds, base_i drawn anew
for every round from one of

    constant        m
    exponential     mean m
    log-normal      median m, shape s:  m exp(s N(0,1))
    pareto          minimum m, tail index a:  m U^(-1/a)

and scale_i fixed for the client, log-normal with shape ``spread`` (some devices are always slow).
With arrivals instead of rounds there are two more: *cyclic*, where all take equally long and so
answer in turn, each one K - 1 updates stale (the cyclic delay of Li et al. 2022, section 7.1.1),
and a *trace* of measured seconds from a file, of which each client plays its own column again and
again. Independently, with probability ``dropout`` a client that took a task vanishes before it
answers, and comes back after a geometric number of rounds with probability ``rejoin`` each.

Every draw has its own address (client, round), so that latencies do not depend on the order
of events or on where a run was resumed. Times in seconds.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.random import Generator
from pydantic import model_validator

from sordino.base.entropy import Entropy, Seeded
from sordino.base.errors import StudyError
from sordino.base.files import MIB, read_plain, readable
from sordino.base.modules import told_in_its_place
from sordino.base.registry import NotNegative, Positive, Registry, Section

MOST_TRACE = 256 * MIB
LONGEST = 1e12  # seconds: clocks and checkpoints hold finite numbers


class Latency(Section):
    """Time a client needs for a task, and the ``world.latency`` table of a study.

    Attributes:
        kind: the distribution of the round trip.
        file: measured seconds, for the kinds that read them.
        typical: m, seconds.
        shape: s of log-normal, a of pareto; without effect on the others.
        step: seconds of computing for each local step.
        spread: shape of the fixed per-client factor; 0 makes all clients alike.
    """

    # whether it is for methods that work on arrival alone: rounds have no order of arrival
    on_arrival: ClassVar[bool] = False
    even: ClassVar[bool] = False  # whether all tasks of a client take equally long
    reads: ClassVar[bool] = False  # whether it needs a file

    kind: str
    file: Path | None = None
    typical: NotNegative = 1.0
    shape: Positive = 0.5
    step: NotNegative = 0.0
    spread: NotNegative = 0.0

    @model_validator(mode="after")
    def _gives_seconds(self) -> Latency:
        # one of somebody's own is found out before anything is charged
        if not self.reads and not self.even:
            if type(self).trip is Latency.trip:
                raise ValueError(f"latency '{self.kind}' needs a method trip")
            with told_in_its_place():
                first, again = (self.checked(self.trip(Seeded(0).at("trip"))) for _ in range(2))
            if first != again:
                raise ValueError(
                    f"latency '{self.kind}' gave {first:g} and {again:g} seconds for equal "
                    "generators; trip must draw from the one that it is given alone, or a resumed "
                    "run is another one"
                )
        return self

    def checked(self, seconds: object) -> float:
        """Return what a draw gave, if it is a time.

        Raises:
            ValueError: if it is none.
        """
        if isinstance(seconds, (int, float, np.integer, np.floating)) and seconds >= 0:
            return min(float(seconds), LONGEST)
        raise ValueError(
            f"latency '{self.kind}' gave {seconds!r}; it must give seconds: a number, at least 0"
        )

    @model_validator(mode="after")
    def _has_its_file(self) -> Latency:
        if self.reads != (self.file is not None):
            raise ValueError(
                f"kind '{self.kind}' needs world.latency.file, a CSV with the columns client "
                "and seconds"
                if self.reads
                else f"kind '{self.kind}' reads no world.latency.file: leave it out, or say kind "
                "= 'trace'"
            )
        return self

    def trip(self, rng: Generator) -> float:
        """One draw of base_i, seconds."""
        raise NotImplementedError

    def scale(self, entropy: Entropy, client: int) -> float:
        """scale_i."""
        return (
            min(float(entropy.at("speed", client).lognormal(0.0, self.spread)), LONGEST)
            if self.spread
            else 1.0
        )

    def draw(self, entropy: Entropy, client: int, round_number: int, steps: int) -> float:
        """Seconds from the sending of a round's task to the answer's arrival."""
        trip = self.checked(self.trip(entropy.at("latency", client, "round", round_number)))
        return self.scale(entropy, client) * (trip + steps * self.step)

    def tasks(self, entropy: Entropy, clients: int) -> Callable[[int, int], float]:
        """Seconds from the sending of a client's task, from 1, to its answer's arrival.

        A function of (client, task).

        It is called thousands of times a second.
        """
        scales = [self.scale(entropy, client) for client in range(clients)]
        if self.even:
            fixed = [min(scale * (self.typical + self.step), LONGEST) for scale in scales]
            return lambda client, task: fixed[client]
        streams = [entropy.stream("latency", client) for client in range(clients)]
        return lambda client, task: min(
            scales[client] * (self.checked(self.trip(streams[client].at(task))) + self.step),
            LONGEST,
        )


LATENCIES = Registry(base=Latency, noun="latency", place="world.latency", usual="constant")


@LATENCIES.register
class Constant(Latency):
    """m."""

    even: ClassVar[bool] = True

    kind: Literal["constant"] = "constant"

    def trip(self, rng: Generator) -> float:
        """Draw base_i, seconds."""
        return self.typical


@LATENCIES.register
class Exponential(Latency):
    """Mean m."""

    kind: Literal["exponential"] = "exponential"

    def trip(self, rng: Generator) -> float:
        """Draw base_i, seconds."""
        return self.typical * float(rng.exponential())


@LATENCIES.register
class Lognormal(Latency):
    """Median m, shape s."""

    kind: Literal["lognormal"] = "lognormal"

    def trip(self, rng: Generator) -> float:
        """Draw base_i, seconds."""
        return self.typical * float(rng.lognormal(0.0, self.shape))


@LATENCIES.register
class Pareto(Latency):
    """Minimum m, tail index a."""

    kind: Literal["pareto"] = "pareto"

    def trip(self, rng: Generator) -> float:
        """Draw base_i, seconds."""
        return self.typical * math.exp(
            min(-math.log1p(-float(rng.random())) / self.shape, math.log(LONGEST))
        )


@LATENCIES.register
class Cyclic(Constant):
    """All take equally long, and so answer in turn."""

    on_arrival: ClassVar[bool] = True

    kind: Literal["cyclic"] = "cyclic"  # type: ignore[assignment]

    def scale(self, entropy: Entropy, client: int) -> float:
        """1: nobody is slow."""
        return 1.0


@LATENCIES.register
class Trace(Latency):
    """Measured seconds: each client plays its own again and again."""

    on_arrival: ClassVar[bool] = True
    reads: ClassVar[bool] = True

    kind: Literal["trace"] = "trace"

    def tasks(self, entropy: Entropy, clients: int) -> Callable[[int, int], float]:
        """Return measured seconds of (client, task)."""
        measured = read_trace(self.file or Path(), clients)
        return lambda client, task: measured[client][(task - 1) % len(measured[client])]


def read_trace(path: Path, clients: int) -> dict[int, tuple[float, ...]]:
    """Measured seconds of each client, in order, from a CSV file of ``client`` and ``seconds``.

    Raises:
        StudyError: naming the line that cannot be used, or the client of whom nothing was measured.
    """
    found: dict[int, list[float]] = {client: [] for client in range(clients)}
    with readable(f"world.latency.file = '{path}'", remedy="Name a CSV file"):
        content = read_plain(path, MOST_TRACE).decode("utf-8")
        reader = csv.DictReader(io.StringIO(content, newline=""))
        if not {"client", "seconds"} <= set(reader.fieldnames or ()):
            raise StudyError(
                f"{path}: a trace needs the columns client and seconds; it has "
                f"{', '.join(reader.fieldnames or ())}"
            )
        for row in reader:
            try:
                client, seconds = int(row["client"]), float(row["seconds"])
            except (TypeError, ValueError):
                client, seconds = 0, math.nan
            if not 0 < seconds < math.inf:
                raise StudyError(
                    f"{path}, line {reader.line_num}: client and seconds must be numbers, and "
                    f"seconds must be positive; got {row}"
                )
            if client in found:
                found[client].append(seconds)
    if missing := [client for client, measured in found.items() if not measured]:
        raise StudyError(
            f"{path}: nothing was measured of client {missing[0]}; data.clients asks for 0 "
            f"to {clients - 1}"
        )
    return {client: tuple(measured) for client, measured in found.items()}
