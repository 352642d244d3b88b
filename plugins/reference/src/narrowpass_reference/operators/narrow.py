"""Operators that accumulate: in float32 where the data has 16 bits, which lose terms.

onnx's evaluator adds up in the type of the data: a bfloat16 of 256 takes no term below 1 any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops import load_op

Array = np.ndarray[Any, Any]

_HALF, _BRAIN = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)

ACCUMULATING: Mapping[str, tuple[np.dtype[Any], ...]] = MappingProxyType(
    {
        "CumProd": (_HALF, _BRAIN),
        "CumSum": (_HALF, _BRAIN),
        "GlobalAveragePool": (_HALF, _BRAIN),
        "InstanceNormalization": (_HALF, _BRAIN),
        "ReduceL1": (_HALF, _BRAIN),
        "ReduceL2": (_HALF, _BRAIN),
        "ReduceMean": (_HALF, _BRAIN),
        "ReduceProd": (_HALF, _BRAIN),
        "ReduceSum": (_HALF, _BRAIN),
        "ReduceSumSquare": (_HALF, _BRAIN),
        # The node suite wants float16 rounded behind each step.
        "Softmax": (_BRAIN,),
    }
)
"""Operators of the default domain that `accumulating` replaces, with the types that they upcast."""


def upcast(data: Array, op_type: str) -> Array:
    """Return the data as float32 where an operator of `ACCUMULATING` computes it so."""
    return data.astype(np.float32) if data.dtype in ACCUMULATING.get(op_type, ()) else data


class _Float32:
    """Computes what the class behind it does, in float32 where its first operand is narrower."""

    def _run(self, data: Array, *others: Any, **attributes: Any) -> tuple[Any, ...]:
        this: Any = self
        run: Any = super()._run  # type: ignore[misc]  # of the class behind
        results: tuple[Any, ...] = run(upcast(data, this.op_type), *others, **attributes)
        return tuple(np.asarray(each).astype(data.dtype, copy=False) for each in results)


@cache
def accumulating(op_type: str, version: int) -> type[OpRun]:
    """Return onnx's class of an operator that accumulates in float32."""
    theirs = load_op("", op_type, version)
    # By its name, which has the version, the base class looks up which attributes there are.
    found: type[OpRun] = type(theirs.__name__, (_Float32, theirs), {})
    return found
