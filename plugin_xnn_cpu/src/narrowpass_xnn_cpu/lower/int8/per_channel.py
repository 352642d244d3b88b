"""Per-channel fake quantization of activations.

NNCF quantizes the inputs of depthwise convolutions per channel. A QuantizeLinear and the only
DequantizeLinear that reads it are computed in one pass over float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from narrowpass.errors import BackendError
from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.plan.step import Run, Shape, Sizing, elements
from narrowpass_planning.weights.weight import Array
from narrowpass_xnn_cpu.lower.builder import Builder
from narrowpass_xnn_cpu.lower.fusion.matching import Group, producer
from narrowpass_xnn_cpu.lower.op import Op, check_floats
from narrowpass_xnn_cpu.lower.rule import Rule, rules
from narrowpass_xnn_cpu.lowered.op import Computation, LoweredOp, PackedStep
from narrowpass_xnn_cpu.lowered.record import record
from narrowpass_xnn_cpu.native import kernels
from narrowpass_xnn_cpu.native.weights_cache import Session

_TYPES = (ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT16, ir.DataType.UINT16)


@record
class FakeQuantizePerChannel(Computation):
    """Quantize float32 and dequantize it, with a scale and a zero point for each channel.

    Attributes:
        table: float32 [3, channels]: scales, and clipping ranges less the zero points.
        axis: the channel axis in the layout of the operand.
    """

    mnemonic = "fake_quantize_per_channel"
    kernel = "fake quantize"
    overwrites: ClassVar[tuple[int, ...]] = (0,)
    table: tuple[tuple[float, ...], ...]
    axis: int

    def pack(self, op: LoweredOp, session: Session | None) -> Array:
        """See `Computation.pack`: float32 [3, channels]."""
        return np.array(self.table, np.float32)

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        (shape,) = shapes
        table, axis = step.packed, self.axis
        channels = table.shape[1]
        if shape[axis] != channels:
            raise BackendError(f"{channels} scales do not fit axis {axis} of {list(shape)}")
        if not elements(shape):
            return Run(shape)
        inner = math.prod(shape[axis + 1 :])
        params = kernels.fake_quantize_channels(elements(shape), inner, table)
        return Run(shape, "NP_FAKE_QUANTIZE_CHANNELS", params=params)


def match(node: ir.Node, facts: Facts) -> Group | None:
    """Match a per-channel QuantizeLinear and the DequantizeLinear that alone reads it."""
    source = producer(node.inputs[0], "QuantizeLinear")
    if source is None or facts.only_user(source.outputs[0]) is not node:
        return None
    given, rank = source.inputs[0], facts.rank(source.inputs[0])
    dtype = facts.dtype(source.outputs[0])
    if given is None or facts.is_constant(given) or dtype not in _TYPES or rank is None:
        return None
    if facts.dtype(given) != ir.DataType.FLOAT or facts.dtype(node.outputs[0]) != facts.dtype(
        given
    ):
        return None
    axis = source.attributes.get_int("axis", 1)
    if not -rank <= axis < rank or (node.attributes.get_int("axis", 1) - axis) % rank:
        return None
    if any(each.attributes.get_int(name, 0) for each in (source, node) for name in _BLOCKS):
        return None
    written, read = _parameters(source, facts), _parameters(node, facts)
    if written is None or read is None or not all(map(np.array_equal, written, read)):
        return None
    scales, zeros = written
    limits = np.iinfo(dtype.numpy())
    table = np.stack([scales, limits.min - zeros, limits.max - zeros]).astype(np.float32)
    attributes = {"table": np.ascontiguousarray(table), "axis": axis % rank}
    return Group("fake-quantize-per-channel", [given], [source, node], attributes)


_BLOCKS = ("block_size", "precision")


def _parameters(node: ir.Node, facts: Facts) -> tuple[Array, Array] | None:
    """Return scales and zero points of all channels; None where they are not constant."""
    scale, zero = [*node.inputs[1:], None, None][:2]
    if scale is None or facts.dtype(scale) != ir.DataType.FLOAT or not facts.is_constant(scale):
        return None
    scales = facts.array(scale).reshape(-1)
    if not (np.isfinite(scales) & (scales > 0)).all() or scales.size < 2:
        return None
    if zero is None:
        return scales, np.zeros(scales.size, np.int32)
    if not facts.is_constant(zero):
        return None
    zeros = facts.array(zero).reshape(-1).astype(np.int32)
    return (scales, zeros) if zeros.size == scales.size else None


def _fake_quantize_per_channel(op: Op, builder: Builder) -> None:
    given = op.required(0)
    perm = builder.layout(given)
    axis = list(perm).index(op.attributes["axis"])
    table = tuple(tuple(map(float, row)) for row in op.attributes["table"])
    builder.compute(
        FakeQuantizePerChannel(table, axis), [builder.slot_of(given, perm)], op.output, perm
    )


RULES: tuple[Rule, ...] = (
    *rules("fake-quantize-per-channel", lower=_fake_quantize_per_channel, check=check_floats),
)
