"""Values that Python gives for options: checked against the option's type, as text is."""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import numbers
import typing
from collections.abc import Callable, Mapping
from typing import Any

from narrowpass.framework.options import (
    UNIONS,
    HasOptions,
    OptionError,
    describe_type,
    field_types,
    has_text,
    is_option,
)


def check_values(instance: HasOptions) -> None:
    """Check the options of a frozen dataclass that was just made; defaults are taken as they are.

    What has a text form may be given as that text, and a list for a tuple: the field is replaced.

    Raises:
        OptionError: a value that does not fit its type.
    """
    types = _types(type(instance))
    if not types:
        return
    for field in dataclasses.fields(instance):
        if field.name not in types:
            continue
        value = getattr(instance, field.name)
        if value is field.default:
            continue
        hint = types[field.name]
        try:
            taken = _take(value, hint)
        except ValueError as error:
            raise OptionError(
                field.name.replace("_", "-"),
                f"option {field.name!r} of {instance.name!r} takes {_described(hint)}, "
                f"not {value!r}{_advice(value, hint, str(error))}",
            ) from None
        if taken is not value:
            object.__setattr__(instance, field.name, taken)


@functools.cache
def _types(cls: type[HasOptions]) -> Mapping[str, Any]:
    """Give the types of options, and of functions, by field.

    Types that are known to type checkers alone are left out, and so is what else only Python gives.
    """
    found: dict[str, Any] = {}
    for name in (field.name for field in dataclasses.fields(cls) if field.init):
        try:
            hint = field_types(cls, (name,))[name]
        except (NameError, AttributeError, TypeError):
            continue
        if is_option(hint) or all(_is_function(arm) or arm is type(None) for arm in _arms(hint)):
            found[name] = hint
    return found


def _is_function(hint: Any) -> bool:
    return Callable in (typing.get_origin(hint), hint)


def _described(hint: Any) -> str:
    """Name a type as `describe_type` does, and beside it what only Python can give."""
    arms = _arms(hint)
    if all(has_text(arm) for arm in arms):
        return describe_type(hint)
    return "|".join(describe_type(arm) if has_text(arm) else _plain_name(arm) for arm in arms)


def _plain_name(hint: Any) -> str:
    return "function" if _is_function(hint) else getattr(hint, "__name__", str(hint))


def _advice(value: Any, hint: Any, detail: str) -> str:
    if isinstance(value, str) and any(typing.get_origin(arm) is tuple for arm in _arms(hint)):
        return f"; give a tuple: ({value!r},)"
    return f" ({detail})" if detail else ""


def _arms(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in UNIONS else (hint,)


def _take(value: Any, hint: Any) -> Any:
    """Give the value as the field is to have it; `ValueError` where it does not fit."""
    arms = _arms(hint)
    for arm in arms:
        if _is_of(value, arm):
            return value
    detail = ""
    for arm in arms:
        try:
            return _converted(value, arm)
        except ValueError as error:
            detail = detail or str(error)
    raise ValueError(detail)


def _is_of(value: Any, hint: Any) -> bool:
    """Tell whether a value is of a type as it is; of types that are no options it always is."""
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return any(type(value) is type(c) and value == c for c in typing.get_args(hint))
    if origin is tuple:
        return isinstance(value, tuple) and (
            typing.get_args(hint) != (str, ...) or all(isinstance(item, str) for item in value)
        )
    if _is_function(hint):
        return callable(value)
    if not isinstance(hint, type):
        return True
    if hint is bool or hint is int:
        return type(value) is hint
    if hint is float:
        return type(value) in (int, float) and math.isfinite(value)
    try:
        return isinstance(value, hint)
    except TypeError:  # a protocol that cannot be asked for
        return True


def _converted(value: Any, hint: Any) -> Any:
    """Make a value of a type from one that stands for it."""
    if typing.get_origin(hint) is tuple and isinstance(value, list):
        if _is_of(tuple(value), hint):
            return tuple(value)
    elif hint in (int, float) and type(value) is bool:
        raise ValueError
    elif hint is int and isinstance(value, numbers.Integral):
        return int(value)
    elif hint is float and isinstance(value, numbers.Real):
        if math.isfinite(value):
            return float(value)
    elif isinstance(hint, type) and isinstance(value, str):
        if issubclass(hint, enum.Enum):
            return _member(hint, value)
        if hasattr(hint, "parse"):
            return hint.parse(value)
    raise ValueError


def _member(kind: type[enum.Enum], text: str) -> enum.Enum:
    for member in kind:
        if member.value == text:
            return member
    raise ValueError
