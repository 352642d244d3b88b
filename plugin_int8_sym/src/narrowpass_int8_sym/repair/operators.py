"""Matches float operators between Q/DQ: int8 operators with their quantization."""

from __future__ import annotations

import math
from dataclasses import dataclass

import onnx_ir as ir

from narrowpass_int8_sym.repair.qoperator import Operand, QOperator
from narrowpass_int8_sym.repair.quantization import (
    BYTES,
    FLOAT,
    Quantization,
    is_node,
    only_reader,
    read_qdq,
)
from narrowpass_int8_sym.repair.weights import WEIGHTED
from narrowpass_ir.constants import constant_tensor

_FUSED = ("Clip", "Relu")
"""Activations that an int8 operator fuses into its epilogue as a clamp."""

NOT_QUANTIZED = "its result is not quantized"

_SEVERAL = ("Add", "Concat", "Div", "Max", "Min", "Mul", "Sub", "Sum", "Where")
"""Operators whose constant operands must be quantized, too."""

_BIAS = 2
"""The input index of the bias of Conv, ConvTranspose and Gemm."""


@dataclass(frozen=True)
class Operator:
    """An operator with quantized operands.

    Attributes:
        node: what computes it.
        op_type: of the float operator, also for a QOperator node.
        operands: the quantization of its activations.
        weight: the quantization of its constant weight; None where it has none.
        integers: the integers of the weight.
        results: the quantization of its results; empty where one is float.
        quantizing: the QuantizeLinear of each result.
        direct: whether there is no node between the operator and these.
    """

    node: ir.Node
    op_type: str
    operands: tuple[Quantization, ...]
    weight: Quantization | None
    integers: ir.Value | None
    results: tuple[Quantization, ...]
    quantizing: tuple[ir.Node, ...]
    direct: bool

    @property
    def is_weighted(self) -> bool:
        """Whether it is a matmul or convolution."""
        return self.op_type in WEIGHTED

    @property
    def computes_both(self) -> bool:
        """Whether it is a matmul of two activations."""
        return self.is_weighted and self.weight is None

    def channel_axis(self, rank: int) -> int:
        """Return the output channel axis of a weight of that rank."""
        if self.op_type == "Conv":
            return 0
        if self.op_type == "ConvTranspose":
            return 1
        if self.op_type == "Gemm":
            return 0 if self.node.attributes.get_int("transB", 0) else 1
        return rank - 1

    def reduction_length(self, dims: tuple[int, ...]) -> int:
        """Return the reduction length K for a weight of that shape."""
        if self.op_type == "Conv":
            return math.prod(dims[1:])
        if self.op_type == "ConvTranspose":
            group = self.node.attributes.get_int("group", 1)
            return dims[0] // group * math.prod(dims[2:])
        if self.op_type == "Gemm":
            return dims[1] if self.node.attributes.get_int("transB", 0) else dims[0]
        return dims[-2] if len(dims) > 1 else dims[0]


def operator_of(node: ir.Node) -> Operator | str | None:
    """Match an operator whose operands are DequantizeLinear results.

    Returns:
        None where it reads no quantized activation, and a reason where only a part is int8.
    """
    if node.domain or is_node(node, "QuantizeLinear", "DequantizeLinear"):
        return None
    weighted = node.op_type in WEIGHTED
    operands: list[Quantization] = []
    weight: Quantization | None = None
    integers: ir.Value | None = None
    reason = ""
    unread = False
    for index, value in enumerate(node.inputs):
        if value is None or (weighted and index >= _BIAS):
            continue
        producer = value.producer()
        if producer is not None and is_node(producer, "DequantizeLinear"):
            how = read_qdq(producer)
            if isinstance(how, str):
                reason = reason or f"its input {value.name!r}: {how}"
                unread |= not (weighted and index == 1)
            elif weighted and index == 1 and constant_tensor(producer.inputs[0]) is not None:
                weight, integers = how, producer.inputs[0]
            elif how.dtype in BYTES:
                operands.append(how)
        elif _computes(node, index, value):
            reason = reason or f"its input {value.name!r} is not quantized"
    if not operands and not unread:
        return None
    if reason:
        return reason
    found = _results(node)
    if isinstance(found, str) and found != NOT_QUANTIZED:
        return found
    quantizations, quantizing, direct = ((), (), True) if isinstance(found, str) else found
    return Operator(
        node, node.op_type, tuple(operands), weight, integers, quantizations, quantizing, direct
    )


def operator_of_qoperator(node: ir.Node, form: QOperator) -> Operator:
    """Return the operator of a QOperator node."""
    given = [each for each in form.operands if isinstance(each, Operand)]
    weight: Operand | None = None
    if form.op_type in WEIGHTED:
        second, given = given[1], given[:1]
        if constant_tensor(second.value) is not None:
            weight = second
        else:
            given.append(second)
    return Operator(
        node,
        form.op_type,
        tuple(each.quantization for each in given),
        None if weight is None else weight.quantization,
        None if weight is None else weight.value,
        () if form.result is None else (form.result,),
        (),
        True,
    )


def _computes(node: ir.Node, index: int, value: ir.Value) -> bool:
    """Return whether an operand is data that must be quantized, not a bound or a shape."""
    if constant_tensor(value) is None:
        return value.dtype in (FLOAT, None)
    if node.op_type in WEIGHTED:
        return True
    return node.op_type in _SEVERAL and value.dtype == FLOAT


def _results(
    node: ir.Node,
) -> tuple[tuple[Quantization, ...], tuple[ir.Node, ...], bool] | str:
    """Return the quantization of results, and the QuantizeLinear nodes; else a reason."""
    quantizations: list[Quantization] = []
    found: list[ir.Node] = []
    direct = True
    for result in node.outputs:
        last = result
        if not result.uses() and not result.is_graph_output():
            continue
        following = only_reader(result)
        while following is not None and is_node(following, *_FUSED):
            last, direct = following.outputs[0], False
            following = only_reader(last)
        readers = [user for user, _ in last.uses()]
        if last.is_graph_output() or not all(is_node(u, "QuantizeLinear") for u in readers):
            return NOT_QUANTIZED
        for user in readers:
            how = read_qdq(user)
            if isinstance(how, str):
                return f"its result {last.name!r}: {how}"
            quantizations.append(how)
            found.append(user)
    if not found:
        return "its result is not read"
    return tuple(quantizations), tuple(found), direct
