"""Fusion of the nodes of a graph into operations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import onnx_ir as ir

from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.graph.liveness import without_superseded
from narrowpass_xnn_cpu.lower.elementwise.arithmetic import clip_limits
from narrowpass_xnn_cpu.lower.elementwise.gates import fuse_gates
from narrowpass_xnn_cpu.lower.fusion.add_norm import fuse_add_norm
from narrowpass_xnn_cpu.lower.fusion.epilogues import (
    fuse_bias,
    fuse_channel_bias,
    fuse_clamp,
    fuse_epilogue,
    fuse_scale,
)
from narrowpass_xnn_cpu.lower.fusion.matching import (
    Group,
    equals_in_dtype,
    equals_scalar,
    producer,
    split_constant,
)
from narrowpass_xnn_cpu.lower.fusion.patterns import attention, integers, normalization, rotary
from narrowpass_xnn_cpu.lower.int8 import int16, per_channel
from narrowpass_xnn_cpu.lower.int8.matching import Int8Matcher
from narrowpass_xnn_cpu.lower.matmul.joined import join_matmuls
from narrowpass_xnn_cpu.lower.op import Op
from narrowpass_xnn_cpu.lower.rules import BY_KIND

Match = Callable[[ir.Node, Facts, int], "Group | None"]


def _half_x_times(
    node: ir.Node, facts: Facts, x: ir.Value
) -> tuple[ir.Value, list[ir.Node]] | None:
    """Match 0.5 · x · (1 + f(x)), with factors in any order; `node` computes 1 + f(x)."""
    value, nodes = node.outputs[0], [node]
    has_x = has_half = False
    while not (has_x and has_half):
        user = facts.only_user(value)
        if user is None or user.op_type != "Mul":
            return None
        (other,) = [given for given in user.inputs if given is not value] or [value]
        nodes.append(user)
        value = user.outputs[0]
        half = None if other is None else producer(other, "Mul")
        if other is x and not has_x:
            has_x = True
        elif equals_scalar(facts, other, 0.5) and not has_half:
            has_half = True
        elif half is not None and not has_x and not has_half:
            scaled = split_constant(half, facts)
            alone = facts.only_user(half.outputs[0]) is user
            if not alone or scaled is None or scaled[0] is not x or scaled[1] != 0.5:
                return None
            nodes.insert(0, half)
            has_x = has_half = True
        else:
            return None
    return value, nodes


def _gelu(erf: ir.Node, facts: Facts, _version: int) -> Group | None:
    """Match 0.5 · x · (1 + erf(x / √2))."""
    scale = erf.inputs[0].producer() if erf.inputs[0] is not None else None
    if scale is None or facts.only_user(scale.outputs[0]) is not erf:
        return None
    scaled = split_constant(scale, facts)
    if scale.op_type == "Div" and equals_scalar(facts, scale.inputs[1], math.sqrt(2)):
        x = scale.inputs[0]
    elif (
        scale.op_type == "Mul" and scaled and equals_in_dtype(facts, scaled[0], scaled[1], 0.5**0.5)
    ):
        x = scaled[0]
    else:
        return None
    add = facts.only_user(erf.outputs[0])
    if x is None or add is None or add.op_type != "Add":
        return None
    one = split_constant(add, facts)
    if one is None or one[1] != 1.0:
        return None
    tail = _half_x_times(add, facts, x)
    if tail is None:
        return None
    return Group("gelu", [x], [scale, erf, *tail[1]])


def _tanh_gelu(tanh: ir.Node, facts: Facts, _version: int) -> Group | None:
    """Match 0.5 · x · (1 + tanh(√(2/π) · (x + 0.044715 · x³)))."""
    outer = producer(tanh.inputs[0], "Mul")
    scaled = None if outer is None else split_constant(outer, facts)
    if outer is None or scaled is None:
        return None
    if not equals_in_dtype(facts, scaled[0], scaled[1], math.sqrt(2 / math.pi)):
        return None
    inner = producer(scaled[0], "Add")
    if inner is None:
        return None
    for x, other in (inner.inputs, reversed(inner.inputs)):
        cubic = producer(other, "Mul")
        term = None if cubic is None else split_constant(cubic, facts)
        if x is None or cubic is None or term is None:
            continue
        if not equals_in_dtype(facts, term[0], term[1], 0.044715):
            continue
        cube = _cube(term[0], x, facts)
        if cube is None:
            continue
        add = facts.only_user(tanh.outputs[0])
        one = None if add is None or add.op_type != "Add" else split_constant(add, facts)
        if add is None or one is None or one[1] != 1.0:
            return None
        tail = _half_x_times(add, facts, x)
        if tail is None:
            return None
        nodes = [*cube, cubic, inner, outer, tanh]
        inner_values = [node.outputs[0] for node in nodes]
        if any(facts.only_user(value) is None for value in inner_values):
            return None
        return Group("tanh-gelu", [x], [*nodes, *tail[1]])
    return None


def _cube(value: ir.Value, x: ir.Value, facts: Facts) -> list[ir.Node] | None:
    power = producer(value, "Pow")
    if power is not None and power.inputs[0] is x and equals_scalar(facts, power.inputs[1], 3.0):
        return [power]
    cube = producer(value, "Mul")
    if cube is None:
        return None
    for factor, square in (cube.inputs, reversed(cube.inputs)):
        inner = producer(square, "Mul")
        if factor is x and inner is not None and all(item is x for item in inner.inputs):
            return [inner, cube]
        power = producer(square, "Pow")
        squared = power is not None and power.inputs[0] is x
        if (
            factor is x
            and power is not None
            and squared
            and equals_scalar(facts, power.inputs[1], 2.0)
        ):
            return [power, cube]
    return None


def _hard_swish(gate: ir.Node, facts: Facts, _version: int) -> Group | None:
    """Match x · hardsigmoid(x) with a slope of 1/6, or x · min(max(x + 3, 0), 6) / 6."""
    x = gate.inputs[0]
    nodes = [gate]
    if gate.op_type == "HardSigmoid":
        alpha = gate.attributes.get_float("alpha", 0.2)
        beta = gate.attributes.get_float("beta", 0.5)
        if not math.isclose(alpha, 1 / 6, rel_tol=1e-4) or beta != 0.5:
            return None
        factors = {"x"}
    else:
        add = producer(gate.inputs[0], "Add")
        shifted = None if add is None else split_constant(add, facts)
        limits = clip_limits(Op.of(gate, gate.version or 13), facts)
        if add is None or shifted is None or shifted[1] != 3.0 or limits != (0.0, 6.0):
            return None
        if facts.only_user(add.outputs[0]) is not gate:
            return None
        x = shifted[0]
        nodes.insert(0, add)
        factors = {"x", "sixth"}
    value = gate.outputs[0]
    while factors:
        user = facts.only_user(value)
        if user is None or user.op_type not in ("Mul", "Div") or len(user.inputs) != 2:
            return None
        others = [given for given in user.inputs if given is not value]
        if len(others) != 1:
            return None
        sixth = (user.op_type == "Mul" and equals_scalar(facts, others[0], 1 / 6)) or (
            user.op_type == "Div"
            and user.inputs[0] is value
            and equals_scalar(facts, others[0], 6.0)
        )
        if sixth and "sixth" in factors:
            factors.discard("sixth")
        elif others[0] is x and user.op_type == "Mul" and "x" in factors:
            factors.discard("x")
        else:
            return None
        nodes.append(user)
        value = user.outputs[0]
    return None if x is None else Group("HardSwish", [x], nodes)


def _silu(sigmoid: ir.Node, facts: Facts, _version: int) -> Group | None:
    """Match x · sigmoid(x), or x · sigmoid(slope · x)."""
    mul = facts.only_user(sigmoid.outputs[0])
    x = sigmoid.inputs[0]
    if x is None or mul is None or mul.op_type != "Mul" or mul.domain:
        return None
    if x in mul.inputs:
        return Group("silu", [x], [sigmoid, mul])
    scale = producer(x, "Mul")
    scaled = None if scale is None else split_constant(scale, facts)
    if scale is None or scaled is None or facts.only_user(x) is not sigmoid:
        return None
    if scaled[0] not in mul.inputs:
        return None
    return Group("gate", [scaled[0]], [scale, sigmoid, mul], {"slope": scaled[1]})


def _int8_embedding(cast: ir.Node, facts: Facts, _version: int) -> Group | None:
    """Match a Gather from an int8 embedding that is dequantized by one scale, or one per row."""
    gather = producer(cast.inputs[0], "Gather")
    user = facts.only_user(cast.outputs[0])
    if gather is None or user is None or user.op_type != "Mul" or user.domain:
        return None
    table, rows = gather.inputs
    if facts.only_user(gather.outputs[0]) is not cast or gather.attributes.get_int("axis", 0) != 0:
        return None
    others = [value for value in user.inputs if value is not cast.outputs[0]]
    scale = others[0] if len(others) == 1 else None
    if facts.scalar(scale) is not None:
        return Group("gather-s8", [table, rows, scale], [gather, cast, user])
    scales = producer(scale, "Gather")
    if scales is None or scales.inputs[1] is not rows or scales.attributes.get_int("axis", 0) != 0:
        return None
    if facts.only_user(scales.outputs[0]) is not user:
        return None
    return Group("gather-s8", [table, rows, scales.inputs[0]], [gather, scales, cast, user])


def _cast(node: ir.Node, facts: Facts, version: int) -> Group | None:
    return _int8_embedding(node, facts, version) or integers.match(node, facts, version)


def _fake_quantize(node: ir.Node, facts: Facts, version: int) -> Group | None:
    return int16.match(node, facts, version) or per_channel.match(node, facts)


_ANCHORS: dict[str, Match] = {
    "Cast": _cast,
    "DequantizeLinear": _fake_quantize,
    "Erf": _gelu,
    "Tanh": _tanh_gelu,
    "HardSigmoid": _hard_swish,
    "Clip": _hard_swish,
    "Sigmoid": _silu,
    "Softmax": attention.match,
    "Sqrt": normalization.match,
    "Pow": normalization.match,
    "Add": rotary.match,
}


def operations(
    graph: ir.Graph, facts: Facts, model: ir.Model, version: Callable[[ir.Node], int]
) -> list[Op]:
    """Return the operations of a graph, each after those whose results it reads.

    Args:
        graph: the graph, in topological order.
        facts: of the graph.
        model: its operator sets and functions.
        version: returns the operator set version of a node.
    """
    int8 = Int8Matcher(graph, facts, model, version)
    found: dict[ir.Node, Op] = {}
    for node in graph:
        if node in int8.replaced:
            continue
        match = _ANCHORS.get(node.op_type) if not node.domain else None
        group = None if match is None else match(node, facts, version(node))
        if group is None:
            continue
        nodes = group.nodes
        outputs = nodes[-1].outputs
        if facts.rank(group.inputs[0]) == 0 != facts.rank(outputs[0]):
            continue  # a constant of shape [1] extends the rank of a scalar
        op = Op(group.kind, group.inputs, outputs, group.attributes, version(node), nodes)
        taken = found.keys() | int8.replaced
        if any(member in taken for member in nodes) or BY_KIND[group.kind].check(op, facts):
            continue
        found.update(dict.fromkeys(nodes, op))
    ops = list(_fused(graph, facts, version, found, int8))
    ops = fuse_gates(fuse_add_norm(ops, facts), facts)
    return without_superseded(join_matmuls(ops, facts), facts)


def _fused(
    graph: ir.Graph,
    facts: Facts,
    version: Callable[[ir.Node], int],
    found: dict[ir.Node, Op],
    int8: Int8Matcher,
) -> Iterator[Op]:
    """Yield the operations, with biases, residuals and activations fused into their producers."""
    for node in graph:
        yield from int8.ops.get(node, ())
        if node in int8.replaced:
            continue
        op = found.get(node)
        if op is None:
            op = Op.of(node, version(node))
            rule = None if node.domain else BY_KIND.get(node.op_type)
            if rule is not None and not rule.check(op, facts):
                fuse_scale(op, facts, found, int8.replaced)
                fuse_bias(op, facts)
                fuse_channel_bias(op, facts)
                fuse_epilogue(op, facts, version, found, int8.replaced)
                fuse_clamp(op, facts, version)
            found.update(dict.fromkeys(op.nodes, op))
        # A group is scheduled at its last node.
        if node is op.nodes[-1]:
            yield op
