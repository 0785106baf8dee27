"""The regimes that the program has. Importing this package makes them known, and their methods."""

from sordino.engine.regimes import register
from sordino.regimes.asynchronous import methods as _asynchronous  # noqa: F401
from sordino.regimes.asynchronous.regime import AsynchronousRegime
from sordino.regimes.synchronous import methods as _synchronous  # noqa: F401
from sordino.regimes.synchronous.regime import SynchronousRegime
from sordino.regimes.vertical import method as _vertical  # noqa: F401
from sordino.regimes.vertical.regime import VerticalRegime

for regime in (SynchronousRegime(), AsynchronousRegime(), VerticalRegime()):
    register(regime)
