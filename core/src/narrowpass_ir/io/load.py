"""Reading an ONNX file into the IR."""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import threading
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

from narrowpass_ir.arguments import path_of
from narrowpass_ir.errors import ModelError, UsageError, VerificationError
from narrowpass_ir.garbage import pause_collection
from narrowpass_ir.io._checker import check_proto, remember, warn
from narrowpass_ir.io._external import LFS_POINTER, open_external
from narrowpass_ir.io._inline import detach, element_type
from narrowpass_ir.io._refusals import refuse
from narrowpass_ir.io._repairs import forget_unknown_dimensions, size_caches, without_maps
from narrowpass_ir.io._serialize import one_line, root_cause
from narrowpass_ir.io._sparse import densify
from narrowpass_ir.io._walk import containers, initializers, proto_tensors
from narrowpass_ir.io.mapped import MappedFile, MappedTensor

_PROTOBUF_LIMIT = 2**31 - 1

_OTHER_FORMATS = (
    (LFS_POINTER, "a git-lfs pointer, not the model; run `git lfs pull`"),
    (b"PK\x03\x04", "a zip archive (a PyTorch file?), not an ONNX model; export it to ONNX"),
    (b"\x1f\x8b", "compressed with gzip; unpack it first"),
    (b"\x89HDF", "an HDF5 file, not an ONNX model; export it to ONNX"),
    (b"<", "a web page or XML, not an ONNX model; download the file itself"),
    (b"{", "JSON, not an ONNX model in protobuf form"),
)
"""How files begin that are often taken for a model, and what they are."""


def load_model(path: str | os.PathLike[str]) -> ir.Model:
    """Read an ONNX file.

    Tensors in external files are `MappedTensor`: they are opened here, once each file, and read
    only when somebody asks. Other tensors are arrays in memory; sparse ones become dense. What
    `onnx.checker` says against the model is logged as a warning.

    Args:
        path: a model in protobuf form, with its external data in the same folder. Links are
            followed where the model and its data lie in one folder in the end, as in the cache
            of a model hub.

    Returns:
        A model that `narrowpass_ir.verify.verify` accepts.

    Raises:
        UsageError: there is no file at `path`, or it cannot be opened.
        ModelError: the file is damaged, or holds what is not supported.
        VerificationError: the structure of the model breaks a rule of ONNX.
    """
    name = path_of(path, "the path of the model")
    with pause_collection():
        return _of_proto(parse_model(_read(name), name), name)


def load_proto(proto: onnx.ModelProto) -> ir.Model:
    """Return the IR of a model that was parsed already; `proto` stays as it is.

    Raises:
        ModelError: it holds what is not supported, or its weights lie in other files: only a path
            says where.
        VerificationError: the structure of the model breaks a rule of ONNX.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    with pause_collection():
        return _of_whole(copy, "the ModelProto")


def load_bytes(data: bytes) -> ir.Model:
    """Return the IR of a model from the bytes of an ONNX file, which hold all of its weights.

    Raises:
        ModelError: they are no model, are cut short or hold what is not supported; weights that lie
            in other files: only a path says where.
        VerificationError: the structure of the model breaks a rule of ONNX.
    """
    name = "the bytes of the model"
    if not data:
        raise ModelError(f"{name}: there are none; read the file again")
    with pause_collection():
        return _of_whole(parse_model(data, name), name)


def _of_whole(proto: onnx.ModelProto, name: str) -> ir.Model:
    for owner, tensor in proto_tensors(proto):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            raise ModelError(
                f"{name}: {owner} lies in another file; pass the path of the .onnx file, or load "
                "its data with onnx.load_external_data_for_model"
            )
    return _of_proto(proto, name)


def _of_proto(proto: onnx.ModelProto, name: str) -> ir.Model:
    from narrowpass_ir.verify import verify

    densify(proto, name)
    without_maps(proto, name)
    refuse(proto, name)
    for owner, tensor in proto_tensors(proto):
        element_type(tensor, f"{name}: {owner}")
    files = open_external(proto, name)
    model = build_model(proto, name)
    replace_tensors(model, files, name)
    complaint = check_proto(proto)
    if complaint:
        warn(name, complaint)
        remember(model, complaint)
    try:
        verify(model)
    except VerificationError as error:
        if not _sorted(model, error):
            raise VerificationError(f"{name}: {error}", error.problems) from error
    size_caches(model)
    return model


def _sorted(model: ir.Model, error: VerificationError) -> bool:
    """Sort nodes where only subgraphs read later results; return whether the order is then valid.

    onnxruntime's quantizers put nodes before those whose results their subgraphs read: they look at
    a node's own inputs alone. onnxruntime sorts them when it loads the file.
    """
    from narrowpass_ir.verify import verify

    texts = [str(problem) for problem in error.problems]
    if not all("sort the graph topologically" in x and " of node " in x for x in texts):
        return False
    try:
        model.graph.sort()
        for function in model.functions.values():
            function.sort()
        verify(model)
    except (ValueError, VerificationError):  # a cycle, or what another problem hid
        return False
    return True


def _read(name: str) -> bytes:
    try:
        status = Path(name).stat()
        if stat.S_ISDIR(status.st_mode):
            raise UsageError(f"{name}: is a folder; pass the .onnx file in it")
        if not stat.S_ISREG(status.st_mode):
            raise UsageError(f"{name}: is not a regular file; pass an .onnx file")
        if status.st_size > _PROTOBUF_LIMIT:
            raise ModelError(
                f"{name}: has {status.st_size} bytes, more than a protobuf file can (2 GiB); store "
                "its weights as external data"
            )
        data = Path(name).read_bytes()
    except FileNotFoundError:
        link = " (a link to a file that is gone)" if Path(name).is_symlink() else ""
        raise UsageError(f"{name}: no such file{link}; pass the path of an .onnx file") from None
    except OSError as error:
        raise UsageError(f"{name}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{name!r}: no file name: {error}") from error
    if not data:
        raise ModelError(f"{name}: is empty; fetch or export it again")
    return data


def parse_model(data: bytes, name: str) -> onnx.ModelProto:
    """Parse the bytes of an ONNX file; `name` is what messages call it.

    Raises:
        ModelError: they are not a model, or a cut one.
    """
    for start, what in _OTHER_FORMATS:
        if data.startswith(start):
            raise ModelError(f"{name}: is {what}")
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError:
        raise ModelError(
            f"{name}: is no ONNX model, or is cut short: its protobuf cannot be parsed; fetch or "
            "export it again"
        ) from None
    return proto


def build_model(proto: onnx.ModelProto, name: str) -> ir.Model:
    """Return the IR of a parsed model; its external tensors are not resolved yet.

    Raises:
        ModelError: it holds something that the IR cannot.
    """
    forget_unknown_dimensions(proto)
    try:
        with _quiet():
            return ir.from_proto(proto)
    except ir.serde.SerdeError as error:
        cause = one_line(root_cause(error))
        raise ModelError(
            f"{name}: cannot be turned into the IR: {cause}; if other tools read this model, "
            "please report it"
        ) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Drop the log records of onnx-ir in this thread: we raise for what they report."""
    thread = threading.get_ident()

    def others(record: logging.LogRecord) -> bool:
        return record.thread != thread

    log = logging.getLogger(ir.serde.__name__)
    log.addFilter(others)
    try:
        yield
    finally:
        log.removeFilter(others)


def replace_tensors(model: ir.Model, files: Mapping[str, MappedFile], name: str) -> None:
    """Map external tensors to parts of `files`, by location, and copy inline ones.

    Raises:
        ModelError: a tensor that is not whole in its file.
    """
    for _, value in initializers(model):
        if value.const_value is not None:
            what = f"{name}: initializer {value.name!r}"
            value.const_value = _replacement(value.const_value, files, what)
    for _, container in containers(model):
        for node in container:
            _replace_attributes(node.attributes, files, f"{name}: node {node.name!r}")
        if isinstance(container, ir.Function):
            _replace_attributes(container.attributes, files, f"{name}: {container.name!r}")


def _replace_attributes(
    attributes: MutableMapping[str, ir.Attr], files: Mapping[str, MappedFile], what: str
) -> None:
    for key, attribute in list(attributes.items()):
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.TENSOR:
            tensor = _replacement(attribute.as_tensor(), files, what)
            attributes[key] = ir.AttrTensor(key, tensor, doc_string=attribute.doc_string)
        elif attribute.type == ir.AttributeType.TENSORS:
            tensors = [_replacement(tensor, files, what) for tensor in attribute.as_tensors()]
            attributes[key] = ir.AttrTensors(key, tensors, doc_string=attribute.doc_string)


def _replacement(
    tensor: ir.TensorProtocol, files: Mapping[str, MappedFile], what: str
) -> ir.TensorProtocol:
    if not isinstance(tensor, ir.ExternalTensor):
        return detach(tensor, what)
    return MappedTensor(
        files[os.fspath(tensor.location)],
        tensor.offset or 0,
        tensor.dtype,
        tensor.shape,
        tensor.name,
        doc_string=tensor.doc_string,
        metadata_props=tensor.metadata_props,
    )
