"""Runs functions in processes of their own: what crashes or hangs there is an error here."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class ApartError(Exception):
    """A function that ran in another process failed, or was not done in time."""


def first_line(error: BaseException) -> str:
    """Return the type of an error and the first line of its text, as tables show it."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"


def run_apart(
    function: Callable[..., T], arguments: tuple[Any, ...], limit: float | None = None
) -> T:
    """Return what a function returns in another process.

    Args:
        function: of a module.
        arguments: can be pickled, as its result can.
        limit: seconds after which the process is ended; None for no limit.

    Raises:
        ApartError: the function raised, its process ended, or it was not done in time.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(function, arguments, theirs))
    process.start()
    theirs.close()
    try:
        if not ours.poll(limit):
            raise ApartError(f"not done after {limit:g} s")
        failure, result = ours.recv()
    except EOFError:
        process.join()
        raise ApartError(f"its process ended with {process.exitcode}") from None
    finally:
        process.kill()
        process.join()
    if failure:
        raise ApartError(failure)
    return result  # type: ignore[no-any-return]


def _serve(function: Callable[..., Any], arguments: tuple[Any, ...], pipe: Any) -> None:
    try:
        pipe.send(("", function(*arguments)))
    except (Exception, SystemExit) as error:  # noqa: BLE001  # tables say what a tool cannot do
        pipe.send((first_line(error), None))
