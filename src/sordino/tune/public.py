"""Constants chosen on public data: trials of the same study on a data set that protects nobody."""

from __future__ import annotations

import hashlib
import io
import math
import secrets
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sordino.base.errors import StudyError
from sordino.base.files import MOST_LOG, read_below, there
from sordino.base.fingerprints import keyed
from sordino.clients.division import ANY, corpus, examples, federation, has_test, records
from sordino.clients.study import HorizontalStudy
from sordino.comparison import runner
from sordino.comparison.schedule import Side, Task, seeds_of, slug, tasks
from sordino.core.files import replace_file
from sordino.core.prepared import PUBLIC
from sordino.core.regimes import calibrated, plan
from sordino.core.run.reading import load
from sordino.core.run.session import book_public
from sordino.core.study.data import SHARE, Data
from sordino.data import names as published
from sordino.data import sets
from sordino.data.table import ending, frame_of, read_arrays
from sordino.privacy import LedgerSession
from sordino.privacy.records import Records
from sordino.privacy.records.group import SAMPLE
from sordino.tune.grid import Candidate, again

MEASURE = "accuracy of the final model on the test set of the public data"
VALIDATION = "validation"
RULES = ("target", "label_range", "classes", "categories", "unknown", "ranges", "missing")
"""Keys of ``[data]`` that are about the columns of a file."""
PLAIN: dict[str, Any] = dict.fromkeys(
    ("test_share", "test_file", "client_column", "person", "person_rows")
)
"""Keys of ``[data]`` about whose rows there are and which are for testing, left out."""
ALONE = {"ledger": "run", "entropy": "seed", "evaluation_epsilon": None}


@dataclass(frozen=True, slots=True)
class Scored:
    """The score of a candidate: the accuracy of each seed, or why there is none."""

    title: str
    accuracies: tuple[float, ...]
    failed: tuple[str, ...] = ()

    @property
    def mean(self) -> float:
        """Over the seeds; minus infinity where a run failed."""
        if self.failed or not self.accuracies:
            return -math.inf
        return math.fsum(self.accuracies) / len(self.accuracies)


def moved(study: HorizontalStudy, on: str, declared: bool) -> HorizontalStudy:
    """The study on public data: a data set of this program, or a file or a data set of somebody's
    own that is ``declared`` public.

    Its privacy, and so its noise, stays what it is; its clients' shares are dealt anew.

    Raises:
        StudyError: if there is no such data, or it is the study's own.
    """
    own, file = study.data, None if _is_named(on) else Path(on)
    if file is not None and not file.is_file():
        raise StudyError(
            f"--on {on}: no published data set has this name, and there is no such file. Known "
            f"data sets: {', '.join(published())}. A choice on the study's own data is --on private"
        )
    if file is not None:
        private = [each for each in (own.file, own.test_file) if each is not None and each.exists()]
        if any(each.samefile(file) for each in private):
            raise StudyError(
                f"--on {on}: this is a file of the study's own data, which a choice would have to "
                "pay for. Give another file, or --on private"
            )
    elif own.name == on or (own.name and sets.named(own.name) == sets.named(on) is not None):
        raise StudyError(
            f"--on {on}: this is the study's own data, which a choice would have to pay for. Give "
            "another data set, or --on private"
        )
    if not (declared or sets.is_published(on)):
        raise StudyError(
            f"--on {on}: every row of it would be used without any protection. Say that they are "
            "public with --declared-public"
        )
    data = PLAIN | {"name": on, "file": None, "test": None, **dict.fromkeys(RULES)}
    if file is not None:
        inside = file.suffix.lower() == ".npz" and has_test(str(file))
        test = "file" if inside else "public share"
        data = PLAIN | {"name": None, "file": str(file.absolute()), "test": test}
        data |= _persons_in(file, own, on)
    return again(study, f"--on {on}", data=_dealt(study, data), privacy=ALONE)


def _persons_in(file: Path, own: Data, on: str) -> dict[str, Any]:
    """Keys that read a file's column of persons as such: else it would be a feature, and a ledger
    would not know whom the rows are about.

    Raises:
        StudyError: if it has the study's column of clients, for the trials' clients are others.
    """
    if own.person is None and own.client_column is None:
        return {}
    table = ending(file) != ".npz"  # which has no columns
    found = frame_of(file).columns if table else read_arrays(file, ())[1]
    if own.client_column in found and table and own.client_column != own.person:
        raise StudyError(
            f"--on {on}: its column {own.client_column!r} says whose a row is "
            "(data.client_column), and candidates would train on it as a feature: drop it"
        )
    kept = own.person is not None and own.person in found
    return {"person": own.person, "person_rows": own.person_rows} if kept else {}


def keep_aside(study: HorizontalStudy, place: Path) -> None:
    """Keep a study's own validation examples, which it declares public, in a file.

    The data is read to find them, and nothing but them is used. What is kept there must be this
    study's: with another seed or another number, others are public, and these are private.

    Raises:
        StudyError: if it sets none aside, or others are kept there.
    """
    if not study.data.validation:
        raise StudyError(
            "--on validation tries candidates on the examples that data.validation sets aside and "
            "declares public, and this study sets none aside: give it a number, or --on DATA"
        )
    held = federation(examples(study)).validation
    assert held is not None
    made = io.BytesIO()
    np.savez(made, x=held.x, y=np.array(held.classes)[held.y])
    if not there(place.parent, place.name):
        place.parent.mkdir(parents=True, exist_ok=True)
        replace_file(place, made.getvalue())
    elif read_below(place.parent, place.name, most=MOST_LOG) != made.getvalue():
        raise StudyError(
            f"{place}: holds other examples than this study sets aside and declares public (its "
            "data, seed or data.validation differ). Choose another folder with --runs; nothing "
            "was changed"
        )


def keep_digest(file: Path, place: Path, *, write: bool) -> None:
    """Keep a fingerprint of the file that candidates are tried on: runs are of these examples.

    Args:
        file: of the data.
        place: of the digest, among the runs.
        write: whether to keep it where there is none.

    Raises:
        StudyError: if the runs there are of another file, or of the file as it was before.
    """
    with file.open("rb") as opened:
        plain = hashlib.file_digest(opened, "sha256").hexdigest()
    digest = keyed(plain).encode()
    if there(place.parent, place.name):
        # folders of earlier versions hold the digest without a key
        if read_below(place.parent, place.name) not in (digest, plain.encode()):
            raise StudyError(
                f"{file}: this file has changed since the runs in {place.parent} were made. Choose "
                "another folder with --runs, or remove that one; nothing was changed"
            )
    elif write:
        place.parent.mkdir(parents=True, exist_ok=True)
        replace_file(place, digest)


def book(study: HorizontalStudy, on: str, *, declared: bool) -> str | None:
    """Book rows that are declared public in the lasting ledger of the study's data, before
    candidates train on them; what people are told of it.

    Raises:
        StudyError: if a row that is declared public looks like one that is not.
        BudgetExceeded: if one of them has a promise of a run that has not ended.
    """
    if sets.is_published(on):
        return None
    what = called(on)
    if study.privacy.ledger == "run":
        return (
            f"warning: {what}: models train on these rows without any protection, and nothing "
            "lasting remembers it, because the study names no ledger of its data (privacy.ledger)"
        )
    from sordino.clients.division import known_records

    if on == VALIDATION:
        found = known_records(study, federation(examples(study)))
        known = [each for each in found if each.unit == PUBLIC]
    else:
        rows = corpus(moved(study, on, declared), identify=True)
        parts = [part for part in (rows.train, rows.test) if len(part) and part.words is not None]
        known = [Records.together([records(p, PUBLIC, SAMPLE, ANY) for p in parts])]
    tuning = secrets.token_hex(8)
    with LedgerSession.for_data(Path(study.privacy.ledger).expanduser(), tuning, known) as ledgers:
        try:
            book_public(tuning, ledgers)
        finally:
            ledgers.finish()
    return (
        f"warning: {what}: models train on these rows without any protection. The ledger in "
        f"{study.privacy.ledger} records them as public: nothing can be promised for them any more"
    )


def aside(study: HorizontalStudy, place: Path) -> HorizontalStudy:
    """The study on the examples that :func:`keep_aside` kept."""
    changed = {
        "name": None,
        "file": str(place.absolute()),
        "label": None,
        "test": "public share",
        **PLAIN,
        **dict.fromkeys(RULES),  # what is kept is encoded already
        "validation": 0,
    }
    return again(
        study, f"--on {VALIDATION}", data=_dealt(study, changed), privacy=ALONE | _as_noisy(study)
    )


def _as_noisy(study: HorizontalStudy) -> dict[str, Any]:
    """Noise that disturbs a step on the few public examples as the study's disturbs one on all of
    its own; else the best constants would be those of a study with far more noise. Public examples
    need no protection, and the number of the study's own examples is public.
    """
    sigma = calibrated(study).privacy.noise_multiplier
    if sigma is None or study.privacy.epsilon is None:
        return {}
    if study.noise_follows_size:
        _, sizes = plan(study)
        few = study.data.validation - round(SHARE * study.data.validation)
        sigma *= few / sum(sizes)
    return {"noise_multiplier": sigma, "epsilon": math.inf}


def file_of(on: str) -> Path | None:
    """The file that ``--on`` names; None for a data set with a name, or for no file."""
    if on == VALIDATION or _is_named(on):
        return None
    return Path(on) if Path(on).is_file() else None


def _is_named(on: str) -> bool:
    """Return whether this names a data set: one of this program's, or somebody's own."""
    return on in published() or (":" in on and sets.named(on) is not None)


def called(on: str) -> str:
    """Return the name that a tuned study gives to the data of ``--on``."""
    if on == VALIDATION:
        return "the study's own validation examples, declared public"
    file = file_of(on)
    return on if file is None else file.name


def _dealt(study: HorizontalStudy, data: dict[str, Any]) -> dict[str, Any]:
    """Public data has no column that says whose an example is."""
    return data | ({"partition": {"kind": "iid"}} if study.data.partition.by_column else {})


def trials(
    candidates: Sequence[Candidate],
    path: Path,
    on: str,
    runs: Path,
    count: int,
    *,
    declared: bool,
    only_plan: bool,
) -> list[Task]:
    """The runs of all candidates on public data.

    Args:
        path: of the study.
        on: the public data: a data set, a file, or "validation".
        runs: the folder of all runs.
        count: seeds of each candidate.
        declared: whether the user declares the rows public.
        only_plan: nothing is to be run, and nothing is kept.

    Raises:
        StudyError: if there is no such data, or ``runs`` holds something else.
    """
    runner.refuse_file(runs)
    with tempfile.TemporaryDirectory() as spare:
        kept = not only_plan or there(runs, f"{VALIDATION}.npz")
        place = (runs if kept else Path(spare)) / f"{VALIDATION}.npz"
        if on == VALIDATION:  # no candidate changes the examples
            keep_aside(candidates[0].study, place)
        studies = [
            aside(each.study, place) if on == VALIDATION else moved(each.study, on, declared)
            for each in candidates
        ]
        slugs = [slug(each.title) for each in candidates]
        if len(set(slugs)) < len(slugs):
            slugs = [f"{number:03d}-{each}"[:60] for number, each in enumerate(slugs)]
        sides = [
            Side(each.title, name, path, study, calibrated(study))
            for each, name, study in zip(candidates, slugs, studies, strict=True)
        ]
        made = tasks(sides, seeds_of(studies[0], count), runs)
        runner.states(made)
    if (file := file_of(on)) is not None:
        keep_digest(file, runs / "data.sha256", write=not only_plan)
    return made


def scored(tasks: Sequence[Task], failed: Mapping[Task, str]) -> list[Scored]:
    """Return the score of every candidate, in the order of the grid."""
    by_label: dict[str, tuple[list[float], list[str]]] = {}
    for task in tasks:
        values, why = by_label.setdefault(task.side.label, ([], []))
        if task in failed:
            why.append(f"seed {task.seed}: {failed[task]}")
        elif (found := load(task.folder).accuracy) is None or not math.isfinite(found):
            why.append(f"seed {task.seed}: no accuracy was measured")
        else:
            values.append(found)
    return [Scored(label, tuple(each), tuple(why)) for label, (each, why) in by_label.items()]


def best(found: Sequence[Scored]) -> int:
    """The place of the best; of equal ones the first.

    Raises:
        StudyError: if every candidate failed.
    """
    place = max(range(len(found)), key=lambda k: (found[k].mean, -k))
    if math.isinf(found[place].mean):
        first = next(iter(found[0].failed), "no accuracy was measured")
        raise StudyError(f"every candidate failed; the first one: {first}")
    return place
