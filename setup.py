"""What ``pyproject.toml`` cannot say: the examples, which lie beside the sources, are part of the
installed package.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


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


setup(cmdclass={"build_py": WithExamples})
