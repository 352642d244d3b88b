"""Why a weight is stored for DequantizeLinear although MatMulNBits was asked for."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from narrowpass_int4.matrices import Matrix
from narrowpass_int4.plan import Job
from narrowpass_int4.storage.packing import stored_block
from narrowpass_int4.storage.pieces import Layout
from narrowpass_ir.constants import constant_tensor


def ranks_of(jobs: list[Job]) -> dict[ir.Value, int]:
    """Return the rank of what each weight is multiplied with, where its shape is known."""
    return {
        value: len(value.shape)
        for job in jobs
        for matrix in job.matrices
        if (value := matrix.node.inputs[0]) is not None and value.shape is not None
    }


def nbits_obstacle(job: Job, layout: Layout, block: int, ranks: Mapping[ir.Value, int]) -> str:
    """Return why a weight cannot be one of MatMulNBits or GatherBlockQuantized; empty if it can.

    Args:
        job: the weight and its nodes.
        layout: of it.
        block: elements along K that share a scale, in `nbits`.
        ranks: of the first operands of matmuls, where they are known: see `ranks_of`.
    """
    for matrix in job.matrices:
        why = _matmul_obstacle(matrix, ranks)
        if why:
            return f"a DequantizeLinear, and no MatMulNBits: {why}"
    if job.gathers:
        stored = stored_block(layout.inner, block)
        if layout.inner % stored:
            return (
                f"a DequantizeLinear, and no GatherBlockQuantized: {layout.inner} columns are "
                f"no multiple of {stored}"
            )
    return ""


def _matmul_obstacle(matrix: Matrix, ranks: Mapping[ir.Value, int]) -> str:
    node = matrix.node
    if not matrix.is_matmul:
        return f"there is none for {node.op_type} of such weights"
    rank = None if node.inputs[0] is None else ranks.get(node.inputs[0])
    if rank is None or rank < 2:
        return "its rows have " + ("an unknown shape" if rank is None else "one dimension")
    if node.op_type == "Gemm":
        return _gemm_obstacle(node, matrix)
    return ""


def _gemm_obstacle(node: ir.Node, matrix: Matrix) -> str:
    for name in ("alpha", "beta"):
        number = node.attributes.get_float(name, 1.0)
        if number != 1.0 and not (name == "beta" and len(node.inputs) < 3):
            return f"its {name} is {number:g}"
    if node.attributes.get_int("transA", 0):
        return "its first operand is transposed"
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if bias is None:
        return ""
    dims = matrix.dims
    outputs = dims[1 - matrix.axis]
    shape = None if bias.shape is None else tuple(bias.shape)
    if shape is None:
        tensor = constant_tensor(bias)
        shape = None if tensor is None else tuple(tensor.shape.numpy())
    return "" if shape == (outputs,) else "its bias is no number for each output"
