"""``sordino`` and ``python -m sordino``: the command line."""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Run the command line; an interruption while it is being loaded is one line, too."""
    # a container's first process ignores what nobody handles
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        from sordino.cli import main as command
    except KeyboardInterrupt:
        sys.stderr.write("sordino: interrupted\n")
        sys.exit(130)
    command()


if __name__ == "__main__":
    main()
