r"""How long clients take, and when they are away: seeded models for the virtual clock.

A task of tau steps at client i costs  scale_i (base_i + tau step)  seconds, base_i drawn anew
for every round from one of

    constant        m
    exponential     mean m
    log-normal      median m, shape s:  m exp(s N(0,1))
    pareto          minimum m, tail index a:  m U^(-1/a)

and scale_i fixed for the client, log-normal with shape ``spread`` (some devices are always slow).
With arrivals instead of rounds there are two more: *cyclic*, where all take equally long and so answer
in turn, each one K - 1 updates stale (the cyclic delay of Li et al. 2022, section 7.1.1), and a
*trace* of measured seconds from a file, of which each client plays its own column again and again.
Independently, with probability ``dropout`` a client that took a task vanishes before it
answers, and comes back after a geometric number of rounds with probability ``rejoin`` each.

Every draw has its own address (client, round), so that latencies do not depend on the order
of events or on where a run was resumed. Times in seconds.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from sordino.entropy import Entropy, Numbered
from sordino.errors import StudyError
from sordino.files import MIB, read_plain

MOST_TRACE = 256 * MIB
LONGEST = 1e12  # seconds: clocks and checkpoints hold finite numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Time a client needs for a task.

    Attributes:
        kind: the distribution of the round trip.
        typical: m, seconds.
        shape: s of log-normal, a of pareto; unused otherwise.
        step: seconds of computing for each local step.
        spread: shape of the fixed per-client factor; 0 makes all clients alike.
        trace: measured seconds of each client, for the kind of that name.
    """

    kind: Literal["constant", "exponential", "lognormal", "pareto", "cyclic", "trace"] = "constant"
    typical: float = 1.0
    shape: float = 0.5
    step: float = 0.0
    spread: float = 0.0
    trace: Mapping[int, tuple[float, ...]] = field(default_factory=dict, hash=False)

    def draw(self, entropy: Entropy, client: int, round_number: int, steps: int) -> float:
        """Seconds from the task's sending to the answer's arrival."""
        return self.scale(entropy, client) * (self.trip(entropy.at("latency", client, "round", round_number)) + steps * self.step)

    def scale(self, entropy: Entropy, client: int) -> float:
        """scale_i."""
        return (
            min(float(entropy.at("speed", client).lognormal(0.0, self.spread)), LONGEST) if self.spread and self.kind != "cyclic" else 1.0
        )

    def trip(self, rng: np.random.Generator) -> float:
        """One draw of base_i."""
        match self.kind:
            case "constant" | "cyclic":
                trip = self.typical
            case "exponential":
                trip = self.typical * float(rng.exponential())
            case "lognormal":
                trip = self.typical * float(rng.lognormal(0.0, self.shape))
            case "pareto":
                trip = self.typical * math.exp(min(-math.log1p(-float(rng.random())) / self.shape, math.log(LONGEST)))
            case "trace":
                raise NotImplementedError("a trace has no distribution")
        return min(trip, LONGEST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Churn:
    """Clients that vanish and return.

    Attributes:
        dropout: probability that a client given a task never answers it.
        rejoin: probability, each round it is away, that it comes back for the next.
    """

    dropout: float = 0.0
    rejoin: float = 0.5

    def away(self, entropy: Entropy, client: int, round_number: int) -> int:
        """Rounds that the client will be away for, from this one on; 0 if it stays."""
        if self.dropout == 0.0:
            return 0
        rng = entropy.at("churn", client, "round", round_number)
        return int(rng.geometric(self.rejoin)) if rng.random() < self.dropout else 0


class Delays:
    """Latencies and absences of many clients, for thousands of tasks a second."""

    def __init__(self, latency: Latency, churn: Churn, entropy: Entropy, clients: int) -> None:
        self._latency, self._churn = latency, churn
        self._scale = [latency.scale(entropy, client) for client in range(clients)]
        fixed = latency.kind in ("constant", "cyclic")
        self._streams: list[Numbered] = [] if fixed else [entropy.stream("latency", client) for client in range(clients)]
        self._absences = [entropy.stream("churn", client) for client in range(clients)] if churn.dropout else []

    def seconds(self, client: int, task: int) -> float:
        """From the sending of a client's ``task``, from 1, to the arrival of its answer."""
        latency = self._latency
        if latency.kind == "trace":
            measured = latency.trace[client]
            return measured[(task - 1) % len(measured)]
        trip = latency.trip(self._streams[client].at(task)) if self._streams else latency.typical
        return min(self._scale[client] * (trip + latency.step), LONGEST)

    def away(self, client: int, task: int) -> float:
        """Seconds for which a client vanishes with this task in hand; 0 if it stays."""
        if not self._absences:
            return 0.0
        rng = self._absences[client].at(task)
        if rng.random() >= self._churn.dropout:
            return 0.0
        return float(rng.geometric(self._churn.rejoin)) * max(self._latency.typical, 1e-9)


def read_trace(path: Path, clients: int) -> dict[int, tuple[float, ...]]:
    """Measured seconds of each client, from a CSV file with the columns ``client`` and ``seconds``, in the order of measuring.

    Raises:
        StudyError: naming the line that cannot be used, or the client of whom nothing was measured.
    """
    found: dict[int, list[float]] = {client: [] for client in range(clients)}
    try:
        content = read_plain(path, MOST_TRACE).decode("utf-8")
        with io.StringIO(content, newline="") as file:
            reader = csv.DictReader(file)
            if not {"client", "seconds"} <= set(reader.fieldnames or ()):
                raise StudyError(f"{path}: a trace needs the columns client and seconds; it has {', '.join(reader.fieldnames or ())}")
            for row in reader:
                try:
                    client, seconds = int(row["client"]), float(row["seconds"])
                except (TypeError, ValueError):
                    raise StudyError(f"{path}, line {reader.line_num}: client and seconds must be numbers; got {row}") from None
                if not (np.isfinite(seconds) and seconds > 0):
                    raise StudyError(f"{path}, line {reader.line_num}: seconds must be positive; got {seconds}")
                if client in found:
                    found[client].append(seconds)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise StudyError(f"world.latency.file = '{path}': cannot be read ({error})") from error
    if missing := [client for client, measured in found.items() if not measured]:
        raise StudyError(f"{path}: nothing was measured of client {missing[0]}; data.clients asks for 0 to {clients - 1}")
    return {client: tuple(measured) for client, measured in found.items()}
