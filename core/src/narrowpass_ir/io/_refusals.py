"""What a protobuf model must have before the IR is built from it; a sentence where it has not.

The IR's own reader drops some of these silently (sparse and unnamed initializers) and fails on
others with the dump of a message.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator

import onnx

from narrowpass_ir.errors import ModelError
from narrowpass_ir.io._walk import ProtoContainer, describe, proto_containers

OLDEST_IR_VERSION = 3
"""Before it, models do not say which operator set they use."""

_STANDARD_DOMAINS = frozenset(
    {"ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview", "ai.onnx.preview.training"}
)
_KNOWN_TYPES = frozenset(onnx.TensorProto.DataType.values()) - {onnx.TensorProto.UNDEFINED}


def refuse(proto: onnx.ModelProto, name: str) -> None:
    """Raise unless the IR can hold what `proto` says.

    Args:
        proto: as parsed. ``ai.onnx`` in opset imports is replaced by its other name, the empty
            text, which is the one that the IR looks up.
        name: what messages call the file.

    Raises:
        ModelError: the file is no model, or has what is not supported; the message says which
            part, and what to do.
    """
    _refuse_header(proto, name)
    _refuse_opsets(proto.opset_import, name, "the model")
    for function in proto.functions:
        _refuse_opsets(function.opset_import, name, describe(function))
    used: dict[str, str] = {}
    for container in proto_containers(proto):
        for node in container.node:
            _refuse_bad_text(name, *_texts(node))
            if node.domain not in used:
                used[node.domain] = describe(node)
            _refuse_attributes(node, name)
        _refuse_container(container, proto.graph, name)
    _refuse_unknown_sets(proto, used, name)


def _refuse_header(proto: onnx.ModelProto, name: str) -> None:
    if not proto.HasField("graph"):
        raise ModelError(f"{name}: no ONNX model: it has no graph; pass a file from an exporter")
    if not proto.HasField("ir_version") or proto.ir_version == 0:
        raise ModelError(f"{name}: the model has no ir_version; export it again")
    if proto.ir_version < OLDEST_IR_VERSION:
        raise ModelError(
            f"{name}: IR version {proto.ir_version} is too old (the oldest that can be read is "
            f"{OLDEST_IR_VERSION}); export it again with a newer exporter"
        )
    if proto.ir_version > onnx.IR_VERSION:
        raise ModelError(
            f"{name}: IR version {proto.ir_version} is newer than the installed onnx "
            f"{onnx.__version__} knows ({onnx.IR_VERSION}); upgrade the onnx package, or export "
            "for an older version"
        )
    if not proto.opset_import:
        raise ModelError(
            f"{name}: the model does not say which operator sets it uses (no opset_import); "
            "export it again"
        )


def _refuse_opsets(imports: Iterable[onnx.OperatorSetIdProto], name: str, owner: str) -> None:
    versions: dict[str, int] = {}
    newest = onnx.defs.onnx_opset_version()
    for entry in imports:
        _refuse_bad_text(name, entry.domain)
        if entry.domain == "ai.onnx":
            entry.domain = ""
        known = versions.setdefault(entry.domain, entry.version)
        shown = entry.domain or "ai.onnx"
        if known != entry.version:
            raise ModelError(
                f"{name}: {owner} imports operator set {shown} twice, as version {known} and "
                f"{entry.version}; remove one of them"
            )
        if entry.version < 1:
            raise ModelError(
                f"{name}: {owner} imports version {entry.version} of operator set {shown}; "
                "versions start at 1; export it again"
            )
        if not entry.domain and entry.version > newest:
            raise ModelError(
                f"{name}: {owner} uses opset {entry.version} of ai.onnx, but the installed onnx "
                f"{onnx.__version__} knows up to {newest}; upgrade the onnx package, or export "
                "for an older opset"
            )


def _refuse_unknown_sets(proto: onnx.ModelProto, used: dict[str, str], name: str) -> None:
    imported = {entry.domain: entry.version for entry in proto.opset_import}
    for function in proto.functions:
        for entry in function.opset_import:
            imported[entry.domain] = max(entry.version, imported.get(entry.domain, 0))
    for domain, user in used.items():
        if domain in ("", "ai.onnx") and "" not in imported:
            raise ModelError(
                f"{name}: {user} is an operator of ai.onnx, which the model does not import; "
                "export it again"
            )
        # A set that is imported and never used is harmless; exporters import all they know.
        if domain in _STANDARD_DOMAINS and imported.get(domain, 0) > _newest_version(domain):
            raise ModelError(
                f"{name}: {user} uses version {imported[domain]} of operator set {domain}, but "
                f"the installed onnx {onnx.__version__} knows up to {_newest_version(domain)}; "
                "upgrade the onnx package, or export for an older version"
            )


@functools.cache
def _newest_version(domain: str) -> int:
    if domain == "ai.onnx.ml":
        return onnx.defs.onnx_ml_opset_version()
    schemas = onnx.defs.get_all_schemas_with_history()
    return max((s.since_version for s in schemas if s.domain == domain), default=1)


def _refuse_container(container: ProtoContainer, main: onnx.GraphProto, name: str) -> None:
    if isinstance(container, onnx.FunctionProto):
        where = describe(container)
        _refuse_bad_text(name, container.domain, container.name, *container.input)
        defined = set(container.input)
        outputs = list(container.output)
    else:
        where = "the graph" if container is main else f"subgraph {container.name!r}"
        _refuse_initializers(container, name, where)
        for info in (*container.input, *container.output, *container.value_info):
            _refuse_bad_text(name, info.name)
            _refuse_type(info.type, info.name, name)
        defined = {info.name for info in container.input}
        defined.update(tensor.name for tensor in container.initializer)
        outputs = [info.name for info in container.output]
    for node in container.node:
        defined.update(node.output)
    missing = [output for output in outputs if not output or output not in defined]
    if missing:
        raise ModelError(
            f"{name}: output {missing[0]!r} of {where} is not computed by any node in it; "
            "name an existing value, or put an Identity node before it"
        )


def _texts(node: onnx.NodeProto) -> Iterator[str]:
    yield from (node.op_type, node.domain, node.name, node.overload)
    yield from node.input
    yield from node.output
    for attribute in node.attribute:
        yield attribute.name


def _refuse_bad_text(name: str, *texts: object) -> None:
    for text in texts:
        # protobuf returns bytes for text that is not UTF-8.
        if not isinstance(text, str):
            raise ModelError(
                f"{name}: the name {str(text)[:80]} is not UTF-8 text; the file is damaged, "
                "fetch or export it again"
            )


def _refuse_initializers(graph: onnx.GraphProto, name: str, where: str) -> None:
    if graph.sparse_initializer:
        first = graph.sparse_initializer[0].values.name
        raise ModelError(
            f"{name}: {where} has sparse initializers ({first!r}), which the IR does not hold; "
            "they become dense when an .onnx file is loaded"
        )
    seen: set[str] = set()
    for index, tensor in enumerate(graph.initializer):
        _refuse_bad_text(name, tensor.name)
        if not tensor.name:
            raise ModelError(
                f"{name}: initializer {index} of {where} has no name, so no node can use it; "
                "name it or remove it"
            )
        if tensor.name in seen:
            raise ModelError(
                f"{name}: {where} has two initializers named {tensor.name!r}; rename one of them"
            )
        seen.add(tensor.name)
    for node in graph.node:
        for output in node.output:
            if output in seen:
                raise ModelError(
                    f"{name}: {output!r} is both an initializer of {where} and the output of "
                    f"{describe(node)}; rename one of them"
                )


_GRAPHS = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)


def _refuse_attributes(node: onnx.NodeProto, name: str) -> None:
    for attribute in node.attribute:
        if attribute.ref_attr_name and attribute.type in _GRAPHS:
            raise ModelError(
                f"{name}: attribute {attribute.name!r} of {describe(node)} is a graph that a "
                "function is called with, which is not supported; inline the function"
            )
        if attribute.type in (
            onnx.AttributeProto.SPARSE_TENSOR,
            onnx.AttributeProto.SPARSE_TENSORS,
        ):
            raise ModelError(
                f"{name}: attribute {attribute.name!r} of {describe(node)} is a sparse tensor, "
                "which is not supported; store it as a dense tensor"
            )
        if node.op_type == "Einsum" and attribute.name == "equation":
            _refuse_equation(attribute.s, node, name)


def _refuse_equation(text: bytes, node: onnx.NodeProto, name: str) -> None:
    """Refuse characters that no equation has, so that onnx need not read them."""
    if not re.fullmatch(rb"(?:[A-Za-z, ]|\.{3})*(?:->(?:[A-Za-z ]|\.{3})*)?", text):
        raise ModelError(
            f"{name}: the equation of {describe(node)} is {text!r:.80}; it can have letters, "
            "commas, spaces, '...' and one '->'; export it again"
        )


def _refuse_type(kind: onnx.TypeProto, value: str, name: str) -> None:
    field = kind.WhichOneof("value")
    if field in ("sequence_type", "optional_type"):
        _refuse_type(getattr(kind, field).elem_type, value, name)
    elif field == "map_type":
        raise ModelError(
            f"{name}: value {value!r} is a map, which is not supported; leave out the node that "
            "adds it (ZipMap) when exporting"
        )
    elif field in ("tensor_type", "sparse_tensor_type"):
        element = getattr(kind, field).elem_type
        if element and element not in _KNOWN_TYPES:
            raise ModelError(
                f"{name}: value {value!r} has element type {element}, which the installed onnx "
                f"{onnx.__version__} does not know; upgrade the onnx package"
            )
    elif field is not None:
        raise ModelError(
            f"{name}: value {value!r} has a type ({field}) that is not supported; "
            "export the model without it"
        )
