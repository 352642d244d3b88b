"""Option values that are set from Python: checked against the option's type, as text is."""

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
    """Check the options of a frozen dataclass that was just constructed; defaults are not checked.

    An enum or a class with ``parse`` may be set to its text, a tuple to a list, and a number or
    flag to numpy's: the field is converted.

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
            converted = _fitted(value, hint)
        except ValueError as error:
            raise OptionError(
                field.name.replace("_", "-"),
                f"option {field.name!r} of {instance.name!r} takes {_described(hint)}, "
                f"not {value!r}{_advice(value, hint, str(error))}",
            ) from None
        if converted is not value:
            object.__setattr__(instance, field.name, converted)


@functools.cache
def _types(cls: type[HasOptions]) -> Mapping[str, Any]:
    """Return the types of options, and of functions, by field.

    Types that only type checkers know are left out, and so are other types without text form.
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
    """Name a type as `describe_type` does, types without text form included."""
    arms = _arms(hint)
    if all(has_text(arm) for arm in arms):
        return describe_type(hint)
    return "|".join(describe_type(arm) if has_text(arm) else _plain_name(arm) for arm in arms)


def _plain_name(hint: Any) -> str:
    return "function" if _is_function(hint) else getattr(hint, "__name__", str(hint))


def _advice(value: Any, hint: Any, detail: str) -> str:
    if isinstance(value, str) and any(typing.get_origin(arm) is tuple for arm in _arms(hint)):
        return f"; pass a tuple: ({value!r},)"
    return f" ({detail})" if detail else ""


def _arms(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in UNIONS else (hint,)


def _fitted(value: Any, hint: Any) -> Any:
    """Return the value converted to the field's type; `ValueError` where it does not fit."""
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
    """Report whether a value is of a type; always true for types that are no options."""
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
    except TypeError:  # a protocol that is not runtime-checkable
        return True


def _converted(value: Any, hint: Any) -> Any:
    """Convert a value to a type: text of an enum, a list, a number of numpy."""
    if typing.get_origin(hint) is tuple and isinstance(value, list):
        if _is_of(tuple(value), hint):
            return tuple(value)
    elif hint is bool and _is_numpy_flag(value):
        return bool(value)
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


def _is_numpy_flag(value: Any) -> bool:
    """Report whether a value is a flag of numpy, which this module does not import."""
    dtype = getattr(value, "dtype", None)
    return getattr(dtype, "kind", "") == "b" and getattr(value, "ndim", None) == 0


def _member(kind: type[enum.Enum], text: str) -> enum.Enum:
    for member in kind:
        if member.value == text:
            return member
    raise ValueError
