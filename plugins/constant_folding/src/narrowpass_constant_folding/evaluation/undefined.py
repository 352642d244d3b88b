"""Results that ONNX leaves open: backends differ, so they must not be fixed at build time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from narrowpass_constant_folding.evaluation.operands import Array

_FIRST_DEFINED_WIDE_SHIFT = 28
_LIMITS: Any = ml_dtypes.iinfo
_INTEGER_DIVISIONS = frozenset({"Div", "Mod"})


def undefined(
    op_type: str, version: int, inputs: Sequence[Array], result: ir.DataType | None
) -> str:
    """Give why the result is not defined, or an empty text where it is.

    Args:
        op_type: an operator of the standard domain.
        version: the operator-set version that it is read with.
        inputs: the data that it reads.
        result: the element type of its first result.
    """
    if op_type in ("Cast", "CastLike") and result is not None:
        return _cast(inputs[0], result)
    if op_type in _INTEGER_DIVISIONS and np.issubdtype(inputs[0].dtype, np.integer):
        return "it divides an integer by zero" if not inputs[1].all() else ""
    if op_type == "BitShift" and version < _FIRST_DEFINED_WIDE_SHIFT:
        width = 8 * inputs[0].dtype.itemsize
        return "it shifts by the width of the type or more" if (inputs[1] >= width).any() else ""
    return ""


def _cast(source: Array, target: ir.DataType) -> str:
    if source.dtype == object or not _is_floating(source.dtype):
        return ""
    if target == ir.DataType.STRING:
        return "how a number is written as text is open"
    if not target.is_integer():
        return ""
    limits: Any = _LIMITS(target.numpy())
    wide = np.trunc(source.astype(np.float64))
    fits = (wide >= float(limits.min)) & (wide <= float(limits.max))
    if target.bitwidth == 64:  # the largest integer rounds up as a float
        fits &= wide < float(limits.max)
    return "" if fits.all() else f"a value is out of the range of {target.name.lower()}"


def _is_floating(dtype: np.dtype[Any]) -> bool:
    return ir.DataType.from_numpy(dtype).is_floating_point()
