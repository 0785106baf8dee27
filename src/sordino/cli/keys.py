"""``sordino keys``: every key that a study may have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sordino.base.errors import StudyError
from sordino.cli import say
from sordino.cli.run import AsJson

if TYPE_CHECKING:
    from sordino.core.study.keys import Key


def keys(
    chosen: Annotated[
        str | None,
        typer.Argument(
            metavar="REGIME|KEY",
            help="A regime, a table such as privacy, or a key such as privacy.clip or clip. "
            "Default: all keys.",
        ),
    ] = None,
    as_json: AsJson = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="The same as a Markdown page on standard output.")
    ] = False,
) -> None:
    """List the keys of a study: type, default, bounds and meaning."""
    if as_json and markdown:
        raise StudyError("--json and --markdown: choose one of them")
    import sys

    from sordino.core.study import keys as reference

    found = reference.keys(chosen)
    if markdown:
        sys.stdout.write(reference.markdown(found))
    elif as_json:
        say.machine(found)
    elif len(found) <= 2:
        for each in found:
            _show(each)
    else:
        say.table(
            "Keys of a study",
            ["key", "type", "default", "what it means"],
            [
                [each.key, each.type, _default(each), _meaning(each)]
                for each in sorted(found, key=lambda each: each.key.rpartition(".")[0])
            ],
        )


def _default(key: Key) -> str:
    return key.default or ("needed" if key.needed else "-")


def _meaning(key: Key) -> str:
    only = f" [{', '.join(key.only)}]" if key.only else ""
    return f"{key.about}{f' ({key.bounds})' if key.bounds else ''}{only}"


def _show(key: Key) -> None:
    """All that is known of one key."""
    say.people(f"{key.key}: {key.about}")
    for name, value in (
        ("type", key.type),
        ("default", _default(key)),
        ("bounds", key.bounds),
        ("regimes", ", ".join(key.regimes)),
        ("only for", ", ".join(key.only)),
    ):
        if value:
            say.people(f"  {name}: {value}")
