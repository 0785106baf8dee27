"""A table of a study file: frozen, and closed to unknown keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError

from sordino.base.errors import StudyError

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass as Kind
else:

    class Kind(type(BaseModel)):
        """Whoever makes a table by hand is told what is wrong as the reader of a file is."""

        def __call__(cls, *arguments: Any, **keys: Any) -> Any:
            try:
                return super().__call__(*arguments, **keys)
            except ValidationError as error:
                raise StudyError("\n".join(_told(cls.__name__, error))) from None


def _told(name: str, error: ValidationError) -> list[str]:
    """Each mistake with its place, its value and what belongs there."""
    lines = []
    for problem in error.errors():
        place = ".".join((name, *map(str, problem["loc"])))
        said = problem["msg"].removeprefix("Value error, ")
        value = problem["input"]
        shown = "" if problem["type"] in ("value_error", "missing") else f"; got {value!r}"
        lines.append(f"{place}: {said[0].lower()}{said[1:]}{shown}")
    return lines


class Section(BaseModel, metaclass=Kind):
    """A table of a study file.

    A field whose name is a Python keyword has an alias; both are understood.

    Raises:
        StudyError: for keys or values that do not fit, where it is made by a call.
    """

    # keys that came later: where they are None, noise is what it was before they were there
    later: ClassVar[frozenset[str]] = frozenset()

    # Validators are built when a table is first read: a command reads few of all the tables.
    model_config = ConfigDict(
        defer_build=True,
        frozen=True,
        extra="forbid",
        strict=False,
        allow_inf_nan=True,
        populate_by_name=True,
    )
