"""Results of the evaluator, converted to the types that the model declares."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from narrowpass.errors import BackendError
from narrowpass_reference._evaluator import Value


def conform(value: Value, kind: ir.TypeProtocol | None, name: str) -> Value:
    """Return `value` as its declared type says: the exact dtype, strings as object arrays.

    Raises:
        BackendError: a value whose type is another one altogether.
    """
    if isinstance(kind, ir.OptionalType):
        return None if value is None else conform(value, kind.elem_type, name)
    if isinstance(kind, ir.SequenceType):
        if not isinstance(value, list):
            raise BackendError(f"value {name!r} is declared a sequence; {_kind(value)} came out")
        return [conform(element, kind.elem_type, name) for element in value]
    if value is None:
        raise BackendError(f"value {name!r} is declared {kind}; nothing came out")
    if not isinstance(value, np.ndarray):
        return value
    return _conform_array(value, kind.dtype if isinstance(kind, ir.TensorType) else None, name)


def _conform_array(
    array: np.ndarray[Any, Any], dtype: ir.DataType | None, name: str
) -> np.ndarray[Any, Any]:
    if array.dtype.kind in "USO":
        if dtype not in (None, ir.DataType.STRING):
            raise BackendError(f"value {name!r} is declared {dtype}; strings came out")
        return array.astype(object)
    if dtype in (None, ir.DataType.UNDEFINED) or array.dtype == dtype.numpy():
        return array
    actual = ir.DataType.from_numpy(array.dtype)
    alike = (actual.is_floating_point() and dtype.is_floating_point()) or (
        actual.is_integer() and dtype.is_integer()
    )
    if not alike:
        raise BackendError(f"value {name!r} is declared {dtype}; {actual} came out")
    return array.astype(dtype.numpy())


def fresh(value: Value) -> Value:
    """Copy a result, so that it shares memory with no feed, weight or other result."""
    if isinstance(value, list):
        return [fresh(element) for element in value]
    return value.copy(order="C") if isinstance(value, np.ndarray) else value


def _kind(value: Value) -> str:
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else repr(value)
