"""Random graphs of float32 operators, by seed."""

from __future__ import annotations

import math
import random

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SIZES = (1, 1, 2, 3, 5, 8)


class Graph:
    """A graph of float32 values that grows node by node; batch is symbolic."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        rank = self.random.choice([2, 3, 4, 4, 4])
        shape = (2, *(self.random.choice(SIZES) for _ in range(rank - 1)))
        self.values: dict[str, tuple[int, ...]] = {"x": shape}

    def weight(self, *shape: int) -> str:
        name = f"w{len(self.weights)}"
        array = np.asarray(self.numbers.standard_normal(shape), np.float32)
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def ints(self, *numbers: int) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.array(numbers, np.int64), name))
        return name

    def add(self, op_type: str, inputs: list[str], shape: tuple[int, ...], **attributes) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [name], f"n{name}", **attributes))
        self.values[name] = shape
        return name

    def pick(self, *ranks: int) -> str | None:
        fitting = [n for n, s in self.values.items() if not ranks or len(s) in ranks]
        # The newest more often: chains are where layouts meet.
        return self.random.choice(fitting[-2:] + fitting) if fitting else None

    def grow(self) -> None:
        step = self.random.choice(STEPS)
        step(self)

    def model(self) -> onnx.ModelProto:
        read = {name for node in self.nodes for name in node.input}
        ends = [name for name in self.values if name not in read and name != "x"]
        ends += self.random.sample(list(self.values), k=1)
        outputs = [onnx.ValueInfoProto(name=name) for name in dict.fromkeys(ends) if name != "x"]
        inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, self.values["x"])]
        graph = helper.make_graph(self.nodes, "g", inputs, outputs, self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
        return onnx.shape_inference.infer_shapes(model, data_prop=True)


def conv(g: Graph) -> None:
    x = g.pick(4)
    if x is None:
        return
    n, c, h, w = g.values[x]
    k = g.random.choice([1, 3])
    depthwise = g.random.random() < 0.4
    out = c if depthwise else g.random.choice(SIZES)
    name = g.weight(out, 1 if depthwise else c, k, k)
    pads = [k // 2] * 4
    groups = c if depthwise else 1
    y = g.add("Conv", [x, name], (n, out, h, w), pads=pads, group=groups, kernel_shape=[k, k])
    if g.random.random() < 0.5:
        g.add("Relu", [y], (n, out, h, w))


def pool(g: Graph) -> None:
    x = g.pick(4)
    if x is None:
        return
    n, c, h, w = g.values[x]
    if min(h, w) >= 2:
        op = g.random.choice(["MaxPool", "AveragePool"])
        g.add(op, [x], (n, c, h - 1, w - 1), kernel_shape=[2, 2])
    else:
        g.add("GlobalAveragePool", [x], (n, c, 1, 1))


def unary(g: Graph) -> None:
    x = g.pick()
    op = g.random.choice(["Relu", "Sigmoid", "Tanh", "Neg", "HardSwish", "Identity", "Abs"])
    g.add(op, [x], g.values[x])


def binary(g: Graph) -> None:
    a = g.pick()
    shape = g.values[a]
    same = [n for n, s in g.values.items() if s == shape]
    if g.random.random() < 0.5:
        b = g.random.choice(same)
    else:
        tail = shape[g.random.randint(0, len(shape)) :]
        b = g.weight(*(s if g.random.random() < 0.6 else 1 for s in tail))
    op = g.random.choice(["Add", "Mul", "Sub", "Add"])
    y = g.add(op, [a, b] if g.random.random() < 0.7 else [b, a], shape)
    if g.random.random() < 0.3:
        g.add("Relu", [y], shape)


def gate(g: Graph) -> None:
    """Multiply by the result of a reduction, as squeeze-and-excitation does."""
    x = g.pick(3, 4)
    if x is None:
        return
    shape = g.values[x]
    axes = list(range(2, len(shape)))
    reduced = (*shape[:2], *(1 for _ in axes))
    y = g.add("ReduceMean", [x, g.ints(*axes)], reduced)
    z = g.add("Sigmoid", [y], reduced)
    g.add("Mul", [x, z], shape)


def transpose(g: Graph) -> None:
    x = g.pick(2, 3, 4)
    if x is None:
        return
    shape = g.values[x]
    perm = list(range(len(shape)))
    g.random.shuffle(perm)
    g.add("Transpose", [x], tuple(shape[axis] for axis in perm), perm=perm)


def reshape(g: Graph) -> None:
    x = g.pick()
    total = math.prod(g.values[x])
    first = g.random.choice([d for d in range(1, total + 1) if total % d == 0])
    rest = total // first
    second = g.random.choice([d for d in range(1, rest + 1) if rest % d == 0])
    target = g.random.choice([(first, rest), (first, second, rest // second), (total,)])
    if g.random.random() < 0.3:
        target = (1, *target)
    g.add("Reshape", [x, g.ints(*target)], target)


def squeeze(g: Graph) -> None:
    x = g.pick()
    shape = g.values[x]
    ones = [axis for axis, size in enumerate(shape) if size == 1]
    if ones and g.random.random() < 0.5:
        axis = g.random.choice(ones)
        g.add("Squeeze", [x, g.ints(axis)], shape[:axis] + shape[axis + 1 :])
    elif len(shape) < 5:
        axis = g.random.randint(0, len(shape))
        g.add("Unsqueeze", [x, g.ints(axis)], (*shape[:axis], 1, *shape[axis:]))


def softmax(g: Graph) -> None:
    x = g.pick()
    shape = g.values[x]
    if shape:
        g.add("Softmax", [x], shape, axis=g.random.randrange(len(shape)))


def normalize(g: Graph) -> None:
    x = g.pick(2, 3, 4)
    if x is not None:
        shape = g.values[x]
        g.add("LayerNormalization", [x, g.weight(shape[-1])], shape, axis=-1, epsilon=0.1)


def concat(g: Graph) -> None:
    a = g.pick(2, 3, 4)
    if a is None:
        return
    shape = g.values[a]
    axis = g.random.randrange(len(shape))
    same = [n for n, s in g.values.items() if s == shape]
    b = g.random.choice(same)
    joined = (*shape[:axis], 2 * shape[axis], *shape[axis + 1 :])
    g.add("Concat", [a, b], joined, axis=axis)


def cut(g: Graph) -> None:
    x = g.pick(2, 3, 4)
    if x is None:
        return
    shape = g.values[x]
    axis = g.random.randrange(len(shape))
    start = g.random.randrange(shape[axis])
    step = g.random.choice([1, 1, 2])
    inputs = [x, g.ints(start), g.ints(shape[axis]), g.ints(axis), g.ints(step)]
    size = -(-(shape[axis] - start) // step)
    g.add("Slice", inputs, (*shape[:axis], size, *shape[axis + 1 :]))


def pad(g: Graph) -> None:
    x = g.pick(2, 3, 4)
    if x is None:
        return
    shape = g.values[x]
    pads = [g.random.choice([0, 0, 1]) for _ in range(2 * len(shape))]
    sizes = zip(shape, pads[: len(shape)], pads[len(shape) :], strict=True)
    g.add("Pad", [x, g.ints(*pads)], tuple(map(sum, sizes)))


def matmul(g: Graph) -> None:
    x = g.pick(2, 3, 4)
    if x is None:
        return
    shape = g.values[x]
    if g.random.random() < 0.5:
        out = g.random.choice(SIZES)
        y = g.add("MatMul", [x, g.weight(shape[-1], out)], (*shape[:-1], out))
        if g.random.random() < 0.5:
            g.add("Add", [y, g.weight(out)], (*shape[:-1], out))
        return
    perm = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
    turned = g.add("Transpose", [x], tuple(shape[axis] for axis in perm), perm=perm)
    g.add("MatMul", [x, turned], (*shape[:-1], shape[-2]))


def reduce(g: Graph) -> None:
    x = g.pick(2, 3, 4)
    if x is None:
        return
    shape = g.values[x]
    axis = g.random.randrange(len(shape))
    keep = g.random.randint(0, 1)
    left = (*shape[:axis], *((1,) if keep else ()), *shape[axis + 1 :])
    op = g.random.choice(["ReduceMean", "ReduceMax", "ReduceSum"])
    g.add(op, [x, g.ints(axis)], left, keepdims=keep)


STEPS = [
    *(conv, conv, pool, unary, unary, binary, binary, gate, transpose, transpose, reshape),
    *(squeeze, softmax, normalize, concat, cut, pad, matmul, reduce),
]


def random_model(seed: int, nodes: int) -> onnx.ModelProto:
    graph = Graph(seed)
    while len(graph.nodes) < nodes:
        graph.grow()
        if max(math.prod(shape) for shape in graph.values.values()) > 20_000:
            break
    return graph.model()
