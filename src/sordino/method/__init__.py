"""One file for each published algorithm; importing this package registers them."""

from sordino.method import adap, ali, als, asgd, audp, client_level, fixed, mapa, online, schedule
from sordino.method.base import About, Choice, Contract, Left, Method, Released, SynchronousMethod, Terms, Wants
from sordino.method.edge import AsynchronousMethod, EdgeTerms, Stage
from sordino.method.online import OnlineMethod
from sordino.method.registry import imported, known, register

__all__ = [
    "About",
    "AsynchronousMethod",
    "Choice",
    "Contract",
    "EdgeTerms",
    "Left",
    "Method",
    "OnlineMethod",
    "Released",
    "Stage",
    "SynchronousMethod",
    "Terms",
    "Wants",
    "adap",
    "ali",
    "als",
    "asgd",
    "audp",
    "client_level",
    "fixed",
    "imported",
    "known",
    "mapa",
    "online",
    "register",
    "schedule",
]
