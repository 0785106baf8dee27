"""One file for each published algorithm; importing this package registers them."""

from sordino.regimes.asynchronous.methods import asgd, audp, mapa

__all__ = ["asgd", "audp", "mapa"]
