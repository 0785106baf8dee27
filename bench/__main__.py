"""``make bench``: every row measured now, in one run, one thread; also written to
bench/latest.json.
"""

from __future__ import annotations

import json
import platform
from pathlib import Path

import torch

from bench import (
    accounting,
    arrivals,
    clients,
    events,
    features,
    federation,
    flare,
    many_sites,
    network,
    own_models,
    rounds,
    starting,
    step,
    wavelets,
    workers,
)
from sordino.base.settings import tune


def main() -> None:
    """Measure, print, write."""
    tune()  # as the command line does
    torch.set_num_threads(1)
    rows = []
    print(f"{'':4}{'measured':<108}{'peer':>8}{'ours':>8}  reach")
    federations = (network, many_sites, federation, flare)
    parts = (
        *(step, own_models, wavelets, features, rounds, clients, arrivals, events),
        *(*federations, accounting, starting, workers),
    )
    for part in parts:
        for row in part.measure():
            rows.append(row)
            peer = "-" if row["peer"] is None else f"{row['peer']:.3g}"
            print(
                f"{'ok' if row['met'] else 'NO':4}{row['what']:<108}{peer:>8}{row['ours']:>8.3g} "
                f" {row['reach']}",
                flush=True,
            )
            print(f"    {row['detail']}")
    out = Path(__file__).with_name("latest.json")
    about = {
        "torch": torch.__version__,
        "machine": platform.machine(),
        "threads": 1,
        "allocator": "glibc, tuned",
    }
    out.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")
    print(f"written to {out.name}")


if __name__ == "__main__":
    main()
