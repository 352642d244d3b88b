"""The command line: ``narrowpass COMMAND``.

Results go to standard output, everything else to standard error. Exit codes: 0 success, 1 the
model or the data is at fault, 2 the call is at fault, 130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from narrowpass.cli._app import app

__all__ = ["app", "main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit, as the script ``narrowpass`` does.

    Args:
        arguments: what follows the program's name; None for the arguments of the process.

    Raises:
        SystemExit: always, with the exit code.
    """
    try:
        # Here, so that an interrupt while it is imported ends as one while it runs.
        from narrowpass.cli._app import app
        from narrowpass.cli._errors import redeliver_interrupts

        with redeliver_interrupts():
            app.main(arguments)
    except KeyboardInterrupt:
        sys.stderr.write("narrowpass: error: interrupted\n")
        raise SystemExit(130) from None


def __getattr__(name: str) -> object:
    """Import the group of commands when it is asked for."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from narrowpass.cli._app import app

    return app
