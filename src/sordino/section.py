"""A table of a study file: frozen, and closed to unknown keys."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A table of a study file.

    A field whose name is a Python keyword has an alias; both are understood.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=False, allow_inf_nan=True, populate_by_name=True
    )
