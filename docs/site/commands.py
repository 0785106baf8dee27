"""The reference of the command line, from the commands themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer.main

from sordino.cli import app


def reference() -> str:
    """Markdown with every command, argument and option."""
    return "\n".join(_told(typer.main.get_command(app), ("sordino",)))


def _told(command: Any, path: tuple[str, ...]) -> Iterator[str]:
    below = getattr(command, "commands", None)
    if len(path) > 1:
        yield f"{'#' * min(len(path), 4)} {' '.join(path)}\n"
        yield f"{_plain(command.help or '')}\n"
    if below is not None:
        for name, each in below.items():
            if not each.hidden:
                yield from _told(each, (*path, name))
        return
    usage = " ".join(
        (*path, *(_argument(each) for each in command.params if each.param_type_name == "argument"))
    )
    yield f"```text\n{usage} [OPTIONS]\n```\n"
    rows = [_row(each) for each in command.params if not getattr(each, "hidden", False)]
    if rows:
        yield "| | meaning | default |\n|---|---|---|"
        yield from rows
        yield ""


def _argument(param: Any) -> str:
    name = str(param.metavar or param.name).strip("{}").removesuffix("...").upper()
    named = f"{name}..." if param.nargs == -1 else name
    return named if param.required else f"[{named}]"


def _row(param: Any) -> str:
    if param.param_type_name == "argument":
        names = f"`{_argument(param)}`"
    else:
        names = ", ".join(f"`{each}`" for each in (*param.opts, *param.secondary_opts))
        if not param.is_flag and not getattr(param, "is_bool_flag", False) and not param.count:
            value = param.metavar or str(param.bare_type()).strip("<>").upper()
            if value != "BOOL":
                names += f" `{value}`".replace("|", "\\|")
    return f"| {names} | {_plain(param.help or '')} | {_default(param)} |"


def _default(param: Any) -> str:
    value = param.default
    if value is None or value is False or value == [] or value == () or callable(value):
        return ""
    if "Sentinel" in type(value).__name__:
        return ""
    return f"`{getattr(value, 'value', value)}`"


def _plain(text: str) -> str:
    """One paragraph, with the signs that Markdown and tables would take for theirs."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
