"""The environment that the bits of a result depend on: device, versions, this very code."""

from __future__ import annotations

import functools
import hashlib
import hmac
import os
import platform
import secrets
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from msgspec import UNSET

from sordino.base import HOME, NUMERICS, VERSION, companions_here, modules
from sordino.base.compiled import refuse_settings
from sordino.base.entropy import Entropy, Seeded, System
from sordino.base.errors import ResumeError, StudyError
from sordino.base.files import KIB, check_below, overwrite, read_below, there
from sordino.base.fingerprints import joined, secret_file
from sordino.core import records
from sordino.core import study as studies
from sordino.core.run.folder import KEY
from sordino.core.study.base import Study

ACCELERATORS = ("cuda", "mps", "xpu")
"""Kinds of devices that another machine may have."""
LIBRARIES = ("MKL_", "DNNL_", "ONEDNN_", "OPENBLAS_", "ATEN_", "NPY_", "NUMBA_")
"""Prefixes of environment variables by which a library may round. ``MKL_NUM_THREADS`` is one:
torch sets its threads, and its own number stands in the environment, too.
"""
RECORDED = ("sordino", "code", "companions")
"""Facts of an environment that may differ when a run goes on."""
ENDED = b"This run has ended and its key was destroyed.\n"


def device(study: Study) -> torch.device:
    """The device to compute on; "auto" takes a GPU where there is one.

    Raises:
        StudyError: if it is not there.
    """
    name = study.execution.device
    try:
        place = torch.device(
            ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name
        )
        torch.zeros(1, device=place).item()  # a device may have a name and not be there
        return place
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        # torch asserts that it was compiled for CUDA
        if (kind := name.partition(":")[0]) in ACCELERATORS:
            raise StudyError(
                f"execution.device = {name!r}: this machine has no such device, or this PyTorch "
                f"({torch.__version__}) is built without {kind}. Use 'auto' or 'cpu', or install "
                "a PyTorch for the device"
            ) from error
        raise StudyError(f"execution.device = {name!r}: {str(error).splitlines()[0]}") from error


def absent_device(study: Study) -> tuple[str, ...]:
    """Return why this machine cannot run a study on its device, for a plan; nothing if it can.

    Raises:
        StudyError: if nothing is called so.
    """
    try:
        device(study)
    except StudyError as error:
        if study.execution.device.partition(":")[0] not in ACCELERATORS:
            raise
        return (f"{error}. This machine can plan the study and cannot run it",)
    return ()


@functools.cache
def processor() -> str:
    """The name of this machine's processor, and a digest of its abilities; empty where no file says
    them.

    Compiled loops are made for both: another processor may round their sums otherwise, although
    torch calls it by the same name.
    """
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    told = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    known = [told.get(key, "") for key in ("model name", "cpu family", "model", "CPU part")]
    abilities = sorted((told.get("flags") or told.get("Features") or "").split())
    return f"{known[0]} {joined([*known, *abilities])[:16]}".strip()


@functools.cache
def sources() -> str:
    """Digest of this package's sources."""
    found = hashlib.sha256()
    for path in sorted(HOME.rglob("*.py")):
        place = path.relative_to(HOME)
        if place.parts[0] != "examples":  # an installed package has them inside, a checkout beside
            found.update(f"{place.as_posix()}\n".encode() + path.read_bytes())
    return found.hexdigest()[:16]


_installed = functools.cache(version)  # which takes some milliseconds


def numerics() -> str:
    """The number of what studies compute. In a checkout a digest of the sources stands beside it,
    since nobody knows what has been changed there.
    """
    installed = {"site-packages", "dist-packages"}.intersection(HOME.parts)
    return str(NUMERICS) if installed else f"{NUMERICS}-{sources()}"


def surrounded(study: Study) -> records.Environment:
    """Return what the bits of a result depend on besides the study."""
    refuse_settings()  # here, before anything is charged
    return records.Environment(
        modules=_modules(study) or UNSET,
        sordino=VERSION,
        numerics=numerics(),
        code=sources(),
        python=sys.version.split()[0],
        torch=str(torch.__version__),
        numpy=np.__version__,
        numba=_installed("numba"),
        machine=platform.machine(),
        system=platform.system(),
        device=str(device(study)),
        threads=study.execution.threads,
        cpu_capability=torch.backends.cpu.get_cpu_capability(),
        cpu=processor() or UNSET,
        settings={
            name: value for name, value in sorted(os.environ.items()) if name.startswith(LIBRARIES)
        }
        or UNSET,
        companions=companions_here() or UNSET,
    )


def environment(study: Study) -> dict[str, object]:
    """The same as a run compares it when it goes on, and draws noise over it: without the versions
    of this program, for which :func:`numerics` stands, and of packages beside it.
    """
    return compared(records.plain(surrounded(study)))


def compared(environment: Mapping[str, object]) -> dict[str, object]:
    """Return the facts of an environment that must not differ when a run goes on.

    Noise is replayed on sums that another library, device or number of threads rounds otherwise, so
    their difference would be free of noise. For the program itself its number stands (NUMERICS).
    """
    return {key: value for key, value in environment.items() if key not in RECORDED}


def _modules(study: Study) -> dict[str, str]:
    """Return the digests of code of others that the study names."""
    return modules.digests(studies.named_modules(study))


def charge_key_prefix(study: Study, run: str) -> str:
    """Run, environment and study, for every charge's key: no other study may replay releases."""
    described = f"{sorted(environment(study).items())}{asked(study)}"
    return f"{run}/{hashlib.sha256(described.encode()).hexdigest()[:8]}"


def response_key_prefix(study: Study, run: str) -> str:
    """Return what answers about labels depend on, where a ledger is the run's own: a key, whole
    numbers.

    Only where nothing else has a finite price.

    Elsewhere the environment counts, too: :func:`charge_key_prefix`. Noise on embeddings,
    whatever is promised, lies on numbers that it rounds.
    """
    if (
        study.privacy.unit == "entity"
        or study.privacy.ledger != "run"
        or getattr(study.privacy, "embedding", None) is not None
    ):
        return charge_key_prefix(study, run)
    own = sorted(_modules(study).items()) or ""
    return f"{run}/{hashlib.sha256(f'{numerics()}{own}{asked(study)}'.encode()).hexdigest()[:8]}"


def asked(study: Study) -> str:
    """The study as TOML without ``[execution]``."""
    return studies.write(study.model_copy(update={"execution": studies.Execution()}))


def protective(study: Study, run: str, data: Sequence[str], folder: Path) -> Entropy:
    """Return the entropy that batches and noise are drawn from.

    With ``privacy.entropy = "seed"`` that is the study's seed and a digest of all that shapes what
    is released: the study, the data (fingerprints), this program and its environment; and the run,
    where one ledger adds up several. So the same study over the same data repeats bit for bit, and
    any other draws afresh. Noise that two releases share cancels in their difference, and no sum of
    their prices would bound what that tells.

    With "system" it is a secret key of the operating system's, kept in ``folder`` until the run
    ends, and the data: a copy of the folder that goes on over other rows draws other noise.
    """
    shaping = chain([shape(study)], data, [str(sorted(environment(study).items()))])
    return _root(study, run, data, folder, shaping)


def answering(study: Study, run: str, data: Sequence[str], folder: Path) -> Entropy:
    """Return the entropy of answers about labels: :func:`protective` in any environment."""
    own = (f"{name} {digest}" for name, digest in sorted(_modules(study).items()))
    return _root(study, run, data, folder, ["labels", shape(study), numerics(), *own, *data])


def _root(
    study: Study, run: str, data: Sequence[str], folder: Path, shaping: Iterable[str]
) -> Entropy:
    """Return entropy under the run's secret key and over its data, so that no noise covers two data
    sets; or under the seed and over what shapes releases.
    """
    if study.privacy.entropy == "system":
        return System(hmac.digest(_key(folder), joined(data).encode(), "sha256"))
    of_run = [] if study.privacy.ledger == "run" else [run]
    return Seeded(study.seed, joined(chain(shaping, of_run)))


def shape(study: Study) -> str:
    """The study without what cannot change its results: how it is executed, where files lie."""
    told = study.model_copy(update={"execution": studies.Execution()}).model_dump(
        mode="python",
        by_alias=True,
        exclude_none=True,  # a key that comes later says nothing
    )
    told.pop("tuned", None)  # where constants come from changes nothing; they stand in their places
    # its fingerprint is taken of what was read
    data = _placeless(told.pop("data"), lambda _: "a file")
    return str((data, _placeless(told, _file_digest)))


def _file_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "missing"


def _placeless(value: Any, told: Callable[[Path], str]) -> Any:
    """Return what a file holds in place of its path, as ``told``; and keys are sorted."""
    if isinstance(value, dict):
        return sorted((str(key), _placeless(part, told)) for key, part in value.items())
    if isinstance(value, list | tuple):
        return [_placeless(part, told) for part in value]
    return told(value) if isinstance(value, Path) else value


def _key(folder: Path) -> bytes:
    """The run's secret key: made when the run begins, read when it goes on."""
    path = folder / KEY
    if not there(folder, KEY):
        return secret_file(path)
    key = read_below(folder, KEY, most=KIB)
    if key == ENDED:
        return secrets.token_bytes(32)  # of a run that has ended: nothing is released any more
    if len(key) != 32:
        raise ResumeError(
            f"{path}: this is not the secret key that the run began with. Restore it from a "
            "copy, or begin a new run"
        )
    return key


def forget(folder: Path) -> None:
    """Destroy a run's secret key, once nothing is to be repeated: its noise stays for good."""
    path = folder / KEY
    if there(folder, KEY):
        check_below(folder, KEY)
        overwrite(path, ENDED)


def destroyed(folder: Path) -> bool:
    """Return whether a run had a secret key, and it was destroyed."""
    return there(folder, KEY) and read_below(folder, KEY, most=KIB) == ENDED
