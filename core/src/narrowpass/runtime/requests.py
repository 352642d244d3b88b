"""What a run is asked for: a method, outputs, arrays for results; checks for all backends."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.lib.array_utils import byte_bounds

from narrowpass.errors import DataError, UsageError
from narrowpass_ir.arguments import kind_of, names_of, suggest

_Method = TypeVar("_Method")
_Array = np.ndarray[Any, Any]

_MOST_WORK: Any = 1 << 16  # any integer, which numpy's types do not know
"""Steps after which it is not asked further whether two strided arrays overlap."""


def choose_method(methods: Mapping[str, _Method], name: str) -> tuple[str, _Method]:
    """Return a method and its name; the only one stands for ``main``.

    Raises:
        UsageError: there is none of that name, or it is no text.
    """
    if not isinstance(name, str):
        raise UsageError(
            f"a method is given by its name, not as {kind_of(name)}; methods: {', '.join(methods)}"
        )
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
    """Return the names of the values that a run is to return.

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
    names = names_of(asked, "`outputs`")
    for name in names:
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
    return names


def check_targets(method: str, targets: Mapping[str, Any], wanted: Sequence[str]) -> None:
    """Check that arrays are given for results of this run only, and lie apart.

    Raises:
        UsageError: one is for something else, two overlap, or they have no names.
    """
    if not isinstance(targets, Mapping):
        raise UsageError(f"`out` must be a dict of arrays by output name, not {kind_of(targets)}")
    for name in targets:
        if name not in wanted:
            raise UsageError(
                f"`out` has {name!r}, which this run of method {method!r} does not return; "
                f"it returns {', '.join(wanted)}"
            )
    found = _overlapping({k: v for k, v in targets.items() if isinstance(v, np.ndarray)})
    if found is not None:
        one, other = found
        raise UsageError(
            f"the arrays that `out` has for {one!r} and {other!r} overlap: each result needs "
            "memory of its own"
        )


def _overlapping(arrays: Mapping[str, _Array]) -> tuple[str, str] | None:
    """Return the names of two arrays that overlap, if there are such."""
    placed = sorted((*byte_bounds(array), name) for name, array in arrays.items())
    for index, (_, end, one) in enumerate(placed):
        for start, _, other in placed[index + 1 :]:
            if start >= end:
                break
            if _overlap(arrays[one], arrays[other]):
                return one, other
    return None


def write_outputs(values: Mapping[str, Any], targets: Mapping[str, Any]) -> dict[str, _Array]:
    """Copy results into the caller's arrays, and return these by name.

    An array may lie where a feed does, and a result may be a view of that feed: it is saved before
    anything is written.

    Args:
        values: results by name, those that are computed in the caller's arrays among them.
        targets: arrays by name, which do not overlap.

    Raises:
        UsageError: a result is no tensor.
        DataError: an array has another dtype or shape, or cannot be written to.
    """
    saved = {
        name: value.copy()
        for name, value in values.items()
        if name in targets and value is not targets[name] and _is_written(name, value, targets)
    }
    written = {}
    for name, target in targets.items():
        value = saved.get(name, values[name])
        written[name] = target if value is target else _write_output(name, value, target)
    return written


def _is_written(name: str, value: Any, targets: Mapping[str, Any]) -> bool:
    """Return whether the array of another result lies where this result does."""
    return any(_overlap(value, array) for other, array in targets.items() if other != name)


def _overlap(one: Any, other: Any) -> bool:
    if not isinstance(one, np.ndarray) or not isinstance(other, np.ndarray):
        return False
    if not np.may_share_memory(one, other):
        return False
    try:
        return np.shares_memory(one, other, max_work=_MOST_WORK)
    except np.exceptions.TooHardError:
        return True


def _write_output(name: str, value: Any, target: Any) -> _Array:
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
    written: _Array = target
    return written
