"""Draws of control flow and of onnxruntime's operators, and whole models of all draws."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import random_draws as draws
import random_indices as indices
import random_layers as layers
import random_parts as parts
import random_rare as rare
from onnx import helper, numpy_helper
from random_operators import F32, FLOATS, Graph, tensor_type

MICROSOFT = "com.microsoft"


def body(g: Graph, inputs: dict[str, np.ndarray]) -> Graph:
    inner = Graph(0, parent=g)
    for name, array in inputs.items():
        inner.inputs[name] = array
        inner.know(name, array, exact=False, scale=3.0)
    return inner


def closed(inner: Graph, outputs: list[str]) -> onnx.GraphProto:
    infos = [
        helper.make_tensor_value_info(name, tensor_type(a), [None] * a.ndim if a.ndim else [])
        for name, a in inner.inputs.items()
    ]
    results = [
        helper.make_tensor_value_info(
            n, tensor_type(inner.values[n]), [None] * inner.values[n].ndim
        )
        for n in outputs
    ]
    weights = [numpy_helper.from_array(a, n) for n, a in inner.weights.items()]
    return helper.make_graph(inner.nodes, inner.name("body"), infos, results, weights)


def branch(g: Graph, like: np.ndarray | None) -> tuple[onnx.GraphProto, np.ndarray] | None:
    inner = body(g, {})
    for _ in range(g.random.randint(1, 3)):
        g.random.choice(SMALL)(inner)
    own = [name for node in inner.nodes for name in node.output]
    own = [
        n
        for n in own
        if like is None
        or (inner.values[n].dtype == like.dtype and inner.values[n].ndim == like.ndim)
    ]
    if own:
        result = own[-1]
    else:
        source = inner.pick() if like is None else None
        if like is not None:
            source = inner.constant(inner.array(like.dtype, like.shape), fed=0)
        found = source and inner.add("Identity", [source])
        if not found:
            return None
        result = found[0]
    return closed(inner, [result]), inner.values[result]


def if_(g: Graph) -> None:
    first = branch(g, None)
    second = first and branch(g, first[1])
    if not first or not second:
        return
    graphs = [first[0], second[0]]
    g.random.shuffle(graphs)
    cond = g.constant(np.array(g.chance(0.5)), fed=0.6)
    g.add("If", [cond], then_branch=graphs[0], else_branch=graphs[1])


def loop(g: Graph) -> None:
    x = g.pick(FLOATS, 1, 4)
    if x is None:
        return
    array = g.values[x]
    count, condition, state = g.name("i"), g.name("k"), g.name("s")
    inner = body(g, {count: np.array(0, np.int64), condition: np.array(True), state: array})
    halves = inner.constant(np.array(0.5, array.dtype), fed=0)
    y = inner.add("Mul", [state, halves])
    for _ in range(g.random.randint(1, 3)):
        g.random.choice(SMALL)(inner)
    same = [
        n
        for node in inner.nodes
        for n in node.output
        if inner.values[n].shape == array.shape and inner.values[n].dtype == array.dtype
    ]
    keep = inner.add("Identity", [condition])
    if not y or not keep or not same:
        return
    results = [keep[0], g.random.choice(same)]
    scans = [n for node in inner.nodes for n in node.output if n not in results]
    results += g.random.sample(scans, min(len(scans), g.random.randint(0, 2)))
    trips = g.constant(np.array(g.random.choice([0, 1, 3]), np.int64), fed=0.4)
    cond = g.constant(np.array(True), fed=0) if g.chance(0.6) else ""
    g.add("Loop", [trips, cond, x], len(results) - 1, body=closed(inner, results))


def scan(g: Graph) -> None:
    x = g.pick(FLOATS, 2, 4, lambda a: a.size > 0)
    if x is None:
        return
    array = g.values[x]
    axis = g.random.randrange(array.ndim)
    part, state = g.name("p"), g.name("s")
    inner = body(g, {state: np.zeros_like(np.take(array, 0, axis)), part: np.take(array, 0, axis)})
    total = inner.add("Add", [state, part])
    if not total:
        return
    for _ in range(g.random.randint(0, 2)):
        g.random.choice(SMALL)(inner)
    extra = inner.add("Identity", [inner.nodes[-1].output[0]])
    if not extra:
        return
    start = g.constant(np.zeros_like(np.take(array, 0, axis)), fed=0.3)
    g.add(
        "Scan",
        [start, x],
        2,
        body=closed(inner, [total[0], extra[0]]),
        num_scan_inputs=1,
        scan_input_axes=[axis] if axis else None,
        scan_input_directions=[1] if g.chance(0.3) else None,
    )


def contrib(g: Graph) -> None:
    """Operators of com.microsoft."""
    x = g.pick((F32,), 2, 3, lambda a: a.size > 0)
    if x is None:
        return
    shape, kind = g.shape_of(x), g.values[x].dtype
    k, n = shape[-1], g.random.choice([1, 5, 16, 33])
    form = g.random.randrange(9)
    if form == 0:
        bits, block = g.random.choice([4, 8]), g.random.choice([16, 32, 64])
        count = -(-k // block)
        packed = g.constant(
            g.numbers.integers(0, 256, (n, count, block * bits // 8)).astype(np.uint8), fed=0
        )
        scales = g.constant((g.numbers.uniform(0.01, 0.1, n * count)).astype(np.float32), fed=0)
        zeros = g.numbers.integers(0, 256, n * -(-count * bits // 8)).astype(np.uint8)
        given = [x, packed, scales, g.constant(zeros, fed=0) if g.chance(0.4) else ""]
        given += ["", g.weight((n,), kind)] if g.chance(0.3) else []
        g.add("MatMulNBits", given, domain=MICROSOFT, K=k, N=n, bits=bits, block_size=block)
    elif form == 1:
        op = g.random.choice(["Gelu", "FastGelu", "QuickGelu", "BiasGelu"])
        given = (
            [x, g.weight((k,), kind)]
            if op == "BiasGelu" or (op == "FastGelu" and g.chance(0.5))
            else [x]
        )
        g.add(op, given, domain=MICROSOFT, alpha=1.702 if op == "QuickGelu" else None)
    elif form == 2:
        b = g.random.randint(0, 1)
        w = layers.scaled(g, (n, k) if b else (k, n), kind)
        g.add(
            "FusedMatMul", [x, w], domain=MICROSOFT, alpha=0.5 if g.chance(0.5) else None, transB=b
        )
    elif form == 3 and len(shape) == 2:
        act = g.random.choice(["Relu", "Tanh", "Sigmoid", "LeakyRelu"])
        given = [x, layers.scaled(g, (k, n), kind), g.weight((n,), kind)]
        g.add("FusedGemm", given, domain=MICROSOFT, activation=act)
    elif form == 4:
        skip = g.weight(shape, kind, fed=0.6)
        op = g.random.choice(["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
        given = [x, skip, g.weight((k,), kind)]
        if op == "SkipLayerNormalization" and g.chance(0.6):
            given.append(g.weight((k,), kind))
        if len(shape) == 3:
            g.add(op, given, domain=MICROSOFT, epsilon=1e-3)
    elif form == 5 and len(shape) == 3 and k % 2 == 0:
        keys = g.random.choice([3, 8])
        k2, v2 = (g.weight((shape[0], keys, k), kind, fed=0.6) for _ in "kv")
        g.add("MultiHeadAttention", [x, k2, v2], domain=MICROSOFT, num_heads=2)
    elif form == 6:
        w = g.weight((k, n), np.int8, fed=0)
        scale = g.constant(np.float32(0.01), fed=0)
        g.add("DynamicQuantizeMatMul", [x, w, scale], domain=MICROSOFT)
    elif form == 7 and len(shape) == 3:
        w, b = layers.scaled(g, (k, 3 * 8), kind), g.weight((24,), kind)
        g.add(
            "Attention",
            [x, w, b],
            domain=MICROSOFT,
            num_heads=2,
            unidirectional=g.random.randint(0, 1),
        )
    elif form == 8 and g.pick((F32,), 4, 4) is not None:
        y = g.pick((F32,), 4, 4)
        if y:
            c = g.shape_of(y)[1]
            w = layers.scaled(g, (8, c, 1, 1), kind)
            g.add("FusedConv", [y, w], domain=MICROSOFT, activation="Relu")


SMALL: tuple[Callable[[Graph], None], ...] = (
    draws.unary,
    draws.binary,
    draws.binary,
    draws.transpose,
    draws.reshape,
    indices.reduce,
    draws.slice_,
    draws.concat,
    indices.gather,
    layers.matmul,
)
DRAWS: tuple[Callable[[Graph], None], ...] = (
    *(draws.unary, draws.unary, draws.binary, draws.binary, draws.binary, draws.where, draws.cast),
    *(draws.transpose, draws.transpose, draws.reshape, draws.reshape, draws.squeeze, draws.concat),
    *(
        draws.slice_,
        draws.split,
        draws.pad,
        draws.expand,
        indices.reduce,
        indices.reduce,
        indices.arg,
    ),
    *(
        indices.gather,
        indices.shapes,
        indices.misc,
        layers.conv,
        layers.conv,
        layers.conv_transpose,
    ),
    *(
        layers.pool,
        indices.reduce,
        layers.matmul,
        layers.matmul,
        layers.normalize,
        layers.normalize,
        parts.attend,
    ),
    *(parts.rotary, parts.resize, parts.quantized, parts.integers, parts.recurrent),
    *(if_, loop, scan, contrib, rare.network, rare.network, rare.rare, rare.rare, rare.written),
    *(rare.sequence, rare.integers, parts.quantized),
)


def random_graph(seed: int, *, zeros: bool = True) -> Graph:
    """A graph of one to ten steps; the seed determines it.

    Args:
        seed: any number.
        zeros: whether some have sizes of 0.
    """
    g = Graph(seed, zeros=zeros)
    favorites = g.random.sample(DRAWS, 3)
    steps = g.random.choice([1, 2, 3, 3, 5, 8, 10])
    for _ in range(60):
        if len(g.nodes) >= steps and any(n.op_type != "Constant" for n in g.nodes):
            break
        g.random.choice(favorites if g.chance(0.4) else DRAWS)(g)
    return g
