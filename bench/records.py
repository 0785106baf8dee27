"""How a ledger of the data does with many records and many runs: ``python -m bench.records
[records] [runs]``.

Rows are random words, so nothing is read and trained: what is timed is the ledger. Each run divides
the same records among ten clients by another seed, charges all of them alike a few times, and ends.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from sordino.privacy import Budget, Charge, Gaussian, LedgerSession, PoissonSampled
from sordino.privacy.records import Records

STEP = PoissonSampled(sampling_rate=0.01, event=Gaussian(noise_multiplier=4.0))
BUDGET = Budget(1e6, 1e-6, "rdp")
CLIENTS = 10


def divided(rows: np.ndarray, seed: int) -> list[Records]:
    """The records, dealt to clients."""
    parts = np.array_split(np.random.default_rng(seed).permutation(len(rows)), CLIENTS)
    return [Records(f"client:{i}", "sample", rows[part]) for i, part in enumerate(parts)]


def timed(what: str, start: float) -> float:
    """Say how long it took; the time now."""
    now = time.perf_counter()
    print(f"{what:<40}{(now - start) * 1000:>12.1f} ms", flush=True)
    return now


def charged(ledgers: LedgerSession, rounds: int) -> list[float]:
    """Milliseconds of each charge of all clients."""
    found = []
    for number in range(rounds):
        charges = [
            Charge(
                unit=unit,
                event=STEP,
                count=1,
                why="",
                method="m",
                round=number,
                key=f"{ledgers.run}/{unit}/{number}",
            )
            for unit in ledgers.names
        ]
        start = time.perf_counter()
        ledgers.charge(charges, BUDGET)
        found.append((time.perf_counter() - start) * 1000)
    return found


def main(records: int = 10_000_000, runs: int = 1000) -> None:
    """Time the opening of a first run, charges, the end, a second run; then many runs of fewer
    records.
    """
    rows = np.random.default_rng(0).integers(0, 2**63, (records, 2), dtype=np.uint64)
    print(f"{records:,} records, {CLIENTS} clients")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for run in ("first", "second", "third"):
            parts = divided(rows, len(run))
            start = time.perf_counter()
            with LedgerSession.for_data(folder, run, parts) as ledgers:
                timed(f"{run} run: sets opened", start)
                each = charged(ledgers, 20)
                print(
                    f"{'charge of all clients, median, most':<40}{np.median(each):>12.1f} ms "
                    f"{max(each):.1f} ms"
                )
                start = time.perf_counter()
                ledgers.finish()
                start = timed(f"{run} run: sets closed", start)
        size = sum(path.stat().st_size for path in folder.iterdir())
        print(f"{'bytes a record':<40}{size / records:>12.1f}")
        from sordino.privacy import Ledger
        from sordino.privacy.records import store

        start = time.perf_counter()
        with Ledger.open(folder / "ledger.sqlite") as ledger:
            start = timed("ledger opened", start)
            store.index(ledger.connection)
            start = timed("all arrays read", start)
    small = rows[: max(records // 1000, 100)]
    print(f"{runs} runs over {len(small):,} records")
    with tempfile.TemporaryDirectory() as name:
        folder, start, later = Path(name), time.perf_counter(), [0.0]
        for number in range(runs):
            with LedgerSession.for_data(folder, f"run {number}", divided(small, number)) as ledgers:
                first, *others = charged(ledgers, 4)
                later += others
                if number == runs - 1:
                    ledgers.epsilon("client:0", 1e-6, "rdp")
                ledgers.finish()
        print(f"{'a run, mean':<40}{(time.perf_counter() - start) / runs * 1000:>12.1f} ms")
        print(
            f"{'charge in the last run: first, others':<40}{first:>12.1f} ms "
            f"{np.median(later[-3:]):.1f} ms"
        )
        print(f"{'charge in all runs but firsts: most':<40}{max(later):>12.1f} ms")
        with Ledger.open(folder / "ledger.sqlite") as ledger:
            start = time.perf_counter()
            ledger.refresh()
            timed("ledger opened and its chain walked", start)
        start = time.perf_counter()
        with LedgerSession.for_data(folder, "last", divided(small, runs)) as ledgers:
            timed("the last run: sets opened", start)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
