"""A table of a study file: frozen, and closed to unknown keys."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A table of a study file.

    A field whose name is a Python keyword has an alias; both are understood.
    """

    # Validators are built when a table is first read: a command reads few of all the tables.
    model_config = ConfigDict(
        defer_build=True,
        frozen=True,
        extra="forbid",
        strict=False,
        allow_inf_nan=True,
        populate_by_name=True,
    )
