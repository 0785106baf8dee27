"""One file for each published algorithm; importing this package registers them."""

from sordino.base.registry import register_all

register_all(__name__, __path__)
