r"""Gaussian noise that is correlated from step to step, for records that come once a pass.

**Purpose.** Training adds gradients up. Independent noise adds up with them; noise of which each
step takes back a part of what the steps before added does not. A stream releases, at its steps
t = 0, 1, ...,

    G_t + (C^-1 Z)_t,        Z_t ~ N(0, s^2 I_d) independent,

G_t a sum of contributions, C lower triangular and Toeplitz: C_(t, u) = c_(t - u), c_0 = 1. These
are C G + Z, multiplied by C^-1, so the price is that of a Gaussian mechanism on C G
(Choquette-Choo et al. 2023). No sampling is needed, and none is booked.

**The price.** A record takes part at most once in any b steps in a row. Then each time it does
costs one ``Gaussian(sigma)`` (:meth:`CorrelatedGaussian.event`), whatever C is: s is sigma times
what the record moves. The proof, with all that is rounded, is in docs/mathematics.md ("Correlated
noise"); the parts that this file must keep are these.

* *What is released* are the whole numbers W_t + zeta_t, times a public step g:

      W_t = round(S_t / g),    zeta_t = N_t - round(f(zeta_0 ... zeta_(t-1))),    N_t = round(s Z).

  f is the function of the memory that stands for sum_(j >= 1) c_j zeta_(t-j). Given what was
  released before, the zetas before follow from the data. So W_t + zeta_t is a whole number that the
  data and the past determine, plus N_t: a continuous Gaussian, rounded.
* *Who takes part at step u moves step t* by at most c_(t-u) D + 2 sqrt(d) steps of the grid, with
  D = C / g + sqrt(d), where f is computed so well that rounding it moves a number by at most 2.
* *Over a run of K passes* (n = K b steps) no record moves more, in squares, than one that comes at
  steps 0, b, 2b, ...: that holds for c that falls and is not negative, and for any c that ends
  before b. K-th parts of that are charged, one as each pass begins. The later passes of a run move
  more than the earlier ones, so at no moment has a record moved more than was charged. (With a
  band, a record that does not come in a pass need not pay for it. With buffers it must.)
* *A matrix begins anew* after its n steps, where steps of the stream are missing, and where clip,
  sigma or d are others than before: a block of its own, whose records pay as in any other.

**Matrices.** *banded*: the square root of the matrix of prefix sums, c_j = binom(2j, j) / 4^j,
j < b (Kalinin and Lampert 2024). Its memory has b - 1 rows. *blt*: a buffered linear Toeplitz
matrix, c_j = sum_k w_k theta_k^(j-1), with two buffers whatever b is (Dvijotham et al. 2024;
McMahan et al. 2024, several passes). theta and w are searched for, for b and K, by the error of
prefix sums; they are public. Two buffers come within 2 % of the band for 1 pass to 16, and below it
for more.

>>> noise = Correlation(kind="banded", separation=4, passes=8)
>>> noise.column(4).tolist()
[1.0, 0.5, 0.375, 0.3125]
>>> mechanism = CorrelatedGaussian(clip=1.0, noise_multiplier=2.0, correlation=noise)
>>> mechanism.event()
Gaussian(noise_multiplier=2.0)

Shapes: sums (d,); c (n,); error and lengths in units of sigma C.

References:
    Choquette-Choo, Ganesh, McKenna, McMahan, Rush, Thakurta, Xu 2023, (Amplified) Banded Matrix
    Factorization, theorem 2 and section 3.
    Denisov, McMahan, Rush, Smith, Thakurta 2022, Improved Differential Privacy for SGD via Optimal
    Private Linear Operators on Adaptive Streams.
    Dvijotham, McMahan, Pillutla, Steinke, Thakurta 2024, Efficient and Near-Optimal Noise
    Generation for Streaming Differential Privacy.
    Kalinin and Lampert 2024, Banded Square Root Matrix Factorization for Differentially Private
    Model Training, theorem 2.
    McMahan, Xu, Zhang 2024, A Hassle-free Algorithm for Private Learning in Practice: Don't Use
    Tree Aggregation, Use BLTs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from sordino.base.arrays import Floats
from sordino.base.errors import ResumeError, StudyError
from sordino.mechanisms.gaussian import Bounded, Gaussian, noisy_count, normal_within

if TYPE_CHECKING:  # whoever only prices a release does not wait for torch
    from torch import Tensor

FORMAT = 1
"""Of a memory that is kept."""

LONGEST_MATRIX = 2**17
"""Steps after which a matrix begins anew, however long a run is."""
SLACK = 2.0
"""Steps of the grid by which rounding f may move a number."""
LONGEST_BAND, MOST_BUFFERED = 3318, 128.0
"""Up to there f is computed as well as SLACK says: batches of a pass of banded noise, for which c_1
+ c_2 + ... comes to 64, and what it may come to with buffers.
"""

_SHARE = 2.0**-14  # of C, what sqrt(d) steps of the grid come to at most, if s allows it
_FINE, _FINEST = 2.0**-20, 2.0**-32
_WIDEST = 2.0**26  # s beyond it could be held by the memory, which costs accuracy
_ROUNDING = 1.0 + 2.0**-28  # of sums of 2^20 squares, and of powers of theta
_ABOUT = "about"
_UNIT, _FLATTEST = 8, 96  # theta is 1 - 2^(-u / 8), u at most 96
_PARTS = 1024  # of w
_BUFFERS = 2

Rows = tuple[NDArray[Any], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Correlation:
    """The matrix C of a stream, from public numbers alone.

    Attributes:
        kind: "banded" or "blt".
        separation: b; a record takes part at most once in any b steps in a row.
        passes: K, of a run; the matrix of a longer one begins anew.

    Raises:
        StudyError: for numbers below 1, and for more batches than a matrix has steps.
    """

    kind: Literal["banded", "blt"]
    separation: int
    passes: int

    def __post_init__(self) -> None:
        if not 1 <= self.separation <= LONGEST_MATRIX or self.passes < 1:
            raise StudyError(
                f"privacy.batches must be from 1 to {LONGEST_MATRIX}, and passes at least 1; got "
                f"{self.separation} and {self.passes} passes"
            )
        if self.kind == "banded" and self.separation > LONGEST_BAND:
            raise StudyError(
                f"privacy.batches = {self.separation} is more than banded noise can be computed "
                "for: set privacy.correlation = 'blt', whose memory does not grow"
            )

    @property
    def steps(self) -> int | None:
        """n, after which the matrix begins anew; None where each column ends by itself."""
        if self.kind == "banded":
            return None
        return min(self.passes, LONGEST_MATRIX // self.separation) * self.separation

    @property
    def buffers(self) -> tuple[Floats, Floats]:
        """theta (m,) and w (m,) of "blt"."""
        return _buffers(self.separation, (self.steps or 0) // self.separation)

    def column(self, count: int) -> Floats:
        """c_0 ... (count,)."""
        if self.kind == "banded":
            found = np.zeros(count)
            found[: self.separation] = _root(self.separation)[:count]
            return found
        from sordino.mechanisms.draws import column_of

        found = np.empty(count)
        column_of(*self.buffers, found)
        return found

    def moved(self, each: float, slack: float) -> float:
        """The length that a record moves C G for each time that it takes part, rounded upward.

        Args:
            each: D, that it moves one G_t by.
            slack: what every later step is moved by beside that.
        """
        squares, sums, steps = _moved(self)
        square = squares * each * each + 2.0 * sums * each * slack + steps * slack * slack
        return math.sqrt(square) * _ROUNDING

    def together(self, steps: int) -> float:
        """Deviation of the noise in the sum of so many steps' releases, in units of sigma C;
        sqrt(steps) is that of independent noise.
        """
        return self.moved(1.0, 0.0) * _together(self, steps)

    @property
    def spread(self) -> float:
        """Root mean square of zeta, in units of s: the length of a late row of C^-1."""
        return _spread(self)


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """The noise of earlier steps, as later ones need it. Secret: with it, noise can be taken off.

    Attributes:
        number: of the stream's next step, from 0.
        taken: steps since the matrix began.
        terms: clip, sigma and d, for which it holds.
        token: of all that led to it. Noise is drawn over it, as over what the noise hides: drawn
            twice for one sum with two memories, it would show what these differ by.
        rows: of "banded" the last zetas, the newest first, each (d,), int32; of "blt" one array of
            buffers (m, d). Never written to.
    """

    number: int
    taken: int
    terms: tuple[float, float, int]
    token: str
    rows: Rows

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return it as it is kept: arrays by name."""
        about = msgspec.json.encode((FORMAT, self.number, self.taken, self.terms, self.token))
        rows = {f"row.{number}": row for number, row in enumerate(self.rows)}
        return {_ABOUT: np.frombuffer(about, np.uint8), **rows}

    @classmethod
    def of(cls, kept: Mapping[str, NDArray[Any]]) -> Memory:
        """Return what :meth:`arrays` gave.

        Raises:
            ResumeError: if it is of a later format.
            ValueError: if it cannot be one.
        """
        found = msgspec.json.decode(kept[_ABOUT].tobytes())
        if not isinstance(found, list) or found[:1] != [FORMAT]:
            raise ResumeError(
                f"the memory of correlated noise has format {found[:1]}, and this program reads "
                f"{FORMAT}: go on with the version that wrote it"
            )
        kinds = tuple[int, int, int, tuple[float, float, int], str]
        _, number, taken, terms, token = msgspec.convert(found, kinds)
        rows = tuple(kept[f"row.{i}"] for i in range(len(kept) - 1))
        fits = ("int32", (terms[2],)), ("float64", (_BUFFERS, terms[2]))
        if any((each.dtype.name, each.shape) not in fits for each in rows):
            # compiled loops check no index: they would take noise from what lies behind a row
            raise ValueError(f"rows of correlated noise must have {terms[2]} numbers")
        return cls(number, taken, terms, token, rows)


def released(
    mechanism: Bounded,
    total: Tensor,
    excess: float,
    rng: Generator,
    memory: Memory | None,
    number: int,
) -> tuple[Tensor, float | None, Memory | None]:
    """Return a step's noisy sum (d,), its noisy count, and what later noise needs, if anything;
    see :meth:`CorrelatedGaussian.release_after`, which an audit's mechanism around it has, too.
    """
    after = getattr(mechanism, "release_after", None)
    if after is None:
        return (*mechanism.release_counted(total, excess, rng), None)
    found: tuple[Tensor, float | None, Memory | None]
    found = after(total, excess, rng, memory, number)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrelatedGaussian(Gaussian):
    """Release sums of one stream after another, with correlated noise and perhaps a count.

    Attributes:
        correlation: the matrix. The noise of counts is independent.
    """

    correlation: Correlation

    @property
    def deviation_multiplier(self) -> float:
        """sigma_v: of the vector alone, for each time that a record takes part."""
        return self.noise_multiplier / math.sqrt(1.0 - self.share)

    @property
    def fresh_multiplier(self) -> float:
        """Standard deviation of one number of Z_t, in units of C."""
        return self.deviation_multiplier * self.correlation.moved(1.0, 0.0)

    @property
    def vector_multiplier(self) -> float:
        """Root mean square of the noise on one number of a step, in units of C."""
        return self.fresh_multiplier * self.correlation.spread

    def noise_within(self, dimension: int, times: int, chance: float) -> float:
        # noises of one stream need not be independent: their lengths add up at most
        deviation = self.vector_multiplier * self.clip * times
        return normal_within(deviation, deviation, dimension, chance)

    def release_counted(
        self, total: Tensor, excess: float, rng: Generator
    ) -> tuple[Tensor, float | None]:
        """The first release of a stream, which has no memory yet."""
        noisy, count, _ = self.release_after(total, excess, rng, None, 0)
        return noisy, count

    def release_after(
        self, total: Tensor, excess: float, rng: Generator, memory: Memory | None, number: int
    ) -> tuple[Tensor, float | None, Memory]:
        """The noisy sum (d,), float32; a noisy count if it has one; and what the next step needs.

        Args:
            total: sum (d,) of contributions, each within C; left as it is.
            excess: sum over the batch of b_i - 1/2, in examples.
            rng: the noise, drawn over the sum and the memory's token; the vector's comes first,
                then the count's.
            memory: of the step before in this stream; None for the first.
            number: of the step in its stream, from 0. The matrix begins anew where steps are
                missing: its rows must be the steps that ``separation`` is counted in.
        """
        import torch

        raw = total.detach().to(device="cpu", dtype=torch.float64).contiguous().numpy()
        grid = _grid(self.correlation, self.clip, self.deviation_multiplier, raw.size)
        terms = self.clip, self.deviation_multiplier, raw.size
        if (
            memory is None
            or (memory.number, memory.terms) != (number, terms)
            or memory.taken == self.correlation.steps
        ):
            memory = Memory(number, 0, terms, "", ())
        drawn, out = grid.drawn(raw, rng), np.empty(raw.size, np.float32)
        release = self._banded if self.correlation.kind == "banded" else self._buffered
        rows = release(drawn, raw, grid.step, memory.rows, out)
        count = noisy_count(excess, rng, self.count_deviation) if self.share else None
        after = Memory(number + 1, memory.taken + 1, terms, rng.bytes(16).hex(), rows)
        return torch.from_numpy(out).to(total.device), count, after

    def _banded(
        self, drawn: Floats, total: Floats, step: float, rows: Rows, out: NDArray[np.float32]
    ) -> Rows:
        from sordino.mechanisms.draws import add_row, banded

        past, kept = np.zeros(total.size), np.empty(total.size, np.int32)
        column = _root(self.correlation.separation)[1 : len(rows) + 1].tolist()
        for factor, row in zip(column, rows, strict=True):
            add_row(past, factor, row)
        banded(drawn, past, total, step, kept, out)
        return (kept, *rows)[: self.correlation.separation - 1]

    def _buffered(
        self, drawn: Floats, total: Floats, step: float, rows: Rows, out: NDArray[np.float32]
    ) -> Rows:
        from sordino.mechanisms.draws import buffered

        decays, weights = self.correlation.buffers
        held = rows[0] if rows else np.zeros((decays.size, total.size))
        after = np.empty_like(held)
        buffered(drawn, total, step, decays, weights, held, after, out)
        return (after,)


@lru_cache(maxsize=256)
def _root(bands: int) -> Floats:
    """binom(2j, j) / 4^j (bands,), the square root of 1 / (1 - x), in multiples of 2^-16."""
    j = np.arange(1, bands)
    exact = np.concatenate([[1.0], np.cumprod((2.0 * j - 1.0) / (2.0 * j))])
    found: Floats = np.rint(exact * 2.0**16) / 2.0**16
    found.flags.writeable = False
    return found


def _packed(column: Floats, separation: int) -> Floats:
    """The effect of a record on step t (n,), if it comes at steps 0, b, 2b, ..."""
    rows = np.zeros(-(-column.size // separation) * separation)
    rows[: column.size] = column
    return np.cumsum(rows.reshape(-1, separation), axis=0).reshape(-1)


@lru_cache(maxsize=256)
def _moved(correlation: Correlation) -> tuple[float, float, float]:
    """Squares, sums and number of what a record moves steps by, for each time it comes."""
    steps = correlation.steps or correlation.separation
    moved = _packed(correlation.column(steps), correlation.separation)
    times = steps / correlation.separation
    return float((moved * moved).sum()) / times, float(moved.sum()) / times, steps / times


@lru_cache(maxsize=256)
def _spread(correlation: Correlation) -> float:
    count = min(correlation.steps or 4 * correlation.separation, 4096)
    found = _inverse(correlation.column(count), count)
    return math.sqrt(float(found @ found))


def _inverse(column: Floats, count: int) -> Floats:
    """The first column (count,) of C^-1, of which C ends before its ``column`` (n,) does."""
    found = np.zeros(count)
    for t in range(count):
        last = min(t, column.size - 1)
        found[t] = float(t == 0) - float(column[1 : last + 1] @ found[t - last : t][::-1])
    return found


@lru_cache(maxsize=256)
def _together(correlation: Correlation, steps: int) -> float:
    """Deviation of the sum of so many zetas, in units of s: matrices that begin anew add up, and
    a band's later steps add what the last one of so many does.
    """
    each = min(correlation.steps or LONGEST_MATRIX, steps)
    reach = min(each, correlation.separation if correlation.steps is None else each)
    sums = np.cumsum(_inverse(correlation.column(reach), each))
    squares = np.cumsum(sums**2)
    if correlation.steps is None:
        return math.sqrt(float(squares[-1]) + (steps - each) * float(sums[-1]) ** 2)
    whole, rest = divmod(steps, each)
    return math.sqrt(whole * float(squares[-1]) + (float(squares[rest - 1]) if rest else 0.0))


@lru_cache(maxsize=1024)  # edges have passes of their own length
def _buffers(separation: int, passes: int) -> tuple[Floats, Floats]:
    """Decays and weights with the least error of prefix sums at one price, by a search over public
    numbers.

    Steps of eighths of a power of two and of 1/1024 leave less than 0.1 % to gain. What is hardly
    better is not taken, so that the last digits of a processor do not decide.
    """
    from sordino.mechanisms.draws import column_of, prefix_error

    steps = separation * passes
    column = np.empty(steps)

    def made(places: tuple[int, ...]) -> tuple[Floats, Floats]:
        decays = 1.0 - 2.0 ** (-np.array(places[:_BUFFERS]) / _UNIT)
        return decays, np.array(places[_BUFFERS:]) / _PARTS

    def cost(places: tuple[int, ...]) -> float:
        flat, heavy = places[:_BUFFERS], places[_BUFFERS:]
        if min(places) < 0 or max(flat) > _FLATTEST or sum(heavy) > _PARTS:
            return math.inf  # c would rise somewhere
        decays, weights = made(places)
        if float((weights / (1.0 - decays)).sum()) > MOST_BUFFERED:
            return math.inf
        column_of(decays, weights, column)
        moved = _packed(column, separation)
        return float(prefix_error(decays, weights, steps) * (moved @ moved))

    longest = int(_UNIT * math.log2(max(separation, 2)))
    best: tuple[int, ...] = (longest // 2, min(longest, _FLATTEST), _PARTS // 4, _PARTS // 4)
    least, scale = cost(best), 32
    while scale:
        units = (max(scale // 4, 1),) * _BUFFERS + (scale,) * _BUFFERS
        moves = [
            [
                sign * unit * (place in (i, j)) * (other if place == j != i else 1)
                for place, unit in enumerate(units)
            ]
            for i in range(len(units))
            for j in range(i, len(units))
            for sign in (1, -1)
            for other in (1, -1)
        ]
        before = least
        for move in moves:
            places = tuple(place + by for place, by in zip(best, move, strict=True))
            if (found := cost(places)) < least * (1.0 - 1e-9):
                best, least = places, found
        scale = scale if least < before else scale // 2
    return made(best)


@lru_cache(maxsize=1024)
def _grid(correlation: Correlation, clip: float, multiplier: float, dimension: int) -> Any:
    """The grid and the noise on it.

    Raises:
        StudyError: for noise that no grid can carry.
    """
    from sordino.mechanisms.grid import Grid

    root, noise = math.sqrt(max(dimension, 1)), multiplier * correlation.moved(clip, 0.0)
    finest = max(min(noise * _FINE, clip * _SHARE / root), clip * _FINEST, noise / _WIDEST)
    if 2.0**-1000 < finest < 2.0**900:
        step = 2.0 ** math.ceil(math.log2(finest))
        deviation = multiplier * correlation.moved(clip / step + root, SLACK * root)
        if deviation <= 4.0 * _WIDEST:
            return Grid(step, deviation)
    raise StudyError(
        f"clip = {clip:g} and noise_multiplier = {multiplier:g}: correlated noise cannot be "
        f"computed for these on {dimension} numbers. Set privacy.correlation = 'none'"
    )
