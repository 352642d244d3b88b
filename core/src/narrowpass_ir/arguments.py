"""Arguments of public functions: checked where they come in, so that a wrong one is named."""

from __future__ import annotations

import numbers
import os
from collections.abc import Iterable
from typing import Any, ClassVar, NoReturn

from narrowpass_ir.errors import UsageError


def path_of(value: object, what: str) -> str:
    """Return a path as text.

    Args:
        value: text, or an `os.PathLike` of text.
        what: the argument, as the start of a sentence.

    Raises:
        UsageError: something else, or text with a NUL, which no path has.
    """
    try:
        path = os.fspath(value) if isinstance(value, str | os.PathLike) else value
    except TypeError:  # what `__fspath__` gave is no path
        path = None
    if isinstance(path, bytes):
        raise UsageError(f"{what} must be text, not bytes; decode it with os.fsdecode")
    if not isinstance(path, str):
        raise UsageError(f"{what} must be a path (text or pathlib.Path), not {kind_of(value)}")
    if "\0" in path:
        raise UsageError(f"{what} {path!r} is not a path: no file name has a NUL character")
    return path


def flag_of(value: object, what: str) -> bool:
    """Return a flag as Python's; numpy's are taken, too.

    Raises:
        UsageError: anything else.
    """
    if isinstance(value, bool):
        return value
    if getattr(getattr(value, "dtype", None), "kind", "") == "b" and not getattr(value, "ndim", 1):
        return bool(value)
    raise UsageError(f"{what} must be True or False, not {value!r}")


def count_of(value: object, what: str, *, least: int = 1, most: int | None = None) -> int:
    """Return a whole number from `least` on as Python's; numpy's are taken, too.

    Args:
        value: the number.
        what: the argument, as the start of a sentence.
        least: the smallest valid value.
        most: the largest valid value.

    Raises:
        UsageError: anything else.
    """
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if whole and int(value) >= least and (most is None or int(value) <= most):  # type: ignore[call-overload]
        return int(value)  # type: ignore[call-overload,no-any-return]
    if most is not None:
        span = f"be a whole number from {least} to {most}"
    elif whole:
        span = f"be at least {least}"
    else:
        span = f"be at least {least} (a whole number)"
    raise UsageError(f"{what} must {span}, not {value!r}")


def names_of(value: object, what: str) -> tuple[str, ...]:
    """Return several names as text.

    Raises:
        UsageError: one name alone, whose characters would be taken for names, or anything else.
    """
    if isinstance(value, str | bytes):
        raise UsageError(f"{what} must be a list of names, not one: pass [{value!r}]")
    if not isinstance(value, Iterable):
        raise UsageError(f"{what} must be a list of names, not {kind_of(value)}")
    names = tuple(value)
    for name in names:
        if not isinstance(name, str):
            raise UsageError(f"{what} must be names (text); one is {kind_of(name)}: {name!r}")
    return tuple(str(name) for name in names)


def instance_of(value: object, kind: type, what: str, instead: str) -> Any:
    """Return an argument that must be an instance of a class.

    Raises:
        UsageError: it is not; the message ends with `instead`, which says what to pass.
    """
    if not isinstance(value, kind):
        raise UsageError(f"{what} cannot be {kind_of(value)}; pass {instead}")
    return value


def kind_of(value: object) -> str:
    """Name what a value is, for messages."""
    return "None" if value is None else f"a Python {type(value).__name__}"


def suggest(wrong: str, known: Iterable[str]) -> str:
    """Return `` (did you mean X?)`` for the known name nearest to `wrong`, else nothing."""
    import difflib

    near = difflib.get_close_matches(wrong, list(known), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


class Uncopied:
    """An object that owns what exists once: native memory, a descriptor, a mapping.

    `copy.copy`, `copy.deepcopy` and `pickle` all ask `__reduce_ex__`.
    """

    _instead: ClassVar[str]
    """What to do in place of a copy, as a sentence without its end."""

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise UsageError(
            f"a {type(self).__name__} can be neither copied nor pickled; {self._instead}"
        )
