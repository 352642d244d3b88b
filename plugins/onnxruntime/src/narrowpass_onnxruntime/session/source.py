"""Models as callers name them: a path, bytes, or an object that serializes itself."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

from narrowpass.errors import ModelError, NarrowpassError, VerificationError
from narrowpass_ir.io import load_model, load_proto
from narrowpass_onnxruntime.files import status_of
from narrowpass_onnxruntime.session.errors import ErrorName, error, unsupported
from narrowpass_onnxruntime.session.metadata import OVERRIDABLE_SINCE, Interface, interface_of

_ORT_IDENTIFIER = b"ORTM"
"""What bytes 4 to 8 of a file in onnxruntime's own format are."""


@dataclass(frozen=True)
class Source:
    """What a session is created from.

    Attributes:
        path: of the model; empty where it is given as bytes.
        data: the serialized model; None where it is given as a path.
        folder: of its external data.
    """

    path: str
    data: bytes | None
    folder: str

    @classmethod
    def of(cls, given: Any, data_folder: str = "") -> Source:
        """Take a path, bytes, or an object with ``SerializeToString``, such as a ModelProto.

        Args:
            given: by the caller.
            data_folder: of external data of a model that has no path; empty for the current one.

        Raises:
            TypeError: none of these.
            NoSuchFile: nothing is at the path.
            Fail: the system does not say what is there.
            NotImplemented: a model in onnxruntime's own format.
        """
        if isinstance(given, str | os.PathLike):
            path = os.fsdecode(given)
            _look(path)
            if path.endswith(".ort"):
                raise _own_format(path)
            return cls(path, None, str(Path(path).parent))
        if hasattr(given, "SerializeToString"):
            given = given.SerializeToString()
        if not isinstance(given, bytes):
            raise TypeError(
                f"a session is created from a path or from bytes, not from {type(given)}"
            )
        return cls("", given, data_folder or ".")

    @property
    def name(self) -> str:
        """What messages call it."""
        return self.path or "the model"

    def identity(self) -> str:
        """Return what changes when the model does: the status of its file, or a digest.

        Empty where the file is gone, or the system does not say.
        """
        if self.data is not None:
            folder = os.path.realpath(self.folder)
            return f"bytes {hashlib.sha256(self.data).hexdigest()} {folder}"
        return status_of(Path(self.path))

    def read(self) -> Opened:
        """Read the model, and not its weights in external files.

        Raises:
            InvalidProtobuf: no ONNX model.
            InvalidArgument: one without a graph.
            Fail: a file that cannot be read.
        """
        proto = self._parse()
        external = {str(Path(self.folder, location)) for location in _locations(proto.graph)}
        for function in proto.functions:
            external |= {str(Path(self.folder, each)) for each in _locations(function)}
        status = {path: status_of(Path(path)) for path in sorted(external)}
        return Opened(self, proto, interface_of(proto), status)

    def _parse(self) -> onnx.ModelProto:
        try:
            if self.data is None and not Path(self.path).is_file():
                raise error(
                    "InvalidProtobuf", f"{self.path}: is not a file; pass the path of an .onnx file"
                )
            data = Path(self.path).read_bytes() if self.data is None else self.data
        except OSError as problem:
            raise error("Fail", f"{self.path}: cannot be read: {problem.strerror}") from problem
        if data[4:8] == _ORT_IDENTIFIER:
            raise _own_format(self.name)
        proto = onnx.ModelProto()
        try:
            proto.ParseFromString(data)
        except DecodeError:
            raise error(
                "InvalidProtobuf",
                f"{self.name}: is no ONNX model, or is cut short; fetch or export it again",
            ) from None
        if not proto.HasField("graph"):
            raise error(
                "InvalidArgument", f"{self.name}: has no graph; fetch or export the model again"
            )
        return proto


def _look(path: str) -> None:
    """Raise unless something is at a path."""
    try:
        if not Path(path).exists():
            raise error(
                "NoSuchFile", f"{path}: no such file; pass the path of an .onnx file or of a bundle"
            )
    except OSError as problem:
        raise error("Fail", f"{path}: cannot be looked at: {problem.strerror}") from problem


class Opened:
    """A model that was read.

    Args:
        source: that it was read from.
        proto: of the model.
        interface: what callers know of it.
        external: the status of each external file by its path; see `status_of`.
    """

    def __init__(
        self,
        source: Source,
        proto: onnx.ModelProto,
        interface: Interface,
        external: Mapping[str, str],
    ) -> None:
        self.interface, self.external = interface, external
        self._source = source
        self._proto: onnx.ModelProto | None = proto

    def load(self) -> ir.Model:
        """Return the model, once; weights in external files of a path stay there.

        Raises:
            InvalidGraph: a model whose structure breaks a rule of ONNX.
            Fail: one that narrowpass cannot use.
        """
        try:
            return self._load()
        except NarrowpassError as problem:
            raise translated(problem) from problem

    def _load(self) -> ir.Model:
        proto, self._proto = self._proto, None  # it may be large
        if proto is None:
            return self._source.read().load()
        old = proto.ir_version < OVERRIDABLE_SINCE
        if self._source.path and not old:
            del proto
            return load_model(self._source.path)
        if self.external:
            try:
                onnx.load_external_data_for_model(proto, self._source.folder)
            except Exception as problem:
                raise ModelError(
                    f"external data of {self._source.name} is looked for in "
                    f"{self._source.folder}: {problem}"
                ) from problem
        if old:
            _freeze(proto)
        return load_proto(proto)


def _locations(container: onnx.GraphProto | onnx.FunctionProto) -> Iterator[str]:
    """Yield the external files of a graph, as its tensors name them."""
    tensors = [*container.initializer] if isinstance(container, onnx.GraphProto) else []
    for node in container.node:
        for attribute in node.attribute:
            tensors += [attribute.t, *attribute.tensors]
            for inner in (attribute.g, *attribute.graphs):
                yield from _locations(inner)
    for tensor in tensors:
        yield from (entry.value for entry in tensor.external_data if entry.key == "location")


def translated(problem: NarrowpassError) -> Exception:
    """Return an error of narrowpass as one of the classes that onnxruntime raises for a model."""
    name: ErrorName = "Fail"
    if isinstance(problem, VerificationError):
        name = "InvalidGraph"
    return error(name, str(problem))


def _own_format(name: str) -> Exception:
    return unsupported(f"the format of {name}, onnxruntime's own (.ort),", "pass the ONNX model")


def _freeze(proto: onnx.ModelProto) -> None:
    """Remove inputs that have initializers, which only newer versions of the format allow.

    Many files of old versions have them only in part, against the rules; onnxruntime reads these.
    """
    proto.ir_version = OVERRIDABLE_SINCE
    graph = proto.graph
    defaults = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in defaults]
    del graph.input[:]
    graph.input.extend(inputs)
