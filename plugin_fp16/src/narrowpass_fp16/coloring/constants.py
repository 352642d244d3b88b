"""Whether a constant can be held in a narrow type, or is stored in 16 bits already."""

from __future__ import annotations

from collections.abc import Iterable

import ml_dtypes
import onnx_ir as ir

from narrowpass.runtime.processors import usable_processors
from narrowpass_fp16.schemas import FLOAT
from narrowpass_ir.constants import constant_tensor
from narrowpass_ir.io import rounding, rounding_at_most
from narrowpass_ir.tensors.threads import ThreadPool

_ROUNDING = 4e-3
"""The error of a constant relative to it, as root mean squares, up to which it is rounded; rounding
alone is 2.0e-4 in float16 and 1.7e-3 in bfloat16, underflow of small elements adds to it."""

_MOST_THREADS = 4


def constant_of(value: ir.Value) -> ir.TensorProtocol | None:
    """Return the tensor of a constant, or the element that a ConstantOfShape repeats."""
    node = value.producer()
    if node is None or node.domain or node.op_type != "ConstantOfShape":
        return constant_tensor(value)
    attribute = node.attributes.get("value")
    return None if attribute is None or attribute.is_ref() else attribute.as_tensor()


class Constants:
    """Judges constants, each once.

    Args:
        dtype: the narrow type.
        margin: a number counts as too large from the largest of the type divided by this.

    Attributes:
        dtype: the narrow type.
        most: the largest number that is taken.
        least: the smallest that is held with all its digits.
    """

    def __init__(self, dtype: ir.DataType, margin: float) -> None:
        self.dtype = dtype
        limits = ml_dtypes.finfo(dtype.numpy())  # type: ignore[no-untyped-call]  # it has no types
        self.most = float(limits.max) / margin
        self.least = float(limits.tiny)
        self._magnitudes: dict[int, float] = {}
        self._known: dict[int, tuple[str, float | None, float | None]] = {}
        self._tensors: dict[int, ir.TensorProtocol] = {}  # so that no other gets its id

    def judge(self, tensors: Iterable[ir.TensorProtocol]) -> None:
        """Read constants, several at once, so that `against` need not."""
        unknown = {id(tensor): tensor for tensor in tensors if id(tensor) not in self._known}
        with ThreadPool(min(_MOST_THREADS, usable_processors())) as pool:
            found = pool.map(self._judge, unknown.values())
            self._known.update(zip(unknown, found, strict=True))

    def against(self, tensor: ir.TensorProtocol) -> tuple[str, float | None, float | None]:
        """Return why a constant must stay wide (empty if it need not), a value and its limit."""
        key = id(tensor)
        if key not in self._known:
            self._known[key] = self._judge(tensor)
        return self._known[key]

    def largest(self, tensor: ir.TensorProtocol) -> float:
        """Return the largest finite magnitude in a constant."""
        key = id(tensor)
        if key not in self._magnitudes:
            self._tensors[key] = tensor
            self._magnitudes[key] = rounding_at_most(tensor, self.dtype).largest
        return self._magnitudes[key]

    def _judge(self, tensor: ir.TensorProtocol) -> tuple[str, float | None, float | None]:
        self._tensors[id(tensor)] = tensor
        found = rounding_at_most(tensor, self.dtype)
        if found.error > _ROUNDING:  # it need not be
            found = rounding(tensor, self.dtype)
        self._magnitudes[id(tensor)] = found.largest
        if found.largest > self.most:
            return "an element is too large", found.largest, self.most
        if 0 < found.largest < self.least:
            return "all elements are too small", found.largest, self.least
        if found.error > _ROUNDING:
            return "it loses too much in rounding", found.error, _ROUNDING
        return "", None, None


_NARROW = {ir.DataType.FLOAT16, ir.DataType.BFLOAT16}


def stored_value(value: ir.Value | None) -> ir.Value | None:
    """Return the initializer that a value is a Cast of; None where it is no such Cast."""
    node = None if value is None else value.producer()
    if node is None or node.op_type != "Cast" or node.domain or node.outputs[0].dtype != FLOAT:
        return None
    source = node.inputs[0]
    if source is None or source.const_value is None or source.is_graph_input():
        return None
    if not source.is_initializer() or source.const_value.dtype not in _NARROW:
        return None
    return source
