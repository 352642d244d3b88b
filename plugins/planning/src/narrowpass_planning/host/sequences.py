"""Numpy kernels of sequence operators; a sequence of tensors is a list of arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from narrowpass_planning.graph.op import Op

Array = np.ndarray[Any, Any]
Kernel = Callable[..., Any]
"""Takes the inputs (None for absent ones); returns an array, or a tuple of one sequence."""

_Builder = Callable[[Op], Kernel]
_KERNELS: dict[str, _Builder] = {}


def kernel_for(op: Op) -> Kernel | None:
    """Return the kernel of an operator of sequences; None for any other."""
    build = _KERNELS.get(op.kind)
    return None if build is None else build(op)


def _kernel(kind: str) -> Callable[[_Builder], _Builder]:
    def register(build: _Builder) -> _Builder:
        _KERNELS[kind] = build
        return build

    return register


def _at(position: Array | None, size: int, default: int) -> int:
    """Return an index from 0 to `size` - 1; negative positions count from the end."""
    if position is None:
        return default
    index = int(position.item())
    if not -size <= index < size:
        raise IndexError(f"position {index} is not one of {size} elements")
    return index % size


@_kernel("SequenceEmpty")
def _empty(_: Op) -> Kernel:
    return lambda: ([],)


@_kernel("SequenceConstruct")
def _construct(_: Op) -> Kernel:
    return lambda *given: (list(given),)


@_kernel("SequenceInsert")
def _insert(_: Op) -> Kernel:
    def run(sequence: list[Any], tensor: Array, position: Array | None = None) -> Any:
        size = len(sequence)
        at = size
        if position is not None:
            at = int(position.item())
            if not -size <= at <= size:
                raise IndexError(f"position {at} is not one to insert at among {size} elements")
        given = list(sequence)
        given.insert(at, tensor)
        return (given,)

    return run


@_kernel("SequenceErase")
def _erase(_: Op) -> Kernel:
    def run(sequence: list[Any], position: Array | None = None) -> Any:
        size = len(sequence)
        if not size:
            raise IndexError("an empty sequence has no element to erase")
        at = _at(position, size, size - 1)
        return ([*sequence[:at], *sequence[at + 1 :]],)

    return run


@_kernel("SequenceAt")
def _element(_: Op) -> Kernel:
    return lambda sequence, position: sequence[_at(position, len(sequence), 0)]


@_kernel("SequenceLength")
def _length(_: Op) -> Kernel:
    return lambda sequence: np.array(len(sequence), np.int64)


@_kernel("ConcatFromSequence")
def _concat(op: Op) -> Kernel:
    axis = op.attributes["axis"]
    join = np.stack if op.get("new_axis", 0) else np.concatenate
    return lambda sequence: join(sequence, axis)


@_kernel("SplitToSequence")
def _split(op: Op) -> Kernel:
    axis = op.get("axis", 0)
    keeps = bool(op.get("keepdims", 1))

    def run(x: Array, split: Array | None = None) -> Any:
        size = x.shape[axis]
        if split is None:
            parts = [x.take([index] if keeps else index, axis) for index in range(size)]
            return (parts,)
        if split.ndim == 0:
            each = int(split.item())
            if each < 1:
                raise ValueError(f"parts of {each} elements")
            starts = list(range(0, size, each))
            lengths = [min(each, size - start) for start in starts]
        else:
            lengths = split.tolist()
            if sum(lengths) != size or min(lengths, default=0) < 0:
                raise ValueError(f"{size} elements cannot be split into parts of {lengths}")
            starts = [sum(lengths[:index]) for index in range(len(lengths))]
        ranges = zip(starts, lengths, strict=True)
        return ([x.take(range(start, start + length), axis) for start, length in ranges],)

    return run
