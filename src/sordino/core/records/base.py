"""What every record has in common: numbers that may be infinite, counts, values that may be absent.

A key that is absent is another thing than a null: absent keys are :data:`msgspec.UNSET` and are not
written, nulls are None.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

T = TypeVar("T")

if TYPE_CHECKING:
    Real = float
else:

    class _Numbers(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, (int, float)) and not isinstance(value, bool)

    class Real(metaclass=_Numbers):
        """A number that may be infinite, "inf" in JSON. Whole numbers stay whole, as written."""


Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Maybe: TypeAlias = T | UnsetType | None
"""A value that may be null, or absent."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A typed piece of what a run leaves in its files."""


class Open(Record, frozen=True, kw_only=True):
    """A record that may have keys beyond those it names; they stand beside the others in the file.

    Attributes:
        extra: the further keys and their values, as JSON has them.
    """

    extra: Mapping[str, object] = msgspec.field(default_factory=dict)


def number(value: object) -> float | None:
    """A number of a record, None where there is none.

    >>> [number(value) for value in (math.inf, UNSET, None, math.nan, 10**400, True)]
    [inf, None, None, None, inf, None]
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        found = float(value)
    except OverflowError:  # an integer that no float holds
        return math.inf if value > 0 else -math.inf
    return None if math.isnan(found) else found


def known(value: T | UnsetType | None) -> T | None:
    """A value that is there, else None.

    >>> known(2), known(UNSET), known(None)
    (2, None, None)
    """
    return None if value is UNSET else value


def at(record: msgspec.Struct, key: str) -> object:
    """What stands under a key of the file, in the record or beside it; UNSET if nothing does."""
    found: object = getattr(record, key, UNSET)
    return record.extra.get(key, UNSET) if found is UNSET and isinstance(record, Open) else found
