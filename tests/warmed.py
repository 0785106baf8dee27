"""Two small runs, to the end: who imports this has imported and compiled what such a run needs, and
so has each of its forks. Pages that forks write have no pictures, and sites connect again soon.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from command import paint, sordino
from federations import study_of
from sordino.core import study as studies
from sordino.network import site
from sordino.regimes.synchronous.study import TEMPLATE

DIGITS = ("model.name=logistic", "data.clients=2", "budget.rounds=1", "budget.steps=2")

paint(False)
site.LONGEST_PAUSE = 0.2
with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    (folder / "digits.toml").write_text(TEMPLATE)
    (folder / "small.toml").write_text(
        studies.write(study_of(folder, "synchronous", ["budget.rounds=1"]))
    )
    sets = [word for change in DIGITS for word in ("--set", change)]
    for words in (["digits.toml", *sets], ["small.toml"]):
        done = sordino(folder, "run", *words, "--out", words[0][:5], "--quiet")
        if done.returncode:
            raise RuntimeError(done.stderr)
