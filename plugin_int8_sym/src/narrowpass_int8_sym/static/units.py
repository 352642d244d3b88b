"""What is quantized as one: a node, or nodes between which nothing is quantized."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import onnx_ir as ir

from narrowpass_int8_sym.weighted_nodes import WeightedNode


class Role(enum.Enum):
    """What a unit does, which decides when it is worth quantizing and what it shares."""

    PRODUCT = "product"
    """Multiplies with a constant weight: what makes int8 worthwhile."""
    JOIN = "join"
    """Computes of several tensors: a sum, a difference, a product of elements or of matrices."""
    AVERAGE = "average"
    """Averages elements of one tensor."""
    MOVE = "move"
    """Moves elements: its result has the scale and zero point of its operands."""
    REGION = "region"
    """Computes each element of its result from one element of one tensor."""
    SOFTMAX = "softmax"
    """Its result has a quantization of its own on some backends."""


@dataclass(frozen=True, eq=False)
class Unit:
    """Nodes that read quantized values and whose results are quantized.

    Attributes:
        role: what it does.
        nodes: in the order of the graph; nothing between them is quantized. The first is what
            limits of operators speak of, but for a region of several.
        inputs: the computed values that it reads; constants are not among them.
        outputs: what others read.
        constants: of a join, or a move of several tensors: what it reads besides, float32.
        weighted: of a product, what it multiplies with.
        bias: of a product, a constant that is added to each row of results.
        asked: what asked for it to be quantized in any case; empty for nothing.
    """

    role: Role
    nodes: tuple[ir.Node, ...]
    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]
    constants: tuple[ir.Value, ...] = ()
    weighted: WeightedNode | None = None
    bias: ir.Value | None = None
    asked: str = ""

    @property
    def op_type(self) -> str:
        """The operator that limits speak of; empty for a region of several nodes."""
        if self.role is Role.REGION and len(self.nodes) > 1:
            return ""
        return self.nodes[0].op_type

    @property
    def slope(self) -> float:
        """What part of the operand is multiplied by; 1 but for a LeakyRelu."""
        if self.op_type != "LeakyRelu":
            return 1.0
        return self.nodes[0].attributes.get_float("alpha", 0.01)
