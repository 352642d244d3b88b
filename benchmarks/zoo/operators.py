"""Single operators of the models, as ONNX models in float32 and int8."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]

OPSET = 17
IR_VERSION = 8


@dataclass(frozen=True)
class Convolution:
    """A convolution of square images, padded to keep their size up to the stride.

    Attributes:
        model: the model that it is from.
        size: height and width of the input.
        inputs: channels of the input.
        outputs: channels of the output.
        kernel: height and width of the kernel.
        stride: of both dimensions.
        groups: 1, or the number of channels for a depthwise one.
    """

    model: str
    size: int
    inputs: int
    outputs: int
    kernel: int = 1
    stride: int = 1
    groups: int = 1

    @property
    def label(self) -> str:
        """Say what it is in one line."""
        kind = "dw " if self.groups > 1 else ""
        stride = f"/{self.stride}" if self.stride > 1 else ""
        channels = f"{self.inputs}->{self.outputs}"
        return f"{kind}{self.kernel}x{self.kernel}{stride} {channels} at {self.size}"

    @property
    def macs(self) -> int:
        """Return the number of multiplications."""
        return math.prod(self.result[2:]) * math.prod(self.weights)

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the input."""
        return (1, self.inputs, self.size, self.size)

    @property
    def result(self) -> tuple[int, ...]:
        """Return the shape of the output."""
        out = -(-self.size // self.stride)
        return (1, self.outputs, out, out)

    @property
    def weights(self) -> tuple[int, ...]:
        """Return the shape of the weights; the outputs are on axis 0."""
        return (self.outputs, self.inputs // self.groups, self.kernel, self.kernel)


@dataclass(frozen=True)
class Matmul:
    """A matmul of rows with a constant matrix.

    Attributes:
        model: the model that it is from.
        rows: rows of the input.
        inputs: columns of the input.
        outputs: columns of the output.
    """

    model: str
    rows: int
    inputs: int
    outputs: int

    @property
    def label(self) -> str:
        """Say what it is in one line."""
        return f"matmul {self.inputs}->{self.outputs} of {self.rows} rows"

    @property
    def macs(self) -> int:
        """Return the number of multiplications."""
        return self.rows * self.inputs * self.outputs

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the input."""
        return (self.rows, self.inputs)

    @property
    def result(self) -> tuple[int, ...]:
        """Return the shape of the output."""
        return (self.rows, self.outputs)

    @property
    def weights(self) -> tuple[int, ...]:
        """Return the shape of the weights; the outputs are on axis 1."""
        return (self.inputs, self.outputs)


Operator = Convolution | Matmul


def _depthwise(model: str, size: int, channels: int, stride: int = 1) -> Convolution:
    return Convolution(model, size, channels, channels, 3, stride, channels)


OPERATORS: tuple[Operator, ...] = (
    Convolution("resnet50", 224, 3, 64, 7, 2),
    *(
        Convolution("resnet50", size, *channels, kernel)
        for size, width in ((56, 64), (28, 128), (14, 256), (7, 512))
        for channels, kernel in (
            ((4 * width, width), 1),
            ((width, width), 3),
            ((width, 4 * width), 1),
        )
    ),
    Convolution("resnet50", 56, 128, 128, 3, 2),
    Convolution("resnet50", 56, 256, 512, 1, 2),
    Matmul("resnet50", 1, 2048, 1000),
    Convolution("mobilenet-v2", 224, 3, 32, 3, 2),
    Convolution("mobilenet-v2", 112, 32, 16),
    Convolution("mobilenet-v2", 112, 16, 96),
    Convolution("mobilenet-v2", 56, 144, 24),
    Convolution("mobilenet-v2", 28, 32, 192),
    Convolution("mobilenet-v2", 14, 64, 384),
    Convolution("mobilenet-v2", 14, 384, 64),
    Convolution("mobilenet-v2", 7, 160, 960),
    Convolution("mobilenet-v2", 7, 320, 1280),
    _depthwise("mobilenet-v2", 112, 32),
    _depthwise("mobilenet-v2", 112, 96, 2),
    _depthwise("mobilenet-v2", 56, 144),
    _depthwise("mobilenet-v2", 28, 192),
    _depthwise("mobilenet-v2", 14, 384),
    _depthwise("mobilenet-v2", 7, 960),
    *(
        Matmul(model, 128, *sizes)
        for model, width in (("minilm", 384), ("bert-base", 768))
        for sizes in ((width, width), (width, 4 * width), (4 * width, width))
    ),
)


class _Graph:
    """Collects the copies of one operator, which share their input."""

    def __init__(self, operator: Operator) -> None:
        self.operator = operator
        self.rng = np.random.default_rng(0)
        self.constants: list[onnx.TensorProto] = []
        self.nodes: list[onnx.NodeProto] = []

    def constant(self, name: str, value: Array) -> str:
        self.constants.append(numpy_helper.from_array(value, name))
        return name

    def node(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [output], name=output, **attributes))
        return output

    def compute(self, inputs: list[str], output: str) -> str:
        operator = self.operator
        if isinstance(operator, Matmul):
            return self.node("MatMul", inputs, output)
        # The edge that even sizes do not need is cut, as torch's models have it.
        pads, strides = [operator.kernel // 2] * 4, [operator.stride] * 2
        return self.node("Conv", inputs, output, pads=pads, strides=strides, group=operator.groups)

    @property
    def axis(self) -> int:
        return 1 if isinstance(self.operator, Matmul) else 0

    @property
    def deviation(self) -> float:
        """Return the deviation of weights with which outputs vary as much as inputs."""
        return float((math.prod(self.operator.weights) / self.outputs) ** -0.5)

    @property
    def outputs(self) -> int:
        return self.operator.outputs


# Activations of convolutions come after a ReLU; those of matmuls are to both sides of zero.
_SCALE = 0.03


def _zero_point(operator: Operator, dtype: Any) -> Array:
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    centre = isinstance(operator, Matmul)
    return np.array((low + high + 1) // 2 if centre else low, dtype)


def _float32(graph: _Graph, name: str) -> str:
    operator = graph.operator
    weights = graph.rng.normal(0, graph.deviation, operator.weights).astype(np.float32)
    inputs = ["x", graph.constant(f"{name}.w", weights)]
    if isinstance(operator, Convolution):
        bias = graph.rng.normal(0, 0.1, operator.outputs).astype(np.float32)
        inputs.append(graph.constant(f"{name}.b", bias))
    return graph.compute(inputs, name)


def _integers(graph: _Graph) -> tuple[Array, Array]:
    weights = graph.rng.normal(0, 40, graph.operator.weights).clip(-127, 127)
    scales = graph.rng.uniform(0.9, 1.1, graph.outputs) * graph.deviation / 40
    return np.rint(weights).astype(np.int8), scales.astype(np.float32)


def _static(dtype: Any) -> Callable[[_Graph, str], str]:
    def build(graph: _Graph, name: str) -> str:
        operator = graph.operator
        weights, scales = _integers(graph)
        scale = graph.constant(f"{name}.s", np.array(_SCALE, np.float32))
        zero = graph.constant(f"{name}.z", _zero_point(operator, dtype))
        given = graph.node("DequantizeLinear", ["x", scale, zero], f"{name}.x")
        wide = [
            graph.constant(f"{name}.wq", weights),
            graph.constant(f"{name}.ws", scales),
            graph.constant(f"{name}.wz", np.zeros(graph.outputs, np.int8)),
        ]
        inputs = [given, graph.node("DequantizeLinear", wide, f"{name}.w", axis=graph.axis)]
        if isinstance(operator, Convolution):
            bias = graph.rng.integers(-500, 500, graph.outputs, dtype=np.int32)
            wide = [
                graph.constant(f"{name}.bq", bias),
                graph.constant(f"{name}.bs", scales * np.float32(_SCALE)),
            ]
            inputs.append(graph.node("DequantizeLinear", wide, f"{name}.b", axis=0))
        computed = graph.compute(inputs, f"{name}.y")
        return graph.node("QuantizeLinear", [computed, scale, zero], name)

    return build


def _dynamic(graph: _Graph, name: str) -> str:
    """Quantize rows dynamically: the matmul as onnxruntime's `quantize_dynamic` writes it."""
    weights, scales = _integers(graph)
    rows = [f"{name}.xq", f"{name}.xs", f"{name}.xz"]
    graph.nodes.append(helper.make_node("DynamicQuantizeLinear", ["x"], rows, name=f"{name}.q"))
    matrix = graph.constant(f"{name}.wq", weights)
    zeros = graph.constant(f"{name}.wz", np.zeros(graph.outputs, np.int8))
    total = graph.node("MatMulInteger", [rows[0], matrix, rows[2], zeros], f"{name}.i")
    wide = graph.node("Cast", [total], f"{name}.f", to=TensorProto.FLOAT)
    factors = [rows[1], graph.constant(f"{name}.ws", scales)]
    return graph.node("Mul", [wide, graph.node("Mul", factors, f"{name}.s")], name)


@dataclass(frozen=True)
class Form:
    """How the numbers of an operator are kept: the type of its input and output, and its nodes."""

    dtype: Any
    build: Callable[[_Graph, str], str]


FORMS: Mapping[str, Form] = {
    "fp32": Form(np.float32, _float32),
    "u8s8": Form(np.uint8, _static(np.uint8)),
    "s8s8": Form(np.int8, _static(np.int8)),
    "dynamic": Form(np.float32, _dynamic),
}


def single(operator: Operator, form: str, copies: int) -> onnx.ModelProto:
    """Return a model of one operator.

    Args:
        operator: what it computes.
        form: one of `FORMS`. Int8 ones have int8 inputs and outputs, DequantizeLinear before the
            operator and QuantizeLinear after it; ``dynamic`` is for matmuls only.
        copies: how many times it is computed, each with weights and an output of its own, so that
            the cost of a call does not count for much.
    """
    graph, dtype = _Graph(operator), FORMS[form].dtype
    names = [FORMS[form].build(graph, f"y{index}") for index in range(copies)]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    built = helper.make_graph(
        graph.nodes,
        "operator",
        [helper.make_tensor_value_info("x", kind, operator.shape)],
        [helper.make_tensor_value_info(name, kind, operator.result) for name in names],
        graph.constants,
    )
    imports = [helper.make_opsetid("", OPSET)]
    return helper.make_model(built, opset_imports=imports, ir_version=IR_VERSION)


def inputs(operator: Operator, form: str) -> dict[str, Array]:
    """Return random feeds for an operator in a form."""
    dtype = FORMS[form].dtype
    values = np.random.default_rng(1).standard_normal(operator.shape, np.float32)
    if dtype is np.float32:
        return {"x": values}
    shifted = np.rint(values / np.float32(_SCALE)) + _zero_point(operator, dtype)
    return {"x": shifted.clip(np.iinfo(dtype).min, np.iinfo(dtype).max).astype(dtype)}
