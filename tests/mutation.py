"""Mutants: random changes of one operator or constant in what keeps privacy, each of which some
test of its room must notice.

``python tests/mutation.py [--each N] [--seed S] [ROOM ...]`` makes ``N`` mutants of each room in a
copy of the sources, runs the room's tests on each of them, and prints who survived. It fails where
fewer than 90 % were noticed. Survivors that change nothing that anybody could notice are listed in
``tests/golden/equivalent.json``, with the reason, and are made no more.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
EQUIVALENT = ROOT / "tests" / "golden" / "equivalent.json"
ENOUGH = 0.9
NO_EXAMPLE = 5  # what pytest returns of a file without any
SECONDS = 600  # for one mutant; one that takes longer is noticed, for it hangs

# name -> (sources, tests); the sources of a room are those that its tests are about
ROOMS: dict[str, tuple[str, str]] = {
    "ledger": (
        "privacy/{chain,formats,ledger,storage,permit,session}",
        "privacy/test_ledger* privacy/test_people.py test_permits.py test_fingerprints.py",
    ),
    "prices": (
        "privacy/{accounting,grid,loss,parts,pure,renyi}",
        "privacy/test_{accounting,borders,group,loss,loss_grid,pure,rows,selection,special,"
        "stored_prices}.py",
    ),
    "choices": (
        "privacy/{budget,event,rounding}",
        "privacy/test_{borders,budget,event,rounding,selection,accounting,stored_prices}.py",
    ),
    "records": ("privacy/records/*", "privacy/test_{borders,people,group}.py test_promises.py"),
    "mechanisms": (
        "mechanisms/{contract,correlated,draws,gaussian,grid,kinds,knorm,response,shared}",
        "mechanisms/test_{correlated,gaussian,grid,haar_levels,knorm,modulus,own_mechanism,"
        "response,shared,single,siphash,stored_noise}.py",
    ),
    "haar": ("mechanisms/haar/*", "mechanisms/test_haar*.py mechanisms/test_stored_noise.py"),
    "sums": ("mechanisms/secure/*", "mechanisms/secure/test_*.py"),
    "kernel": (
        "core/kernel",
        "core/test_kernel.py core/test_session.py regimes/synchronous/test_rounds.py "
        "regimes/asynchronous/test_*.py test_same_bits.py",
    ),
    "gradients": (
        "training/perexample/*",
        "training/test_{perexample,person_sums,pieces,sensitivity,bounds,squares,own_modules,linear,"
        "local,outside}.py",
    ),
}
OTHER = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"), ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"), ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.And: ("and", "or"),
    ast.Or: ("or", "and"), ast.Is: ("is", "is not"), ast.In: ("in", "not in"),
}  # fmt: skip


class Mutant(NamedTuple):
    """One change: in ``path``, the text at ``span`` becomes ``new``."""

    path: Path
    span: tuple[int, int]
    new: str
    where: str

    @property
    def name(self) -> str:
        """Its name, which a change elsewhere in the file leaves as it is."""
        return f"{self.path.relative_to(ROOT / 'src' / 'sordino')} {self.where}: {self.new}"


def spread(patterns: str, below: Path, ending: str = "") -> list[Path]:
    """The files of patterns like ``a/{b,c}*``."""
    found: list[Path] = []
    for pattern in patterns.split():
        before, brace, rest = pattern.partition("{")
        inside, _, after = rest.partition("}")
        for each in inside.split(",") if brace else [""]:
            found += sorted(below.glob(f"{before}{each}{after}{ending}"))
    return found


def mutants(path: Path) -> Iterator[Mutant]:
    """Every change of one operator, number or truth value outside of messages and types."""
    text = path.read_text()
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def at(line: int, column: int) -> int:
        whole = text[starts[line - 1] : starts[line]]
        return starts[line - 1] + len(whole.encode()[:column].decode())

    def ends(node: ast.expr) -> tuple[int, int]:
        last = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
        return at(node.lineno, node.col_offset), at(*last)

    def changes(node: ast.AST, inside: str) -> Iterator[Mutant]:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            inside = f"{inside}.{node.name}".strip(".")
        pairs: list[tuple[ast.AST, ast.expr, ast.expr]] = []
        if isinstance(node, ast.BinOp):
            pairs = [(node.op, node.left, node.right)]
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            pairs = list(zip(node.ops, sides, node.comparators, strict=False))
        elif isinstance(node, ast.BoolOp):
            pairs = [(node.op, *two) for two in zip(node.values, node.values[1:], strict=False)]
        for op, left, right in pairs:
            old, new = OTHER.get(type(op), ("", ""))
            between = ends(left)[1], ends(right)[0]
            place = text.find(old, *between) if old else -1
            if place >= 0:
                yield made((place, place + len(old)), new, inside)
        if isinstance(node, ast.Constant) and type(node.value) in (int, float, bool):
            other = str(not node.value) if type(node.value) is bool else f"({node.value!r} + 1)"
            yield made(ends(node), other, inside)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "exc", "msg", "type_params"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not isinstance(child, ast.JoinedStr):
                    yield from changes(child, inside)

    def made(span: tuple[int, int], new: str, inside: str) -> Mutant:
        start, end = span
        line = f"{text[text.rfind(chr(10), 0, start) + 1 : start]}[{text[start:end]}]"
        line += text[end:].split("\n")[0]
        return Mutant(path, span, new, f"{inside}: {' '.join(line.split())}")

    yield from changes(ast.parse(text), "")


def noticed(mutant: Mutant, tests: list[Path], copy: Path) -> bool:
    """Whether one of the tests fails on a mutant, which is put into the copy meanwhile."""
    text = mutant.path.read_text()
    place = copy / mutant.path.relative_to(ROOT)
    place.write_text(text[: mutant.span[0]] + mutant.new + text[mutant.span[1] :])
    command = [sys.executable, "-B", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    command += ["-p", "no:xdist"]
    surroundings = {**os.environ, "PYTHONPATH": str(copy / "src"), "OMP_NUM_THREADS": "1"}
    # its own examples apart: pytest imports their file once more, whose classes are then others
    runs = [str(place)], [str(copy / each.relative_to(ROOT)) for each in tests]
    try:
        for files in runs:
            done = subprocess.run(
                [*command, *files], cwd=copy, env=surroundings, capture_output=True, timeout=SECONDS
            )
            if done.returncode not in (0, NO_EXAMPLE):
                return True
    except subprocess.TimeoutExpired:
        return True
    finally:
        place.write_text(text)
    return False


def main() -> int:
    """Make mutants of the rooms, and say who survived."""
    reader = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    reader.add_argument("rooms", nargs="*", default=list(ROOMS), metavar="ROOM")
    reader.add_argument("--each", type=int, default=23, help="mutants of each room")
    reader.add_argument("--seed", type=int, default=None)
    asked = reader.parse_args()
    seed = random.SystemRandom().randrange(10**6) if asked.seed is None else asked.seed
    print(f"seed {seed}", flush=True)
    equivalent = json.loads(EQUIVALENT.read_text())
    killed = total = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        for part in ("src", "tests", "conftest.py", "pyproject.toml", "docs", "examples"):
            kind = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
            copy.mkdir(exist_ok=True)
            kind(ROOT / part, copy / part)
        for room in asked.rooms:
            sources, tests = ROOMS[room]
            known = [
                mutant
                for path in spread(sources, ROOT / "src" / "sordino", ".py")
                for mutant in mutants(path)
                if mutant.name not in equivalent
            ]
            chosen = random.Random(f"{seed} {room}").sample(known, min(asked.each, len(known)))
            files = spread(tests, ROOT / "tests")
            same = Mutant(known[0].path, (0, 0), "", "")
            if noticed(same, files, copy):
                raise SystemExit(f"{room}: its tests fail, or take long, without any change")
            survivors = [mutant for mutant in chosen if not noticed(mutant, files, copy)]
            killed, total = killed + len(chosen) - len(survivors), total + len(chosen)
            print(f"{room}: {len(chosen) - len(survivors)} of {len(chosen)}, of {len(known)}")
            for mutant in survivors:
                print(f"  survived: {mutant.name}", flush=True)
    print(f"{killed} of {total} mutants were noticed ({killed / total:.1%})")
    return 0 if killed >= ENOUGH * total else 1


if __name__ == "__main__":
    sys.exit(main())
