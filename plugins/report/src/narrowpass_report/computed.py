"""In which precision nodes compute, where their results say something else."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from narrowpass.framework.classify import ACTIVATIONS
from narrowpass_ir.constants import constant_tensor

_WEIGHTED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})


def computed_types(nodes: Sequence[ir.Node]) -> dict[ir.Node, ir.DataType]:
    """Return the type of nodes that compute with bytes, though they are written with floats.

    These are what stands between DequantizeLinear and QuantizeLinear, int8 matmuls whose
    result stays float, matmuls with dynamic per-token quantization, and the DequantizeLinear
    that say how bytes are read.

    Args:
        nodes: of a graph, in order.
    """
    found = {node: given for node in nodes if (given := _read(node)) is not None}
    read = [node for node in nodes if node not in found and _reads_bytes(node, found, set())]
    chain: set[ir.Node] = set()
    for node in nodes:
        if node not in found and _reads_bytes(node, found, chain):
            chain.add(node)
    kept: set[ir.Node] = set()
    for node in reversed(nodes):
        readers = [use.node for value in node.outputs for use in value.uses()]
        ends = bool(readers) and all(
            reader in kept or _is(reader, "QuantizeLinear") for reader in readers
        )
        if node in chain and (ends or (node in read and _is_product(node))):
            kept.add(node)
    dynamic = {node for node in nodes if node.metadata_props.get(ACTIVATIONS) == "dynamic"}
    return found | dict.fromkeys(kept | dynamic, ir.DataType.INT8)


def _is(node: ir.Node | None, op_type: str) -> bool:
    return node is not None and node.op_type == op_type and not node.domain


def _read(node: ir.Node) -> ir.DataType | None:
    """Return the integers that a DequantizeLinear reads."""
    given = node.inputs[0] if _is(node, "DequantizeLinear") else None
    if given is None:
        return None
    tensor = constant_tensor(given)
    return given.dtype if tensor is None else tensor.dtype


def _reads_bytes(
    node: ir.Node, dequantized: dict[ir.Node, ir.DataType], chain: set[ir.Node]
) -> bool:
    """Return whether all floats that a node computes with are bytes, and some are computed ones."""
    if node.op_type in _WEIGHTED and not _is_product(node):
        return False
    computed = 0
    for value in node.inputs:
        if value is None or constant_tensor(value) is not None:
            continue
        producer = value.producer()
        if producer in dequantized and producer is not None:
            computed += constant_tensor(producer.inputs[0]) is None
        elif producer in chain:
            computed += 1
        elif value.dtype is None or value.dtype.is_floating_point():
            return False
    return computed > 0


def _is_product(node: ir.Node) -> bool:
    """Return whether a node is an int8 matmul or convolution."""
    if node.op_type not in _WEIGHTED or node.domain or len(node.inputs) < 2:
        return False
    return all(
        value is not None and _is(value.producer(), "DequantizeLinear") for value in node.inputs[:2]
    )
