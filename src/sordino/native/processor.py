"""What this machine can compute: which instructions there are, and what kept code depends on."""

from __future__ import annotations

import os
import platform
import sys
from functools import cache
from importlib.metadata import version
from pathlib import Path

from sordino.errors import StudyError

_CPUINFO = Path("/proc/cpuinfo")
_SETTINGS = Path(".numba_config.yaml")
_NAMED = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags")


@cache
def _told() -> dict[str, str]:
    """What Linux says of the first processor; nothing on another system."""
    found: dict[str, str] = {}
    try:
        with _CPUINFO.open() as file:
            for line in file:
                name, _, value = line.partition(":")
                if not line.strip():
                    break
                found[name.strip()] = value.strip()
    except OSError:
        return {}
    return found


@cache
def has(feature: str) -> bool:
    """Whether the processor has this extension, by the name that Linux and LLVM share."""
    if flags := _told().get("flags"):
        return feature in flags.split()
    import llvmlite.binding

    return bool(llvmlite.binding.get_host_cpu_features().get(feature, False))


@cache
def keeps() -> bool:
    """Whether code is kept for this machine: Linux on x86-64, under the usual build of Python."""
    return (
        sys.platform == "linux"
        and platform.machine() == "x86_64"
        and sys.implementation.name == "cpython"
        and sys.abiflags == ""
        and all(name in _told() for name in _NAMED)
    )


@cache
def described() -> tuple[str, ...]:
    """What machine code depends on besides its source: versions, and the processor."""
    told = _told()
    return (
        sys.version,
        *(f"{name} {version(name)}" for name in ("numba", "llvmlite", "numpy")),
        *(f"{name} {told.get(name, '')}" for name in _NAMED),
        *(f"{name}={value}" for name, value in sorted(os.environ.items()) if "NUMBA_" in name),
    )


def refuse_settings() -> None:
    """Refuse to compute in a folder that has settings for the compiler.

    Numba looks for them in the working folder, whoever wrote what lies there, and they change what
    compiled code computes.

    Raises:
        StudyError: naming the file, and what to do.
    """
    if os.path.lexists(_SETTINGS):
        raise StudyError(
            f"{_SETTINGS.absolute()}: the compiler would take settings from this file, which "
            "change what is computed. Move it away or work in another folder; settings of your "
            "own are variables of the environment (NUMBA_...)"
        )
