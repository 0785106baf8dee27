"""Build steps that ``pyproject.toml`` cannot say: the examples, which lie beside the sources, are
part of the installed package; and extras may be packages beside this one, which a checkout has.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

VERSION = "0.1.0"


def beside(name: str) -> str:
    """Return what asks for a package beside this one: from this checkout; elsewhere, as in a
    source distribution and the wheel that is built from it, by its version.
    """
    folder = Path(__file__).resolve().parent / "packages" / name
    return f"{name} @ {folder.as_uri()}" if folder.is_dir() else f"{name}=={VERSION}"


EXTRAS = {
    "network": ["websockets>=15"],
    "edge": [beside("sordino-mqtt")],
    "nvflare": [beside("sordino-nvflare")],
    "track": ["mlflow-skinny>=3", "tensorboard>=2.17", "wandb>=0.19"],
    "notebook": ["ipykernel>=6", "nbclient>=0.9", "pandas>=2"],
    "docs": ["latex2mathml>=3", "mkdocs-material>=9.5,<10", "mkdocstrings[python]>=0.26"],
    # make venv installs the packages beside this one as they are edited
    "test": [
        "sordino[network,notebook,track]",
        "datasets>=2.19",
        "dp-accounting>=0.6",
        "hypothesis>=6",
        "kymatio>=0.3",
        "opacus>=1.5",
        "pandas>=2",
        "pywavelets>=1.6",
        "pytest>=8",
        "pytest-xdist>=3",
    ],
    "check": ["build>=1", "import-linter>=2", "mypy>=1.10", "ruff>=0.5", "setuptools>=77"],
}


class WithExamples(build_py):
    """Copies ``examples/`` into the package; an editable installation reads them in place."""

    def run(self) -> None:
        """Build, then copy."""
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib) / "sordino" / "examples"
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(
                "examples", target, ignore=shutil.ignore_patterns("__pycache__", "runs", "*.npz")
            )


setup(cmdclass={"build_py": WithExamples}, extras_require=EXTRAS)
