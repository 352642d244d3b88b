"""Random models of any operators, drawn node by node; onnxruntime tries each node at once."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]

F32, F16, F64 = np.dtype(np.float32), np.dtype(np.float16), np.dtype(np.float64)
BF16 = np.dtype(ml_dtypes.bfloat16)
I64, I32, I8, U8 = (np.dtype(kind) for kind in (np.int64, np.int32, np.int8, np.uint8))
BOOL = np.dtype(np.bool_)
FLOATS = (F32, F32, F32, F32, F16, F64)
INTS = (I64, I32, I8, U8)
NUMBERS = FLOATS + INTS
ALL = (*NUMBERS, BOOL)


def names(text: str) -> tuple[str, ...]:
    """Words as a tuple."""
    return tuple(text.split())


OPSETS = (9, 10, 11, 12, 13, 13, 14, 15, 16, 17, 18, 18, 19, 20, 21, 22, 23, 24)
DIMS = (1, 1, 2, 2, 3, 3, 4, 5, 7, 8, 8, 13, 16, 17, 32, 33, 64)
LARGEST = 60_000
IR_VERSION = 10
DISCONTINUOUS = frozenset(
    names(
        "Floor Ceil Round Sign Less LessOrEqual Greater GreaterOrEqual Equal ArgMax "
        "ArgMin TopK Mod NonZero Unique Hardmax ThresholdedRelu Shrink QuantizeLinear "
        "DynamicQuantizeLinear NonMaxSuppression IsInf IsNaN Compress BitShift Or And "
        "Xor Not Where"
    )
)
"""What a small error of an operand may change much; they read exact values only."""

EXACT = frozenset(
    names(
        "Identity Reshape Transpose Squeeze Unsqueeze Concat Slice Split Gather "
        "GatherElements GatherND Expand Tile Pad DepthToSpace SpaceToDepth Flatten Neg "
        "Abs Relu Max Min Clip Where MaxPool Dropout Constant Shape Size ScatterElements "
        "ScatterND Trilu ReverseSequence EyeLike GlobalMaxPool ReduceMax ReduceMin "
        "ConstantOfShape Range OneHot Compress TopK Scatter CastLike Col2Im"
    )
)
"""Operators whose results are elements of their operands, whatever the order."""


def onnxruntime_session(model: onnx.ModelProto) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def tensor_type(array: Array) -> int:
    return helper.np_dtype_to_tensor_dtype(array.dtype)


def captured(graph: onnx.GraphProto) -> set[str]:
    """Names that a subgraph reads from around it."""
    own = {value.name for value in graph.input} | {value.name for value in graph.initializer}
    found: set[str] = set()
    for node in graph.node:
        found |= {name for name in node.input if name} | node_captures(node)
        own |= set(node.output)
    found |= {value.name for value in graph.output}
    return found - own


def node_captures(node: onnx.NodeProto) -> set[str]:
    found: set[str] = set()
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            found |= captured(attribute.g)
    return found


class Names:
    """Returns unique names."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"


class Graph:
    """A graph that grows; each value has its array for the first feeds.

    Attributes:
        values: arrays by name, of all that a node may read.
        exact: names of values that do not depend on the order of computation.
        scale: the largest magnitude on the way to a value.
    """

    def __init__(self, seed: int, parent: Graph | None = None, *, zeros: bool = True) -> None:
        self.parent = parent
        self.random = random.Random(seed) if parent is None else parent.random
        self.numbers = np.random.default_rng(seed) if parent is None else parent.numbers
        self.name = Names() if parent is None else parent.name
        self.opset: int = self.random.choice(OPSETS) if parent is None else parent.opset
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, Array] = {}
        self.inputs: dict[str, Array] = {}
        self.dims: dict[str, list[int | str]] = {}
        self.values: dict[str, Array] = {} if parent is None else dict(parent.values)
        self.exact: set[str] = set() if parent is None else set(parent.exact)
        self.scale: dict[str, float] = {} if parent is None else dict(parent.scale)
        self.sizes: dict[str, int] = {} if parent is None else parent.sizes
        if parent is None:
            self.float: np.dtype[Any] = self.random.choice([F32] * 8 + [F16, F64])
            self.zeros = self.random.random() < 0.06 and zeros
            self.most = LARGEST * self.random.choice([1, 1, 1, 1, 1, 1, 6])
            dynamic = self.random.choice([0, 1, 1, 2])
            for name in ("N", "L")[:dynamic]:
                self.sizes[name] = self.random.choice(DIMS)
        else:
            self.float, self.zeros, self.most = parent.float, parent.zeros, parent.most

    # Draws.

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def dim(self) -> int:
        if self.zeros and self.chance(0.15):
            return 0
        return self.random.choice(DIMS)

    def shape(self, least: int = 0, most: int = 5) -> tuple[int, ...]:
        rank = self.random.choice([r for r in (0, 1, 2, 2, 3, 3, 4, 4, 4, 5) if least <= r <= most])
        while True:
            shape = tuple(self.dim() for _ in range(rank))
            if math.prod(shape) <= self.most // 6:
                return shape

    def array(self, dtype: Any, shape: Sequence[int]) -> Array:
        dtype = np.dtype(dtype)
        if dtype == BOOL:
            return self.numbers.random(shape) < 0.5
        if dtype.kind in "iu":
            low = 0 if dtype.kind == "u" else -9
            return self.numbers.integers(low, 10, shape).astype(dtype)
        kind = self.random.randrange(4)
        if kind == 0:
            return np.asarray(self.numbers.integers(-8, 9, shape)).astype(dtype)
        return np.asarray(self.numbers.standard_normal(shape)).astype(dtype)

    def constant(self, array: Array, *, fed: float = 0.1) -> str:
        """An initializer, a Constant node, or an input."""
        array = np.asarray(array)
        draw = self.random.random()
        if draw < fed and self.parent is None:
            return self.input(array)
        if draw > 0.9:
            name = self.name("c")
            tensor = numpy_helper.from_array(array, name)
            self.nodes.append(helper.make_node("Constant", [], [name], name, value=tensor))
        else:
            name = self.name("w")
            self.weights[name] = array
        self.know(name, array, exact=True)
        return name

    def weight(self, shape: Sequence[int], dtype: Any = None, fed: float = 0.1) -> str:
        return self.constant(self.array(dtype or self.float, shape), fed=fed)

    def ints(self, *numbers: int, dtype: Any = np.int64, fed: float = 0.03) -> str:
        return self.constant(np.array(numbers, dtype), fed=fed)

    def input(self, array: Array) -> str:
        top = self
        name = self.name("x")
        top.inputs[name] = array
        dims: list[int | str] = []
        for size in array.shape:
            fitting = [known for known, value in self.sizes.items() if value == size]
            dims.append(fitting[0] if fitting and self.chance(0.7) else size)
        top.dims[name] = dims
        self.know(name, array, exact=True)
        return name

    def know(self, name: str, array: Array, *, exact: bool, scale: float = 0.0) -> None:
        self.values[name] = array
        if exact:
            self.exact.add(name)
        finite = np.abs(array.astype(np.float64)) if array.size else np.zeros(1)
        self.scale[name] = max(float(finite.max()), scale)

    def fresh(
        self, dtypes: Sequence[Any], least: int, most: int, fits: Callable[[Array], bool]
    ) -> str | None:
        dtype = self.float if self.float in dtypes else self.random.choice(dtypes)
        for _ in range(6):
            array = self.array(dtype, self.shape(least, most))
            if fits(array):
                return self.input(array) if self.parent is None else self.constant(array)
        return None

    def pick(
        self,
        dtypes: Sequence[Any] = FLOATS,
        least: int = 0,
        most: int = 6,
        fits: Callable[[Array], bool] = lambda _: True,
        *,
        exact: bool = False,
    ) -> str | None:
        """A value, the newest more often: chains are where operators are fused."""
        found = [
            name
            for name, array in self.values.items()
            if array.dtype in dtypes
            and least <= array.ndim <= most
            and (name in self.exact or not exact)
            and fits(array)
        ]
        found = [name for name in found if name not in self.weights or self.chance(0.15)]
        if not found or self.chance(0.07):
            return self.fresh(dtypes, least, most, fits)
        return self.random.choice(found[-1:] * 3 + found[-3:] + found)

    def shape_of(self, name: str) -> tuple[int, ...]:
        return self.values[name].shape

    def axis(self, rank: int) -> int:
        axis = self.random.randrange(rank)
        return axis - rank if self.chance(0.3) and self.opset >= 11 else axis

    def broadcast(self, shape: Sequence[int]) -> tuple[int, ...]:
        """A shape that broadcasts with another."""
        other = [size if self.chance(0.65) else 1 for size in shape]
        other = other[self.random.choice([0, 0, 0, *range(len(other) + 1)]) :]
        if self.chance(0.08):
            other = [self.random.choice((1, 2)), *other]
        return tuple(other)

    # Nodes.

    def add(
        self,
        op_type: str,
        inputs: Sequence[str | None],
        outputs: int = 1,
        domain: str = "",
        **given: Any,
    ) -> list[str] | None:
        """Add a node if onnxruntime runs it and its results are ordinary numbers."""
        if any(name is None for name in inputs) or not self.known(op_type, domain):
            return None
        attributes = {key: value for key, value in given.items() if value is not None}
        names = [self.name("v") for _ in range(outputs)]
        operands = [str(name) for name in inputs]
        while operands and not operands[-1]:
            operands.pop()
        node = helper.make_node(
            op_type, operands, names, f"n_{names[0]}", domain=domain, **attributes
        )
        read = list(dict.fromkeys([*(n for n in operands if n), *sorted(node_captures(node))]))
        if any(name not in self.values for name in read):
            return None
        if op_type in DISCONTINUOUS and not all(
            name in self.exact or self.values[name].dtype.kind in "iub" for name in read
        ):
            return None
        results = self.evaluate(node, read)
        if results is None or sum(result.size for result in results) > self.most:
            return None
        for result in results:
            if result.dtype.kind not in "fiub":
                return None
            if result.dtype.kind in "iu" and result.size and op_type == "ReduceProd":
                return None  # what overflows is not defined
            if result.dtype.kind == "f" and not np.all(np.abs(result) < 3e4):
                return None
        self.nodes.append(node)
        exact = op_type in EXACT and all(name in self.exact for name in read)
        scale = max((self.scale[name] for name in read), default=0.0)
        for name, result in zip(names, results, strict=True):
            whole = result.dtype.kind in "iub"
            self.know(name, result, exact=exact or whole, scale=0.0 if whole else scale)
        return names

    def known(self, op_type: str, domain: str) -> bool:
        """Whether the operator set has it: onnxruntime takes some of older sets, too."""
        return bool(domain) or onnx.defs.has(op_type, self.opset)

    def evaluate(self, node: onnx.NodeProto, read: Sequence[str]) -> list[Array] | None:
        return self.evaluate_all([node], read, node.output)

    def evaluate_all(
        self, nodes: Sequence[onnx.NodeProto], read: Sequence[str], names: Sequence[str]
    ) -> list[Array] | None:
        """The outputs of onnxruntime for some nodes, None where it refuses."""
        read = list(dict.fromkeys(read))
        infos = [
            helper.make_tensor_value_info(
                name, tensor_type(self.values[name]), self.values[name].shape
            )
            for name in read
        ]
        results = [onnx.ValueInfoProto(name=name) for name in names]
        model = model_of(nodes, infos, results, (), self.opset)
        try:
            session = onnxruntime_session(model)
            return [np.asarray(a) for a in session.run(None, {n: self.values[n] for n in read})]
        except Exception:  # noqa: BLE001  # onnxruntime's errors have no common base
            return None

    def outputs(self) -> list[str]:
        read = {name for node in self.nodes for name in (*node.input, *node_captures(node))}
        own = [n for node in self.nodes for n in node.output if n in self.values]
        ends = [name for name in own if name not in read]
        inner = [name for name in own if name in read]
        ends += [name for name in inner if self.chance(0.1)]
        if self.chance(0.05) and self.inputs:
            ends.append(self.random.choice(list(self.inputs)))
        if self.chance(0.05) and self.weights:
            ends.append(self.random.choice(list(self.weights)))
        return list(dict.fromkeys(ends))

    def model(self) -> onnx.ModelProto:
        infos = [
            helper.make_tensor_value_info(name, tensor_type(array), self.dims[name])
            for name, array in self.inputs.items()
        ]
        weights = [numpy_helper.from_array(a, name) for name, a in self.weights.items()]
        results = []
        for name in self.outputs():
            array = self.values[name]
            dims = self.dims.get(name, [None] * array.ndim)
            results.append(helper.make_tensor_value_info(name, tensor_type(array), dims))
        return model_of(self.nodes, infos, results, weights, self.opset)


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    weights: Sequence[TensorProto],
    opset: int,
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION)
