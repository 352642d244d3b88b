"""Models with QuantizeLinear and DequantizeLinear, put together piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper


class QdqGraph:
    """A graph whose tensors are bytes between operators.

    Args:
        seed: of the numbers in it.
        unsigned: whether activations are uint8.
        opset: of the model.
    """

    def __init__(self, seed: int = 0, *, unsigned: bool = False, opset: int = 21) -> None:
        self.rng = np.random.default_rng(seed)
        self.unsigned = unsigned
        self._opset = opset
        self._nodes: list[onnx.NodeProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._initializers: list[onnx.TensorProto] = []
        self._count = 0

    def name(self, stem: str = "v") -> str:
        """Return a fresh name."""
        self._count += 1
        return f"{stem}{self._count}"

    def constant(self, array: Any, stem: str = "c") -> str:
        """Add an initializer."""
        name = self.name(stem)
        self._initializers.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def input(
        self, shape: Sequence[int | str], name: str = "x", elements: int = TensorProto.FLOAT
    ) -> str:
        """Add an input."""
        self._inputs.append(helper.make_tensor_value_info(name, elements, shape))
        return name

    def output(self, value: str, elements: int = TensorProto.FLOAT) -> None:
        """Declare a value as an output."""
        self._outputs.append(helper.make_tensor_value_info(value, elements, None))

    def node(self, op_type: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """Add a node; return the name of its output, or the names."""
        names = [self.name() for _ in range(outputs)]
        self._nodes.append(
            helper.make_node(op_type, inputs, names, name=self.name(op_type), **attributes)
        )
        return names[0] if outputs == 1 else names

    def parameters(self, scale: float, zero_point: int) -> tuple[str, str]:
        """Add a scale and a zero point; `zero_point` is in the range of int8."""
        dtype = np.uint8 if self.unsigned else np.int8
        zero = zero_point + (128 if self.unsigned else 0)
        return self.constant(np.float32(scale), "s"), self.constant(dtype(zero), "z")

    def quantize(self, value: str, scale: float, zero_point: int = 0) -> str:
        """Quantize and dequantize a value; return the dequantized one."""
        return self.dequantize(
            self.node("QuantizeLinear", value, *self.parameters(scale, zero_point)),
            scale,
            zero_point,
        )

    def dequantize(self, value: str, scale: float, zero_point: int = 0) -> str:
        """Dequantize bytes; return the name of the result."""
        return self.node("DequantizeLinear", value, *self.parameters(scale, zero_point))

    def weight(self, shape: Sequence[int], axis: int | None, largest: float = 0.02) -> str:
        """Add a weight of signed bytes; with a scale for each index of `axis`, or one."""
        stored = self.constant(self.rng.integers(-127, 128, shape).astype(np.int8), "w")
        count = () if axis is None else (shape[axis],)
        scale = self.constant(self.rng.uniform(largest / 9, largest, count).astype(np.float32), "s")
        if axis is None:
            return self.node("DequantizeLinear", stored, scale)
        return self.node("DequantizeLinear", stored, scale, axis=axis)

    def model(self) -> ir.Model:
        """Return the model."""
        graph = helper.make_graph(self._nodes, "g", self._inputs, self._outputs, self._initializers)
        opset = helper.make_opsetid("", self._opset)
        return ir.from_proto(helper.make_model(graph, opset_imports=[opset], ir_version=10))
