"""Tensors whose bytes are those of another one."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from narrowpass_ir.io.mapped import Writable, serialized_size


class ViewedTensor(ir.TensorProtocol):
    """The bytes of a tensor as elements of another type and shape. Nothing is read or kept.

    Args:
        source: where the bytes are.
        dtype: of the elements; any type but strings.
        shape: of the elements.
        name: the tensor's name; None for that of `source`.

    Raises:
        ValueError: `source` has another number of bytes.
    """

    def __init__(
        self,
        source: ir.TensorProtocol,
        dtype: ir.DataType,
        shape: tuple[int, ...],
        name: str | None = None,
    ) -> None:
        if serialized_size(dtype, shape) != source.nbytes:
            raise ValueError(f"{source.nbytes} bytes are not {dtype}{list(shape)}")
        self.name = source.name if name is None else name
        self.doc_string = source.doc_string
        self.meta: dict[str, Any] = {}
        self._metadata_props: dict[str, str] = {}
        self._source = source
        self._dtype = dtype
        self._shape = ir.Shape(shape, frozen=True)

    @property
    def source(self) -> ir.TensorProtocol:
        """The tensor that has the bytes."""
        return self._source

    @property
    def raw(self) -> ir.TensorProtocol:
        """The tensor that has the bytes."""
        return self._source

    @property
    def dtype(self) -> ir.DataType:  # type: ignore[override]  # the protocol's is writable
        """The element type. Immutable."""
        return self._dtype

    @property
    def shape(self) -> ir.Shape:  # type: ignore[override]  # the protocol's is writable
        """The shape. Immutable."""
        return self._shape

    @property
    def metadata_props(self) -> dict[str, str]:  # type: ignore[override]  # as above
        """What is serialized beside the tensor."""
        return self._metadata_props

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(np.prod(self._shape.numpy(), dtype=object))

    @property
    def nbytes(self) -> int:
        """The number of bytes."""
        return int(self._source.nbytes)

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return the elements; one byte each where the type has fewer bits."""
        return self.of(self._source.numpy())

    def of(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the elements of an array that has the bytes of `source`."""
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        if self._dtype.bitwidth < 8:
            return ir.PackedTensor(raw, self._dtype, shape=self._shape).numpy()
        return raw.view(self._dtype.numpy()).reshape(self._shape.numpy())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def __dlpack__(self, *, stream: Any = None) -> Any:
        raise BufferError(f"tensor {self.name!r} has no memory and no DLPack form; use numpy()")

    def __dlpack_device__(self) -> tuple[int, int]:
        raise BufferError(f"tensor {self.name!r} has no memory and no DLPack form; use numpy()")

    def tobytes(self) -> bytes:
        """Return the bytes as ONNX serializes them."""
        return self._source.tobytes()

    def tofile(self, file: Writable) -> None:
        """Write the bytes as ONNX serializes them."""
        if hasattr(self._source, "tofile"):
            self._source.tofile(file)
        else:
            file.write(self._source.tobytes())

    def __repr__(self) -> str:
        return f"ViewedTensor<{self._dtype},{self._shape}>(source={self._source!r})"
