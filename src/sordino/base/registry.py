"""Tables of a study (:class:`Section`), frozen and closed to unknown keys, and classes by name.

A study names a registered class, or one in a module of its own as ``package.module:Class``.

Each registered class is a table; a new one is a file with one registration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    SerializeAsAny,
    ValidationError,
    create_model,
)
from pydantic_core import PydanticCustomError, core_schema

from sordino.base import modules
from sordino.base.errors import StudyError, did_you_mean

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass as Kind
else:

    class Kind(type(BaseModel)):
        """Whoever makes a table by hand is told what is wrong as the reader of a file is."""

        def __call__(cls, *arguments: Any, **keys: Any) -> Any:
            try:
                return super().__call__(*arguments, **keys)
            except ValidationError as error:
                lines = (explained(cls.__name__, problem) for problem in error.errors())
                raise StudyError("\n".join(lines)) from None


def explained(table: str, problem: Mapping[str, Any]) -> str:
    """Return a mistake with its place in a table, what belongs there, and its value."""
    place = ".".join(filter(None, (table, *map(str, problem["loc"])))) or "study"
    said, value = problem["msg"].removeprefix("Value error, "), problem["input"]
    short = problem["type"] in ("value_error", "missing") or isinstance(value, dict)
    return f"{place}: {said[0].lower()}{said[1:]}{'' if short else f'; got {value!r}'}"


AtLeastOne = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel, metaclass=Kind):
    """A table of a study file.

    A field whose name is a Python keyword has an alias; both are understood.

    Raises:
        StudyError: for keys or values that do not fit, where it is made by a call.
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

    def as_table(self) -> dict[str, Any]:
        """Return the table as a file writes it: what is not set is left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


LONGEST = 60
"""Characters of a value that an error shows."""

S = TypeVar("S", bound=Section)
K = TypeVar("K", bound=Section)


REGISTRIES: list[Registry[Any]] = []
"""All that are imported."""


@dataclass(frozen=True, slots=True, eq=False)
class Registry(Generic[S]):
    """The known subclasses of one kind of section. A field of a study that is annotated with a
    registry (``Annotated[Noise, MECHANISMS]``) takes a table as the class that it names.

    Attributes:
        base: what they are subclasses of.
        noun: what one of them is called: "method", "mechanism".
        place: of the table in a study.
        key: the field whose default is the name.
        page: of the documentation.
        lacks: what a class still lacks, or None.
        usual: the name that a table has where it says none.
        needs: methods that a class must define itself.
        load: imports the modules of this program that register classes; asked before the first
            look.
    """

    base: type[S]
    noun: str
    place: str
    key: str = "kind"
    page: str = "docs/own-tables.md"
    lacks: Callable[[type], str | None] = lambda kind: None
    usual: str | None = None
    needs: tuple[str, ...] = ()
    load: Callable[[], object] = lambda: None
    _known: dict[str, type[S]] = field(default_factory=dict)
    _imported: dict[str, type[S]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        REGISTRIES.append(self)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        whole: Any = SerializeAsAny  # with the keys of the class, not those of ``source`` alone
        return core_schema.no_info_before_validator_function(self._made, handler(whole[source]))

    def _made(self, table: object) -> object:
        """The section that a study's table is; what is none, or one already, is left as it is."""
        if table is None or isinstance(table, Section):
            return table
        spelled_out = self.spelled_out(table)
        try:
            kind = self.chosen(spelled_out)
        except StudyError as error:
            raise PydanticCustomError("registry", "{told}", {"told": str(error)}) from error
        return kind.model_validate(spelled_out)

    def register(self, kind: type[K]) -> type[K]:
        """Make a class known by the default of its name.

        Raises:
            StudyError: if another one has this name, or it is not complete.
        """
        name, lacking = kind.model_fields[self.key].default, self._lacking(kind)
        found: type[Section] = self._known.get(name, kind)
        if (found.__module__, found.__qualname__) != (kind.__module__, kind.__qualname__):
            raise StudyError(
                f"{kind.__qualname__}: the {self.noun} {name!r} is {found.__qualname__} "
                "already; choose another name"
            )
        if not isinstance(name, str) or lacking is not None:
            wanted = (
                f"a {self.noun} needs a name ({self.key}: Literal['mine'] = "
                f"'mine'){f' and {lacking}' if lacking else ''}"
            )
            raise StudyError(f"{kind.__qualname__}: {wanted}")
        self._known[name] = kind  # type: ignore[assignment]
        return kind

    def known(self) -> Mapping[str, type[S]]:
        """Every registered class, in the order of registration."""
        self.load()
        return MappingProxyType(self._known)

    def imported(self, path: str) -> type[S]:
        """The class at ``package.module:Class``.

        Raises:
            StudyError: if there is none.
        """
        if path in self._imported:
            return self._imported[path]
        where = f"{self.place}.{self.key} = {path!r}"
        try:
            found: Any = modules.attribute(path)
        except StudyError as error:
            raise StudyError(f"{where}: {error}") from error
        except Exception as error:  # a user's module may raise anything
            raise StudyError(
                f"{where}: {modules.told_of(error)}. Write it as package.module:Class, beside the "
                "study file or installed"
            ) from error
        fits = isinstance(found, type) and issubclass(found, self.base)
        lacking = self._lacking(found) if fits else None
        if not fits or lacking is not None:
            raise StudyError(
                f"{where} is no {self.base.__name__}{f' with {lacking}' if lacking else ''}; "
                f"see {self.page}"
            )
        # Its name in a study is where it is found, so that a saved study finds it again.
        literal: Any = Literal[path]
        fields: dict[str, Any] = {self.key: (literal, path)}
        self._imported[path] = create_model(
            found.__name__, __base__=found, __doc__=found.__doc__, **fields
        )
        return self._imported[path]

    def _lacking(self, kind: type) -> str | None:
        """Return what a class still lacks, in words."""
        missing = next(
            (name for name in self.needs if getattr(kind, name) is getattr(self.base, name)), None
        )
        return self.lacks(kind) if missing is None else f"a method {missing}"

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that lead to the table in a study."""
        return tuple(self.place.split("."))

    def spelled_out(self, section: object) -> object:
        """A study's table, where a name alone stands for one with nothing else in it, or none is
        said.
        """
        if isinstance(section, str):
            return {self.key: section}
        if self.usual is not None and isinstance(section, Mapping):
            return {self.key: self.usual, **section}
        return section

    def chosen(self, section: object) -> type[S]:
        """The class that a study's table is of.

        Raises:
            StudyError: if it names none.
        """
        if not isinstance(section, Mapping):
            raise StudyError(
                f"{self.place} = {section!r} must be a name or a table: write [{self.place}] with "
                f"a {self.key} below it"
            )
        name, known = section.get(self.key), self.known()
        if name is None:
            raise StudyError(f"{self.place}.{self.key} is missing: it says which kind this is")
        if not isinstance(name, str):
            raise StudyError(f"{self.place}.{self.key} must be a string; got {name!r}")
        if ":" in name:
            return self.imported(name)
        if name not in known:
            raise StudyError(f"{self.place}.{self.key} = {not_known(name, known)}")
        return known[name]

    def wrong(self, table: Section, call: str, given: object, wanted: str) -> StudyError:
        """Return the error about a value that a method of such a class returned.

        Args:
            table: whose method it is.
            call: the method's name.
            given: what it returned.
            wanted: what it must return, in words.
        """
        shown = given if isinstance(given, str) else repr(given)
        shown = shown if len(shown) <= LONGEST and "\n" not in shown else type(given).__name__
        return StudyError(
            f"{self.place}.{self.key} = {getattr(table, self.key)!r}: {call} gave {shown}; it must "
            f"give {wanted}. See {self.page}"
        )

    def forget(self, name: str) -> None:
        """Undo a registration, and whatever was imported by a path: for tests."""
        self._known.pop(name, None)
        self._imported.clear()


def below(table: object, *keys: str) -> Any:
    """Return what stands at a place of a table of tables; None if nothing does."""
    for key in keys:
        table = table.get(key) if isinstance(table, Mapping) else None
    return table


def foreign(thing: object) -> bool:
    """Tell whether an object's class, or one that it derives from, is no part of this program.

    A class that a study names by its place is a table of this program's making over such a class.
    """
    kind: Any = type(thing)
    return _foreign(kind)


@lru_cache(1024)
def _foreign(kind: type) -> bool:
    ours = ("sordino", "pydantic", "builtins", "typing", "abc")
    return any(each.__module__.partition(".")[0] not in ours for each in kind.__mro__)


def not_known(word: str, known: Iterable[str]) -> str:
    """Say that a word is none of those that are known."""
    names = list(known)
    hint = did_you_mean(word, names) or "."
    return f"{word!r} is not known{hint} Known: {', '.join(names)}"
