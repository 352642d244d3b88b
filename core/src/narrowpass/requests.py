"""What a run is asked for: a method, outputs, arrays for results; checks for all backends."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from narrowpass.errors import DataError, UsageError
from narrowpass.options import suggest

_Method = TypeVar("_Method")


def choose_method(methods: Mapping[str, _Method], name: str) -> tuple[str, _Method]:
    """Give a method and its name; the only one stands for ``main``.

    Raises:
        UsageError: there is none of that name.
    """
    if name == "main" and name not in methods and len(methods) == 1:
        name = next(iter(methods))
    if name not in methods:
        raise UsageError(
            f"no method {name!r}{suggest(name, methods)}; methods: {', '.join(methods)}"
        )
    return name, methods[name]


def check_kept(keep: Iterable[str], known: Collection[str]) -> None:
    """Check that each value to keep is one of `known`, those of all methods.

    Raises:
        UsageError: one is not.
    """
    for name in keep:
        if name not in known:
            raise UsageError(
                f"no method has a value {name!r} to keep{suggest(name, known)}; "
                "`narrowpass explain` lists the nodes"
            )


def choose_outputs(
    method: str,
    asked: Sequence[str] | None,
    outputs: tuple[str, ...],
    readable: Collection[str],
    known: Collection[str],
) -> tuple[str, ...]:
    """Give the names of the values that a run is to give.

    Args:
        method: the method's name, for messages.
        asked: the names that the caller wants; None for all outputs.
        outputs: of the method.
        readable: outputs and kept values.
        known: all values of the method.

    Raises:
        UsageError: a value that is not there, or was not kept.
    """
    if asked is None:
        return outputs
    for name in asked:
        if name in readable:
            continue
        if name in known:
            raise UsageError(
                f"value {name!r} of method {method!r} was not kept; "
                f"name it when compiling: keep=[{name!r}]"
            )
        raise UsageError(
            f"method {method!r} has no value {name!r}{suggest(name, known)}; "
            f"its outputs: {', '.join(outputs)}"
        )
    return tuple(asked)


def check_targets(method: str, targets: Iterable[str], wanted: Sequence[str]) -> None:
    """Check that arrays are given for results of this run only.

    Raises:
        UsageError: one is for something else.
    """
    for name in targets:
        if name not in wanted:
            raise UsageError(
                f"`out` has {name!r}, which this run of method {method!r} does not give; "
                f"it gives {', '.join(wanted)}"
            )


def write_output(name: str, value: Any, target: Any) -> np.ndarray[Any, Any]:
    """Copy a result into the caller's array, and give that.

    Raises:
        UsageError: the result is no tensor.
        DataError: the array has another dtype or shape, or cannot be written to.
    """
    if not isinstance(value, np.ndarray):
        raise UsageError(f"output {name!r} is not a tensor: leave it out of `out`")
    fits = (
        isinstance(target, np.ndarray)
        and target.dtype == value.dtype
        and target.shape == value.shape
        and target.flags.writeable
    )
    if not fits:
        raise DataError(
            f"output {name!r} is {value.dtype}{list(value.shape)}; "
            "`out` must hold a writeable array of that dtype and shape"
        )
    np.copyto(target, value)
    written: np.ndarray[Any, Any] = target
    return written
