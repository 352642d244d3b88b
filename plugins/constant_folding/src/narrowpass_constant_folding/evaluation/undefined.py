"""Results that ONNX leaves undefined: backends differ, so they must not be folded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir

from narrowpass_constant_folding.evaluation.calls import Array

_FIRST_DEFINED_WIDE_SHIFT = 28
_MOST_STEPS = 1 << 26
"""Of a Range that is judged; more elements are refused for their size."""
_LIMITS: Any = ml_dtypes.iinfo

Inputs = Sequence[Any]
"""What a node reads: arrays, None for what is left out, and what is no tensor."""


def undefined(node: onnx.NodeProto, version: int, inputs: Inputs) -> str:
    """Return why the results of a node are not defined, or an empty text where they are.

    Args:
        node: of any domain; those of the standard one are judged.
        version: the operator-set version that it is read with.
        inputs: the data that it reads.
    """
    rule = None if node.domain else _RULES.get(node.op_type)
    if rule is None or any(attribute.ref_attr_name for attribute in node.attribute):
        return ""  # of a function's node the value of an attribute is the caller's
    try:
        return rule(node, version, inputs)
    except (ArithmeticError, IndexError, TypeError, ValueError) as error:
        return f"the operator does not take its operands: {error}"


def _cast(node: onnx.NodeProto, version: int, inputs: Inputs) -> str:
    source = inputs[0]
    if node.op_type == "CastLike":
        text = inputs[1].dtype == object
        target = ir.DataType.STRING if text else ir.DataType.from_numpy(inputs[1].dtype)
    else:
        target = ir.DataType(_attribute(node, "to", 0))
    if source.dtype == object or not _is_floating(source.dtype):
        return ""
    if target == ir.DataType.STRING:
        return "how a number is written as text is open"
    if not target.is_integer():
        return _is_rounded_twice(source, target)
    limits: Any = _LIMITS(target.numpy())
    wide = np.trunc(source.astype(np.float64))
    fits = (wide >= float(limits.min)) & (wide <= float(limits.max))
    if target.bitwidth == 64:  # the largest integer rounds up as a float
        fits &= wide < float(limits.max)
    return "" if fits.all() else f"a value is out of the range of {target.name.lower()}"


def _is_rounded_twice(source: Array, target: ir.DataType) -> str:
    if source.dtype != np.float64 or target == ir.DataType.DOUBLE or target.bitwidth > 16:
        return ""
    kind = target.numpy()
    direct, through = source.astype(kind), source.astype(np.float32).astype(kind)
    if direct.tobytes() == through.tobytes():
        return ""
    return f"{target.name.lower()} of a double depends on whether it is rounded to a float first"


def _divided(node: onnx.NodeProto, version: int, inputs: Inputs) -> str:
    dividend, divisor = inputs[:2]
    if not np.issubdtype(dividend.dtype, np.integer):
        return ""
    if not divisor.all():
        return "it divides an integer by zero"
    if np.issubdtype(dividend.dtype, np.signedinteger):
        least = np.iinfo(dividend.dtype).min
        if (dividend == least).any() and (divisor == -1).any():
            return "it divides the least integer by -1"
    return ""


def _shifted(node: onnx.NodeProto, version: int, inputs: Inputs) -> str:
    if version >= _FIRST_DEFINED_WIDE_SHIFT:
        return ""
    width = 8 * inputs[0].dtype.itemsize
    return "it shifts by the width of the type or more" if (inputs[1] >= width).any() else ""


def _reduced(node: onnx.NodeProto, version: int, inputs: Inputs) -> str:
    """Judge integers that are added or multiplied: some backends use floats in between."""
    data = inputs[0]
    if not np.issubdtype(data.dtype, np.integer) or not data.size:
        return ""
    sizes = np.abs(data.astype(np.float64))
    with np.errstate(over="ignore"):
        match node.op_type:
            case "ReduceProd":
                most = np.prod(np.maximum(sizes, 1))
            case "ReduceSumSquare" | "ReduceL2":
                most = np.sum(sizes * sizes)
            case _:
                most = np.sum(sizes)
    if most < float(np.iinfo(data.dtype).max):
        return ""
    return f"the result may be out of the range of {data.dtype}"


def _ranged(node: onnx.NodeProto, version: int, inputs: Inputs) -> str:
    start, limit, delta = (np.asarray(value).reshape(()) for value in inputs[:3])
    if not _is_floating(start.dtype) or not delta or not np.isfinite(start + limit + delta):
        return ""
    with np.errstate(over="ignore"):
        span = float((limit - start) / delta)
    if not span < _MOST_STEPS:
        return "" if span > 0 else "its number of elements is not finite"
    count = max(0, int(np.ceil(span)))
    steps = np.full(count, delta, start.dtype)
    steps[:1] = start
    added = np.cumsum(steps, dtype=start.dtype)
    multiplied = (start + np.arange(count).astype(start.dtype) * delta).astype(start.dtype)
    if np.array_equal(added, multiplied):
        return ""
    return "its numbers depend on whether steps are added or multiplied"


def _powered(node: onnx.NodeProto, version: int, inputs: Inputs) -> str:
    base, exponent = inputs[:2]
    if not np.issubdtype(base.dtype, np.integer):
        return ""
    with np.errstate(all="ignore"):
        wide = np.power(base.astype(np.float64), exponent.astype(np.float64))
    limits = np.iinfo(base.dtype)
    if not (np.isfinite(wide) & (wide >= limits.min) & (wide <= limits.max)).all():
        return f"a power is out of the range of {base.dtype}"
    if (np.abs(wide) >= 2**53).any():
        return "a power is larger than what a double holds exactly"
    return ""


_WHOLE_OUTPUT = frozenset(
    {b"align_corners", b"pytorch_half_pixel", b"tf_crop_and_resize", b"tf_half_pixel_for_nn"}
)


def _resized(node: onnx.NodeProto, version: int, inputs: Inputs) -> str:
    """Judge where the size of the output counts, and what is nearest.

    ONNX's tests take that size as input times scale, other backends as it is, a whole number.
    """
    data = inputs[0]
    scales, sizes = _operand(inputs, 1 if version < 11 else 2), _operand(inputs, 3)
    axes = _attribute(node, "axes", list(range(data.ndim)))
    lengths = np.array([data.shape[axis] for axis in axes], np.float64)
    if scales is not None:
        by = scales.astype(np.float64)
    elif sizes is not None:
        by = sizes / lengths
    else:
        return ""
    results = lengths * by
    coordinates = _attribute(node, "coordinate_transformation_mode", b"half_pixel")
    if coordinates in _WHOLE_OUTPUT and (results != np.floor(results)).any():
        return "its scales yield fractional sizes, and backends round them differently"
    powers = np.frexp(by)[0] == 0.5
    if _attribute(node, "mode", b"nearest") == b"nearest" and not powers.all():
        return "which element is the nearest depends on the rounding of coordinates"
    if _attribute(node, "keep_aspect_ratio_policy", b"stretch") != b"stretch":
        return "how sizes that keep a ratio are rounded is open"
    return ""


def _squeezed(node: onnx.NodeProto, version: int, inputs: Inputs) -> str:
    """Judge axes that are given and empty: some backends take them for none given."""
    given = len(inputs) > 1 and inputs[1] is not None and not inputs[1].size
    return "what no axes mean is open" if given and 1 in inputs[0].shape else ""


def _operand(inputs: Inputs, index: int) -> Array | None:
    found = inputs[index] if index < len(inputs) else None
    return found if isinstance(found, np.ndarray) and found.size else None


def _attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    for attribute in node.attribute:
        if attribute.name == name:
            return onnx.helper.get_attribute_value(attribute)
    return default


def _is_floating(dtype: np.dtype[Any]) -> bool:
    return ir.DataType.from_numpy(dtype).is_floating_point()


_REDUCTIONS = ("L1", "L2", "LogSum", "Mean", "Prod", "Sum", "SumSquare")

_RULES: Mapping[str, Callable[[onnx.NodeProto, int, Inputs], str]] = MappingProxyType(
    {
        **dict.fromkeys(("Cast", "CastLike"), _cast),
        **dict.fromkeys(("Div", "Mod"), _divided),
        **dict.fromkeys((f"Reduce{name}" for name in _REDUCTIONS), _reduced),
        "BitShift": _shifted,
        "Pow": _powered,
        "Range": _ranged,
        "Resize": _resized,
        "Squeeze": _squeezed,
    }
)

JUDGED = frozenset(_RULES)
"""Operators whose data is looked at."""
