"""The regimes that the program has, a package each.

Importing this one makes their names known, and nothing else.
"""

from sordino.core.regimes import register

for _name in ("synchronous", "asynchronous", "vertical"):
    register(_name, f"{__name__}.{_name}")
