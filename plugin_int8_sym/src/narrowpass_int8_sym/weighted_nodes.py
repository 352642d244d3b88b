"""Matmuls and convolutions with a constant weight, and the axis of its output channels."""

from __future__ import annotations

import math
from dataclasses import dataclass

import onnx_ir as ir

from narrowpass_int8_sym.weights import drop_unread
from narrowpass_ir.constants import constant_tensor
from narrowpass_ir.subgraphs import reserve_name

FLOAT = ir.DataType.FLOAT

WEIGHTED_OPERATORS = ("MatMul", "Gemm", "Conv", "ConvTranspose")
"""The operators whose second input is a weight."""


@dataclass(frozen=True)
class WeightedNode:
    """A node whose constant weight can be stored as int8.

    Attributes:
        node: MatMul, Gemm, Conv or ConvTranspose.
        weight: the constant.
        index: of the weight among its inputs.
        axis: of the weight, along which scales may differ; None where they may not.
        transpose: the Transpose between the constant and the node, where there is one: `fold`
            keeps it where other nodes read the constant, too, as with tied embeddings.
    """

    node: ir.Node
    weight: ir.Value
    index: int
    axis: int | None
    transpose: ir.Node | None = None

    def replace_weight(self, value: ir.Value, taken: set[str | None]) -> None:
        """Replace the weight of the node by another value, in place.

        The weight, and its Transpose, are removed if nothing else reads them.

        Args:
            value: of the shape of the weight.
            taken: names in use; new ones are added.
        """
        if self.transpose is None:
            self.node.replace_input_with(self.index, value)
            drop_unread(self.weight)
            return
        transposed = _transposed(self.transpose, value, taken)
        self.node.replace_input_with(self.index, transposed)
        before = self.transpose.outputs[0]
        if self.transpose.graph and not before.uses() and not before.is_graph_output():
            self.transpose.graph.remove(self.transpose, safe=True)
        drop_unread(self.weight)

    @property
    def is_matrix(self) -> bool:
        """Whether the node is a MatMul or Gemm, not a convolution."""
        return self.node.op_type in ("Gemm", "MatMul")

    @property
    def output_channels(self) -> int:
        """The number of output channels."""
        dims = self._dims
        if self.node.op_type == "ConvTranspose":
            return dims[1] * self._groups
        return dims[0 if self.axis is None else self.axis]

    @property
    def reduction_length(self) -> int:
        """The reduction length K: the most multiply-adds into one accumulator."""
        size = math.prod(self._dims)
        if self.node.op_type == "ConvTranspose":
            # The weight is [channels in, channels out of a group, ...].
            return size // (self._dims[1] * self._groups)
        return size // self.output_channels

    @property
    def _dims(self) -> tuple[int, ...]:
        tensor = constant_tensor(self.weight)
        if tensor is None:
            raise ValueError(f"{self.weight.name!r} is no constant")
        return tuple(int(dim) for dim in tensor.shape.numpy())

    @property
    def _groups(self) -> int:
        return self.node.attributes.get_int("group", 1)


def weighted_node_of(node: ir.Node) -> WeightedNode | str | None:
    """Return a node with its constant weight, if that can be stored as int8.

    Returns:
        None for other operators, and a reason for a node whose weight cannot be.
    """
    if node.domain or node.op_type not in WEIGHTED_OPERATORS:
        return None
    weight = node.inputs[1] if len(node.inputs) > 1 else None
    transpose = _transpose(weight) if node.op_type in ("MatMul", "Gemm") else None
    if transpose is not None:
        weight = transpose.inputs[0]
    tensor = constant_tensor(weight)
    if weight is None or tensor is None:
        return "both operands are computed"
    if weight.is_graph_input():
        return f"its weight {weight.name!r} may be fed; freeze-weights turns it into a constant"
    if tensor.dtype != FLOAT:
        return f"its weight {weight.name!r} is {tensor.dtype.name.lower()}"
    dims = tuple(tensor.shape.numpy())
    if 0 in dims:
        return f"its weight {weight.name!r} is empty"
    if node.op_type == "Conv":
        return WeightedNode(node, weight, 1, 0)
    if node.op_type == "ConvTranspose":
        # Output channels of different groups share the indices of axis 1.
        return WeightedNode(
            node, weight, 1, 1 if node.attributes.get_int("group", 1) == 1 else None
        )
    if len(dims) != 2:
        return f"its weight {weight.name!r} has {len(dims)} dimensions, and not two"
    transposed = node.op_type == "Gemm" and node.attributes.get_int("transB", 0) == 1
    return WeightedNode(
        node, weight, 1, 0 if transposed != (transpose is not None) else 1, transpose
    )


def _transpose(value: ir.Value | None) -> ir.Node | None:
    """Return the producer of a value, if it is the Transpose of a constant matrix."""
    node = None if value is None else value.producer()
    if node is None or node.op_type != "Transpose" or node.domain:
        return None
    tensor = constant_tensor(node.inputs[0])
    if tensor is None or len(tensor.shape) != 2:
        return None
    turns = "perm" not in node.attributes or tuple(node.attributes["perm"].as_ints()) == (1, 0)
    return node if turns else None


def _transposed(like: ir.Node, value: ir.Value, taken: set[str | None]) -> ir.Value:
    """Return the transposed matrix; insert a Transpose after `like` if there is none."""
    for use in value.uses():
        if use.node.op_type == "Transpose" and use.node.graph is like.graph:
            return use.node.outputs[0]
    given = like.outputs[0]
    result = ir.Value(
        name=reserve_name(f"{value.name}.transposed", taken), shape=given.shape, type=given.type
    )
    label = reserve_name(f"{value.name}/Transpose", taken)
    node = ir.node("Transpose", [value], {"perm": (1, 0)}, outputs=[result], name=label)
    if like.graph is not None:
        like.graph.insert_after(like, node)
    return result
