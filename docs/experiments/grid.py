"""Run the table of docs/ali-dpfl-tables.md: methods x partitions x budgets x seeds, resumable.

    python docs/experiments/grid.py SETTING --seeds 3 --jobs 2

A cell that has a result is not run again. Every cell is an ordinary run folder under
``runs/tables/``; its figures are read from ``run.json`` alone.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path("runs/tables")

# setting: R_c that the budget of epsilon 2 pays for, and the privacy section that gives it
SETTINGS = {
    "classic": (
        314,
        [
            "privacy.sampling_rate=0.015",
            "privacy.noise_multiplier=1.1",
            'privacy.accountant="rdp-classic"',
        ],
    ),
    "pld": (
        716,
        ["privacy.sampling_rate=0.015", "privacy.noise_multiplier=1.1", 'privacy.accountant="pld"'],
    ),
    "planned": (
        316,
        ["privacy.sampling_rate=0.06", 'privacy.accountant="pld"', "budget.steps=316"],
    ),
    "matched": (
        158,
        ["privacy.sampling_rate=0.06", 'privacy.accountant="pld"', "budget.steps=158"],
    ),
}
METHODS = {
    "ali-dpfl": ['method.name="ali-dpfl"'],
    "als-dpfl": ['method.name="als-dpfl"'],
    **{f"tau={tau}": ['method.name="dp-sgd"', f"method.tau={tau}"] for tau in (1, 2, 3, 5, 10)},
}
PARTITIONS = {
    "dir005": 'data.partition={kind="dirichlet", beta=0.05}',
    "iid": 'data.partition={kind="iid"}',
}
RATIOS = (2, 5)
STUDY = Path(__file__).with_name("table.toml")


def cell(
    setting: str, method: str, partition: str, ratio: int, seed: int, extra: list[str], tag: str
) -> Path:
    """Run one cell unless it is done; its folder."""
    steps, privacy = SETTINGS[setting]
    ratio = binding(setting, method, ratio)
    folder = ROOT / f"{setting}-{partition}-r{ratio}-{method}-s{seed}{tag}"
    if folder.exists() and json.loads((folder / "run.json").read_text())["result"] is not None:
        return folder
    changes = [
        *METHODS[method],
        *privacy,
        PARTITIONS[partition],
        f"seed={seed}",
        f"budget.rounds={math.ceil(steps / ratio)}",
        *extra,
    ]
    if method == "ali-dpfl":
        changes.append(f"method.gamma={10.0 if partition == 'dir005' else 0.0}")
    if setting == "planned" and method.startswith("tau="):
        changes.append("privacy.noise_multiplier=" + planned_sigma())
    command = [sys.executable, "-m", "sordino", "run"]
    command += ["--resume", str(folder)] if folder.exists() else [str(STUDY), "--out", str(folder)]
    if not folder.exists():
        command += [part for change in changes for part in ("--set", change)]
    done = subprocess.run([*command, "--quiet"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{folder}: {done.stderr}")
    return folder


def binding(setting: str, method: str, ratio: int) -> int:
    """The largest round budget that gives the same run: a fixed tau that spends R_c before its
    rounds end never meets them.
    """
    if not method.startswith("tau="):
        return ratio
    steps, tau = SETTINGS[setting][0], int(method.removeprefix("tau="))
    return next(
        known
        for known in sorted({*RATIOS, ratio})
        if known == ratio or tau * math.ceil(steps / ratio) >= steps
    )


def planned_sigma() -> str:
    """The noise of the planned setting: the same for adaptive and fixed tau."""
    from sordino.privacy import noise_multiplier

    return str(
        noise_multiplier(sampling_rate=0.06, steps=316, epsilon=2.0, delta=1e-5, accountant="pld")
    )


def main() -> None:
    """Run every cell of one setting."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("setting", choices=SETTINGS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--set", dest="extra", action="append", default=[])
    parser.add_argument("--tag", default="")
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    parser.add_argument("--partitions", nargs="*", default=list(PARTITIONS))
    parser.add_argument("--ratios", nargs="*", type=int, default=list(RATIOS))
    chosen = parser.parse_args()
    cells = [
        (chosen.setting, method, partition, ratio, seed, chosen.extra, chosen.tag)
        for seed in range(chosen.seeds)
        for partition in chosen.partitions
        for ratio in chosen.ratios
        for method in chosen.methods
    ]
    ROOT.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(chosen.jobs) as pool:
        for number, folder in enumerate(pool.map(lambda c: cell(*c), cells), 1):
            result = json.loads((folder / "run.json").read_text())["result"]
            print(
                f"{number}/{len(cells)} {folder.name} accuracy {result['accuracy']:.4f} "
                f"epsilon {result['epsilon']:.4f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
