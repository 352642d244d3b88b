"""Sparse tensors of a protobuf model, converted to dense ones, the only ones of the IR."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from narrowpass_ir.errors import ModelError
from narrowpass_ir.io._inline import detach, element_type
from narrowpass_ir.io._walk import describe, proto_containers
from narrowpass_ir.io.mapped import element_count, serialized_size

Array = np.ndarray[Any, Any]

DENSE_BYTES = 1 << 28
"""What all sparse tensors of a model may take when they are dense, at the least."""

DENSE_FACTOR = 32
"""They may take so many times the bytes of their values and indices, if that is more."""


def densify(proto: onnx.ModelProto, name: str) -> None:
    """Replace sparse initializers, and the sparse values of Constant nodes, by dense ones.

    Elements that are not stored are 0, false, or an empty text. So that a small file cannot fill
    the memory, all of them together may take `DENSE_BYTES`, or `DENSE_FACTOR` times what they take
    in the file, whichever is more.

    Args:
        proto: changed in place.
        name: what messages call the file.

    Raises:
        ModelError: a tensor that breaks a rule of ONNX, lies in another file, or is too large.
    """
    _check_sizes([*_all_sparse(proto)], name)
    for container in proto_containers(proto):
        if isinstance(container, onnx.GraphProto) and container.sparse_initializer:
            for sparse in container.sparse_initializer:
                label = f"{name}: sparse initializer {sparse.values.name!r}"
                container.initializer.append(_dense(sparse, label))
            _forget_sparse_types(container)
            del container.sparse_initializer[:]
        for node in container.node:
            for attribute in node.attribute:
                if _is_sparse_constant(node, attribute):
                    dense = _dense(attribute.sparse_tensor, f"{name}: {describe(node)}")
                    replaced = onnx.helper.make_attribute("value", dense, attribute.doc_string)
                    attribute.CopyFrom(replaced)


def _is_sparse_constant(node: onnx.NodeProto, attribute: onnx.AttributeProto) -> bool:
    return (
        node.op_type == "Constant"
        and node.domain in ("", "ai.onnx")
        and attribute.name == "sparse_value"
        and attribute.type == onnx.AttributeProto.SPARSE_TENSOR
        and not attribute.ref_attr_name
    )


def _all_sparse(proto: onnx.ModelProto) -> Iterator[tuple[str, onnx.SparseTensorProto]]:
    for container in proto_containers(proto):
        if isinstance(container, onnx.GraphProto):
            for sparse in container.sparse_initializer:
                yield f"sparse initializer {sparse.values.name!r}", sparse
        for node in container.node:
            for attribute in node.attribute:
                if _is_sparse_constant(node, attribute):
                    yield describe(node), attribute.sparse_tensor


def _check_sizes(tensors: list[tuple[str, onnx.SparseTensorProto]], name: str) -> None:
    stored = sum(sparse.ByteSize() for _, sparse in tensors)
    limit = max(DENSE_BYTES, DENSE_FACTOR * stored)
    total = 0
    for label, sparse in tensors:
        dtype = element_type(sparse.values, f"{name}: {label}")
        if any(dim < 0 for dim in sparse.dims):
            raise _invalid(f"{name}: {label}", f"its dimensions are {list(sparse.dims)}")
        size = 8 * element_count(sparse.dims) if dtype.is_string() else None
        total += serialized_size(dtype, list(sparse.dims)) if size is None else size
        if total > limit:
            raise ModelError(
                f"{name}: {label} has the shape {list(sparse.dims)}: the sparse tensors of the "
                f"model would take {total} bytes as dense ones, and {limit} is the limit "
                f"({DENSE_BYTES}, or {DENSE_FACTOR} times what they take in the file); store "
                "them as dense tensors"
            )


def _dense(sparse: onnx.SparseTensorProto, what: str) -> onnx.TensorProto:
    if not sparse.dims:
        raise _invalid(what, "it has no dimensions")
    values = _read(sparse.values, f"{what}: its values")
    count = values.size
    if values.ndim != 1:
        raise _invalid(what, f"its values have the shape {list(values.shape)}, [{count}] is due")
    places = _places(sparse, count, what)
    dtype = ir.DataType(sparse.values.data_type)
    size = element_count(sparse.dims)
    name, doc = sparse.values.name, sparse.values.doc_string
    if dtype == ir.DataType.STRING:
        texts = [b""] * size
        for place, text in zip(places.tolist(), values.tolist(), strict=True):
            texts[place] = text
        return onnx.TensorProto(
            name=name, data_type=int(dtype), dims=sparse.dims, string_data=texts, doc_string=doc
        )
    array = np.zeros(size, values.dtype)
    array[places] = values
    tensor = ir.Tensor(array.reshape(tuple(sparse.dims)), dtype=dtype, name=name, doc_string=doc)
    dense: onnx.TensorProto = ir.serde.serialize_tensor(tensor)
    return dense


def _places(sparse: onnx.SparseTensorProto, count: int, what: str) -> Array:
    """Return the places of the values in the dense tensor, in a row; checked."""
    if not count and not sparse.indices.ByteSize():
        return np.empty(0, np.int64)
    if sparse.indices.data_type != onnx.TensorProto.INT64:
        raise _invalid(what, "its indices are not int64")
    indices = _read(sparse.indices, f"{what}: its indices")
    rank = len(sparse.dims)
    if indices.shape not in ((count,), (count, rank)):
        raise _invalid(
            what,
            f"its indices have the shape {list(indices.shape)}, [{count}] or [{count}, {rank}] "
            "is due",
        )
    limits = np.array([element_count(sparse.dims)] if indices.ndim == 1 else sparse.dims, np.int64)
    rows = indices[:, None] if indices.ndim == 1 else indices
    outside = np.flatnonzero(((rows < 0) | (rows >= limits)).any(axis=1))
    if outside.size:
        first = rows[outside[0]].tolist()
        raise _invalid(what, f"its index {first} is not inside the shape {list(sparse.dims)}")
    places: Array = (
        indices if indices.ndim == 1 else np.ravel_multi_index(tuple(indices.T), sparse.dims)
    )
    steps = np.diff(places)
    if (steps == 0).any():
        raise _invalid(what, "it has an index twice")
    if (steps < 0).any():
        raise _invalid(what, "its indices are not sorted in ascending order")
    return places


def _read(proto: onnx.TensorProto, what: str) -> Array:
    element_type(proto, what)
    if proto.data_location == onnx.TensorProto.EXTERNAL:
        raise ModelError(
            f"{what} lie in another file, which is not supported for sparse tensors; store them in "
            "the model, or as a dense tensor"
        )
    return detach(ir.serde.deserialize_tensor(proto), what).numpy()


def _forget_sparse_types(graph: onnx.GraphProto) -> None:
    """Drop what is declared of initializers as sparse: they are dense now."""
    names = {sparse.values.name for sparse in graph.sparse_initializer}
    stay = [
        info
        for info in graph.value_info
        if info.name not in names or not info.type.HasField("sparse_tensor_type")
    ]
    if len(stay) < len(graph.value_info):
        del graph.value_info[:]
        graph.value_info.extend(stay)


def _invalid(what: str, problem: str) -> ModelError:
    return ModelError(f"{what} is no valid sparse tensor: {problem}; export it again")
