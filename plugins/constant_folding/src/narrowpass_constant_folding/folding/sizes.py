"""The size rule: bounds on the size of a folded result and on its evaluation."""

from __future__ import annotations

from collections.abc import Mapping

from narrowpass_constant_folding.evaluation.calls import Call
from narrowpass_constant_folding.evaluation.inference import UNKNOWN, ResultType
from narrowpass_constant_folding.report import Refusal

_REPEATERS = frozenset(
    {"ConstantOfShape", "Expand", "EyeLike", "OneHot", "Range", "Tile", "Upsample"}
)
_REPEATER_SHARE = 8
"""What only repeats values is cheap to compute and dear to store."""

_MULTIPLIERS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
"""What takes as many multiplications for an element as a row has is dear to compute in each run."""

TIME_RULE = "time-rule"
"""The rule of a refusal that a faster evaluation may lift."""

HELD_BYTES = 1 << 16
"""Results up to this size are computed although they may not be stored: for what reads them."""

_SIZED_BY_DATA = frozenset({"MaxUnpool", "Loop", "Scan", *_REPEATERS})
_MOST_BY_DATA = 1 << 16

_SHAPE_ELEMENTS = 64
_MOST_UNVECTORIZED = 1 << 15
"""Elements; the reference operators outside of the list below take microseconds for each."""

_VECTORIZED_NAMES = """
    Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh BatchNormalization BitCast BitShift
    BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast CastLike Ceil Celu Clip Compress Concat
    ConstantOfShape Cos Cosh CumSum DepthToSpace Det Div Dropout Einsum Elu Equal Exp Expand EyeLike
    Flatten Floor Gather GatherElements GatherND Gemm GlobalAveragePool GlobalMaxPool Greater
    GreaterOrEqual GroupNormalization HardSigmoid HardSwish Hardmax Identity InstanceNormalization
    IsInf IsNaN LRN LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax LpNormalization
    MatMul Max Mean MeanVarianceNormalization Min Mish Mod Mul Neg NonZero Not OneHot Or PRelu Pad
    Pow RMSNormalization Range Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax
    ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape ReverseSequence Round
    ScatterND Selu Shape Shrink Sigmoid Sign Sin Sinh Size Slice Softmax Softplus Softsign
    SpaceToDepth Split Sqrt Squeeze Sub Sum Swish Tan Tanh ThresholdedRelu Tile TopK Transpose Trilu
    Unique Unsqueeze Where Xor
"""
_VECTORIZED = frozenset(_VECTORIZED_NAMES.split())

_MOST_SLOW = 1 << 22
_SLOW = frozenset({"Erf", "Gelu", "Resize"})
"""These take a third of a microsecond for each element."""


class SizeRule:
    """Limits what one folded node may store."""

    def __init__(self, max_growth: int) -> None:
        """Take the bytes by which a node's folding may grow the model."""
        self._max_growth = max_growth

    def limit(self, op_type: str, freed: int, largest: int = 0) -> int:
        """Return the most bytes that the results may take.

        Args:
            op_type: the operator.
            freed: the bytes of constants that folding frees.
            largest: the bytes of the largest operand; a matmul of constants may take as many
                although its operands stay, such as an embedding times a shared weight.
        """
        share = _REPEATER_SHARE if op_type in _REPEATERS else 1
        limit = freed + self._max_growth // share
        return max(limit, largest) if op_type in _MULTIPLIERS else limit


def refuse_early(
    call: Call, inferred: Mapping[str, ResultType], needed: tuple[str, ...], limit: int
) -> Refusal | None:
    """Return why the call is not to be evaluated, from what is known without doing so.

    Args:
        call: what would be evaluated.
        inferred: its result types.
        needed: the results that something reads; only these are stored.
        limit: the most bytes that these may take.
    """
    known = [inferred.get(name, UNKNOWN).nbytes for name in needed]
    stored = sum(size or 0 for size in known)
    if stored > max(limit, HELD_BYTES):
        return too_large(stored, limit)
    every = [inferred.get(name, UNKNOWN) for name in call.results if name]
    if None in known and call.node.op_type in _SIZED_BY_DATA:
        largest = _largest_operand(call)
        if largest > _MOST_BY_DATA:
            return Refusal(
                "size-rule",
                f"the size of its result is unknown and may grow with {largest}",
                "too-large",
                largest,
                _MOST_BY_DATA,
            )
    if call.node.domain == "" and call.node.op_type in _VECTORIZED:
        return None
    elements = sum(operand.size for operand in call.operands.values())
    for result in every:
        elements += result.elements or 0
    slow = call.node.domain == "" and call.node.op_type in _SLOW
    most = _MOST_SLOW if slow else _MOST_UNVECTORIZED
    if elements <= most:
        return None
    reason = "evaluating so many elements at build time takes too long"
    return Refusal(TIME_RULE, reason, "too-large", elements, most)


def too_large(measured: int, limit: int) -> Refusal:
    """Return the refusal of a result that the size rule does not allow."""
    return Refusal(
        "size-rule",
        f"its result takes {measured} bytes where {limit} are allowed; max-growth raises that",
        "too-large",
        measured,
        limit,
    )


def _largest_operand(call: Call) -> int:
    """Return the largest integer among the small operands, such as a trip count or a shape."""
    largest = 0
    for operand in call.operands.values():
        if (
            operand.tensor is None
            or not operand.dtype.is_integer()
            or operand.size > _SHAPE_ELEMENTS
        ):
            continue
        if operand.size:
            largest = max(largest, int(abs(operand.read()).max()))
    return largest
