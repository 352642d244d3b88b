"""The table of numpy kernels: operators as functions of arrays, by the ONNX specification.

Operators that numpy computes differently, or slowly, are left to the reference evaluator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.graph.op import Op
from narrowpass_planning.host import (
    encoders,
    images,
    movement,
    numbers,
    quantization,
    selection,
    sequences,
    signals,
    support_vectors,
)
from narrowpass_planning.host.movement import axes_of

FAILURES = (ArithmeticError, LookupError, MemoryError, RuntimeError, TypeError, ValueError)
"""What numpy raises about operands; RuntimeError for more dimensions than it broadcasts."""

Array = np.ndarray[Any, Any]
Kernel = Callable[..., Any]
"""Takes the inputs (None for absent ones) and returns the output, or a list of outputs."""

_INTEGERS = {
    ir.DataType.INT8,
    ir.DataType.INT16,
    ir.DataType.INT32,
    ir.DataType.INT64,
    ir.DataType.UINT8,
    ir.DataType.UINT16,
    ir.DataType.UINT32,
    ir.DataType.UINT64,
}
_FLOATS = {ir.DataType.FLOAT, ir.DataType.DOUBLE}
_HALF = {ir.DataType.FLOAT16, ir.DataType.BFLOAT16}
"""Types for kernels that compute in float32 and round the result, or only move elements."""
_BOOLS = {ir.DataType.BOOL}
_NUMBERS = _INTEGERS | _FLOATS
_ALL = _NUMBERS | _BOOLS
_TEXT = {ir.DataType.STRING}
_MOVED = _ALL | _HALF | _TEXT
"""Types of kernels that move elements, whatever these are."""

_Builder = Callable[[Op], Kernel]
_KERNELS: dict[str, tuple[_Builder, int, set[ir.DataType]]] = {}


def _kernel(
    *kinds: str, since: int = 1, dtypes: set[ir.DataType] = _ALL
) -> Callable[[_Builder], _Builder]:
    """Register the builder of these operators' kernels, from the operator set `since` on."""

    def register(builder: _Builder) -> _Builder:
        for kind in kinds:
            _KERNELS[kind] = builder, since, dtypes
        return builder

    return register


def kernel_for(op: Op, facts: Facts) -> Kernel | None:
    """Return the kernel of an operation; None where there is none for it."""
    if len(op.nodes) != 1:
        return None
    if op.nodes[0].domain:
        return _ml_kernel(op)
    found = _KERNELS.get(op.kind)
    if found is None:
        return sequences.kernel_for(op)
    build, since, dtypes = found
    if op.version < since:
        return None
    values = [*op.inputs, *(value for value in op.outputs if value.name)]
    known = [facts.dtype(value) for value in values if value is not None]
    if any(dtype not in _ALL and dtype not in dtypes for dtype in known):
        return None
    if facts.dtype(op.input(0)) not in dtypes and op.inputs:
        return None
    try:
        return build(op)
    except KeyError:  # an attribute that is not covered
        return None


_ML: dict[str, _Builder] = {
    "LabelEncoder": encoders.label_encoder,
    "OneHotEncoder": encoders.one_hot_encoder,
    "SVMClassifier": support_vectors.classifier,
}


def _ml_kernel(op: Op) -> Kernel | None:
    """Return the kernel of an operator of ai.onnx.ml; None where there is none for it."""
    build = _ML.get(op.kind) if op.nodes[0].domain == "ai.onnx.ml" else None
    try:
        return None if build is None else build(op)
    except KeyError:  # an attribute that is not covered
        return None


def _always(function: Kernel) -> _Builder:
    return lambda _: function


_BINARY: dict[str, tuple[Any, set[ir.DataType]]] = {
    "Add": (np.add, _NUMBERS),
    "Sub": (np.subtract, _NUMBERS),
    "Mul": (np.multiply, _NUMBERS),
    "Div": (np.divide, _FLOATS),
    "Equal": (np.equal, _ALL | _TEXT),
    "Less": (np.less, _NUMBERS),
    "LessOrEqual": (np.less_equal, _NUMBERS),
    "Greater": (np.greater, _NUMBERS),
    "GreaterOrEqual": (np.greater_equal, _NUMBERS),
    "And": (np.logical_and, _BOOLS),
    "Or": (np.logical_or, _BOOLS),
    "Xor": (np.logical_xor, _BOOLS),
}
for _name, (_function, _dtypes) in _BINARY.items():
    _KERNELS[_name] = _always(_function), 7, _dtypes

_UNARY: dict[str, tuple[Any, set[ir.DataType]]] = {
    "Abs": (np.abs, _NUMBERS),
    "Neg": (np.negative, _NUMBERS),
    "Not": (np.logical_not, _BOOLS),
    "Sign": (np.sign, _NUMBERS),
    "Identity": (np.asarray, _MOVED),
    "Exp": (np.exp, _FLOATS),
    "Log": (np.log, _FLOATS),
    "Sqrt": (np.sqrt, _FLOATS),
    "Tanh": (np.tanh, _FLOATS),
    "IsNaN": (np.isnan, _FLOATS),
}
for _name, (_function, _dtypes) in _UNARY.items():
    _KERNELS[_name] = _always(_function), 1, _dtypes


@_kernel("Max", "Min", since=8, dtypes=_NUMBERS)
def _extreme(op: Op) -> Kernel:
    function = np.maximum if op.kind == "Max" else np.minimum

    def run(*given: Array) -> Array:
        result = given[0]
        for other in given[1:]:
            result = function(result, other)
        return result

    return run


@_kernel("Where", since=9, dtypes=_BOOLS | _TEXT)
def _where(_: Op) -> Kernel:
    return np.where


@_kernel("ConstantOfShape", since=9)
def _constant_of_shape(op: Op) -> Kernel:
    tensor = op.get("value", None)
    fill = np.zeros(1, np.float32) if tensor is None else tensor.numpy()
    return lambda shape: np.full(tuple(shape.tolist()), fill.reshape(-1)[0], fill.dtype)


@_kernel("Range", since=11, dtypes=_NUMBERS)
def _range(_: Op) -> Kernel:
    def run(start: Array, limit: Array, delta: Array) -> Array:
        if start.dtype.kind in "iu":
            return np.arange(start.item(), limit.item(), delta.item(), dtype=start.dtype)
        # numpy.arange adds the difference of its first two elements, which is rounded.
        count = math.ceil((limit.item() - start.item()) / delta.item())
        steps = np.arange(max(0, count)).astype(start.dtype)
        return np.asarray(start.reshape(()) + steps * delta.reshape(()), start.dtype)

    return run


@_kernel("NonZero", since=9)
def _non_zero(_: Op) -> Kernel:
    return lambda x: np.array(np.nonzero(x), np.int64).reshape(max(1, x.ndim) if x.ndim else 0, -1)


@_kernel("RNN", "GRU", "LSTM", since=7, dtypes=_FLOATS | _HALF)
def _recurrent(op: Op) -> Kernel:
    from narrowpass_reference import Recurrent  # with onnx's reference evaluator, which is large

    try:
        cells = Recurrent(op.kind, op.attributes)
    except ValueError as error:  # the evaluator reports it, with the node's name
        raise KeyError(str(error)) from error
    count = len(op.outputs)
    return lambda *given: cells(*given)[:count]


@_kernel("QuantizeLinear", since=10, dtypes={ir.DataType.FLOAT})
def _quantize(op: Op) -> Kernel:
    return quantization.kernel_for(op)


@_kernel("DequantizeLinear", since=10, dtypes=_INTEGERS)
def _dequantize(op: Op) -> Kernel:
    return quantization.kernel_for(op)


@_kernel("MatMulInteger", since=10, dtypes={ir.DataType.INT8, ir.DataType.UINT8})
def _integer_matmul(op: Op) -> Kernel:
    return quantization.integer_matmul


@_kernel("ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin", since=1, dtypes=_ALL)
def _reduce(op: Op) -> Kernel:
    functions: dict[str, Any] = {
        "ReduceSum": np.sum,
        "ReduceProd": np.prod,
        "ReduceMax": np.max,
        "ReduceMin": np.min,
    }
    function = functions[op.kind]
    keep = bool(op.get("keepdims", 1))
    nothing = bool(op.get("noop_with_empty_axes", 0))

    def run(x: Array, axes: Array | None = None) -> Array:
        along = axes_of(op, axes)
        if not along:
            if nothing:
                return x
            along = None
        options = {}
        if x.size == 0 and op.kind in ("ReduceMax", "ReduceMin"):
            options["initial"] = _worst(x.dtype, least=op.kind == "ReduceMax")
        return np.asarray(function(x, axis=along, keepdims=keep, **options), x.dtype)

    return run


def _worst(dtype: np.dtype[Any], *, least: bool) -> Any:
    """Return the maximum, or minimum, of an empty tensor."""
    if dtype.kind == "f":
        return -np.inf if least else np.inf
    if dtype.kind == "b":
        return not least
    limits = np.iinfo(dtype)
    return limits.min if least else limits.max


_EVERY = set(ir.DataType) - {ir.DataType.STRING, ir.DataType.UNDEFINED}

for _names, _builder, _since, _dtypes in (
    (("Gather",), movement.gather, 1, _MOVED),
    (("GatherElements",), movement.gather_elements, 11, _ALL | _HALF),
    (("GatherND",), movement.gather_nd, 11, _ALL | _HALF),
    (("Concat",), movement.concat, 4, _MOVED),
    (("Squeeze",), movement.squeeze, 1, _MOVED),
    (("Unsqueeze",), movement.unsqueeze, 1, _MOVED),
    (("Reshape",), movement.reshape, 5, _MOVED),
    (("Flatten",), movement.flatten, 1, _MOVED),
    (("Transpose",), movement.transpose, 1, _MOVED),
    (("Expand",), movement.expand, 8, _MOVED),
    (("Tile",), movement.tile, 6, _MOVED),
    (("Slice",), movement.slice_, 10, _MOVED),
    (("Pad",), movement.pad, 11, _ALL | _HALF),
    (("Split",), movement.split, 1, _ALL | _HALF),
    (("Trilu",), movement.trilu, 14, _ALL | _HALF),
    (numbers.UNARY, numbers.unary, 6, _FLOATS | _HALF),
    (("Softmax", "LogSoftmax", "Hardmax"), numbers.softmax, 1, _FLOATS | _HALF),
    (numbers.REDUCTIONS, numbers.reduction, 1, _NUMBERS | _HALF),
    (("Cast", "CastLike"), numbers.cast, 6, _EVERY),
    (("BitCast",), numbers.bit_cast, 26, _ALL | _HALF),
    (("Pow",), numbers.power, 7, _NUMBERS),
    (("LpNormalization",), numbers.norm, 1, _FLOATS | _HALF),
    (("LayerNormalization",), numbers.layer_norm, 17, _FLOATS),
    (("BatchNormalization",), numbers.batch_norm, 14, _FLOATS),
    (("Dropout",), numbers.dropout, 12, _FLOATS),
    (("Mean",), numbers.mean_of_all, 8, _FLOATS | _HALF),
    (("NegativeLogLikelihoodLoss",), numbers.negative_log_likelihood, 12, _FLOATS),
    (("SoftmaxCrossEntropyLoss",), numbers.softmax_cross_entropy, 12, _FLOATS),
    (("TopK",), selection.top_k, 1, _NUMBERS | _HALF),
    (("ScatterElements", "Scatter"), selection.scatter_elements, 9, _ALL | _HALF),
    (("ScatterND",), selection.scatter_nd, 11, _ALL | _HALF),
    (("ArgMax", "ArgMin"), selection.arg_extreme, 1, _NUMBERS | _HALF),
    (("CumSum", "CumProd"), selection.cumulative, 11, _NUMBERS | _HALF),
    (("OneHot",), selection.one_hot, 9, _ALL | _HALF),
    (("Compress",), selection.compress, 9, _ALL | _HALF),
    (("ReverseSequence",), selection.reverse_sequence, 10, _ALL | _HALF),
    (("EyeLike",), selection.eye_like, 9, _ALL | _HALF),
    (("Unique",), selection.unique, 11, _NUMBERS),
    (("SpaceToDepth",), selection.space_to_depth, 1, _ALL | _HALF),
    (("NonMaxSuppression",), selection.suppress, 10, {ir.DataType.FLOAT}),
    (("Col2Im",), images.col2im, 18, _FLOATS),
    (("GridSample",), images.grid_sample, 16, _FLOATS),
    (("Einsum",), numbers.einsum, 12, _FLOATS),
    (("MatMul",), numbers.matmul, 1, {ir.DataType.DOUBLE}),
    (("Gemm",), numbers.gemm, 7, {ir.DataType.DOUBLE}),
    (("DFT",), signals.dft, 17, _FLOATS),
    (("STFT",), signals.stft, 17, _FLOATS),
):
    for _name in _names:
        _KERNELS[_name] = _builder, _since, _dtypes


def as_results(output: Any) -> Sequence[Any]:
    """Return the output of a kernel as a list of arrays; a tuple holds one sequence."""
    if isinstance(output, tuple):
        return output
    items = output if isinstance(output, list) else [output]
    return [np.asarray(item) for item in items]
