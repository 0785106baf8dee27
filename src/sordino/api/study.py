"""A study from Python."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from sordino.api import shown
from sordino.api.given import FOLDER, Data, store
from sordino.base.registry import Section
from sordino.core import study as studies
from sordino.core.files import write_new
from sordino.core.run.folder import flat
from sordino.core.study.parse import with_value

Keys: TypeAlias = "Section | Mapping[str, Any] | str"
"""A table of a study: typed, as keys and values, or its name alone."""

SOURCE = "study"
_NAMED = ("data", "model", "method")


class Study:
    """Everything that a run depends on, checked and frozen.

    >>> import sordino as so
    >>> study = so.Study(
    ...     data=so.Data(name="digits", clients=10),
    ...     model="logistic",
    ...     method=so.DpSgd(learning_rate=0.5, tau=1),
    ...     privacy=so.Privacy(unit="sample", epsilon=2.0, delta=1e-3, sampling_rate=0.1),
    ...     budget=so.Budget(rounds=20),
    ... )
    >>> study.replace({"privacy.epsilon": 1.0}).table["privacy"]["epsilon"]
    1.0

    Each table is one of the typed classes (``so.Data``, ``so.Privacy``, ... for studies in rounds;
    ``so.asynchronous.Privacy`` and ``so.vertical.Privacy`` for the others), or a dictionary of the
    keys that a study file has. ``data``, ``model`` and ``method`` may be a name alone.
    """

    def __init__(
        self,
        *,
        method: Keys,
        privacy: Keys,
        data: Keys,
        budget: Keys,
        model: Keys | None = None,
        name: str | None = None,
        seed: int = 0,
        modules: Path | str | None = None,
        **tables: Keys,
    ) -> None:
        """Check a study.

        Args:
            method: how is trained; ``so.methods()`` lists the methods.
            privacy: what is protected, and how well. It has no default.
            data: a published data set by its name, or a file; :meth:`on` takes data in memory.
            budget: how long a run may go on.
            model: by its name, or ``module:factory`` for one of your own.
            name: of the study; made of method and data unless given.
            seed: what runs draw from, unless ``privacy.entropy`` is "system".
            modules: folder of the modules that the study names, if they are not installed.
            **tables: ``participation``, ``world``, ``execution``, ... as in a study file.

        Raises:
            StudyError: names every mistake with its place, its value and a remedy.
        """
        given: dict[str, Keys | None] = {
            "data": data,
            "model": model,
            "method": method,
            "privacy": privacy,
            "budget": budget,
            **tables,
        }
        table: dict[str, Any] = {"seed": seed} | ({} if name is None else {"name": name})
        table |= {key: _plain(key, value) for key, value in given.items() if value is not None}
        self._modules = None if modules is None else Path(modules)
        self._checked = studies.of_table(table, source=SOURCE, modules=self._modules)
        self._made = name is None  # its name was made here, and changes with what it names

    @classmethod
    def _of(cls, checked: studies.Study, modules: Path | None, *, made: bool = False) -> Study:
        found = cls.__new__(cls)
        found._checked, found._modules, found._made = checked, modules, made
        return found

    @classmethod
    def read(cls, path: Path | str, *changes: str, modules: Path | str | None = None) -> Study:
        """The study in a file, with changes such as ``"privacy.epsilon=4"``.

        Args:
            modules: folder of the modules that it names; the study's own unless given.

        Raises:
            StudyError: if the file is missing, is no TOML, or is no study.
        """
        place = Path(path)
        beside = place.parent if modules is None else Path(modules)
        return cls._of(studies.read(place, changes, modules=beside), beside)

    @property
    def checked(self) -> studies.Study:
        """The study as the engine has it, a typed record of all its keys."""
        return self._checked

    @property
    def modules(self) -> Path | None:
        """Folder of the modules that it names."""
        return self._modules

    @property
    def name(self) -> str:
        return self._checked.name

    @property
    def table(self) -> dict[str, Any]:
        """Every key and its value, as in a study file; defaults are spelled out."""
        found: dict[str, Any] = self._checked.as_table()
        return found

    @property
    def toml(self) -> str:
        """The study file."""
        return studies.write(self._checked)

    def write(self, path: Path | str) -> Path:
        """Write the study file.

        Raises:
            StudyError: if the file exists or cannot be written.
        """
        place = Path(path)
        write_new(place, self.toml)
        return place

    def replace(self, changes: Mapping[str, Any] | None = None, /, **tables: Keys | int) -> Study:
        """The same study with other values.

        Args:
            changes: values by key with dots, such as ``{"privacy.epsilon": 1.0}``; a None takes a
                key out.
            **tables: whole tables, ``name`` or ``seed``: ``method="dp-sgd"``.

        Raises:
            StudyError: if what comes out is no study.
        """
        table = self.table
        for key, value in tables.items():
            table[key] = value if key in ("name", "seed") else _plain(key, value)
        for key, value in (changes or {}).items():
            table = with_value(table, key.split("."), _plain(key, value))
        table = _plain("", table)  # without keys that are None
        made = self._made and "name" not in tables and "name" not in (changes or {})
        if made:
            del table["name"]
        checked = studies.of_table(table, source=SOURCE, modules=self._modules)
        return self._of(checked, self._modules, made=made)

    def on(self, data: Data, folder: Path | str | None = None, **keys: Any) -> Study:
        """The same study on data in memory: see :func:`sordino.api.given.store`.

        Args:
            data: a data frame, arrays, or a data set of another library.
            folder: where it is kept, in a file that the study names; ``runs/data`` unless given.
            **keys: of the table ``data``: ``label="income"``, ``clients=5``, ... The ``person``
                of a study stays, and data without that column is refused; ``person=None`` takes it
                out.

        Raises:
            DataError: if it cannot be taken.
        """
        return on_stored(self, store(data, Path(folder or FOLDER), keys), keys)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Study) and self._checked == other._checked

    def __hash__(self) -> int:
        return hash(self.toml)

    def __repr__(self) -> str:
        from sordino.privacy.rounding import epsilon_text

        privacy, promise = self._checked.privacy, "no privacy"
        if privacy.unit != "none":
            epsilon = epsilon_text(privacy.epsilon)
            promise = f"unit {privacy.unit!r}, epsilon {epsilon}, delta {privacy.delta:g}"
        return f"<Study {self.name!r}: {self._checked.method.name}, {promise}>"

    def _repr_html_(self) -> str:
        rows = [(key, str(value)) for key, value in flat(self.table) if value != {}]
        return shown.page(self.name, shown.table(("key", "value"), rows))


# person stays: who is protected does not change with the rows, unless somebody says so
_OF_A_SOURCE = ("name", "file", "label", "test", "test_file", "test_share", "client_column")


def _plain(key: str, value: object) -> Any:
    """A table as keys and values; a name alone is the table's name."""
    if isinstance(value, Section):
        return value.as_table()
    if isinstance(value, str) and key in _NAMED:
        return {"name": value}
    if isinstance(value, Mapping):
        return {
            name: _plain(f"{key}.{name}", each) for name, each in value.items() if each is not None
        }
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, list | tuple):
        return [_plain(key, each) for each in value]
    return value


def on_stored(study: Study, found: Mapping[str, Any], keys: Mapping[str, Any]) -> Study:
    """The same study on data that is kept: ``found`` by :func:`sordino.api.given.store`."""
    mine = {k: value for k, value in study.table["data"].items() if k not in _OF_A_SOURCE}
    if keys.get("person", "") is None:
        mine.pop("person_rows", None)
    return study.replace(data={**mine, **found})
