"""What narrow types gain here: for passes that choose them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

import onnx_ir as ir

from narrowpass import Color, OpClassifier
from narrowpass_xnn_cpu.lower.facts import Facts
from narrowpass_xnn_cpu.lower.families import reason
from narrowpass_xnn_cpu.lower.operations import operations
from narrowpass_xnn_cpu.lower.product import HALF_ROWS, HALF_SIZE
from narrowpass_xnn_cpu.native import cpu

if TYPE_CHECKING:
    from narrowpass import Backend, OpDtypes

_BYTES_PER_SECOND = 30e9
_OPERATIONS_PER_SECOND = 250e9
"""One core reading memory, and multiplying and adding in float32. What counts is their proportion,
which decides whether a product waits for its matrix or for the arithmetic."""


def seconds_saved(node: ir.Node, dtypes: OpDtypes) -> float:
    """Estimate what a product with a constant matrix saves in a narrow type; see `Backend.gain`.

    Other operators compute in float32 from narrow operands, and gain nothing. Rows that are not
    known count as one.
    """
    matrix = node.inputs[1] if len(node.inputs) > 1 else None
    if node.domain or node.op_type not in ("MatMul", "Gemm") or matrix is None:
        return 0.0
    tensor = matrix.const_value
    if tensor is None or len(tensor.shape) != 2:
        return 0.0
    size = int(tensor.size)
    result = node.outputs[0].shape
    rows = math.prod(dim for dim in (result or ())[:-1] if isinstance(dim, int))
    reading = size * 4 / _BYTES_PER_SECOND
    wide = max(reading, 2 * rows * size / _OPERATIONS_PER_SECOND)
    if dtypes.output == "bfloat16":
        return wide / 2 if "avx512_bf16" in cpu.flags() else 0.0
    sums = dtypes.accumulate != "float32" or cpu.sums_halves_in_float32()
    if dtypes.output == "float16" and rows <= HALF_ROWS and size >= HALF_SIZE and sums:
        return reading / 2
    return 0.0


class XnnCpuClassifier(OpClassifier):
    """Keeps wide what has no native kernel: numpy is slower with float16 than with float32."""

    name: ClassVar[str] = "xnn-cpu"

    def __init__(self) -> None:
        self._reasons: dict[ir.Graph, dict[ir.Node, str]] = {}

    def for_target(self, target: Backend | None, dtype: str) -> OpClassifier:
        """Give a fresh one, which knows of no graph yet."""
        return XnnCpuClassifier()

    def color(self, node: ir.Node) -> Color | None:
        """Give red for a node without a native kernel, and no opinion on others."""
        return Color.RED if self.reason(node) else None

    def reason(self, node: ir.Node) -> str:
        """Tell why there is no native kernel; empty where there is."""
        graph = node.graph
        if not isinstance(graph, ir.Graph):
            return ""
        if graph not in self._reasons:
            self._reasons[graph] = _reasons(graph)
        return self._reasons[graph].get(node, "")


def _reasons(graph: ir.Graph) -> dict[ir.Node, str]:
    """Give the reasons of nodes that have no native kernel, alone or in a pattern."""
    facts = Facts(graph)

    def version(node: ir.Node) -> int:
        return node.version or graph.opset_imports.get(node.domain, 1)

    found = {}
    model = ir.Model(graph, ir_version=10)  # functions are not entered
    for op in operations(graph, facts, model, version):
        if any(
            attribute.type == ir.AttributeType.GRAPH
            for attribute in op.nodes[0].attributes.values()
        ):
            continue  # its subgraphs are asked
        told = reason(op, facts)
        if told:
            found.update(dict.fromkeys(op.nodes, told))
    return found
