"""Typed options of passes, instruments and backends: to and from text, and checked when set.

The text form is shared by everything that has options::

    name{key=value,key=[item,item]}

An option is a field of a frozen dataclass; underscores of the field are hyphens in the text.
Field types: `bool`, `int`, `float`, `str`, an `enum.Enum` of strings, `typing.Literal` of
strings, `tuple[str, ...]`, any class with a ``parse(text)`` class method whose ``str()`` is
that text, and unions of these (tried in the order written; `None` is written ``none``). A union
may also have types that only Python can pass, such as functions. A class with ``parse`` may say in
``text_form`` what its text looks like.

Values that are set from Python are checked against the option's type, as text is: `check_values`.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import json
import math
import numbers
import re
import types
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar, Protocol, TypeVar

from narrowpass.errors import PluginError
from narrowpass.framework.boundary import translate_errors
from narrowpass_ir.arguments import suggest

OptionText = str | tuple[str, ...]
"""The text of one value: a scalar, or the items of a list."""

UNIONS = (types.UnionType, typing.Union)
"""Results of `typing.get_origin` for a union."""

_DEFECT = "this is a defect of the plugin that has it"

_NEEDS_QUOTES = re.compile(r'[\s,\[\]{}="]')


class HasOptions(Protocol):
    """A frozen dataclass whose fields are its options."""

    name: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]


T = TypeVar("T", bound=HasOptions)


class OptionError(ValueError):
    """A value that does not fit its option.

    Attributes:
        option: the option's name as written, for the caret.
    """

    def __init__(self, option: str, message: str) -> None:
        super().__init__(message)
        self.option = option


def quote(text: str) -> str:
    """Return `text` as one scalar of pipeline text, in double quotes where it needs them."""
    if text and not _NEEDS_QUOTES.search(text) and text.isprintable():
        return text
    return json.dumps(text, ensure_ascii=False)


@functools.cache
def option_types(cls: type[HasOptions]) -> Mapping[str, Any]:
    """Return the option names of `cls` in the order of its fields, with their Python types."""
    names = [field.name for field in dataclasses.fields(cls) if field.init]
    hints = field_types(cls, names)
    # A field of a type without text form is set from Python only.
    return {name.replace("_", "-"): hints[name] for name in names if is_option(hints[name])}


def field_types(cls: type[HasOptions], names: Collection[str]) -> Mapping[str, Any]:
    """Return the types of some fields; those of others may be known to type checkers alone."""
    hints: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        texts = {n: t for n, t in inspect.get_annotations(base).items() if n in names}
        holder = type(base.__name__, (), {"__annotations__": texts, "__module__": base.__module__})
        hints.update(typing.get_type_hints(holder))
    return hints


def describe_type(hint: Any) -> str:
    """Name a type as a user of the pipeline text would: ``true|false``, ``[text, ...]``."""
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return "|".join(str(choice) for choice in typing.get_args(hint))
    if origin in UNIONS:
        return "|".join(describe_type(arm) for arm in typing.get_args(hint) if has_text(arm))
    if origin is tuple:
        return "[text, ...]"
    if hint is type(None):
        return "none"
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return "|".join(str(member.value) for member in hint)
    name = getattr(hint, "__name__", str(hint)).lower()
    plain = {bool: "true|false", int: "integer", float: "number", str: "text"}
    return plain.get(hint) or str(getattr(hint, "text_form", name))


def is_option(hint: Any) -> bool:
    """Report whether text can set a field to more than none; unknown types are an error later."""
    arms = typing.get_args(hint) if typing.get_origin(hint) in UNIONS else ()
    return not arms or any(has_text(arm) and arm is not type(None) for arm in arms)


def has_text(hint: Any) -> bool:
    """Report whether values of a type have a text form."""
    if typing.get_origin(hint) in (typing.Literal, tuple):
        return True
    if not isinstance(hint, type):
        return False
    plain = hint in (str, bool, int, float, type(None))
    return plain or issubclass(hint, enum.Enum) or hasattr(hint, "parse")


def _parse_value(text: OptionText, hint: Any) -> Any:
    """Turn text into a value of type `hint`; `ValueError` where it does not fit."""
    origin = typing.get_origin(hint)
    if origin in UNIONS:
        detail = ""
        for arm in filter(has_text, typing.get_args(hint)):
            try:
                return _parse_value(text, arm)
            except ValueError as error:
                detail = detail or str(error)
        raise ValueError(detail)
    if origin is tuple:
        if isinstance(text, str):
            raise ValueError
        return text
    if not isinstance(text, str):
        raise ValueError
    return _parse_scalar(text, hint)


def _parse_scalar(text: str, hint: Any) -> Any:
    if hint is str:
        return text
    if hint is bool:
        return {"true": True, "false": False}[text] if text in ("true", "false") else _reject()
    if hint is type(None):
        return None if text == "none" else _reject()
    if hint is float or hint is int or (isinstance(hint, type) and issubclass(hint, enum.Enum)):
        try:
            value: Any = hint(text)
        except ValueError:
            return _reject()  # Python's own message does not name the option
        return value if hint is not float or math.isfinite(value) else _reject()
    if typing.get_origin(hint) is typing.Literal:
        return text if text in typing.get_args(hint) else _reject()
    if hasattr(hint, "parse"):
        return hint.parse(text)
    raise TypeError(f"options cannot be of type {hint!r}")


def _reject() -> Any:
    raise ValueError


def construct(cls: type[T], given: Mapping[str, OptionText]) -> T:
    """Construct a `cls` from the text of its options.

    Raises:
        OptionError: an unknown option, or a value that does not fit its type.
        PluginError: the class itself fails.
    """
    with translate_errors(
        f"{cls.name!r} cannot be constructed", PluginError, _DEFECT, passing=(OptionError,)
    ):
        return _constructed(cls, given)


def _constructed(cls: type[T], given: Mapping[str, OptionText]) -> T:
    known = option_types(cls)
    values: dict[str, Any] = {}
    for option, text in given.items():
        if option not in known:
            listing = ", ".join(known) or "none"
            raise OptionError(
                option,
                f"{cls.name!r} has no option {option!r}{suggest(option, known)}; "
                f"its options: {listing}",
            )
        try:
            values[option.replace("-", "_")] = _parse_value(text, known[option])
        except ValueError as error:
            shown = text if isinstance(text, str) else f"[{','.join(text)}]"
            detail = f" ({error})" if str(error) else ""
            raise OptionError(
                option,
                f"option {option!r} of {cls.name!r} takes {describe_type(known[option])}, "
                f"not {shown!r}{detail}",
            ) from None
    try:
        return cls(**values)
    except OptionError:
        raise
    except (TypeError, ValueError) as error:
        raise OptionError(next(iter(given), cls.name), f"{cls.name!r}: {error}") from error


def format_value(value: Any) -> str:
    """Return the text of one option value."""
    if isinstance(value, tuple):
        return "[" + ",".join(quote(str(item)) for item in value) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "none"
    if isinstance(value, enum.Enum):
        return quote(str(value.value))
    if not has_text(type(value)):  # set from Python: shown by its name
        kind = type(value).__name__
        return quote(str(getattr(value, "name", getattr(value, "__name__", kind))))
    return quote(str(value))


def default_text(field: dataclasses.Field[Any]) -> str:
    """Return the text of an option's default; empty where it has none."""
    if field.default_factory is not dataclasses.MISSING:
        return format_value(field.default_factory())
    return "" if field.default is dataclasses.MISSING else format_value(field.default)


def format_options(instance: HasOptions) -> str:
    """Return ``name{key=value,...}`` with the options that differ from their defaults."""
    parts = []
    for field in dataclasses.fields(instance):
        if not field.init:
            continue
        value = getattr(instance, field.name)
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        else:
            default = field.default
        if value != default:
            parts.append(f"{field.name.replace('_', '-')}={format_value(value)}")
    return instance.name + ("{" + ",".join(parts) + "}" if parts else "")


def check_values(instance: HasOptions) -> None:
    """Check the options of a frozen dataclass that was just constructed; defaults are not checked.

    An enum or a class with ``parse`` may be set to its text, a tuple to a list, and a number or
    flag to numpy's: the field is converted.

    Raises:
        OptionError: a value that does not fit its type.
    """
    types = _checked_types(type(instance))
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
def _checked_types(cls: type[HasOptions]) -> Mapping[str, Any]:
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
