"""Methods of backends are code of plugins: they answer as they should, or an error names them."""

from __future__ import annotations

import functools
import inspect
import math
import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from narrowpass.errors import BackendError, NarrowpassError
from narrowpass.framework.boundary import sentence, translate_errors

_ADVICE = "this is a defect of the backend: report it to its authors, or use another --backend"


@dataclass(frozen=True)
class Answer:
    """What a method must return.

    Attributes:
        expected: as a message names it.
        fits: returns whether a value is that.
    """

    expected: str
    fits: Callable[[Any], bool]


def of_type(expected: str, *types: type) -> Answer:
    """Return an answer that is an instance of one of `types`."""
    return Answer(expected, lambda value: isinstance(value, types))


def _is_seconds(value: Any) -> bool:
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return real and not math.isnan(value)


def _is_texts(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(text, str) for item in value.items() for text in item
    )


def _is_spec(value: Any) -> bool:
    from narrowpass.runtime.quantization import (
        QuantizationSpec,  # numpy: imported where one is given
    )

    return isinstance(value, QuantizationSpec)


COMMON: Mapping[str, Answer] = MappingProxyType(
    {
        "default_pipeline": of_type("pipeline text", str),
        "quantization_spec": Answer("a narrowpass.runtime.quantization.QuantizationSpec", _is_spec),
        "details": Answer("a mapping of text by name", _is_texts),
        "gain": Answer("a number of seconds", _is_seconds),
    }
)
"""Answers of `Backend` whose types are not its own."""


def guard(cls: type, answers: Mapping[str, Answer]) -> None:
    """Wrap the methods that a subclass of `Backend` defines in checks of their contract.

    What they raise, or return of another kind, becomes a `BackendError`; our errors stay as
    they are. `available` never fails: a backend that cannot even say whether it can run, cannot.
    """
    for name, answer in answers.items():
        method = vars(cls).get(name)
        if inspect.isfunction(method):
            setattr(cls, name, _checked_method(method, name, answer))
    method = vars(cls).get("available")
    if inspect.isfunction(method):
        cls.available = _without_errors(method)  # type: ignore[attr-defined]  # of a backend


def _checked_method(method: Callable[..., Any], name: str, answer: Answer) -> Callable[..., Any]:
    @functools.wraps(method)
    def ask(self: Any, *args: Any, **kwargs: Any) -> Any:
        with translate_errors(f"backend {self.name!r} failed in {name}", BackendError, _ADVICE):
            value = method(self, *args, **kwargs)
            if not answer.fits(value):
                raise BackendError(
                    f"backend {self.name!r} gave {value!r} in {name}, where {answer.expected} is "
                    f"due; {_ADVICE}"
                )
            return value

    return ask


def _without_errors(method: Callable[[Any], Any]) -> Callable[[Any], str | None]:
    @functools.wraps(method)
    def ask(self: Any) -> str | None:
        try:
            with translate_errors("it cannot be asked", BackendError):
                reason = method(self)
                if reason is None or isinstance(reason, str):
                    return reason
                raise BackendError(f"it cannot be asked: it gave {reason!r}, not a reason")
        except NarrowpassError as error:
            return sentence(error)

    return ask
