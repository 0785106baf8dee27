"""Published algorithms; importing this package registers them."""

from sordino.base.registry import register_all

register_all(__name__, __path__)
