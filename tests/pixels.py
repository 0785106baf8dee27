"""Study files to begin with, for tests of models that see pixels: without the front end, and with
the clipping bound of 1 that such models had.
"""

from __future__ import annotations

import re


def pixels(template: str) -> str:
    """The study file without ``data.features``."""
    plain = re.sub(r"^features = .*\n", "", template, flags=re.MULTILINE)
    return re.sub(r"^clip = \S+", "clip = 1.0", plain, flags=re.MULTILINE)
