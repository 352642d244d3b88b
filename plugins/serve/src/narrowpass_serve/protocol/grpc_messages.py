"""The messages of the protocol's gRPC service: classes of protobuf from the published fields.

Field names and numbers are those of the Open Inference Protocol, and of its extension for model
repositories. The classes live in a pool of their own, so that clients with generated code for the
same messages can be in the same process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "inference"
SERVICE = f"{PACKAGE}.GRPCInferenceService"

_PARAMETERS = "map InferParameter"
_REPOSITORY_PARAMETERS = "map ModelRepositoryParameter"

_FIELDS: Mapping[str, tuple[tuple[str, int, str], ...]] = {
    "ServerLiveRequest": (),
    "ServerLiveResponse": (("live", 1, "bool"),),
    "ServerReadyRequest": (),
    "ServerReadyResponse": (("ready", 1, "bool"),),
    "ModelReadyRequest": (("name", 1, "string"), ("version", 2, "string")),
    "ModelReadyResponse": (("ready", 1, "bool"),),
    "ServerMetadataRequest": (),
    "ServerMetadataResponse": (
        ("name", 1, "string"),
        ("version", 2, "string"),
        ("extensions", 3, "repeated string"),
    ),
    "ModelMetadataRequest": (("name", 1, "string"), ("version", 2, "string")),
    "ModelMetadataResponse.TensorMetadata": (
        ("name", 1, "string"),
        ("datatype", 2, "string"),
        ("shape", 3, "repeated int64"),
    ),
    "ModelMetadataResponse": (
        ("name", 1, "string"),
        ("versions", 2, "repeated string"),
        ("platform", 3, "string"),
        ("inputs", 4, "repeated ModelMetadataResponse.TensorMetadata"),
        ("outputs", 5, "repeated ModelMetadataResponse.TensorMetadata"),
    ),
    "InferParameter": (
        ("bool_param", 1, "oneof bool"),
        ("int64_param", 2, "oneof int64"),
        ("string_param", 3, "oneof string"),
        ("double_param", 4, "oneof double"),
        ("uint64_param", 5, "oneof uint64"),
    ),
    "InferTensorContents": (
        ("bool_contents", 1, "repeated bool"),
        ("int_contents", 2, "repeated int32"),
        ("int64_contents", 3, "repeated int64"),
        ("uint_contents", 4, "repeated uint32"),
        ("uint64_contents", 5, "repeated uint64"),
        ("fp32_contents", 6, "repeated float"),
        ("fp64_contents", 7, "repeated double"),
        ("bytes_contents", 8, "repeated bytes"),
    ),
    "ModelInferRequest.InferInputTensor": (
        ("name", 1, "string"),
        ("datatype", 2, "string"),
        ("shape", 3, "repeated int64"),
        ("parameters", 4, _PARAMETERS),
        ("contents", 5, "InferTensorContents"),
    ),
    "ModelInferRequest.InferRequestedOutputTensor": (
        ("name", 1, "string"),
        ("parameters", 2, _PARAMETERS),
    ),
    "ModelInferRequest": (
        ("model_name", 1, "string"),
        ("model_version", 2, "string"),
        ("id", 3, "string"),
        ("parameters", 4, _PARAMETERS),
        ("inputs", 5, "repeated ModelInferRequest.InferInputTensor"),
        ("outputs", 6, "repeated ModelInferRequest.InferRequestedOutputTensor"),
        ("raw_input_contents", 7, "repeated bytes"),
    ),
    "ModelInferResponse.InferOutputTensor": (
        ("name", 1, "string"),
        ("datatype", 2, "string"),
        ("shape", 3, "repeated int64"),
        ("parameters", 4, _PARAMETERS),
        ("contents", 5, "InferTensorContents"),
    ),
    "ModelInferResponse": (
        ("model_name", 1, "string"),
        ("model_version", 2, "string"),
        ("id", 3, "string"),
        ("parameters", 4, _PARAMETERS),
        ("outputs", 5, "repeated ModelInferResponse.InferOutputTensor"),
        ("raw_output_contents", 6, "repeated bytes"),
    ),
    "ModelRepositoryParameter": (
        ("bool_param", 1, "oneof bool"),
        ("int64_param", 2, "oneof int64"),
        ("string_param", 3, "oneof string"),
        ("bytes_param", 4, "oneof bytes"),
    ),
    "RepositoryIndexRequest": (("repository_name", 1, "string"), ("ready", 2, "bool")),
    "RepositoryIndexResponse.ModelIndex": (
        ("name", 1, "string"),
        ("version", 2, "string"),
        ("state", 3, "string"),
        ("reason", 4, "string"),
    ),
    "RepositoryIndexResponse": (("models", 1, "repeated RepositoryIndexResponse.ModelIndex"),),
    "RepositoryModelLoadRequest": (
        ("repository_name", 1, "string"),
        ("model_name", 2, "string"),
        ("parameters", 3, _REPOSITORY_PARAMETERS),
    ),
    "RepositoryModelLoadResponse": (),
    "RepositoryModelUnloadRequest": (
        ("repository_name", 1, "string"),
        ("model_name", 2, "string"),
        ("parameters", 3, _REPOSITORY_PARAMETERS),
    ),
    "RepositoryModelUnloadResponse": (),
}
"""Name, number and type of the fields of each message; inner messages before their outer one."""

METHODS = (
    "ServerLive",
    "ServerReady",
    "ModelReady",
    "ServerMetadata",
    "ModelMetadata",
    "ModelInfer",
    "RepositoryIndex",
    "RepositoryModelLoad",
    "RepositoryModelUnload",
)
"""The methods of the service; each takes its name's ``Request`` and returns its ``Response``."""

_Field = descriptor_pb2.FieldDescriptorProto
_ONEOF = "parameter_choice"


def _file() -> descriptor_pb2.FileDescriptorProto:
    """Return the description of all messages."""
    file = descriptor_pb2.FileDescriptorProto(
        name="narrowpass_serve/open_inference.proto", package=PACKAGE, syntax="proto3"
    )
    messages: dict[str, descriptor_pb2.DescriptorProto] = {}
    for full, fields in sorted(_FIELDS.items(), key=lambda item: item[0].count(".")):
        outer, _, name = full.rpartition(".")
        home = messages[outer].nested_type if outer else file.message_type
        messages[full] = message = home.add(name=name)
        for field, number, kind in fields:
            _add_field(message, full, field, number, kind)
    return file


def _add_field(
    message: descriptor_pb2.DescriptorProto, full: str, name: str, number: int, kind: str
) -> None:
    label, _, type_ = kind.rpartition(" ")
    field = message.field.add(name=name, number=number, label=_Field.LABEL_OPTIONAL)
    if label == "map":
        entry = message.nested_type.add(name="".join(map(str.title, name.split("_"))) + "Entry")
        entry.options.map_entry = True
        _add_field(entry, "", "key", 1, "string")
        _add_field(entry, "", "value", 2, type_)
        label, type_ = "repeated", f"{full}.{entry.name}"
    if label == "repeated":
        field.label = _Field.LABEL_REPEATED
    if label == "oneof":
        if not message.oneof_decl:
            message.oneof_decl.add(name=_ONEOF)
        field.oneof_index = 0
    if type_[0].isupper():
        field.type = _Field.TYPE_MESSAGE
        field.type_name = f".{PACKAGE}.{type_}"
    else:
        field.type = _Field.Type.Value(f"TYPE_{type_.upper()}")


def create_messages() -> dict[str, Any]:
    """Return the classes of the outer messages by name."""
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_file())
    found = {}
    for name in _FIELDS:
        if "." not in name:
            descriptor = pool.FindMessageTypeByName(f"{PACKAGE}.{name}")
            found[name] = message_factory.GetMessageClass(descriptor)
    return found
