"""Which nodes multiply with a constant matrix, and how it lies in memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from narrowpass_ir.constants import constant_tensor
from narrowpass_ir.subgraphs import reserve_name

FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
"""Types of weights that are quantized."""

_MATMULS = ("MatMul", "Gemm", "Conv")
_EXPERTS = {"fc1_experts_weights": 2, "fc2_experts_weights": 4, "fc3_experts_weights": 6}
"""The inputs of com.microsoft's MoE that hold the weights of experts, by their index."""

MULTIPLIES = frozenset(
    {"Attention", "Conv", "ConvTranspose", "Einsum", "GRU", "Gemm", "LSTM", "MatMul", "MoE", "RNN"}
    | {"GroupQueryAttention", "MatMulInteger", "MatMulNBits", "MultiHeadAttention", "QMoE"}
)
"""Operators after which a matmul is not the last one of a model."""


@dataclass(frozen=True)
class Matrix:
    """A constant that a node multiplies with.

    Attributes:
        node: MatMul, Gemm, Conv of 1 x 1, or com.microsoft's MoE.
        index: of the constant among the node's inputs.
        weight: the constant.
        axis: of the constant, along which the matmul adds up: K. Blocks lie along it.
        transpose: the Transpose of the constant that the node reads, where there is one, as
            between a tied embedding and the LM head.
    """

    node: ir.Node
    index: int
    weight: ir.Value
    axis: int
    transpose: ir.Node | None = None

    @property
    def tensor(self) -> ir.TensorProtocol:
        """The constant's tensor."""
        tensor = constant_tensor(self.weight)
        if tensor is None:
            raise ValueError(f"{self.weight.name!r} is no constant")
        return tensor

    @property
    def dims(self) -> tuple[int, ...]:
        """The constant's shape."""
        return tuple(int(size) for size in self.tensor.shape.numpy())

    @property
    def inner(self) -> int:
        """How many elements each output adds up: K."""
        return self.dims[self.axis]

    @property
    def is_matmul(self) -> bool:
        """Whether it is the only matrix of MatMul or Gemm."""
        return self.node.op_type in ("MatMul", "Gemm") and len(self.dims) == 2

    def read(self, value: ir.Value, taken: set[str | None]) -> None:
        """Let the node read a dequantized weight in the place of the constant.

        The constant, and its Transpose, are dropped if nobody else reads them.

        Args:
            value: of the constant's shape.
            taken: names that others have; those of new values are added.
        """
        if self.transpose is not None:
            value = _transposed(self.transpose, value, taken)
        self.node.replace_input_with(self.index, value)
        drop_unread(self.weight, self.transpose)


def drop_unread(weight: ir.Value, transpose: ir.Node | None = None) -> None:
    """Remove a constant that nobody reads any more, and before it its Transpose."""
    if transpose is not None and transpose.graph is not None:
        output = transpose.outputs[0]
        if not output.uses() and not output.is_graph_output():
            transpose.graph.remove(transpose, safe=True)
    if weight.uses() or weight.is_graph_output():
        return
    producer = weight.producer()
    if producer is not None and producer.graph is not None:
        producer.graph.remove(producer, safe=True)
    elif weight.graph is not None and weight.name and weight.is_initializer():
        del weight.graph.initializers[weight.name]


def matrices_of(node: ir.Node) -> list[Matrix] | str | None:
    """Return the constant matrices of a node.

    Returns:
        None for operators without, and a reason for a node whose weights cannot be quantized.
    """
    if node.domain == "com.microsoft" and node.op_type == "MoE":
        return _experts(node)
    if node.domain or node.op_type not in _MATMULS or len(node.inputs) < 2:
        return None
    weight, transpose = node.inputs[1], None
    if node.op_type != "Conv":
        transpose = constant_transpose(weight)
        if transpose is not None:
            weight = transpose.inputs[0]
    problem = _problem(weight)
    if weight is None or problem:
        return problem
    dims = tuple(int(size) for size in _shape(weight))
    if node.op_type == "Conv":
        if any(size != 1 for size in dims[2:]):
            return f"its kernel is {' x '.join(map(str, dims[2:]))}, and not 1 x 1"
        if node.attributes.get_int("group", 1) != 1:
            return f"it has {node.attributes.get_int('group', 1)} groups"
        return [Matrix(node, 1, weight, 1)]
    if len(dims) < 2:
        return f"its weight {weight.name!r} has {len(dims)} dimensions"
    if node.op_type == "Gemm":
        rows = node.attributes.get_int("transB", 0) == 1
        return [Matrix(node, 1, weight, 1 if rows != (transpose is not None) else 0, transpose)]
    axis = len(dims) - 2
    return [Matrix(node, 1, weight, axis if transpose is None else 1, transpose)]


def _experts(node: ir.Node) -> list[Matrix] | str:
    """Return the weights of experts, [E, N, K]."""
    found = []
    for name, index in _EXPERTS.items():
        weight = node.inputs[index] if len(node.inputs) > index else None
        if weight is None:
            continue
        problem = _problem(weight)
        if problem:
            return problem
        if len(_shape(weight)) != 3:
            return f"its {name} has {len(_shape(weight))} dimensions, and not three"
        found.append(Matrix(node, index, weight, 2))
    return found or "it has no weights"


def _problem(weight: ir.Value | None) -> str:
    """Return why a weight cannot be quantized; empty where it can."""
    tensor = constant_tensor(weight)
    if weight is None or tensor is None:
        return "both operands are computed"
    if weight.is_graph_input():
        return f"its weight {weight.name!r} may be fed; freeze-weights turns it into a constant"
    if weight.is_graph_output():
        return f"its weight {weight.name!r} is an output"
    if tensor.dtype not in FLOATS:
        return f"its weight {weight.name!r} is {tensor.dtype.name.lower()}"
    if 0 in tuple(tensor.shape.numpy()):
        return f"its weight {weight.name!r} is empty"
    return ""


def _shape(weight: ir.Value) -> tuple[int, ...]:
    tensor = constant_tensor(weight)
    return () if tensor is None else tuple(tensor.shape.numpy())


def constant_transpose(value: ir.Value | None) -> ir.Node | None:
    """Return the Transpose of a constant matrix, if that is what computes a value."""
    node = None if value is None else value.producer()
    if node is None or node.op_type != "Transpose" or node.domain:
        return None
    tensor = constant_tensor(node.inputs[0])
    if tensor is None or len(tensor.shape) != 2:
        return None
    swaps = "perm" not in node.attributes or tuple(node.attributes["perm"].as_ints()) == (1, 0)
    return node if swaps else None


def _transposed(like: ir.Node, value: ir.Value, taken: set[str | None]) -> ir.Value:
    """Return the Transpose of a matrix, beside that of another; an existing one is used."""
    for use in value.uses():
        if use.node.op_type == "Transpose" and use.node.graph is like.graph:
            return use.node.outputs[0]
    before = like.outputs[0]
    result = ir.Value(
        name=reserve_name(f"{value.name}.transposed", taken), shape=before.shape, type=value.type
    )
    label = reserve_name(f"{value.name}/Transpose", taken)
    node = ir.node("Transpose", [value], {"perm": (1, 0)}, outputs=[result], name=label)
    if like.graph is not None:
        like.graph.insert_after(like, node)
    return result


def table_of(node: ir.Node) -> ir.Value | None:
    """Return the constant matrix whose rows a Gather looks up: an embedding; None for others."""
    if node.op_type != "Gather" or node.domain or len(node.inputs) != 2:
        return None
    if node.attributes.get_int("axis", 0) not in (0, -2):
        return None
    table = node.inputs[0]
    if table is None or _problem(table) or len(_shape(table)) != 2:
        return None
    return table


def are_factors(node: ir.Node) -> bool:
    """Return whether the rows that a Gather looks up only multiply other computed values.

    So do the sines and cosines of rotary positions: each of their elements is a factor of many.
    """
    waiting, found = [node.outputs[0]], False
    while waiting:
        value = waiting.pop()
        if value.is_graph_output():
            return False
        for use in value.uses():
            if use.node.op_type in ("Cast", "Expand", "Reshape", "Transpose", "Unsqueeze"):
                waiting.append(use.node.outputs[0])
                continue
            if use.node.op_type not in ("Mul", "RotaryEmbedding"):
                return False
            others = (other for other in use.node.inputs if other is not value)
            if use.node.op_type == "Mul" and any(constant_tensor(each) for each in others):
                return False
            found = True
    return found


def last_matmuls(graph: ir.Graph) -> set[ir.Node]:
    """Return the nodes of a graph that multiply, and after which no other does: the heads."""
    before: set[ir.Node] = set()
    found: set[ir.Node] = set()
    for node in reversed(list(graph)):
        follows = any(
            use.node in before or use.node.op_type in MULTIPLIES or use.node.graph is not graph
            for value in node.outputs
            for use in value.uses()
        )
        if follows:
            before.add(node)
        elif node.op_type in _MATMULS and not node.domain:
            found.add(node)
    return found


def other_readers(weight: ir.Value, matrices: list[Matrix], gathers: list[ir.Node]) -> str:
    """Return which node beside these reads a constant; empty for none."""
    known = {(each.node, each.index) for each in matrices if each.transpose is None}
    known |= {(node, 0) for node in gathers}
    transposes = {each.transpose for each in matrices if each.transpose is not None}
    through = {(each.node, each.index) for each in matrices if each.transpose is not None}
    for node, index in _uses(weight):
        if node in transposes:
            others = [pair for pair in _uses(node.outputs[0]) if pair not in through]
            if others or node.outputs[0].is_graph_output():
                return _label(others[0][0]) if others else "an output"
        elif (node, index) not in known:
            return _label(node)
    return ""


def _uses(value: ir.Value) -> Iterator[tuple[ir.Node, int]]:
    return ((use.node, use.idx) for use in value.uses())


def _label(node: ir.Node) -> str:
    return f"{node.op_type} {node.name!r}" if node.name else node.op_type


def label_of(node: ir.Node) -> str:
    """Name a node for reports: by its outputs if it has no name."""
    return node.name or next((value.name for value in node.outputs if value.name), "") or ""


def outputs_of(dims: tuple[int, ...], axis: int) -> int:
    """Return how many outputs a matrix has, those of all experts together."""
    return math.prod(dims) // dims[axis]
