"""Rules of initializers. Their bytes are never read."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from narrowpass_ir.verify._types import tensor_text, type_text


def initializer_problems(key: str, value: ir.Value) -> Iterator[str]:
    """Yield what is wrong with an initializer that its graph lists as `key`."""
    if value.name != key:
        yield f"is named {value.name!r} in its own field"
    if value.producer() is not None:
        yield "is also the output of a node"
    tensor = value.const_value
    if tensor is None:
        yield "has no const_value; set it, or remove it from the initializers"
        return
    dtype = tensor_text(tensor.dtype)
    if dtype is None:
        yield "has a tensor of no defined type"
    declared = type_text(value.type)
    if declared is not None and dtype is not None and declared != dtype:
        yield f"is declared as {declared}, but its tensor is {dtype}"
    shape = value.shape
    if shape is not None and not _fits(shape, tensor.shape):
        yield f"is declared with the shape {shape}, but its tensor has {tensor.shape}"


def _fits(declared: ir.Shape, actual: ir.ShapeProtocol) -> bool:
    if declared is actual or declared == actual:
        return True
    if len(declared) != len(actual):
        return False
    return all(
        not isinstance(dim, int) or dim == size for dim, size in zip(declared, actual, strict=True)
    )
