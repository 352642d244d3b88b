"""Names in printed plans: all computations, and the dataclasses of their attributes."""

from __future__ import annotations

from typing import Any

from narrowpass_planning.weights.weight import Quantized
from narrowpass_xnn_cpu.lower import steps
from narrowpass_xnn_cpu.lower.attention import cached, computation, kv_cache, rotary
from narrowpass_xnn_cpu.lower.conv import conv2d, pooling, resize, separable, transposed
from narrowpass_xnn_cpu.lower.elementwise import arithmetic, gates, reduction, typed
from narrowpass_xnn_cpu.lower.int8 import conversion, int16, integers, per_channel
from narrowpass_xnn_cpu.lower.int8 import convolution as int8_convolution
from narrowpass_xnn_cpu.lower.int8 import elementwise as int8_elementwise
from narrowpass_xnn_cpu.lower.int8 import matmul as int8_matmul
from narrowpass_xnn_cpu.lower.matmul import computed, constant, epilogue, recurrent
from narrowpass_xnn_cpu.lower.movement import axes, concat, indexing, padding, reshape, scattering
from narrowpass_xnn_cpu.lower.norm import batch_norm, group_norm, layer_norm, rows
from narrowpass_xnn_cpu.lower.trees import lowering
from narrowpass_xnn_cpu.lowered.op import Computation
from narrowpass_xnn_cpu.native.own.recurrent import Activation, Cell
from narrowpass_xnn_cpu.native.problems.convolution import ConvAttributes
from narrowpass_xnn_cpu.native.problems.epilogue import Epilogue
from narrowpass_xnn_cpu.native.problems.quantization import AddS8, Quantization, Requantized

COMPUTATIONS: tuple[type[Computation], ...] = (
    computation.Attention,
    kv_cache.ScatterRows,
    cached.CachedAttention,
    per_channel.FakeQuantizePerChannel,
    conversion.Dequantize,
    conversion.Quantize,
    conv2d.Conv2d,
    arithmetic.AddClamp,
    arithmetic.Function,
    epilogue.IfBroadcast,
    gates.Gate,
    group_norm.GroupNorm,
    group_norm.LocalResponseNorm,
    indexing.Gather,
    indexing.GatherBlocks,
    indexing.GatherInt8,
    indexing.Where,
    int8_convolution.Conv2dInt8,
    int8_elementwise.BinaryInt8,
    int8_elementwise.MeanInt8,
    integers.ConvolutionInteger,
    integers.DynamicDequantize,
    integers.DynamicQuantize,
    integers.DynamicRange,
    integers.MatMulInteger,
    integers.ScaleOfRange,
    concat.ConcatPiece,
    concat.Slice,
    concat.SplitPart,
    layer_norm.LayerNorm,
    layer_norm.LeadingSlice,
    constant.ConstantMatMul,
    constant.QuantizeRows,
    computed.ComputedMatMul,
    batch_norm.Affine,
    batch_norm.SoftmaxRows,
    padding.Crop,
    padding.Pad,
    padding.PadFromInput,
    pooling.PadImage,
    pooling.Pool,
    int8_matmul.MatMulInt8,
    recurrent.Recurrent,
    recurrent.RecurrentResult,
    reduction.ArgExtreme,
    reduction.Reduce,
    reshape.ReshapeTo,
    resize.ResizeLinear,
    resize.ResizeNearest,
    rotary.Rotary,
    rows.RowFunction,
    scattering.GatherAt,
    scattering.Scatter,
    scattering.TopK,
    separable.SeparableConvolution,
    axes.Expand,
    axes.PixelShuffle,
    axes.Tile,
    int16.ConvertInt16,
    steps.Binary,
    steps.Convert,
    steps.DropAxes,
    steps.Lookup,
    steps.Observe,
    steps.Reshape,
    steps.RoundTo,
    steps.Transpose,
    steps.Unary,
    transposed.Trim,
    lowering.Trees,
    typed.Cast,
    typed.MathFunction,
    typed.TypedBinary,
    typed.TypedUnary,
)
"""All computations that rules emit."""

BY_MNEMONIC = {each.mnemonic: each for each in COMPUTATIONS}

CLASSES: dict[str, type[Any]] = {
    each.__name__: each
    for each in (
        Activation,
        Cell,
        Epilogue,
        ConvAttributes,
        Quantization,
        Quantized,
        Requantized,
        AddS8,
        conv2d.KernelWindow,
        padding.Pads,
        resize.TargetSize,
        int16.Int16Quantization,
        steps.Dim,
    )
}
"""The dataclasses of attributes, by name."""
