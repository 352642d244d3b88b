"""The channels of a value, and of a constant that can be scaled by a factor for each of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from narrowpass_ir.constants import constant_tensor


@dataclass(frozen=True)
class ChannelAxis:
    """A value with its channel axis.

    Attributes:
        value: the value.
        axis: counted from the end, as broadcasting does: -1 is the last.
    """

    value: ir.Value
    axis: int


Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class ChannelConstant:
    """A constant operand of a node, and the position of the channels in it.

    Attributes:
        node: the node.
        index: of the constant among its inputs.
        axis: of the constant, along which the channels lie.
        groups: above 1, channels lie along axis 1 for each group, and groups along axis 0, as in
            the weight of a Conv of several groups, of whose inputs it is asked.
        repeats: so many elements in a row along `axis` belong to one channel, as in the weight of
            a depthwise Conv with a channel multiplier above 1.
    """

    node: ir.Node
    index: int
    axis: int = 0
    groups: int = 1
    repeats: int = 1

    @property
    def value(self) -> ir.Value:
        """The constant."""
        found = self.node.inputs[self.index]
        if found is None:
            raise ValueError(f"input {self.index} of {self.node.name!r} is left out")
        return found

    @property
    def dims(self) -> tuple[int, ...]:
        """The shape of the constant."""
        return tuple(self._tensor().shape.numpy())

    @property
    def channels(self) -> int:
        """How many channels there are."""
        return self.dims[self.axis] * self.groups // self.repeats

    def read(self) -> Array:
        """Return the elements, float32."""
        return np.asarray(self._tensor().numpy())

    def spread(self, factors: Array) -> Array:
        """Return factors for channels, [C], in a shape that broadcasts against the constant."""
        dims = self.dims
        if self.groups > 1:
            rows = np.repeat(factors.reshape(self.groups, -1), dims[0] // self.groups, axis=0)
            return rows.reshape(*rows.shape, *[1] * (len(dims) - 2))
        shape = [1] * len(dims)
        shape[self.axis] = dims[self.axis]
        return np.repeat(factors, self.repeats).reshape(shape)

    def obstacle(self) -> str:
        """Return why the constant cannot be changed; empty where it can.

        A vector [channels] with other consumers is copied. A weight with others cannot be changed.
        """
        value, tensor = self.value, constant_tensor(self.value)
        if value.is_graph_input():
            return f"{value.name!r} may be fed"
        if tensor is None:
            return f"{value.name!r} is no constant"
        if value.is_graph_output():
            return f"{value.name!r} is an output"
        if tensor.dtype != ir.DataType.FLOAT:
            return f"{value.name!r} is {tensor.dtype.name.lower()}"
        if tensor.size == 0:
            return f"{value.name!r} is empty"
        if len(value.uses()) > 1 and tensor.size != self.channels:
            return f"others read {value.name!r}, too"
        return ""

    def _tensor(self) -> ir.TensorProtocol:
        tensor = constant_tensor(self.value)
        if tensor is None:
            raise ValueError(f"{self.value.name!r} is no constant")
        return tensor


def constant_shape(value: ir.Value | None) -> tuple[int, ...] | None:
    """Return the shape of a constant; None for any other value."""
    tensor = constant_tensor(value)
    return None if tensor is None else tuple(tensor.shape.numpy())
