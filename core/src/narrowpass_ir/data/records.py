"""JSON documents as frozen dataclasses: read strictly, by functions prepared for each type.

Fields are of ``str``, ``int`` (not negative), other dataclasses, tuples of one type, mappings from
``str``, and unions of these that the JSON type of a value decides. Text of a pattern is
``Annotated[str, Matching(...)]``.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

_T = TypeVar("_T")


@dataclass(frozen=True)
class Matching:
    """Of a text: the whole of it matches a pattern.

    Attributes:
        pattern: a regular expression.
        noun: what such a text is, for messages.
    """

    pattern: str
    noun: str


class UnfitError(Exception):
    """A value is not as its type says.

    Attributes:
        way: to the value, such as ``.methods['main'].inputs[2]``.
    """

    way = ""


def read_record(cls: type[_T], raw: Any) -> _T:
    """Return a dataclass from parsed JSON.

    Raises:
        UnfitError: a value of another type, a field that is missing or unknown, or text that does
            not match its pattern.
    """
    found: _T = _reader(typing.cast("Any", cls))(raw)
    return found


def shown(raw: Any) -> str:
    """Return a value as messages show it, cut after 60 characters."""
    text = repr(raw)
    return text if len(text) <= 60 else text[:57] + "..."


@functools.cache
def _reader(hint: Any) -> Callable[[Any], Any]:
    """Return a function that turns JSON into a value of type `hint`, or raises `UnfitError`."""
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        hints = typing.get_type_hints(hint, include_extras=True)
        readers = {name: _reader(kind) for name, kind in hints.items()}
        return functools.partial(_read_fields, hint, readers)
    origin, arms = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return functools.partial(_read_text, re.compile(arms[1].pattern), arms[1].noun)
    if origin is tuple:
        return functools.partial(_read_list, _reader(arms[0]))
    if origin is Mapping:
        return functools.partial(_read_mapping, _reader(arms[1]))
    if origin in (types.UnionType, typing.Union):
        kinds = [list if typing.get_origin(arm) is tuple else arm for arm in arms]
        return functools.partial(_read_union, dict(zip(kinds, map(_reader, arms), strict=True)))
    return _read_count if hint is int else functools.partial(_read_plain, hint)


def _read_plain(kind: type[_T], raw: Any) -> _T:
    if type(raw) is not kind:
        raise UnfitError(f" is not as the format says: {shown(raw)}")
    return raw


def _read_count(raw: Any) -> int:
    number = _read_plain(int, raw)
    if number < 0:
        raise UnfitError(f" is not as the format says: {shown(raw)}")
    return number


def _read_text(pattern: re.Pattern[str], noun: str, raw: Any) -> str:
    text = _read_plain(str, raw)
    if not pattern.fullmatch(text):
        raise UnfitError(f" is not {noun}: {shown(raw)}")
    return text


def _read_union(readers: Mapping[type, Callable[[Any], Any]], raw: Any) -> Any:
    read = readers.get(type(raw))
    if read is None:
        raise UnfitError(f" is not as the format says: {shown(raw)}")
    return read(raw)


def _read_list(read: Callable[[Any], Any], raw: Any) -> tuple[Any, ...]:
    items: list[Any] = _read_plain(list, raw)
    found: list[Any] = []
    try:
        for item in items:
            found.append(read(item))  # noqa: PERF401  # its length says where an error was
    except UnfitError as error:
        error.way = f"[{len(found)}]{error.way}"
        raise
    return tuple(found)


def _read_mapping(read: Callable[[Any], Any], raw: Any) -> dict[str, Any]:
    items: dict[str, Any] = _read_plain(dict, raw)
    found, key = {}, ""
    try:
        for key, item in items.items():
            found[key] = read(item)
    except UnfitError as error:
        error.way = f"[{key!r}]{error.way}"
        raise
    return found


def _read_fields(cls: type[_T], readers: Mapping[str, Callable[[Any], Any]], raw: Any) -> _T:
    fields: dict[str, Any] = _read_plain(dict, raw)
    values, name = {}, ""
    for name in sorted(readers.keys() - fields.keys()):
        raise UnfitError(f" lacks the field {name!r}")
    for name in sorted(fields.keys() - readers.keys()):
        raise UnfitError(f" has an unknown field {name!r}")
    try:
        for name, read in readers.items():
            values[name] = read(fields[name])
    except UnfitError as error:
        error.way = f".{name}{error.way}"
        raise
    return cls(**values)
