"""``python -m sordino`` is ``sordino``: nothing in the current folder can stand in for a library.

Python puts the current folder before all others for ``-m``; a ``json.py`` there would be run in
place of its own. It is taken away again before anything of ours is imported. The few modules that
Python itself imports for ``-m`` (in version 3.11 ``contextlib`` with what it needs, and
``warnings``) only Python can protect: ``sordino`` and ``python -P -m sordino`` do.
"""

import os  # these two are loaded long before any file of the current folder could be taken for them
import sys

if not sys.flags.safe_path and sys.path and sys.path[0] in ("", os.getcwd()):
    del sys.path[0]

from sordino.cli import main

main()
