"""One file for each published algorithm; importing this package registers them."""

from sordino.method import adap, ali, als, client_level, fixed, schedule
from sordino.method.base import About, Choice, Contract, Left, Released, SynchronousMethod, Terms, Wants
from sordino.method.registry import imported, known, register

__all__ = [
    "About",
    "Choice",
    "Contract",
    "Left",
    "Released",
    "SynchronousMethod",
    "Terms",
    "Wants",
    "adap",
    "ali",
    "als",
    "client_level",
    "fixed",
    "imported",
    "known",
    "register",
    "schedule",
]
