"""Which nodes have a constant matrix, and which of its axes has the channels of the result."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from narrowpass.constants import constant_tensor

FLOAT = ir.DataType.FLOAT


@dataclass(frozen=True)
class Product:
    """A node whose weight can be stored in bytes.

    Attributes:
        node: MatMul, Gemm, Conv or ConvTranspose.
        weight: the constant.
        index: of the weight among its inputs.
        axis: of the weight, along which scales may differ; None where they may not.
    """

    node: ir.Node
    weight: ir.Value
    index: int
    axis: int | None

    @property
    def is_matrix(self) -> bool:
        """Whether rows are multiplied with a matrix, and nothing is convolved."""
        return self.node.op_type in ("Gemm", "MatMul")


def product_of(node: ir.Node) -> Product | str | None:
    """Tell how the weight of a node can be stored in bytes.

    Returns:
        None for other operators, and a reason for those whose weight cannot be.
    """
    if node.domain or node.op_type not in ("MatMul", "Gemm", "Conv", "ConvTranspose"):
        return None
    weight = node.inputs[1] if len(node.inputs) > 1 else None
    tensor = constant_tensor(weight)
    if weight is None or tensor is None:
        return "both operands are computed"
    if weight.is_graph_input():
        return f"its weight {weight.name!r} may be fed"
    if tensor.dtype != FLOAT:
        return f"its weight {weight.name!r} is {tensor.dtype.name.lower()}"
    dims = tuple(tensor.shape.numpy())
    if 0 in dims:
        return f"its weight {weight.name!r} is empty"
    if node.op_type == "Conv":
        return Product(node, weight, 1, 0)
    if node.op_type == "ConvTranspose":
        # Channels of several groups lie along axis 1 one above the other.
        return Product(node, weight, 1, 1 if node.attributes.get_int("group", 1) == 1 else None)
    if len(dims) != 2:
        return f"its weight {weight.name!r} has {len(dims)} dimensions, and not two"
    transposed = node.op_type == "Gemm" and node.attributes.get_int("transB", 0) == 1
    return Product(node, weight, 1, 0 if transposed else 1)
