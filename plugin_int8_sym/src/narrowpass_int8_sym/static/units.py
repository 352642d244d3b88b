"""Units of quantization: one node, or fused nodes with no Q/DQ between them."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import onnx_ir as ir

from narrowpass_int8_sym.weighted_nodes import WeightedNode


class Role(enum.Enum):
    """The kind of a unit, which decides when it is quantized and which scales it shares."""

    WEIGHTED = "weighted"
    """A matmul or convolution with a constant weight."""
    BINARY = "binary"
    """Add, Sub or Mul of two tensors, or a MatMul of two activations."""
    AVERAGE = "average"
    """An average pool or ReduceMean."""
    DATA_MOVEMENT = "data movement"
    """Copies elements: its result has the scale and zero point of its operands."""
    POINTWISE = "pointwise"
    """An elementwise function of one tensor; several nodes are one region."""
    SOFTMAX = "softmax"
    """Softmax: some backends have a fixed quantization of its result."""


@dataclass(frozen=True, eq=False)
class NodeUnit:
    """Nodes that are quantized together: Q/DQ on their inputs and outputs, none between them.

    The NodeUnit of onnxruntime is similar.

    Attributes:
        role: the kind of the unit.
        nodes: in the order of the graph. Limits of the target apply to the operator of the first,
            except for a pointwise region of several nodes.
        inputs: the computed values that it reads, without constants.
        outputs: the values that other nodes read.
        constants: constant operands of binary and data movement units, float32.
        weighted: of a weighted unit, the node with its weight.
        bias: of a weighted unit, the constant bias.
        forced_by: the option that requested its quantization; empty for none.
    """

    role: Role
    nodes: tuple[ir.Node, ...]
    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]
    constants: tuple[ir.Value, ...] = ()
    weighted: WeightedNode | None = None
    bias: ir.Value | None = None
    forced_by: str = ""

    @property
    def op_type(self) -> str:
        """The operator that limits of the target apply to; empty for a region of several nodes."""
        if self.role is Role.POINTWISE and len(self.nodes) > 1:
            return ""
        return self.nodes[0].op_type

    @property
    def slope(self) -> float:
        """The slope of a LeakyRelu; 1 for other operators."""
        if self.op_type != "LeakyRelu":
            return 1.0
        return self.nodes[0].attributes.get_float("alpha", 0.01)
