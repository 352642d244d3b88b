"""Biases and activations that the operation before them takes in."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from narrowpass_xnn_cpu.lower.elementwise import clip_limits
from narrowpass_xnn_cpu.lower.facts import Facts
from narrowpass_xnn_cpu.lower.op import RULES, Op


def take_bias(op: Op, facts: Facts) -> None:
    """Make MatMul and the Add of a constant row one product with a bias."""
    if op.kind != "MatMul" or not facts.is_constant(op.input(1)) or facts.rank(op.input(1)) != 2:
        return
    add = facts.only_user(op.output)
    if add is None or add.op_type != "Add" or add.domain or len(add.inputs) != 2:
        return
    (other,) = [value for value in add.inputs if value is not op.output] or [None]
    width = (facts.dims(op.input(1)) or (None, None))[1]
    dims = facts.dims(other)
    if other is None or not facts.is_constant(other) or not facts.is_float(other):
        return
    if dims not in ((), (1,), (width,)) or len(dims) > (facts.rank(op.output) or 0):
        return
    op.kind = "linear"
    op.inputs = [*op.inputs, other]
    op.outputs = list(add.outputs)
    op.nodes.append(add)


def take_channel_bias(op: Op, facts: Facts) -> None:
    """Make a convolution and the Add of a constant for each channel one with a bias.

    `fold` does so where the weights cannot be overridden; here they are what they are.
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


def take_limits(op: Op, facts: Facts, version: Callable[[ir.Node], int]) -> None:
    """Take a Relu or Clip after the operation into it."""
    if not RULES[op.kind].clamps or len(op.outputs) != 1:
        return
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
