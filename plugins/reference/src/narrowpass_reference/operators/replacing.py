"""Operators that onnx's evaluator lacks or computes otherwise than the specification says.

Each class replaces the one of the same name in `onnx.reference`; its docstring says what differs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops import load_op

from narrowpass_reference.operators.control_flow import FreeOutputs, If, Loop, Scan, SequenceMap
from narrowpass_reference.operators.convolutions import Conv, ConvTranspose
from narrowpass_reference.operators.learning import (
    OneHotEncoder,
    Scaler,
    TreeEnsemble,
    TreeEnsembleRegressor,
)
from narrowpass_reference.operators.narrow import (
    ACCUMULATING,
    LayerNormalization,
    RMSNormalization,
    accumulating,
)
from narrowpass_reference.operators.numeric import (
    GatherElements,
    GatherND,
    LogSoftmax,
    Mean,
    MeanVarianceNormalization,
    NonMaxSuppression,
    OneHot,
    ReduceLogSum,
    ReduceLogSumExp,
    Slice,
    Softsign,
    Squeeze,
    Unsqueeze,
    log_softmax,
)
from narrowpass_reference.operators.pools import (
    AveragePool,
    GlobalLpPool,
    GlobalMaxPool,
    LpNormalization,
    LpPool,
    MaxPool,
)
from narrowpass_reference.operators.quantization import QuantizeLinear
from narrowpass_reference.operators.recurrent import RecurrentOperator
from narrowpass_reference.operators.sampling import GridSample, Resize, RoiAlign, Upsample

Array = np.ndarray[Any, Any]

_NEWEST = 1 << 30


class Identity(FreeOutputs):
    """Passes an empty optional on; onnx's refuses it."""

    def _run(self, value: Any) -> tuple[Any, ...]:
        return (value if value is None else value.copy(),)


class Optional(FreeOutputs):
    """Returns the element itself, the form that inputs have; onnx's wraps it in a list."""

    def _run(self, value: Any = None, type: Any = None) -> tuple[Any, ...]:  # noqa: A002
        return (value,)


class DequantizeLinear(OpRun):
    """The operator before opset 19, which onnx's evaluator does not know; one as of it does."""

    def _run(
        self,
        x: Array,
        x_scale: Array,
        x_zero_point: Array | None = None,
        axis: int | None = None,
        **later: Any,  # attributes of newer forms, which the evaluator passes all the same
    ) -> tuple[Any, ...]:
        scale, zero = x_scale, x_zero_point
        if scale.size > 1:
            dims = [1] * x.ndim
            dims[1 if axis is None else axis] = scale.size
            scale = scale.reshape(dims)
            zero = None if zero is None else zero.reshape(dims)
        number = x.astype(np.int64) - (0 if zero is None else zero.astype(np.int64))
        return ((number * scale.astype(np.float64)).astype(x_scale.dtype),)


class Scatter(OpRun):
    """The old name of ScatterElements, which onnx's evaluator does not know."""

    def _run(self, data: Array, indices: Array, updates: Array, axis: int = 0) -> tuple[Any, ...]:
        result = load_op("", "ScatterElements").eval(data, indices, updates, axis=axis)
        return (result,)


class CoercingSoftmax(OpRun):
    """Softmax, LogSoftmax, Hardmax before opset 13: the axes from `axis` on count as one.

    Their default axis was 1; onnx's evaluator takes that of the latest opset, and no others.
    """

    def _run(self, data: Array, **_: Any) -> tuple[Any, ...]:
        given = {attribute.name: attribute.i for attribute in self.onnx_node.attribute}
        axis = given.get("axis", 1)
        first = axis + data.ndim if axis < 0 else axis
        rows = int(np.prod(data.shape[:first], dtype=np.int64))
        columns = int(np.prod(data.shape[first:], dtype=np.int64))
        flat = data.reshape(rows, columns)
        if self.op_type == "LogSoftmax":
            return (log_softmax(flat, 1).reshape(data.shape),)
        return (load_op("", self.op_type).eval(flat, axis=1).reshape(data.shape),)


class BatchNormalization(OpRun):
    """Opsets 7 to 13: infers where it has one output, else trains; onnx's always trains."""

    def _run(
        self,
        data: Array,
        scale: Array,
        bias: Array,
        mean: Array,
        variance: Array,
        epsilon: float = 1e-5,
        momentum: float = 0.9,
        spatial: int = 1,
        **_: Any,
    ) -> tuple[Any, ...]:
        if not spatial:
            raise NotImplementedError("statistics for each element (spatial=0)")
        row = (-1,) + (1,) * (data.ndim - 2)

        def normalized(mean: Array, variance: Array) -> Array:
            centred = data - mean.reshape(row)
            spread = np.sqrt(variance.reshape(row) + epsilon)
            result: Array = scale.reshape(row) * centred / spread + bias.reshape(row)
            return result.astype(data.dtype)

        if not any(self.output[1:]):
            return (normalized(mean, variance),)
        axes = tuple(axis for axis in range(data.ndim) if axis != 1)
        batch = data.mean(axis=axes), data.var(axis=axes)
        running = [
            (old * momentum + new * (1 - momentum)).astype(data.dtype)
            for old, new in zip((mean, variance), batch, strict=True)
        ]
        return (normalized(*batch), *running, *batch)


class Dropout(OpRun):
    """Opsets 7 to 9: the mask has the type of the data; onnx's returns booleans."""

    def _run(self, data: Array, **_: Any) -> tuple[Any, ...]:
        return (data, np.ones_like(data))


class LRN(OpRun):
    """Normalizes all channels, at any rank; onnx's does as many as the batch has images."""

    def _run(
        self,
        data: Array,
        alpha: float = 1e-4,
        beta: float = 0.75,
        bias: float = 1.0,
        size: int = 1,
    ) -> tuple[Any, ...]:
        channels = data.shape[1]
        squares = np.zeros_like(data)
        for channel in range(channels):
            first = max(0, channel - math.floor((size - 1) / 2))
            last = min(channels - 1, channel + math.ceil((size - 1) / 2))
            squares[:, channel] = np.sum(data[:, first : last + 1] ** 2, axis=1)
        result = data / (bias + alpha / size * squares) ** beta
        return (result.astype(data.dtype),)


class Pad(OpRun):
    """Takes negative pads, which cut off before the others add; onnx's refuses them."""

    def _run(
        self,
        data: Array,
        pads: Array | Sequence[int] | None = None,
        constant: Array | None = None,
        axes: Array | None = None,
        mode: Any = None,
        paddings: Sequence[int] | None = None,
        value: float | None = None,
    ) -> tuple[Any, ...]:
        listed = np.asarray(paddings if pads is None else pads).tolist()
        along = range(data.ndim) if axes is None else [axis % data.ndim for axis in axes.tolist()]
        if len(listed) != 2 * len(along):
            raise ValueError(f"{len(listed)} pads for {len(along)} axes")
        pairs = [(0, 0)] * data.ndim
        for index, axis in enumerate(along):
            pairs[axis] = listed[index], listed[index + len(along)]
        kept = data[
            tuple(
                slice(max(0, -before), max(0, size + min(0, after)))
                for (before, after), size in zip(pairs, data.shape, strict=True)
            )
        ]
        added = [(max(0, before), max(0, after)) for before, after in pairs]
        mode = mode or "constant"
        if mode != "constant":
            return (np.pad(kept, added, mode),)
        fill = value or 0 if constant is None else constant.reshape(-1)[0]
        return (np.pad(kept, added, constant_values=fill).astype(data.dtype, copy=False),)


_REPLACED: Mapping[str, tuple[type[OpRun], int, int]] = MappingProxyType(
    {
        "AveragePool": (AveragePool, 1, _NEWEST),
        "BatchNormalization": (BatchNormalization, 7, 14),
        "Conv": (Conv, 1, _NEWEST),
        "ConvTranspose": (ConvTranspose, 1, _NEWEST),
        "DequantizeLinear": (DequantizeLinear, 10, 19),
        "Dropout": (Dropout, 7, 10),
        "GRU": (RecurrentOperator, 1, _NEWEST),
        "GatherElements": (GatherElements, 1, _NEWEST),
        "GatherND": (GatherND, 1, _NEWEST),
        "GlobalLpPool": (GlobalLpPool, 1, _NEWEST),
        "GlobalMaxPool": (GlobalMaxPool, 1, _NEWEST),
        "GridSample": (GridSample, 1, _NEWEST),
        "Hardmax": (CoercingSoftmax, 1, 13),
        "Identity": (Identity, 1, _NEWEST),
        "If": (If, 1, _NEWEST),
        "LRN": (LRN, 1, _NEWEST),
        "LSTM": (RecurrentOperator, 1, _NEWEST),
        "LayerNormalization": (LayerNormalization, 17, _NEWEST),
        "LogSoftmax": (CoercingSoftmax, 1, 13),
        "Loop": (Loop, 1, _NEWEST),
        "LpNormalization": (LpNormalization, 1, _NEWEST),
        "LpPool": (LpPool, 1, _NEWEST),
        "MaxPool": (MaxPool, 1, _NEWEST),
        "Mean": (Mean, 8, _NEWEST),
        "MeanVarianceNormalization": (MeanVarianceNormalization, 9, _NEWEST),
        "NonMaxSuppression": (NonMaxSuppression, 10, _NEWEST),
        "OneHot": (OneHot, 9, _NEWEST),
        "Optional": (Optional, 1, _NEWEST),
        "Pad": (Pad, 1, _NEWEST),
        "QuantizeLinear": (QuantizeLinear, 10, _NEWEST),
        "RMSNormalization": (RMSNormalization, 23, _NEWEST),
        "RNN": (RecurrentOperator, 1, _NEWEST),
        "Resize": (Resize, 11, _NEWEST),
        "RoiAlign": (RoiAlign, 10, 16),
        "Scan": (Scan, 1, _NEWEST),
        "Scatter": (Scatter, 1, _NEWEST),
        "ReduceLogSum": (ReduceLogSum, 1, _NEWEST),
        "ReduceLogSumExp": (ReduceLogSumExp, 1, _NEWEST),
        "SequenceMap": (SequenceMap, 1, _NEWEST),
        "Slice": (Slice, 10, _NEWEST),
        "Softmax": (CoercingSoftmax, 1, 13),
        "Softsign": (Softsign, 1, _NEWEST),
        "Squeeze": (Squeeze, 1, _NEWEST),
        "Unsqueeze": (Unsqueeze, 1, _NEWEST),
        "Upsample": (Upsample, 1, _NEWEST),
    }
)
"""Operators of the default domain: what replaces them, from which opset, up to before which."""

_REPLACED_LATER: Mapping[str, type[OpRun]] = MappingProxyType({"LogSoftmax": LogSoftmax})
"""What replaces some of them from there on."""

_REPLACED_LEARNING: Mapping[str, type[OpRun]] = MappingProxyType(
    {
        "OneHotEncoder": OneHotEncoder,
        "Scaler": Scaler,
        "TreeEnsemble": TreeEnsemble,
        "TreeEnsembleRegressor": TreeEnsembleRegressor,
    }
)
"""Operators of ``ai.onnx.ml``: what replaces them, at any version."""


def replacement(domain: str, op_type: str, version: int) -> type[OpRun] | None:
    """Return the class to use in place of onnx's, or None where onnx's is right."""
    if domain == "ai.onnx.ml":
        return _REPLACED_LEARNING.get(op_type)
    if domain:
        return None
    found, first, end = _REPLACED.get(op_type, (None, 0, 0))
    if found is not None and first <= version < end:
        return found
    if op_type in ACCUMULATING:
        return accumulating(op_type, version)
    return _REPLACED_LATER.get(op_type) if version >= end else None
