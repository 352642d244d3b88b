"""The default classifier: small tables, and what a node's own shapes and constants say.

The classifier ``sized`` is stricter: green is only what saves more than its casts may cost.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

import onnx_ir as ir

from narrowpass import Color, OpClassifier, OpDtypes

if TYPE_CHECKING:
    from narrowpass.framework.classify import Target


_GREEN = {
    "Attention",
    "Conv",
    "ConvTranspose",
    "DeformConv",
    "Einsum",
    "GRU",
    "Gemm",
    "LSTM",
    "MatMul",
    "RNN",
}
"""Faster in half the bits wherever the processor has the instructions, or has memory to read."""

_RED = {
    "BatchNormalization": "its variances need range",
    "Bernoulli": "random numbers would be others",
    "Cos": "large angles lose what it depends on",
    "CumProd": "it multiplies many elements, which leaves the range",
    "CumSum": "small terms are lost in the sum of many elements",
    "Det": "it multiplies many elements, which leaves the range",
    "Dropout": "in training it is random",
    "Exp": "it leaves the range above 11",
    "GroupNormalization": "its sum of squares leaves the range",
    "InstanceNormalization": "its sum of squares leaves the range",
    "LRN": "its sum of squares leaves the range",
    "Log": "near 0 it magnifies what rounding lost",
    "LpNormalization": "its sum of squares leaves the range",
    "LpPool": "its sum of powers leaves the range",
    "MeanVarianceNormalization": "its sum of squares leaves the range",
    "Multinomial": "random numbers would be others",
    "NegativeLogLikelihoodLoss": "losses are summed over all elements",
    "Pow": "powers leave the range",
    "RandomNormal": "random numbers would be others",
    "RandomNormalLike": "random numbers would be others",
    "RandomUniform": "random numbers would be others",
    "RandomUniformLike": "random numbers would be others",
    "Range": "float16 is exact up to 2048 only",
    "ReduceL1": "small terms are lost in the sum of many elements",
    "ReduceL2": "the sum of squares leaves the range",
    "ReduceLogSum": "small terms are lost in the sum of many elements",
    "ReduceLogSumExp": "the sum of exponentials leaves the range",
    "ReduceProd": "it multiplies many elements, which leaves the range",
    "ReduceSumSquare": "the sum of squares leaves the range",
    "Sin": "large angles lose what it depends on",
    "SoftmaxCrossEntropyLoss": "losses are summed over all elements",
    "Softplus": "it is the logarithm of an exponential",
    "Tan": "near its poles it leaves the range",
}
"""Numerically red operators, with the reason."""

_LONG = 256
"""Elements in a sum from which it is kept wide."""

_TABLE = 1024
"""Elements of a constant from which looking up in it pays: it is stored in half as many bytes."""

_AXES = {"Softmax", "LogSoftmax", "ReduceSum", "ReduceMean", "Hardmax"}


class DefaultClassifier(OpClassifier):
    """Colours the standard operators; others it leaves to the policy ``unknown``."""

    name: ClassVar[str] = "default"

    def color(self, node: ir.Node) -> Color | None:
        """Return the node's colour; see `reason` for why it is red."""
        if node.domain:
            return None
        if self.reason(node):
            return Color.RED
        if node.op_type in _GREEN:
            return Color.GREEN
        if node.op_type == "Gather" and _stored_elements(node.inputs[0]) >= _TABLE:
            return Color.GREEN
        return Color.GRAY

    def dtypes(self, node: ir.Node) -> OpDtypes | None:
        """Request float32 accumulators for matmul-like operators."""
        if node.op_type in _GREEN and not node.domain:
            return OpDtypes("float32", "float16")
        return None

    def reason(self, node: ir.Node) -> str:
        """Return why a node is red; empty where it is not."""
        kind = node.op_type
        if kind in _RED:
            return _RED[kind]
        if kind in _AXES and _summed(node) > _LONG:
            return f"it adds more than {_LONG} elements, or an unknown number"
        if (
            kind in ("GlobalAveragePool", "AveragePool", "GlobalLpPool")
            and _kernel_size(node) > _LONG
        ):
            return f"it adds more than {_LONG} elements, or an unknown number"
        if kind == "Mul" and node.inputs[0] is node.inputs[1] and _feeds_a_sum(node):
            return "squares leave the range before they are summed"
        if kind in _GREEN and len(node.inputs) > 1 and _dequantized(node.inputs[1]):
            return "its weight is in bytes already"
        if kind in ("Div", "Reciprocal") and not _is_constant(node.inputs[-1]):
            return "a small divisor leaves the range"
        return ""


def _is_constant(value: ir.Value | None) -> bool:
    return value is not None and value.const_value is not None


def _dequantized(value: ir.Value | None) -> bool:
    producer = None if value is None else value.producer()
    if producer is not None and producer.op_type == "Transpose" and not producer.domain:
        # The last layer of a model that has the weights of its embeddings.
        given = producer.inputs[0]
        producer = None if given is None else given.producer()
    return producer is not None and producer.op_type == "DequantizeLinear" and not producer.domain


def _stored_elements(value: ir.Value | None) -> int:
    if value is None or value.const_value is None:
        return 0
    return int(value.const_value.size)


def _dims(value: ir.Value | None) -> list[int | None]:
    if value is None or value.shape is None:
        return []
    return [dim if isinstance(dim, int) else None for dim in value.shape]


_UNKNOWN = 1 << 40


def _summed(node: ir.Node) -> int:
    """Return how many elements a sum or softmax takes together."""
    dims = _dims(node.inputs[0])
    if not dims:
        return _UNKNOWN
    if node.op_type in ("Softmax", "LogSoftmax", "Hardmax"):
        version = node.version or 13
        axis = node.attributes.get_int("axis", -1 if version >= 13 else 1) % len(dims)
        return _count(dims[axis:] if version < 13 else [dims[axis]])
    axes = node.attributes.get_ints("axes", None)
    if axes is None and len(node.inputs) > 1 and node.inputs[1] is not None:
        tensor = node.inputs[1].const_value
        if tensor is None:
            return _UNKNOWN
        axes = [int(axis) for axis in tensor.numpy().reshape(-1)]
    return _count([dims[axis] for axis in axes] if axes else dims)


def _kernel_size(node: ir.Node) -> int:
    """Return the elements of a kernel window of pooling."""
    kernel = node.attributes.get_ints("kernel_shape", None)
    return _count(list(kernel)) if kernel else _count(_dims(node.inputs[0])[2:] or [None])


def _count(dims: list[int | None]) -> int:
    total = 1
    for dim in dims:
        if dim is None:
            return _UNKNOWN
        total *= dim
    return total


def _feeds_a_sum(node: ir.Node) -> bool:
    return any(
        user.op_type in ("ReduceMean", "ReduceSum", "GlobalAveragePool", "Sum")
        for user, _ in node.outputs[0].uses()
    )


class SizedClassifier(OpClassifier):
    """As ``default``, but a green node follows its neighbours where lowering it does not pay.

    It pays where the constants that the node reads have as many elements as the values that may
    have to be cast around it, so that the file shrinks by more bytes than a run converts; or where
    the target says that it gains time.

    Args:
        target: what the model is built for; None for no gain that is known.
        dtype: the narrow type.
    """

    name: ClassVar[str] = "sized"

    def __init__(self, target: Target | None = None, dtype: str = "float16") -> None:
        self._target, self._dtype = target, dtype
        self._default = DefaultClassifier()

    def for_target(self, target: Target | None, dtype: str) -> OpClassifier:
        """Return a classifier that asks `target`."""
        return SizedClassifier(target, dtype)

    def color(self, node: ir.Node) -> Color | None:
        """Return the colour of ``default``, gray instead of green where it does not pay."""
        color = self._default.color(node)
        if color is not Color.GREEN or self._pays(node):
            return color
        return Color.GRAY

    def dtypes(self, node: ir.Node) -> OpDtypes | None:
        """Return the types of ``default``."""
        return self._default.dtypes(node)

    def reason(self, node: ir.Node) -> str:
        """Return why a node is red or gray."""
        reason = self._default.reason(node)
        if not reason and self._default.color(node) is Color.GREEN and not self._pays(node):
            return "lowering it saves less than its casts may cost"
        return reason

    def _pays(self, node: ir.Node) -> bool:
        stored = sum(_elements(value) for value in node.inputs if _is_constant(value))
        moved = sum(_elements(value) for value in node.inputs if not _is_constant(value))
        moved += sum(map(_elements, node.outputs))
        if stored >= max(1, moved):
            return True
        if self._target is None:
            return False
        return self._target.gain(node, OpDtypes("float32", self._dtype)) > 0


def _elements(value: ir.Value | None) -> int:
    """Return how many elements a value has; dimensions that are not known count as 1."""
    if value is None or value.shape is None:
        return 0
    return math.prod(dim for dim in value.shape if isinstance(dim, int))
