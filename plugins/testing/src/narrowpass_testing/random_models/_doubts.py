"""Where an oracle is wrong by itself, so that the other one decides, or none does."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import onnx

from narrowpass_testing.random_models._nodes import Operation, operations


@dataclass(frozen=True)
class Doubt:
    """A form of an operator that onnx's evaluator gets wrong.

    Attributes:
        reason: what it does.
        below: in operator sets below this one; None for all.
        types: for first operands of these types; empty for all. A type that is unknown counts.
        corrected: the version of onnx from which it is right, such as ``1.24``; "" where the newest
            one that was looked at, `LOOKED_AT`, has it.
    """

    reason: str
    below: int | None = None
    types: tuple[str, ...] = ()
    corrected: str = ""

    def concerns(self, operation: Operation) -> bool:
        """Report whether a node of the operator may be of this form."""
        if self.corrected and _numbers(onnx.__version__) >= _numbers(self.corrected):
            return False
        early = self.below is None or operation.version < self.below
        return early and (not self.types or operation.dtype in ("", *self.types))


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)[:3]]


LOOKED_AT = {"onnx": "1.23.2", "onnxruntime": "1.32.0"}
"""The newest versions of the oracles by which the lists of this package were checked."""

EVALUATOR: Mapping[str, Doubt] = {
    "AffineGrid": Doubt("returns float32", types=("double", "float16", "bfloat16")),
    "AveragePool": Doubt("ignores auto_pad where ceil_mode is set"),
    "BatchNormalization": Doubt("trains where the operator infers", below=14),
    "ConvTranspose": Doubt("fails or is wrong where there are groups, or auto_pad with strides"),
    "Det": Doubt("returns float64, whatever the type"),
    "Dropout": Doubt("returns a mask of booleans, which has the type of the data", below=10),
    "GRU": Doubt("ignores lengths, activations, clipping and directions"),
    "GlobalMaxPool": Doubt("keeps the batch and the channels for images of two axes only"),
    "GridSample": Doubt("cuts integers off where they are added, rather than the result"),
    "Hardmax": Doubt("does not flatten the axes", below=13),
    "InstanceNormalization": Doubt(
        "computes in the type of the data, not in float32", types=("float16", "bfloat16")
    ),
    "LRN": Doubt("adds up the squares of other channels"),
    "LSTM": Doubt("ignores lengths, activations, clipping and directions"),
    "LayerNormalization": Doubt("computes in the type of the data, not in float32"),
    "LogSoftmax": Doubt(
        "does not flatten the axes before operator set 13; takes logarithms of what underflowed"
    ),
    "Loop": Doubt("reads carried values that the trip changed, and joins scan outputs"),
    "LpNormalization": Doubt("takes no absolute values for p = 1"),
    "LpPool": Doubt("moves the first place where ceil_mode is set"),
    "MaxPool": Doubt("mixes the axes of pads up"),
    "Mean": Doubt("keeps the shape of the first operand"),
    "MeanVarianceNormalization": Doubt("takes the variance from the difference of two squares"),
    "Normalizer": Doubt("returns the type of the operand", types=("double", "int32", "int64")),
    "OneHot": Doubt("multiplies the difference of both values, which rounds"),
    "OneHotEncoder": Doubt("looks floats up as they are, where they are to be cut off"),
    "RNN": Doubt("ignores lengths, activations, clipping and directions"),
    "RMSNormalization": Doubt("computes in the type of the data, not in float32"),
    "ReduceL1": Doubt("returns uint64", types=("uint32",)),
    "ReduceL2": Doubt("accumulates in the type of the data", types=("bfloat16", "float16")),
    "ReduceLogSum": Doubt("fails for integers, or casts them at another place"),
    "ReduceLogSumExp": Doubt("overflows, and casts integers at another place"),
    "ReduceProd": Doubt("returns uint64", types=("uint32",)),
    "ReduceSumSquare": Doubt("returns integers of 64 bits", types=("int32", "uint32")),
    "SVMRegressor": Doubt("has no number for the kernels POLY and SIGMOID of negative operands"),
    "RoiAlign": Doubt("moves coordinates by half a pixel, as from operator set 16 on", below=16),
    "Scaler": Doubt("computes in the type of the operand, and returns it"),
    "Scan": Doubt("takes no axes and directions"),
    "Slice": Doubt("is empty where a negative step starts before the first element"),
    "Softmax": Doubt("does not flatten the axes", below=13),
    "Squeeze": Doubt("removes axes in the order given"),
    **dict.fromkeys(
        ("TreeEnsembleRegressor", "TreeEnsemble"),
        Doubt("has the limits of the type where no leaf adds to an extreme"),
    ),
    "Unsqueeze": Doubt("adds axes in the order given"),
}
"""By operator."""

_NARROW = Doubt("accumulates in the type of the data", types=("bfloat16",))

ACCUMULATING: Mapping[str, Doubt] = dict.fromkeys(
    (
        "CumProd",
        "CumSum",
        "GlobalAveragePool",
        "ReduceL1",
        "ReduceLogSum",
        "ReduceMean",
        "ReduceProd",
        "ReduceSum",
        "ReduceSumSquare",
        "Softmax",
    ),
    _NARROW,
)
"""By operator, what is another doubt than that of `EVALUATOR`: of 2,000 terms half may be lost."""


def is_doubtful(model: onnx.ModelProto, output: str) -> bool:
    """Report whether an output depends on a node that onnx's evaluator may get wrong."""
    return any(
        doubt.concerns(found)
        for found in operations(model, output)
        for doubts in (EVALUATOR, ACCUMULATING)
        if (doubt := doubts.get(found.node.op_type)) is not None
    )
