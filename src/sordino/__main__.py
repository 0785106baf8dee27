"""``sordino`` and ``python -m sordino``: the command line."""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Run the command line; an interruption while it is being loaded is one line, too."""
    # a container's first process ignores what nobody handles
    for each in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(each, signal.default_int_handler)
    sys.unraisablehook = _unheard
    try:
        from sordino.cli import main as command
    except KeyboardInterrupt:
        sys.stderr.write("sordino: interrupted\n")
        sys.exit(130)
    command()


def _unheard(found: sys.UnraisableHookArgs) -> None:
    """Interrupt once more where nobody could hear it: a callback of a compiler had it, for one."""
    if isinstance(found.exc_value, KeyboardInterrupt):
        signal.setitimer(signal.ITIMER_REAL, 0.1)
    else:
        sys.__unraisablehook__(found)


if __name__ == "__main__":
    main()
