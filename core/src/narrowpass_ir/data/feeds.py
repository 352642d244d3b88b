"""Checks of what a caller feeds to a method, the same for all backends."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import onnx_ir as ir

from narrowpass_ir.arguments import suggest
from narrowpass_ir.data.arrays import plain_arrays
from narrowpass_ir.errors import DataError

Dim = int | str | None
"""A dimension: static, symbolic, or unknown."""


@dataclass(frozen=True)
class FeedSpec:
    """What one input takes.

    Attributes:
        name: the input's name.
        type: its type; None where the model does not say.
        shape: its dimensions; None where the rank is unknown.
        has_default: whether an initializer stands in where nothing is fed.
    """

    name: str
    type: ir.TypeProtocol | None
    shape: tuple[Dim, ...] | None
    has_default: bool


@dataclass(frozen=True)
class FeedChecker:
    """Checks feeds against the inputs of a method.

    Attributes:
        method: the method's name, for messages.
        inputs: what each input takes, in the order of the signature.
    """

    method: str
    inputs: tuple[FeedSpec, ...]

    @classmethod
    def of(cls, graph: ir.Graph, method: str = "main") -> Self:
        """Take the inputs of `graph`; later changes of it have no effect."""
        return cls(
            method,
            tuple(
                FeedSpec(
                    value.name or "", value.type, _dims(value), value.name in graph.initializers
                )
                for value in graph.inputs
            ),
        )

    def without(self, names: Collection[str]) -> Self:
        """Return the checker of the other inputs: something else feeds these."""
        return replace(self, inputs=tuple(s for s in self.inputs if s.name not in names))

    def check(self, feeds: Mapping[str, Any]) -> Mapping[str, Any]:
        """Check that `feeds` can be run.

        Args:
            feeds: an array for each tensor input, of exactly its dtype, of numpy or of another
                library (see `narrowpass_ir.data.arrays.plain_array`); a list of arrays for a
                sequence; either or None for an optional. An input with an initializer may be left
                out.

        Returns:
            The feeds as plain numpy arrays, of the same memory where that is possible.

        Raises:
            DataError: an unknown or missing input, or a value that does not fit its input. The
                message names the input and says what it takes.
        """
        if not isinstance(feeds, Mapping):
            raise DataError(
                f"{self._method()} takes its inputs as a mapping of names to numpy arrays, not as "
                f"{_kind(feeds)}; its inputs: {self._listing()}"
            )
        self.check_names(feeds)
        known = {spec.name: spec for spec in self.inputs}
        missing = [s.name for s in self.inputs if s.name not in feeds and not s.has_default]
        if missing:
            needs = ", ".join(_describe(known[name]) for name in missing)
            raise DataError(f"{self._method()}: nothing is fed to {needs}; pass an array for each")
        sizes: dict[str, tuple[int, str]] = {}
        feeds = plain_arrays(feeds, self._method())
        for name, value in feeds.items():
            spec = known[name]
            if spec.type is not None:
                self._check_value(spec, f"input {name!r}", spec.type, value, sizes)
        return feeds

    def check_names(self, names: Iterable[str]) -> None:
        """Check that the method has all inputs of these names.

        Raises:
            DataError: one that it does not have, with the one that may be meant.
        """
        known = {spec.name for spec in self.inputs}
        for name in names:
            if name not in known:
                raise DataError(
                    f"{self._method()} has no input {name!r}{suggest(str(name), known)}; "
                    f"its inputs: {self._listing()}"
                )

    def _method(self) -> str:
        return f"method {self.method!r}"

    def _listing(self) -> str:
        return ", ".join(map(_describe, self.inputs)) or "none"

    def _check_value(
        self,
        spec: FeedSpec,
        what: str,
        kind: ir.TypeProtocol,
        value: Any,
        sizes: dict[str, tuple[int, str]] | None,
    ) -> None:
        if isinstance(kind, ir.OptionalType):
            if value is not None:
                self._check_value(spec, what, kind.elem_type, value, sizes)
            return
        if isinstance(kind, ir.SequenceType):
            if not isinstance(value, list | tuple):
                raise DataError(
                    f"{what} of {self._method()} takes a list of arrays, not {_kind(value)}"
                )
            for index, element in enumerate(value):
                # The elements of a sequence may differ in their symbolic dimensions.
                self._check_value(spec, f"{what}, element {index},", kind.elem_type, element, None)
            return
        if not isinstance(kind, ir.TensorType):
            raise DataError(
                f"{what} of {self._method()} is a sparse tensor; these cannot be fed. "
                "Change the model to take a dense one"
            )
        self._check_array(spec, what, kind, value, sizes)

    def _check_array(
        self,
        spec: FeedSpec,
        what: str,
        kind: ir.TensorType,
        value: Any,
        sizes: dict[str, tuple[int, str]] | None,
    ) -> None:
        where = f"{what} of {self._method()}"
        if not isinstance(value, np.ndarray):
            raise DataError(
                f"{where} takes a numpy array of {_dtype_name(kind.dtype)}, not {_kind(value)}; "
                f"convert it: np.asarray(value, dtype={_dtype_code(kind.dtype)})"
            )
        _check_dtype(where, kind.dtype, value)
        if spec.shape is None:
            return
        if len(spec.shape) != value.ndim:
            takes = _takes(spec.shape, value)
            raise DataError(f"{where} {takes}: rank {len(spec.shape)}, not {value.ndim}")
        for axis, (dim, size) in enumerate(zip(spec.shape, value.shape, strict=True)):
            if isinstance(dim, int) and dim != size:
                takes = _takes(spec.shape, value)
                raise DataError(f"{where} {takes}: axis {axis} is {size}, not {dim}")
            if not isinstance(dim, str) or sizes is None:
                continue
            first, owner = sizes.setdefault(dim, (size, f"axis {axis} of {spec.name!r}"))
            if first != size:
                raise DataError(
                    f"{where}: dimension {dim!r} is {size} at axis {axis}, but {first} at {owner}; "
                    "feed arrays that agree"
                )


def _dims(value: ir.Value) -> tuple[Dim, ...] | None:
    if value.shape is None:
        return None
    return tuple(dim if isinstance(dim, int) else dim.value or None for dim in value.shape)


def _check_dtype(where: str, expected: ir.DataType, array: np.ndarray[Any, Any]) -> None:
    if expected == ir.DataType.STRING:
        if array.dtype.kind == "U":
            return
        if array.dtype.kind != "O":
            raise DataError(
                f"{where} takes strings, not {array.dtype}; pass an object array of str"
            )
        wrong = next((item for item in array.flat if not isinstance(item, str)), None)
        if wrong is not None:
            raise DataError(f"{where} takes strings; one element is {_kind(wrong)}: decode it")
        return
    if expected != ir.DataType.UNDEFINED and array.dtype != expected.numpy():
        raise DataError(
            f"{where} takes {_dtype_name(expected)}, not {array.dtype}; "
            f"convert it with .astype({_dtype_code(expected)})"
        )


def _dtype_name(dtype: ir.DataType) -> str:
    if dtype in (ir.DataType.STRING, ir.DataType.UNDEFINED):
        return dtype.name.lower()
    return str(dtype.numpy())


def _dtype_code(dtype: ir.DataType) -> str:
    """Return what stands for `dtype` in Python."""
    if dtype in (ir.DataType.STRING, ir.DataType.UNDEFINED):
        return "object"
    kind = dtype.numpy()
    name = "bool_" if kind == np.bool_ else kind.name  # np.bool is of numpy 2
    return f"{kind.type.__module__.split('.')[0]}.{name}".replace("numpy.", "np.")


def _shape_text(shape: tuple[Dim, ...]) -> str:
    return "[" + ", ".join("?" if dim is None else str(dim) for dim in shape) + "]"


def _takes(shape: tuple[Dim, ...], array: np.ndarray[Any, Any]) -> str:
    return f"takes shape {_shape_text(shape)}, not {_shape_text(array.shape)}"


def _describe(spec: FeedSpec) -> str:
    kind = spec.type
    if isinstance(kind, ir.TensorType):
        shape = "" if spec.shape is None else _shape_text(spec.shape)
        return f"{spec.name} ({_dtype_name(kind.dtype)}{shape})"
    return f"{spec.name} ({kind})" if kind is not None else spec.name


def _kind(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype}"
    if isinstance(value, np.generic):
        return f"a numpy scalar of {value.dtype}"
    return "None" if value is None else f"a Python {type(value).__name__}"
