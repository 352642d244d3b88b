"""Folds scale and shift into the weights of the operator before them (Jacob et al., CVPR 2018)."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from narrowpass_constant_folding.fusion.affine import Affine, affine_of
from narrowpass_constant_folding.fusion.linear import Array, Linear, linear_of
from narrowpass_constant_folding.graphs.scope import Scope
from narrowpass_constant_folding.report import Refusal
from narrowpass_constant_folding.rewrite import Work

_NODE_BYTES = 32
"""What a node takes in a file, at the least."""


def absorb(work: Work, *op_types: str) -> None:
    """Fuse every affine node of these types into a linear one before it."""
    for scope in work.scopes():
        for node in scope.graph:
            if node.op_type in op_types and scope.can_edit(node):
                _absorb(work, scope, node, op_types)


def _absorb(work: Work, scope: Scope, node: ir.Node, op_types: tuple[str, ...]) -> None:
    for affine in affine_of(scope, node, *op_types):
        linear = linear_of(scope, scope.producer(affine.source))
        if linear is None or not affine.fits(scope, linear.rank, linear.channels):
            continue
        refusal = _refuse(scope, linear, affine) or _fuse(scope, linear, affine)
        if refusal is None:
            work.report.record(linear.node, "fused", node.op_type)
            return
        work.report.record_refusal(node, refusal)


def _refuse(scope: Scope, linear: Linear, affine: Affine) -> Refusal | None:
    if not scope.can_edit(linear.node):
        return Refusal("keep", f"the option keep selects {linear.node.name!r}")
    if scope.only_reader(affine.source) is not affine.node:
        return Refusal("reader", f"{affine.source.name!r} is also read elsewhere")
    if linear.node.op_type == "BatchNormalization" and any(
        value.name and (value.uses() or value.is_graph_output())
        for value in linear.node.outputs[1:]
    ):
        return Refusal("reader", "other outputs of the normalization are read")
    return _refuse_growth(scope, linear, affine)


def _refuse_growth(scope: Scope, linear: Linear, affine: Affine) -> Refusal | None:
    """Refuse what would increase the model's size: shared or broadcast weights."""
    width = -(-_tensor(scope, linear.weight).dtype.bitwidth // 8)
    added = width * linear.channels
    replaced = {*affine.constants}
    if linear.bias is not None:
        replaced.add(linear.bias)
    if _scales(affine):
        added += int(_tensor(scope, linear.weight).nbytes)
        replaced.add(linear.weight)
    readers = {linear.node, affine.node}
    freed = sum(_freed(scope, value, readers) for value in replaced)
    if added <= freed + _NODE_BYTES:
        return None
    return Refusal(
        "growth",
        f"it would add {added} bytes of weights and free {freed}, as others read them or they "
        "are repeated by a node",
        measured=added,
        limit=freed + _NODE_BYTES,
    )


def _freed(scope: Scope, value: ir.Value, readers: set[ir.Node]) -> int:
    """Return the bytes of a constant that nothing else than `readers` reads."""
    tensor = scope.constant(value)
    if tensor is None or value.is_graph_output():
        return 0
    return 0 if any(use.node not in readers for use in value.uses()) else int(tensor.nbytes)


def _tensor(scope: Scope, value: ir.Value) -> ir.TensorProtocol:
    tensor = scope.broadcast_constant(value)
    if tensor is None:
        raise ValueError(f"{value.name!r} is no constant")
    return tensor


def _scales(affine: Affine) -> bool:
    return affine.node.op_type not in ("Add", "Sub")


def _fuse(scope: Scope, linear: Linear, affine: Affine) -> Refusal | None:
    dtype = _tensor(scope, linear.weight).dtype
    scale, shift = affine.read(scope, linear.channels)
    with np.errstate(all="ignore"):
        bias = linear.new_bias(scope, scale, shift).astype(dtype.numpy())
    arrays = [bias]
    if _scales(affine):
        arrays.append(linear.scaled_weight(scope, scale))
    if not all(_finite(array) for array in (scale, shift, *arrays)):
        return Refusal("finite", "the fused weights would not be finite")
    node = linear.node
    weight = linear.weight
    if _scales(affine):
        name = f"{weight.name}:{affine.by.name}"
        weight = scope.add_constant(name, ir.Tensor(arrays[1], dtype=dtype), node)
    stem = linear.weight.name if linear.bias is None else linear.bias.name
    suffix = affine.constants[1 if len(affine.constants) > 1 else 0].name
    fused_bias = scope.add_constant(f"{stem}:{suffix}", ir.Tensor(bias, dtype=dtype), node)
    output = scope.successor(affine.node.outputs[0])
    new = linear.with_weights(weight, fused_bias, output)
    scope.replace(affine.node, new, {affine.node.outputs[0]: output})
    scope.remove(node)
    return None


def _finite(array: Array) -> bool:
    return bool(np.isfinite(array.astype(np.float32) if array.dtype.kind == "V" else array).all())
