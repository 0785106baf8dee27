"""One file for each published algorithm; importing this package registers them."""

from sordino.engine.method import About, Method
from sordino.engine.methods import imported, known, register
from sordino.regimes.asynchronous.method import AsynchronousMethod, EdgeTerms, Stage
from sordino.regimes.asynchronous.methods import asgd, audp, mapa
from sordino.regimes.synchronous.method import Choice, Contract, Left, Released, SynchronousMethod, Terms, Wants
from sordino.regimes.synchronous.methods import adap, ali, als, client_level, fixed, schedule
from sordino.regimes.vertical import method as online
from sordino.regimes.vertical.method import OnlineMethod

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
