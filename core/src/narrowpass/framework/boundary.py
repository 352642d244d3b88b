"""The boundary to code of plugins and of the caller, which may raise anything."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from narrowpass.errors import NarrowpassError

_LONGEST = 500
"""Characters of a message that are shown: a plugin may put a whole model into one."""


def sentence(error: BaseException) -> str:
    """Return an error in one line, with its type where it is not one of ours."""
    text = message(error)
    if isinstance(error, NarrowpassError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def message(error: BaseException) -> str:
    """Return what an error says in one printable line; nothing where it cannot even say that."""
    try:
        text = " ".join(str(error).split())
    except BaseException as failure:  # noqa: BLE001  # `__str__` is foreign code, too
        _raise_interrupt(failure)
        return ""
    shown = text if len(text) <= _LONGEST else text[:_LONGEST] + "..."
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in shown)


@contextlib.contextmanager
def translate_errors(
    what: str,
    kind: type[NarrowpassError],
    advice: str = "",
    *,
    passing: tuple[type[BaseException], ...] = (),
) -> Iterator[None]:
    """Run code that was not written here.

    Args:
        what: the code, as the start of a sentence: ``backend 'x' failed in gain``.
        kind: of the error that stands for whatever else is raised.
        advice: what to do, as the end of the sentence.
        passing: other errors that stay as they are.

    Raises:
        NarrowpassError: what the code raises of ours, as it is; else an error of `kind`.
        KeyboardInterrupt: the user's own.
    """
    try:
        yield
    except NarrowpassError:
        raise
    # Not only Exception: code that calls sys.exit would end the process without a word.
    except BaseException as error:
        _raise_interrupt(error)
        if isinstance(error, passing):
            raise
        if isinstance(error, MemoryError):
            raise kind(f"{what}: out of memory {message(error)}".rstrip()) from error
        end = f"; {advice}" if advice else ""
        raise kind(f"{what}: {sentence(error)}{end}") from error


def _raise_interrupt(error: BaseException) -> None:
    if isinstance(error, KeyboardInterrupt):
        raise error
