"""Data in memory: it is kept in a file, which the study names, and read as any other file is.

So the run folder says what it was run on, a killed run goes on, a comparison's processes read it,
and the ledger knows it by its content. What is kept is a copy of private data: only its owner may
read the file, and whoever deletes the original deletes the copy, too.

| what | becomes |
|---|---|
| pandas or polars frame, dictionary of columns | a table; ``label`` names a column |
| Hugging Face ``Dataset`` of numbers and words | the same; class labels become their names |
| scikit-learn ``Bunch`` | the same, with its names; its ``target`` is the label |
| (x, y) or :func:`arrays` | arrays: examples first |
| torch ``Dataset`` or ``DataLoader`` of (x, y) | the same, read once |
| Hugging Face ``Dataset`` with an ``image`` column | the same |

What would lose something on the way is refused. numpy takes many things without a word: it drops
the mask of a masked array and the imaginary part of a complex number, makes seconds of a date, and
a class called "None" of a missing label.

A type that a container states for a whole column or array stays. Where it has none (lists, columns
of objects), other libraries choose one type for all entries: its first number, one word, or one
picture of another type then changes how every other row is read, by far more than a row is clipped
to. So each cell and each example is read by itself here, and the type of the whole is one in which
no other entry changes; where there is none, the whole is refused.

Names of classes that a container holds may have been read from its rows, as a label encoder does
it. They name the labels, and are no public list of classes: whoever knows one says ``classes``.
"""

from __future__ import annotations

import filecmp
import os
import secrets
import stat
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from sordino.base.errors import DataError
from sordino.base.files import fresh_below
from sordino.core.files import said_clearly
from sordino.data.dataset import Array, single

if TYPE_CHECKING:
    import polars

FOLDER = Path("runs") / "data"
LABEL = "label"
IMAGE = "image"
_MOST = 2**127

Data: TypeAlias = Any
"""A table, arrays or a data set in memory, of the kinds that the module's docstring lists."""


@dataclass(frozen=True, slots=True, eq=False)
class Arrays:
    """Examples (n, ...), labels (n,), and optionally whose they are (n,).

    ``uint8`` examples are pixels; all others become ``float32``.
    """

    x: Array
    y: Array
    client: Array | None = None


def arrays(x: npt.ArrayLike, y: npt.ArrayLike, client: npt.ArrayLike | None = None) -> Arrays:
    """Examples, labels, and optionally whose they are, as one value.

    >>> import sordino as so
    >>> so.arrays([[0.5, 1.0], [0.0, 2.0]], ["ill", "well"], client=["north", "south"]).x.shape
    (2, 2)

    Raises:
        DataError: if their lengths differ, or they cannot be made arrays.
    """
    found = Arrays(
        _stacked(x, "x") if isinstance(x, list | tuple) else _array(x, "x"),
        _entries(y, "label"),
        None if client is None else _entries(client, "client"),
    )
    held = [each for each in (found.x, found.y, found.client) if each is not None]
    if not all(each.ndim for each in held):
        raise DataError("x, y and client must have one entry for each example; one is a number")
    lengths = {len(each) for each in held}
    if len(lengths) != 1:
        raise DataError(
            f"x, y and client must have one entry for each example; got {sorted(lengths)} entries"
        )
    return found


def store(data: Data, folder: Path, keys: Mapping[str, Any]) -> dict[str, Any]:
    """Keep data in a file of ``folder``, and say what a study's table ``data`` is then.

    Args:
        keys: further keys of that table. ``test`` may be data, whose rows are public, too;
            ``image`` names the column of pictures of a Hugging Face data set.

    Raises:
        DataError: if it cannot be taken.
    """
    wanted = dict(keys)
    for role in ("label", "client_column", "person"):
        if isinstance(wanted.get(role), int):  # a column of a table without names
            wanted[role] = str(wanted[role])
    image = wanted.pop("image", IMAGE)
    if any(hasattr(data, name) for name in ("target", "data")) and _kind(data) == "sklearn.utils":
        wanted.setdefault("label", "target")
    label = str(wanted.get("label", LABEL))
    held = _table_or_arrays(data, label, image)
    test = wanted.get("test")
    found: dict[str, Any] = {}
    if test is not None and not isinstance(test, str):
        found = {
            "test": "file",
            "test_file": str(_written(_table_or_arrays(test, label, image), folder)),
        }
        del wanted["test"]
    if isinstance(held, Arrays):
        wanted.pop("label", None)
        if held.client is not None:
            wanted.setdefault("client_column", "client")
    elif label not in held.columns:
        listed = ", ".join(held.columns[:20])
        raise DataError(
            f"the data has no column {label!r}: say label=..., the name of the column that is "
            f"learned. Its columns are {listed}"
        )
    if wanted.get("client_column") is not None:
        wanted.setdefault("partition", {"kind": "column"})
    return {"file": str(_written(held, folder)), **found, **wanted}


def _kind(data: object) -> str:
    """The package that an object's class, or one of its bases, is of."""
    for base in type(data).__mro__:
        package = base.__module__
        for known in ("pandas", "polars", "datasets", "torch", "sklearn.utils"):
            if package == known or package.startswith(f"{known}."):
                return known
    return ""


def _table_or_arrays(data: Data, label: str, image: str) -> polars.DataFrame | Arrays:
    """Data of any kind as a frame, or as arrays."""
    kind = _kind(data)
    if isinstance(data, Arrays):
        return data
    if isinstance(data, tuple) and len(data) in (2, 3):
        return arrays(*data)
    if kind == "polars" and type(data).__name__ != "Series":
        import polars

        try:
            whole: polars.DataFrame = data.collect() if hasattr(data, "collect") else data
        except polars.exceptions.PolarsError as error:
            raise DataError(f"the lazy frame cannot be computed: {error}") from None
        return whole
    if kind == "pandas" and hasattr(data, "columns"):
        return _frame(_by_name((name, _of_pandas(data[name])) for name in data.columns))
    if kind == "datasets":
        return _of_hugging_face(data, label, image)
    if kind == "sklearn.utils":
        return _of_bunch(data, label)
    if kind == "torch" or (
        kind == "" and hasattr(data, "__getitem__") and hasattr(data, "__len__")
    ):
        if isinstance(data, Mapping):
            return _frame(_by_name(data.items()))
        if not isinstance(data, str | bytes | Path):
            return _of_torch(data)
    raise DataError(
        f"{type(data).__name__} is no data that can be taken: give a data frame, a dictionary of "
        "columns, (x, y), a torch or Hugging Face data set, or a scikit-learn Bunch. A file is "
        'named in the study: data={"file": ...}'
    )


def _frame(columns: Mapping[str, Any]) -> polars.DataFrame:
    import polars

    try:
        return polars.DataFrame({name: _series(name, each) for name, each in columns.items()})
    except (TypeError, ValueError, polars.exceptions.PolarsError) as error:
        raise DataError(f"the data cannot be made a table: {error}") from None


def _series(name: str, values: Any) -> polars.Series:
    """A column of the type that its container states, or else that of its cells."""
    import polars

    kind = _kind(values)
    if kind == "pandas" and hasattr(values, "notna"):
        values = _of_pandas(values)
    elif kind == "torch":
        values = _array(values, repr(name))
    typed = isinstance(values, np.ndarray) and values.dtype.kind in "biufmM"
    if typed or isinstance(values, polars.Series):
        return polars.Series(name, values, nan_to_null=True)
    if isinstance(values, str | bytes | Mapping | Set):
        raise TypeError(f"column {name!r} is of type {type(values).__name__}, which has no rows")
    cells = _cells(values, repr(name))
    whole = [each for each in cells if type(each) is int]
    wide = whole and not -(2**63) <= min(whole) <= max(whole) < 2**63
    kinds = {
        bool: polars.Boolean,
        int: polars.Int128 if wide else polars.Int64,
        float: polars.Float64,
        str: polars.String,
    }
    found = next((type(each) for each in cells if each is not None), None)
    return polars.Series(name, cells, polars.Null if found is None else kinds[found])


def _by_name(columns: Iterable[tuple[object, Any]]) -> dict[str, Any]:
    """Columns by their names as text.

    Raises:
        DataError: if two have one name then, such as 1 and "1".
    """
    found: dict[str, Any] = {}
    for name, values in columns:
        if str(name) in found:
            raise DataError(f"two columns are called {str(name)!r}; rename one")
        found[str(name)] = values
    return found


def _of_pandas(column: Any) -> Any:
    """A column as numpy has it, or as a list of cells."""
    if getattr(column, "ndim", 1) != 1:
        raise DataError("two columns have the same name; rename one")
    values = column.to_numpy()
    return values if values.dtype.kind in "biuf" else column.tolist()


def _of_hugging_face(data: Any, label: str, image: str) -> polars.DataFrame | Arrays:
    if isinstance(data, Mapping):  # splits by name
        listed = ", ".join(map(repr, data))
        raise DataError(
            f"this is a dictionary of splits ({listed}): give one of them, such as data['train'], "
            "and test=data['test'] where its rows are public"
        )
    features = data.features
    if image in data.column_names:
        if label not in data.column_names:
            raise DataError(f"the data has no column {label!r}: say label=...")
        held = list(data[image])
        if gaps := [row for row, each in enumerate(held) if each is None]:
            raise DataError(f"row {gaps[0]} (the first is 0) has no {image!r}; drop the row")
        x = _stacked(held, repr(image))
        if getattr(features[image], "dtype", "") == "uint8":  # formats widen it
            x = x.astype(np.uint8)
        if x.ndim == 4 and x.shape[-1] in (1, 3, 4):  # channels come last in pictures
            x = np.ascontiguousarray(np.moveaxis(x, -1, 1))
        return arrays(x, _named(features[label], list(data[label])))
    for name in data.column_names:
        if name != label and type(features[name]).__name__ not in ("Value", "ClassLabel"):
            raise DataError(
                f"column {name!r} holds no number and no word in each row: say image={name!r} to "
                "learn from it alone, or drop it"
            )
    return _frame({name: _named(features[name], list(data[name])) for name in data.column_names})


def _named(feature: Any, values: list[Any]) -> Any:
    """Class labels by their names."""
    names = getattr(feature, "names", None)
    if not names:
        return values
    return [None if each is None or each < 0 else names[each] for each in values]


def _of_bunch(data: Any, label: str) -> polars.DataFrame:
    if missing := [name for name in ("data", "target") if name not in data]:
        raise DataError(f"this Bunch has no {missing[0]!r}: give (x, y) arrays")
    x, y = data["data"], _entries(data["target"], label)
    shaped = np.asarray(x, None if hasattr(x, "shape") else object)  # a list has no one type
    if shaped.ndim != 2 or y.ndim != 1:
        raise DataError("this Bunch is no table with one target: give (x, y) arrays")
    names = data.get("feature_names")
    named = [f"x{i}" for i in range(shaped.shape[1])] if names is None else list(map(str, names))
    if hasattr(x, "columns"):
        columns = _by_name((name, _of_pandas(x[name])) for name in x.columns)
    elif len(named) != shaped.shape[1]:
        raise DataError(
            f"this Bunch has {len(named)} feature_names for {shaped.shape[1]} columns of data"
        )
    else:
        columns = _by_name((name, shaped[:, i]) for i, name in enumerate(named))
    classes = data.get("target_names")
    words = classes is not None and not isinstance(classes, str) and len(classes) > 1
    if words and y.dtype.kind in "iu":
        y = np.asarray([str(each) for each in classes])[y]
    if label in columns:
        raise DataError(f"a feature is called {label!r}, as the target would be: say label=...")
    return _frame({**columns, label: y})


def _of_torch(data: Any) -> Arrays:
    """Every item of a map-style data set once, in its order."""
    held = getattr(data, "dataset", data) if not hasattr(data, "__getitem__") else data
    if not hasattr(held, "__len__"):
        raise DataError(
            "this data set has no length: the number of examples is part of the guarantee. Give "
            "one that can be indexed"
        )
    xs, ys = [], []
    try:
        count = len(held)
    except (TypeError, ValueError) as error:
        raise DataError(f"the data set does not tell its length ({error})") from error
    for i in range(count):
        try:
            item = held[i]
        except Exception as error:  # a data set of others may raise anything
            raise DataError(
                f"item {i} of the {count} of the data set cannot be read "
                f"({type(error).__name__}: {error})"
            ) from error
        if not isinstance(item, Sequence) or len(item) < 2:
            raise DataError(f"item {i} of the data set is no pair of (example, label)")
        xs.append(_array(item[0], f"the example of item {i}"))
        ys.append(item[1])
    if not xs:
        raise DataError("the data set is empty")
    return arrays(xs, ys)


def _written(held: polars.DataFrame | Arrays, folder: Path) -> Path:
    """A file with a random name, which only its owner reads.

    The name stands in run folders: one that followed from the rows would show which runs had the
    same. Equal content is kept once, under as many names as it was given.
    """
    ending = ".npz" if isinstance(held, Arrays) else ".parquet"
    with said_clearly(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = folder / f".{secrets.token_hex(8)}{ending}"
        try:
            with fresh_below(folder, draft.name, mode=0o600) as file:
                if isinstance(held, Arrays):
                    whose: dict[str, Any] = {} if held.client is None else {"client": held.client}
                    np.savez(file, x=_examples(held.x), y=held.y, **whose)
                else:
                    _save_table(held, file)
            place = folder / f"{secrets.token_hex(8)}{ending}"
            try:
                os.link(_same(draft) or draft, place)
            except OSError:  # a file system without hard links
                draft.rename(place)
        finally:
            draft.unlink(missing_ok=True)
    return place.resolve()


def _same(draft: Path) -> Path | None:
    """A file beside this one with its content, which only its owner reads."""
    seen = set[int]()
    for path in draft.parent.glob(f"[!.]*{draft.suffix}"):
        about = path.lstat()
        if about.st_ino not in seen and stat.S_IFMT(about.st_mode) == stat.S_IFREG:
            seen.add(about.st_ino)
            if about.st_mode & 0o077 == 0 and filecmp.cmp(draft, path, shallow=False):
                return path
    return None


def _save_table(held: polars.DataFrame, file: Any) -> None:
    import polars

    try:
        held.write_parquet(file)
    except polars.exceptions.PolarsError as error:
        kinds = {name: str(kind) for name, kind in held.schema.items()}
        odd = [f"{name!r} holds {kind}" for name, kind in kinds.items() if kind == "Object"]
        raise DataError(
            f"the data cannot be kept ({'; '.join(odd) or error}): convert or drop what is no "
            "number and no text"
        ) from None


# What a container holds as an array, or as cells of a column


def _array(values: Any, what: str) -> Array:
    """``values`` as an array of the same shape.

    Args:
        what: it is called in refusals.

    Raises:
        DataError: if it is sparse, has masked entries, lies on no device, or is ragged.
    """
    if type(values).__module__.startswith("torch") and hasattr(values, "detach"):
        return _of_tensor(values, what)
    if type(values).__module__.startswith("scipy.sparse"):
        raise DataError(f"{what} is sparse; give a dense array: x.toarray()")
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise DataError(
            f"{what} has masked entries; drop their rows, or fill them with a constant that does "
            "not depend on the data"
        )
    try:
        return np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:  # rows of several lengths, for example
        raise DataError(f"{what} cannot be made an array: {error}") from error


def _of_tensor(values: Any, what: str) -> Array:
    import torch

    if values.layout != torch.strided:
        raise DataError(f"{what} is a sparse tensor; give a dense one: x.to_dense()")
    if values.is_meta:
        raise DataError(f"{what} is a tensor on the device 'meta', which holds no values")
    plain = values.detach().cpu().resolve_conj().resolve_neg()
    if plain.is_floating_point() and plain.dtype not in (
        torch.float16,
        torch.float32,
        torch.float64,
    ):
        plain = plain.float()  # bfloat16 and shorter ones, which numpy does not know
    found: Array = plain.numpy()
    return found


def _examples(x: Array) -> Array:
    """Examples as they are kept: pixels as they are, all other numbers as float32.

    Raises:
        DataError: if they are no real numbers.
    """
    held = [each for each in x.flat if isinstance(each, str | bytes)] if x.dtype == object else []
    if x.dtype.kind not in "buifO" or held:
        kind = "text" if held or x.dtype.kind in "SU" else str(x.dtype)
        raise DataError(f"x must hold real numbers, found {kind}; encode it as numbers")
    if x.dtype == np.uint8:
        return x
    try:
        return single(x)  # an infinity is refused with its place
    except (TypeError, ValueError) as error:
        raise DataError(f"x must hold real numbers: {error}") from error


def _stacked(values: Sequence[Any], what: str) -> Array:
    """Examples, each made an array by itself, as :func:`_examples` keeps them.

    Raises:
        DataError: if they differ in shape, or only some are pixels.
    """
    found = [_examples(_array(each, what)) for each in values]
    for row, each in enumerate(found):
        for which in ("shape", "dtype"):
            if getattr(each, which) != getattr(found[0], which):
                raise DataError(
                    f"{what} cannot be made an array: example {row} (the first is 0) has "
                    f"{which} {getattr(each, which)}, example 0 {getattr(found[0], which)}; all "
                    "examples must have one shape, and all be pixels (uint8) or none"
                )
    return np.stack(found) if found else np.empty(0, np.float32)


def _entries(values: Any, what: str) -> Array:
    """Labels or owners as they are kept: numbers, or text of a fixed length.

    Raises:
        DataError: if one is missing, or neither.
    """
    if not isinstance(values, list | tuple):
        values = _array(values, what)
        if values.dtype == np.float16:
            return single(values)  # which can tell whether a number is too large
        if values.dtype != object:
            return np.asarray(values)
    found = _cells(values, what)
    if None in found:
        raise DataError(f"row {found.index(None)} (the first is 0) has no {what}; drop the row")
    return np.asarray(found)


def _cells(values: Iterable[Any], what: str) -> list[Any]:
    """Cells of a column, each read by itself, as Python values of one type; None is a gap.

    Truth values, whole numbers and numbers stay what they are among themselves, and whole numbers
    are numbers beside others. Any other mixture is text, spelled cell by cell, as in a CSV file.

    Raises:
        DataError: for a cell that is no number and no text.
    """
    found = [_cell(each, row, what) for row, each in enumerate(values)]
    kinds = {type(each) for each in found if each is not None}
    if len(kinds) < 2:
        return found
    kind = float if kinds == {int, float} else str
    return [None if each is None else kind(each) for each in found]


def _cell(value: Any, row: int, what: str) -> bool | int | float | str | None:
    """One cell as a plain Python value."""
    place = f"row {row} (the first is 0) of {what}"
    if getattr(value, "ndim", None) == 0 and not isinstance(value, np.datetime64 | np.timedelta64):
        value = _array(value, place).item()  # of numpy or torch
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise DataError(f"{place} holds bytes that are no UTF-8; make them text") from None
    if value is None or type(value).__name__ in ("NAType", "NaTType"):  # of pandas
        return None
    if isinstance(value, Decimal):
        if value.is_nan():
            return None
        exact = value.copy_abs() < _MOST and value == value.to_integral_value()
        value = int(value) if exact else float(value)
    if isinstance(value, bool):
        return value
    if isinstance(value, int) and -_MOST <= value < _MOST:
        return int(value)
    if isinstance(value, float):
        return float(value) if value == value else None
    if isinstance(value, str | date | time | timedelta):
        return str(value)
    raise DataError(
        f"{place} holds {type(value).__name__}: convert or drop what is no number of at most 128 "
        "bits and no text"
    )
