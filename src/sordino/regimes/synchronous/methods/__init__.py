"""One file for each published algorithm; importing this package registers them."""

from sordino.regimes.synchronous.methods import adap, ali, als, client_level, fixed, schedule

__all__ = ["adap", "ali", "als", "client_level", "fixed", "schedule"]
