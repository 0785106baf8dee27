"""Columns of several files by name: the same ones mean the same, whatever their order."""

from __future__ import annotations

from collections.abc import Sequence

from sordino.base.errors import DataError

SHOWN = 5


def in_order(found: Sequence[str], wanted: Sequence[str], place: str, whose: str) -> list[str]:
    """The columns ``found`` in the order ``wanted``; as they are where nothing is wanted.

    Args:
        place: the file, for a refusal; ``whose`` columns are wanted, such as "the agreed ones".

    Raises:
        DataError: if these are not the same names; with the first that are lacking or unknown.
    """
    if not wanted or list(found) == list(wanted):
        return list(found)
    there, asked = set(found), set(wanted)
    lacking = [name for name in wanted if name not in there]
    unknown = [name for name in found if name not in asked]
    if lacking or unknown:
        named = (("it lacks", lacking), ("it also has", unknown))
        told = [f"{what} {_listed(names)}" for what, names in named if names]
        raise DataError(
            f"{place}: its {len(found)} feature columns are not {whose} ({len(wanted)}): "
            f"{', and '.join(told)}. Rename, add or drop columns"
        )
    return list(wanted)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:SHOWN]))
    return shown + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
