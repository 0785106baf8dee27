"""Privacy facts, their arithmetic, and the ledger that keeps them."""

from sordino.privacy.accounting import NAMES, Accountant, accountant, fixed_order
from sordino.privacy.budget import Budget, epsilon_after, most_steps, noise_multiplier
from sordino.privacy.chain import Charge, Entry, Note, Verified
from sordino.privacy.event import (
    Chosen,
    Composed,
    Event,
    Gaussian,
    Grouped,
    NonPrivate,
    Nothing,
    PoissonSampled,
    Pure,
    Repeated,
    Selected,
    decode,
    encode,
)
from sordino.privacy.ledger import Ledger
from sordino.privacy.permit import Allowance, Permit, covers_one, covers_round
from sordino.privacy.session import LedgerSession

__all__ = [
    "NAMES",
    "Accountant",
    "Allowance",
    "Budget",
    "Charge",
    "Chosen",
    "Composed",
    "Entry",
    "Event",
    "Gaussian",
    "Grouped",
    "Ledger",
    "LedgerSession",
    "NonPrivate",
    "Note",
    "Nothing",
    "Permit",
    "PoissonSampled",
    "Pure",
    "Repeated",
    "Selected",
    "Verified",
    "accountant",
    "covers_one",
    "covers_round",
    "decode",
    "encode",
    "epsilon_after",
    "fixed_order",
    "most_steps",
    "noise_multiplier",
]
