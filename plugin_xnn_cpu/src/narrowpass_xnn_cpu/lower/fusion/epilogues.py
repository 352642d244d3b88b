"""Fusion of biases, residuals and activations into the epilogue of the operation before them."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping

import numpy as np
import onnx_ir as ir

from narrowpass_planning.graph.facts import Facts
from narrowpass_xnn_cpu.lower.elementwise.arithmetic import clip_limits, same_shape
from narrowpass_xnn_cpu.lower.fusion.matching import split_constant
from narrowpass_xnn_cpu.lower.op import Op
from narrowpass_xnn_cpu.lower.rules import BY_KIND

_LEAST_DIVISOR = 1e-38


def is_computed(op: Op, facts: Facts) -> bool:
    """Return whether the second operand of a matmul is not a constant matrix."""
    dims = facts.dims(op.input(1))
    return not facts.is_constant(op.input(1)) or dims is None or len(dims) != 2 or 0 in dims


def fuse_scale(
    op: Op, facts: Facts, found: Mapping[ir.Node, Op], replaced: Container[ir.Node]
) -> None:
    """Fuse a Mul or Div by a scalar into a matmul of two activations, as its ``alpha``."""
    if op.kind != "MatMul" or not is_computed(op, facts):
        return
    user = facts.only_user(op.output)
    if user is None or user.domain or user in found or user in replaced:
        return
    scaled = split_constant(user, facts) if user.op_type in ("Mul", "Div") else None
    if scaled is None or scaled[0] is not op.output:
        return
    if user.op_type == "Div" and user.inputs[0] is not op.output:
        return
    if facts.rank(user.outputs[0]) != facts.rank(op.output):
        return  # a scalar of shape [1, 1, 1] extends the rank of the output
    alpha = scaled[1]
    if user.op_type == "Div":
        if not abs(alpha) > _LEAST_DIVISOR:
            return  # its inverse is not finite
        alpha = 1 / alpha
    op.attributes = {**op.attributes, "alpha": alpha}
    op.outputs = list(user.outputs)
    op.nodes.append(user)


def fuse_bias(op: Op, facts: Facts) -> None:
    """Fuse the Add of a constant row into a MatMul, as its bias: the kind ``linear``."""
    if op.kind != "MatMul":
        return
    if is_computed(op, facts):
        width = (facts.dims(op.output) or (None,))[-1]
        fits: tuple[tuple[int | str | None, ...], ...] = ((width,),)
        if not isinstance(width, int) or len(facts.dims(op.input(1)) or ()) < 2:
            return
    else:
        width = (facts.dims(op.input(1)) or (None, None))[1]
        fits = (), (1,), (width,)
    add = facts.only_user(op.output)
    if add is None or add.op_type != "Add" or add.domain or len(add.inputs) != 2:
        return
    (other,) = [value for value in add.inputs if value is not op.output] or [None]
    dims = facts.dims(other)
    if other is None or not facts.is_constant(other) or not facts.is_float(other):
        return
    if dims not in fits or len(dims) > (facts.rank(op.output) or 0):
        return
    op.kind = "linear"
    op.inputs = [*op.inputs, other]
    op.outputs = list(add.outputs)
    op.nodes.append(add)


def fuse_channel_bias(op: Op, facts: Facts) -> None:
    """Fuse the Add of a constant for each channel into a convolution, as its bias.

    `fold` does so only where the weights cannot be overridden; here all weights are final.
    """
    if op.kind not in ("Conv", "ConvTranspose") or op.input(2) is not None:
        return
    add = facts.only_user(op.output)
    if add is None or add.op_type != "Add" or add.domain or len(add.inputs) != 2:
        return
    others = [value for value in add.inputs if value is not op.output]
    other = others[0] if len(others) == 1 else None
    rank = facts.rank(op.input(0)) or 0
    kernel = facts.dims(op.input(1)) or ()
    channels = kernel[0]
    if op.kind == "ConvTranspose" and isinstance(kernel[1], int):
        channels = kernel[1] * op.get("group", 1)
    dims = facts.dims(other)
    fits = ((channels, *(1,) * (rank - 2)), (1, channels, *(1,) * (rank - 2)))
    if other is None or not facts.is_constant(other) or dims not in fits:
        return
    weight = facts.weight(other)
    bias = weight.reshape(weight.size)
    name = f"{other.name} (bias)"
    value = ir.Value(name=name, shape=ir.Shape(bias.shape), type=ir.TensorType(ir.DataType.FLOAT))
    facts.derive(value, bias)
    op.inputs = [*op.inputs[:2], value]
    op.outputs = list(add.outputs)
    op.nodes.append(add)


def fuse_clamp(op: Op, facts: Facts, version: Callable[[ir.Node], int]) -> None:
    """Fuse a Relu or Clip after an operation into it, as its clipping range."""
    if not BY_KIND[op.kind].fuses_clamp or len(op.outputs) != 1:
        return
    if op.clamped or op.function != "clamp" or op.residual_last:
        return
    if not facts.is_float(op.output):
        return  # kernels of integers and of double have no clipping range
    user = facts.only_user(op.output)
    if user is None or user.domain or user.inputs[0] is not op.output:
        return
    if user.op_type == "Relu":
        limits: tuple[float, float] | str = (0.0, math.inf)
    elif user.op_type == "Clip":
        limits = clip_limits(Op.of(user, version(user)), facts)
    else:
        return
    if isinstance(limits, str) or not all(np.float32(bound) == bound for bound in limits):
        return
    op.limits = limits
    op.outputs = list(user.outputs)
    op.nodes.append(user)


_FUNCTIONS = {
    "gelu": "gelu",
    "tanh-gelu": "tanh-gelu",
    "silu": "silu",
    "HardSwish": "hard-swish",
}
"""Functions of the epilogue of own kernels, by the kind of the operation that is fused."""


def fuse_epilogue(
    op: Op,
    facts: Facts,
    version: Callable[[ir.Node], int],
    found: Mapping[ir.Node, Op],
    replaced: Container[ir.Node],
) -> None:
    """Fuse an Add of a residual and an activation into an operation, if its kernel supports it.

    In either order: ``function(x + other)`` or ``function(x) + other``. The operation is then
    scheduled at the last of its nodes, after the producers of the other tensor.

    Args:
        op: the operation, its bias fused.
        facts: of the graph.
        version: returns the operator set version of a node.
        found: operations that exist already, by each of their nodes.
        replaced: nodes that are fused into int8 operations.
    """
    rule = BY_KIND[op.kind]
    if len(op.outputs) != 1 or rule.fuses_epilogue is None or not rule.fuses_epilogue(op, facts):
        return

    def free(node: ir.Node) -> bool:
        return node not in found and node not in replaced

    _fuse_residual(op, facts, free)
    _fuse_function(op, facts, version, found, free)
    if op.function == "clamp":
        fuse_clamp(op, facts, version)
    if op.residual is None:
        _fuse_residual(op, facts, free)
        op.residual_last = op.residual is not None


def _fuse_residual(op: Op, facts: Facts, free: Callable[[ir.Node], bool]) -> None:
    """Fuse an Add with a tensor that has, or may have, the shape of the output."""
    add = facts.only_user(op.output)
    if add is None or add.op_type != "Add" or add.domain or not free(add):
        return
    others = [value for value in add.inputs if value is not None and value is not op.output]
    if len(others) != 1 or not facts.is_float(others[0]):
        return
    rank = facts.rank(op.output)
    if rank is None or facts.rank(others[0]) != rank or not _may_be_equal(op, others[0], facts):
        return
    op.residual_fits = same_shape(facts, op.output, others[0])
    op.residual = others[0]
    op.outputs = list(add.outputs)
    op.nodes.append(add)


def _may_be_equal(op: Op, other: ir.Value, facts: Facts) -> bool:
    """Return whether another value may have the shape of the output."""
    pairs = zip(facts.dims(op.output) or (), facts.dims(other) or (), strict=True)
    return all(a == b or not isinstance(a, int) or not isinstance(b, int) for a, b in pairs)


def _fuse_function(
    op: Op,
    facts: Facts,
    version: Callable[[ir.Node], int],
    found: Mapping[ir.Node, Op],
    free: Callable[[ir.Node], bool],
) -> None:
    """Fuse an activation: a node, or a group of nodes that is one operation."""
    readers = {use.node for use in op.output.uses()}
    if op.output.name in facts.needed or not readers:
        return
    user = found.get(next(iter(readers)))
    if user is None:
        node = facts.only_user(op.output)
        if node is None or node.domain or not free(node):
            return
        user = Op.of(node, version(node))
        kind = user.kind
        if kind == "Gelu":
            kind = "tanh-gelu" if user.get("approximate", "none") == "tanh" else "gelu"
    elif all(found.get(node) is user for node in readers):
        kind = user.kind
    else:
        return
    if kind not in _FUNCTIONS or list(user.inputs) != [op.output]:
        return
    op.function = _FUNCTIONS[kind]
    op.outputs = list(user.outputs)
    op.nodes += user.nodes
