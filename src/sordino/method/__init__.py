"""One file for each published algorithm; importing this package registers them."""

from sordino.method import ali, als, fixed
from sordino.method.base import About, Choice, Left, SynchronousMethod, Terms, Wants
from sordino.method.registry import imported, known, register

__all__ = ["About", "Choice", "Left", "SynchronousMethod", "Terms", "Wants", "ali", "als", "fixed", "imported", "known", "register"]
