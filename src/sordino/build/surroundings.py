"""What the bits of a result depend on besides the study: device, versions, this very code."""

from __future__ import annotations

import functools
import hashlib
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

import sordino
from sordino import modules
from sordino import study as studies
from sordino.entropy import Seeded
from sordino.errors import StudyError
from sordino.learning import models
from sordino.learning.check import check_private
from sordino.study import HorizontalStudy, Study


def device(study: Study) -> torch.device:
    """The device to compute on; "auto" takes a GPU where there is one."""
    name = study.execution.device
    try:
        return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)
    except RuntimeError as error:
        raise StudyError(f"execution.device = {name!r}: {str(error).splitlines()[0]}") from error


@functools.cache
def _code() -> str:
    """Digest of this package's sources: an order of summation that changed is another environment, whatever the version says."""
    found = hashlib.sha256()
    root = Path(sordino.__file__).parent
    for path in sorted(root.rglob("*.py")):
        found.update(f"{path.relative_to(root).as_posix()}\n".encode() + path.read_bytes())
    return found.hexdigest()[:16]


def environment(study: Study) -> dict[str, Any]:
    """What the bits of a result depend on besides the study."""
    own = modules.digests(studies.named_modules(study))  # code of others that the study names
    return {
        **({"modules": own} if own else {}),
        "sordino": sordino.__version__,
        "code": _code(),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "numpy": np.__version__,
        "numba": version("numba"),
        "machine": platform.machine(),
        "system": platform.system(),
        "device": str(device(study)),
        "threads": study.execution.threads,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }


def lineage(study: Study, run: str) -> str:
    """Run, environment and study: part of every charge's key. A study changed by hand would replay other releases."""
    asked = studies.write(study.model_copy(update={"execution": studies.Execution()}))
    return f"{run}/{hashlib.sha256(f'{sorted(environment(study).items())}{asked}'.encode()).hexdigest()[:8]}"


def origin(study: Study, run: str) -> str:
    """What answers about labels depend on, where nothing else has a finite price and a ledger is the run's own: a key, and whole numbers.

    Elsewhere the environment counts, too: :func:`lineage`. Noise on embeddings, whatever is promised, lies on numbers that it rounds.
    """
    if study.privacy.unit == "entity" or study.privacy.ledger != "run" or getattr(study.privacy, "embedding", None) is not None:
        return lineage(study, run)
    own = sorted(modules.digests(studies.named_modules(study)).items()) or ""
    asked = studies.write(study.model_copy(update={"execution": studies.Execution()}))
    return f"{run}/{hashlib.sha256(f'{_code()}{own}{asked}'.encode()).hexdigest()[:8]}"


def protective(study: Study, run: str) -> Seeded:
    """Where batches and noise come from: the seed; and the run and its environment, too, where one ledger adds up several runs.

    Noise that two releases share cancels in their difference, and no sum of their prices would bound what that tells.
    """
    return Seeded(study.seed, "" if study.privacy.ledger == "run" else lineage(study, run))


def model(study: HorizontalStudy, shape: tuple[int, ...], classes: int) -> torch.nn.Module:
    """The study's model, initialised from its seed, checked to be trainable privately."""
    module = models.build(study.model.name, shape, classes, Seeded(study.seed).at("model"))
    if study.method.private:
        check_private(module, shape)
    return module
