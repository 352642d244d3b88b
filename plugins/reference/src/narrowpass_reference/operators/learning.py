"""Operators of ``ai.onnx.ml`` that onnx's evaluator computes otherwise than they are defined."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx.reference.ops.aionnxml import (
    op_one_hot_encoder,
    op_scaler,
    op_tree_ensemble,
    op_tree_ensemble_regressor,
)

Array = np.ndarray[Any, Any]

# onnx's evaluator has no types, and names each attribute in the signatures of `_run`: hence the
# comments below that mypy needs.

_MIN, _MAX = 2, 3
"""Values of ``aggregate_function``."""


class OneHotEncoder(op_one_hot_encoder.OneHotEncoder):
    """Cuts numbers off to integers before they are looked up, at any rank; onnx's does neither."""

    def _run(self, x: Array, **attributes: Any) -> tuple[Any, ...]:  # type: ignore[override]
        flat = x.reshape(-1)
        if flat.dtype.kind == "f":
            with np.errstate(invalid="ignore"):  # NaN is no category, whatever it is cast to
                flat = flat.astype(np.int64)
        (encoded,) = super()._run(flat, **attributes)  # type: ignore[no-untyped-call]
        return (encoded.reshape(*x.shape, encoded.shape[-1]),)


class Scaler(op_scaler.Scaler):
    """Computes in float32, which the result has; onnx's evaluator rounds to integers for those."""

    def _run(self, x: Array, offset: Any = None, scale: Any = None) -> tuple[Any, ...]:
        factors = np.asarray(scale, np.float32)
        return ((x.astype(np.float32) - np.asarray(offset, np.float32)) * factors,)


class TreeEnsemble(op_tree_ensemble.TreeEnsemble):
    """The extreme of no leaves is 0, as in onnxruntime; onnx's is a limit of the type."""

    def _run(  # type: ignore[override]
        self, x: Array, *operands: Any, **attributes: Any
    ) -> tuple[Any, ...]:
        (result,) = super()._run(x, *operands, **attributes)  # type: ignore[no-untyped-call]
        smallest = {_MIN: True, _MAX: False}.get(attributes["aggregate_function"])
        return (_without_limits(result, smallest, x.dtype),)


class TreeEnsembleRegressor(op_tree_ensemble_regressor.TreeEnsembleRegressor):
    """As `TreeEnsemble`."""

    def _run(self, x: Array, **attributes: Any) -> tuple[Any, ...]:  # type: ignore[override]
        (result,) = super()._run(x, **attributes)  # type: ignore[no-untyped-call]
        smallest = {"MIN": True, "MAX": False}.get(attributes["aggregate_function"])
        return (_without_limits(result, smallest, x.dtype),)


def _without_limits(result: Array, smallest: bool | None, dtype: Any) -> Array:
    """Replace what onnx's evaluator begins extremes with by 0; None where there are no extremes."""
    if smallest is None or result.dtype.kind != "f":
        return result.astype(dtype)
    limits = np.finfo(result.dtype)
    untouched = limits.max if smallest else limits.min
    return np.where(result == untouched, 0, result).astype(dtype)
