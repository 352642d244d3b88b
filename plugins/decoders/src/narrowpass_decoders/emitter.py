"""Writes the nodes and initializers of one graph: matmuls, look-ups, norms and activations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from narrowpass_decoders.weights import Blocks, Dense, Matrix, OffsetBlocks, Weights

OPSET = 23
IR_VERSION = 11
MICROSOFT = "com.microsoft"


class Emitter:
    """Collects the nodes of a graph in order.

    Args:
        weights: where initializers come from.
    """

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self._nodes: list[ir.Node] = []
        self._initializers: dict[str, ir.Value] = {}
        self._once: dict[str, ir.Value] = {}
        self._microsoft = False

    def op(
        self,
        kind: str,
        *inputs: ir.Value | None,
        name: str = "",
        domain: str = "",
        **attributes: Any,
    ) -> ir.Value:
        """Append a node of one output, and return that."""
        (value,) = self.ops(kind, *inputs, outputs=1, name=name, domain=domain, **attributes)
        return value

    def ops(
        self,
        kind: str,
        *inputs: ir.Value | None,
        outputs: int,
        name: str = "",
        domain: str = "",
        **attributes: Any,
    ) -> Sequence[ir.Value]:
        """Append a node of several outputs, and return them."""
        label = f"{name or 'n'}/{kind}.{len(self._nodes)}"
        node = ir.node(
            kind,
            inputs,
            attributes=attributes,
            domain=domain,
            name=label,
            outputs=[ir.Value(name=f"{label}:{index}") for index in range(outputs)],
        )
        self._nodes.append(node)
        return node.outputs

    def const(self, value: Any, dtype: Any = np.int64) -> ir.Value:
        """Return a small constant, one for all of the same value."""
        array = np.asarray(value, dtype)
        name = f"const.{array.dtype}.{array.shape}.{array.tobytes().hex()}"
        if name not in self._once:
            short = f"const.{len(self._once)}"
            self._once[name] = self.initializer(short, ir.tensor(array, name=short))
        return self._once[name]

    def number(self, value: float) -> ir.Value:
        """Return a float32 scalar."""
        return self.const(value, np.float32)

    def initializer(self, name: str, tensor: ir.TensorProtocol) -> ir.Value:
        """Return the initializer of a name; the tensor is shared, and not copied."""
        if name not in self._initializers:
            shape = ir.Shape(tuple(int(dim) for dim in tensor.shape.numpy()))
            kind = ir.TensorType(tensor.dtype)
            self._initializers[name] = ir.Value(
                name=name, shape=shape, type=kind, const_value=tensor
            )
        return self._initializers[name]

    def vector(self, name: str) -> ir.Value:
        """Return a weight of float32."""
        return self.initializer(name, self.weights.vector(name))

    def linear(self, x: ir.Value, name: str) -> ir.Value:
        """Emit x · Wᵀ, and the bias where there is one."""
        result = self._matmul(x, name, self.weights.matrix(name))
        bias = f"{name}.bias"
        if self.weights.has(bias):
            result = self.op("Add", result, self.vector(bias), name=name)
        return result

    def gather(self, ids: ir.Value, name: str) -> ir.Value:
        """Emit a look-up of rows of a table."""
        return self.op("Gather", self._rows(name, self.weights.matrix(name)), ids, name=name)

    def _matmul(self, x: ir.Value, name: str, matrix: Matrix) -> ir.Value:
        if isinstance(matrix, Dense) and matrix.columns:
            return self.op("MatMul", x, self.initializer(name, matrix.tensor), name=name)
        if isinstance(matrix, OffsetBlocks):
            self._microsoft = True
            return self.op(
                "MatMulNBits",
                x,
                self.initializer(f"{name}.integers", matrix.integers),
                self._scales(name, matrix.scales),
                self.initializer(f"{name}.zeros", matrix.zeros),
                name=name,
                domain=MICROSOFT,
                K=matrix.inputs,
                N=int(matrix.scales.shape.numpy()[0]),
                bits=matrix.bits,
                block_size=matrix.block,
            )
        turned = f"{name}.transposed"
        if turned not in self._once:
            rows = self._rows(name, matrix)
            self._once[turned] = self.op("Transpose", rows, name=name, perm=[1, 0])
        return self.op("MatMul", x, self._once[turned], name=name)

    def _rows(self, name: str, matrix: Matrix) -> ir.Value:
        """Return a matrix as [N, K]."""
        if isinstance(matrix, Dense) and not matrix.columns:
            return self.initializer(name, matrix.tensor)
        if not isinstance(matrix, Blocks):
            raise TypeError(f"{name} is {type(matrix).__name__}, which has no rows to look up")
        whole = f"{name}.dequantized"
        if whole not in self._once:
            self._once[whole] = self.op(
                "DequantizeLinear",
                self.initializer(f"{name}.integers", matrix.integers),
                self._scales(name, matrix.scales),
                name=name,
                axis=1,
                block_size=matrix.block,
            )
        return self._once[whole]

    def _scales(self, name: str, scales: ir.TensorProtocol) -> ir.Value:
        """Return scales as float32."""
        stored = self.initializer(f"{name}.scales", scales)
        if scales.dtype == ir.DataType.FLOAT:
            return stored
        wide = f"{name}.scales.float"
        if wide not in self._once:
            self._once[wide] = self.op("Cast", stored, name=name, to=int(ir.DataType.FLOAT))
        return self._once[wide]

    def model(self, name: str, inputs: Sequence[ir.Value], outputs: Sequence[ir.Value]) -> ir.Model:
        """Return the model of all nodes."""
        opsets = {"": OPSET, **({MICROSOFT: 1} if self._microsoft else {})}
        graph = ir.Graph(
            inputs,
            outputs,
            nodes=self._nodes,
            initializers=list(self._initializers.values()),
            opset_imports=opsets,
            name=name,
        )
        return ir.Model(graph, ir_version=IR_VERSION, producer_name="narrowpass")


def typed(name: str, dtype: ir.DataType, *dims: int | str) -> ir.Value:
    """Return an input of a graph."""
    return ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(dims))


def as_output(value: ir.Value, name: str, dtype: ir.DataType, *dims: int | str) -> ir.Value:
    """Name a value as an output of its graph, and state its type and shape."""
    value.name = name
    value.type = ir.TensorType(dtype)
    value.shape = ir.Shape(dims)
    return value


def norm(
    e: Emitter, x: ir.Value, name: str, *, kind: str, epsilon: float, offset: float = 0.0
) -> ir.Value:
    """Emit a norm of the last axis.

    Args:
        e: emits the nodes.
        x: of any rank.
        name: of its scale; its bias is ``NAME.bias``, where there is one.
        kind: ``rms`` or ``layer``.
        epsilon: added to the mean of squares.
        offset: added to the scale.
    """
    scale = e.weights.vector(name)
    if offset:
        scale = ir.tensor(scale.numpy().astype(np.float32) + np.float32(offset), name=name)
    inputs = [x, e.initializer(name, scale)]
    bias = f"{name}.bias"
    if e.weights.has(bias):
        inputs.append(e.vector(bias))
    if kind == "layer":
        return e.op("LayerNormalization", *inputs, name=name, axis=-1, epsilon=epsilon)
    result = e.op("RMSNormalization", *inputs[:2], name=name, axis=-1, epsilon=epsilon)
    return e.op("Add", result, inputs[2], name=name) if len(inputs) == 3 else result


def activation(e: Emitter, x: ir.Value, kind: str) -> ir.Value:
    """Emit one of `narrowpass_decoders.config.ACTIVATIONS`."""
    if kind == "silu":
        return e.op("Mul", x, e.op("Sigmoid", x))
    if kind == "relu":
        return e.op("Relu", x)
    return e.op("Gelu", x, approximate="tanh" if kind == "gelu_tanh" else "none")


def cap(e: Emitter, x: ir.Value, limit: float) -> ir.Value:
    """Emit limit · tanh(x / limit); x itself where `limit` is 0."""
    if not limit or math.isinf(limit):
        return x
    number = e.number(limit)
    return e.op("Mul", e.op("Tanh", e.op("Div", x, number)), number)
