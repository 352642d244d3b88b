"""What a model promises to its callers: names, types and shapes of inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from narrowpass_ir.verify._operators import dtype_text

Dim = int | str | None
"""A size, the name of a symbolic one, or None for an unknown one."""


@dataclass(frozen=True)
class ValueSpec:
    """One input or output.

    Attributes:
        name: its name.
        dtype: the element type as ONNX names it in lower case, such as ``float`` or ``int64``;
            for what is no dense tensor, the whole type, such as ``seq(tensor(float))``; None
            where it is unknown.
        shape: its dimensions; None where the rank is unknown.
        has_default: whether it is an input that may be left out, since an initializer has
            its value.
    """

    name: str
    dtype: str | None
    shape: tuple[Dim, ...] | None
    has_default: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return ``name``, ``dtype`` and ``shape``, and ``default`` where there is one."""
        shape = None if self.shape is None else list(self.shape)
        spec: dict[str, Any] = {"name": self.name, "dtype": self.dtype, "shape": shape}
        return {**spec, "default": True} if self.has_default else spec


@dataclass(frozen=True)
class Signature:
    """The inputs and outputs of a model, in order."""

    inputs: tuple[ValueSpec, ...]
    outputs: tuple[ValueSpec, ...]

    @classmethod
    def of(cls, model: ir.Model) -> Signature:
        """Return the signature of a model's main graph."""
        graph = model.graph
        return cls(
            tuple(_spec(value, value.is_initializer()) for value in graph.inputs),
            tuple(_spec(value, has_default=False) for value in graph.outputs),
        )

    def differences(self, other: Signature) -> list[str]:
        """Return sentences on how `other` differs; none where they are equal.

        A dimension, rank or type that becomes known is a difference too: callers may rely on
        its freedom, and other tools check feeds against what is declared.

        Args:
            other: the signature afterwards.
        """
        return [
            *_list_differences("input", self.inputs, other.inputs),
            *_list_differences("output", self.outputs, other.outputs),
        ]

    def to_json(self) -> dict[str, list[dict[str, Any]]]:
        """Return ``inputs`` and ``outputs``, each a list with one object per value."""
        return {
            "inputs": [spec.to_json() for spec in self.inputs],
            "outputs": [spec.to_json() for spec in self.outputs],
        }


def _spec(value: ir.Value, has_default: bool) -> ValueSpec:
    shape = None
    if value.shape is not None:
        shape = tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)
    return ValueSpec(value.name or "", dtype_text(value.type), shape, has_default)


def _list_differences(
    what: str, before: Sequence[ValueSpec], after: Sequence[ValueSpec]
) -> Iterator[str]:
    old_names = [spec.name for spec in before]
    new_names = [spec.name for spec in after]
    if old_names == new_names:
        for old, new in zip(before, after, strict=True):
            yield from _value_differences(f"{what} {old.name!r}", old, new)
        return
    for name in dict.fromkeys(old_names):
        gone = old_names.count(name) - new_names.count(name)
        if gone > 0:
            yield f"{what} {name!r} is gone" + (f" ({gone} times)" if gone > 1 else "")
    for name in dict.fromkeys(new_names):
        added = new_names.count(name) - old_names.count(name)
        if added > 0:
            yield f"{what} {name!r} is new" + (f" ({added} times)" if added > 1 else "")
    if sorted(old_names) == sorted(new_names):
        yield (
            f"the {what}s were in the order {', '.join(old_names)}, and are now in the order "
            f"{', '.join(new_names)}"
        )
    kept = {spec.name: spec for spec in after}
    for old in {spec.name: spec for spec in before}.values():
        if old.name in kept:
            yield from _value_differences(f"{what} {old.name!r}", old, kept[old.name])


def _value_differences(label: str, old: ValueSpec, new: ValueSpec) -> Iterator[str]:
    if old.dtype != new.dtype:
        note = " (refined: it was unknown)" if old.dtype is None else ""
        yield f"{label} was of type {_shown(old.dtype)}, and is now {_shown(new.dtype)}{note}"
    if old.has_default and not new.has_default:
        yield f"{label} had a default value, and has none now"
    if new.has_default and not old.has_default:
        yield f"{label} had no default value, and has one now"
    if old.shape == new.shape:
        return
    if old.shape is None or new.shape is None:
        note = " (refined: its rank was unknown)" if old.shape is None else ""
        yield f"{label} was of shape {_shape(old.shape)}, and is now {_shape(new.shape)}{note}"
        return
    if len(old.shape) != len(new.shape):
        yield f"{label} was of rank {len(old.shape)}, and is now of rank {len(new.shape)}"
        return
    for index, (was, now) in enumerate(zip(old.shape, new.shape, strict=True)):
        if was != now:
            refined = not isinstance(was, int) and (isinstance(now, int) or was is None)
            note = " (refined: it could vary)" if refined else ""
            yield f"{label}: dimension {index} was {_shown(was)}, and is now {_shown(now)}{note}"


def _shown(part: Dim) -> str:
    return "unknown" if part is None else str(part)


def _shape(shape: tuple[Dim, ...] | None) -> str:
    if shape is None:
        return "unknown"
    return "[" + ", ".join("?" if dim is None else str(dim) for dim in shape) + "]"
