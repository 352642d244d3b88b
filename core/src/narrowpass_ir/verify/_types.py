"""Types of values as the text that operator schemas use, such as ``tensor(float)``."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

_DTYPES: tuple[str, ...] = tuple(
    ir.DataType(number).name.lower() for number in range(max(ir.DataType) + 1)
)
# Indexed by the enum's number: hashing an enum member costs more than the rest of a look-up.
_TENSORS: tuple[str | None, ...] = (None, *(f"tensor({name})" for name in _DTYPES[1:]))

_WRAPPERS: dict[type, str] = {
    ir.SparseTensorType: "sparse_tensor",
    ir.SequenceType: "seq",
    ir.OptionalType: "optional",
}


def type_text(kind: Any) -> str | None:
    """Return the ONNX text of an `onnx_ir` type, or None where it is not fully known."""
    if type(kind) is ir.TensorType:
        return _TENSORS[kind.dtype]
    wrapper = _WRAPPERS.get(type(kind))
    if wrapper is None:
        return None
    if isinstance(kind, ir.SparseTensorType):
        return f"{wrapper}({_DTYPES[kind.dtype]})" if kind.dtype else None
    inner = type_text(kind.elem_type)
    return None if inner is None else f"{wrapper}({inner})"


def tensor_text(dtype: int) -> str | None:
    """Return the text of a dense tensor type, None for ``UNDEFINED`` or an unknown number."""
    return _TENSORS[dtype] if 0 <= dtype < len(_TENSORS) else None


def dtype_text(kind: Any) -> str | None:
    """Return ``float`` for a dense tensor, the whole type's text otherwise, None if unknown."""
    text = type_text(kind)
    if text is None or not isinstance(kind, ir.TensorType):
        return text
    return _DTYPES[kind.dtype]
