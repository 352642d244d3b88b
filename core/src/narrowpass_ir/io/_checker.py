"""What `onnx.checker` says of a model, read or written."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

import onnx
import onnx_ir as ir

from narrowpass_ir.io._walk import proto_tensors
from narrowpass_ir.io.mapped import element_count

_KEY = "narrowpass.checker"
_SMALL = 256
"""Elements of tensors that the checker may copy."""

_FIELDS = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")
_LOG = logging.getLogger("narrowpass")


def check_file(path: str | os.PathLike[str]) -> str | None:
    """Return what onnx.checker says against the file at `path`; None where it says nothing.

    Raises:
        OSError: the system refuses to look at the files.
    """
    name = os.fspath(path)
    try:
        name.encode()
    except UnicodeEncodeError:  # no UTF-8, which is what onnx takes a name to be
        proto = onnx.ModelProto()
        proto.ParseFromString(Path(name).read_bytes())
        return check_proto(proto)
    try:
        onnx.checker.check_model(name)
    except (onnx.checker.ValidationError, ValueError) as error:
        return _one_line(error)
    except RuntimeError as error:  # std::filesystem's, whose errno is in the text alone
        raise OSError(errno.EIO, _one_line(error), name) from error
    return None


def check_but_for_shapes(path: str | os.PathLike[str]) -> str | None:
    """Return what `check_file` does, had the graph's inputs and outputs all a type and a shape.

    The checker stops at the first that has none. The format leaves both open, and runtimes take
    such a model.
    """
    proto = onnx.load(os.fspath(path), load_external_data=False)
    for info in (*proto.graph.input, *proto.graph.output):
        if info.type.WhichOneof("value") is None:
            info.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
        if info.type.HasField("tensor_type"):
            info.type.tensor_type.shape.SetInParent()
    return check_proto(proto)


def check_proto(proto: onnx.ModelProto) -> str | None:
    """Return what onnx.checker says against `proto`; None where it says nothing.

    Large and external tensors are emptied in `proto`: the checker would copy the former, and
    refuses every link in the path of the latter, which load has looked at already.
    """
    for _, tensor in proto_tensors(proto):
        if tensor.data_location == onnx.TensorProto.EXTERNAL or _is_large(tensor):
            kept = onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=[0])
            tensor.CopyFrom(kept)
    try:
        onnx.checker.check_model(proto)
    except (onnx.checker.ValidationError, ValueError) as error:
        return _one_line(error)
    return None


def _is_large(tensor: onnx.TensorProto) -> bool:
    # Not ByteSize: it serializes the tensor.
    counts = (len(getattr(tensor, name)) for name in _FIELDS)
    return element_count(tensor.dims) > _SMALL or any(count > _SMALL for count in counts)


def warn(path: str | os.PathLike[str], complaint: str) -> None:
    """Log what the checker says against a file that is used in spite of it."""
    _LOG.warning("%s: onnx.checker says: %s", os.fspath(path), complaint)


def remember(model: ir.Model, complaint: str) -> None:
    """Note on `model` that the checker refused it as it was read; clones keep the note."""
    model.graph.meta[_KEY] = complaint


def remembered(model: ir.Model) -> str | None:
    """Return what `remember` noted."""
    return model.graph.meta.get(_KEY)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:500]
