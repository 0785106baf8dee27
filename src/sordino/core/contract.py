"""The contract of a method, as a function that tests any method: its regime knows what it rests on.

A method is pure and sees releases only. So the same memory and answers must lead to the same
choice, nothing that is handed to it may change, its memory must survive a checkpoint, and what it
asks for must be something that can be done and priced.
"""

from __future__ import annotations

from sordino.core import regimes
from sordino.core.method import Method


class ContractBroken(AssertionError):
    """A method that does not do what a regime rests on."""


def check_method(method: Method) -> None:
    """Hold a method against what its regime rests on.

    Raises:
        ContractBroken: naming what does not hold.
    """
    regimes.named(method.about.regime).check(method)
