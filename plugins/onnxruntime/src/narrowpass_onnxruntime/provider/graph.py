"""Graphs of onnxruntime, read into models of onnx-ir.

Pointers to nodes and values are valid during the call of onnxruntime that hands over the graph.
Constant initializers are read where they lie, and copied when a model of a group is built.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from narrowpass_onnxruntime.provider.library import check, ffi, one, ort, several, text

_LAST_SHARED_TYPE = int(ir.DataType.FLOAT4E2M1)
"""The last element type that onnxruntime and ONNX count alike."""

_INT, _INTS, _FLOAT, _FLOATS, _STRING, _STRINGS, _GRAPH, _TENSOR = range(1, 9)
_DEFAULT_DOMAIN = "ai.onnx"


@dataclass(frozen=True)
class Tensor:
    """A constant initializer where onnxruntime has it.

    Attributes:
        pointer: of the OrtValue.
    """

    pointer: Any

    def read(self, name: str, *, copy: bool) -> ir.TensorProtocol:
        """Return the tensor, in memory of its own where `copy`; else valid during the call."""
        return tensor_of(self.pointer, name, copy=copy)

    @property
    def size(self) -> int:
        """Its bytes."""
        return int(one("size_t", ort().GetTensorSizeInBytes, self.pointer))


@dataclass(frozen=True)
class Node:
    """A node of a graph.

    Attributes:
        pointer: of the OrtNode.
        name: that no other node of the graph has.
        op_type: the operator.
        domain: its domain; empty for ONNX's.
        version: of the operator set since which the operator is as it is.
        inputs: names of the inputs; empty where one is left out.
        outputs: names of the outputs, likewise.
        captured: names that its subgraphs read.
        attributes: those of ONNX's types; None where one cannot be read.
        nested: whether it has subgraphs.
        taken: whether another provider has it.
    """

    pointer: Any
    name: str
    op_type: str
    domain: str
    version: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    captured: tuple[str, ...]
    attributes: tuple[ir.Attr, ...] | None
    nested: bool
    taken: bool


@dataclass
class Graph:
    """A graph of onnxruntime.

    Attributes:
        nodes: in topological order.
        types: element types of the values that are tensors, by name.
        shapes: of these, where their ranks are known: None for a size that is not.
        constants: initializers that never change, by name.
        outputs: names of the values that are outputs of the graph.
        opsets: version of the operator set of each domain.
        path: of the model's file; empty for one that was loaded from memory.
    """

    nodes: list[Node] = field(default_factory=list)
    types: dict[str, ir.DataType] = field(default_factory=dict)
    shapes: dict[str, Sequence[int | None]] = field(default_factory=dict)
    constants: dict[str, Tensor] = field(default_factory=dict)
    outputs: set[str] = field(default_factory=set)
    opsets: dict[str, int] = field(default_factory=dict)
    path: str = ""


def read_graph(pointer: Any) -> Graph:
    """Read a graph.

    Raises:
        OrtError: onnxruntime refuses to say something.
    """
    api = ort()
    graph = Graph(path=text(one("const char *", api.Graph_GetModelPath, pointer)))
    count = one("size_t", api.Graph_GetNumOperatorSets, pointer)
    domains, versions = ffi.new("const char *[]", count + 1), ffi.new("int64_t[]", count + 1)
    check(api.Graph_GetOperatorSets(pointer, domains, versions, count))
    for index in range(count):
        graph.opsets[_domain(text(domains[index]))] = int(versions[index])
    seen: set[str] = set()
    names: set[str] = set()
    nodes = several("const OrtNode *", api.Graph_GetNumNodes, api.Graph_GetNodes, pointer)
    for index, node in enumerate(nodes):
        graph.nodes.append(_read_node(graph, node, index, seen, names))
    graph.nodes = _sorted(graph.nodes)
    return graph


def is_nested(pointer: Any) -> bool:
    """Return whether a graph is a subgraph of a node."""
    return bool(one("const OrtNode *", ort().Graph_GetParentNode, pointer) != ffi.NULL)


def value_names(values: Iterable[Any]) -> tuple[str, ...]:
    """Return the names of values, empty for those that are left out."""
    api = ort()
    return tuple(
        "" if value == ffi.NULL else text(one("const char *", api.GetValueInfoName, value))
        for value in values
    )


def output_names(node: Any) -> tuple[str, ...]:
    """Return the names of a node's outputs."""
    api = ort()
    found = several("const OrtValueInfo *", api.Node_GetNumOutputs, api.Node_GetOutputs, node)
    return value_names(found)


def computed_names(graph: Any) -> frozenset[str]:
    """Return the names of all values that the nodes of a graph compute."""
    api = ort()
    nodes = several("const OrtNode *", api.Graph_GetNumNodes, api.Graph_GetNodes, graph)
    return frozenset(name for node in nodes for name in output_names(node) if name)


def input_names(node: Any) -> tuple[str, ...]:
    """Return the names of a node's inputs."""
    api = ort()
    found = several("const OrtValueInfo *", api.Node_GetNumInputs, api.Node_GetInputs, node)
    return value_names(found)


def _domain(name: str) -> str:
    return "" if name == _DEFAULT_DOMAIN else name


def _read_node(graph: Graph, node: Any, index: int, seen: set[str], names: set[str]) -> Node:
    api = ort()
    kind = "const OrtValueInfo *"
    inputs = several(kind, api.Node_GetNumInputs, api.Node_GetInputs, node)
    outputs = several(kind, api.Node_GetNumOutputs, api.Node_GetOutputs, node)
    captured = several(kind, api.Node_GetNumImplicitInputs, api.Node_GetImplicitInputs, node)
    for value in (*inputs, *outputs, *captured):
        if value != ffi.NULL:
            _read_value(graph, value, seen)
    nested = one("size_t", api.Node_GetNumSubgraphs, node) > 0
    name = text(one("const char *", api.Node_GetName, node)) or f"node.{index}"
    if name in names:
        name = f"{name}.{index}"
    names.add(name)
    return Node(
        pointer=node,
        name=name,
        op_type=text(one("const char *", api.Node_GetOperatorType, node)),
        domain=_domain(text(one("const char *", api.Node_GetDomain, node))),
        version=int(one("int", api.Node_GetSinceVersion, node)),
        inputs=value_names(inputs),
        outputs=value_names(outputs),
        captured=value_names(captured),
        attributes=None if nested else _read_attributes(node),
        nested=nested,
        taken=bool(text(one("const char *", api.Node_GetEpName, node))),
    )


def _read_value(graph: Graph, value: Any, seen: set[str]) -> None:
    api = ort()
    name = text(one("const char *", api.GetValueInfoName, value))
    if not name or name in seen:
        return
    seen.add(name)
    if one("bool", api.ValueInfo_IsGraphOutput, value):
        graph.outputs.add(name)
    if one("bool", api.ValueInfo_IsConstantInitializer, value):
        constant = one("const OrtValue *", api.ValueInfo_GetInitializerValue, value)
        if constant != ffi.NULL:
            graph.constants[name] = Tensor(constant)
    kind = one("const OrtTypeInfo *", api.GetValueInfoTypeInfo, value)
    if kind == ffi.NULL:
        return
    info = one("const OrtTensorTypeAndShapeInfo *", api.CastTypeInfoToTensorInfo, kind)
    if info == ffi.NULL:
        return
    number = one("int", api.GetTensorElementType, info)
    if not 0 < number <= _LAST_SHARED_TYPE:
        return
    graph.types[name] = ir.DataType(number)
    if api.TensorTypeAndShape_HasShape(info):
        graph.shapes[name] = _read_shape(info)


def _read_shape(info: Any) -> Sequence[int | None]:
    """Return the dimensions, None for those that are not fixed.

    Their names are left out: onnxruntime feeds sizes that differ to dimensions of one name, such as
    ``?``, and runs them.
    """
    api = ort()
    rank = one("size_t", api.GetDimensionsCount, info)
    dims = ffi.new("int64_t[]", rank + 1)
    if rank:
        check(api.GetDimensions(info, dims, rank))
    return [int(dims[axis]) if dims[axis] >= 0 else None for axis in range(rank)]


def _read_attributes(node: Any) -> tuple[ir.Attr, ...] | None:
    api = ort()
    kind = "const OrtOpAttr *"
    found = []
    for each in several(kind, api.Node_GetNumAttributes, api.Node_GetAttributes, node):
        attribute = _read_attribute(each)
        if attribute is None:
            return None
        found.append(attribute)
    return tuple(found)


def _read_attribute(pointer: Any) -> ir.Attr | None:
    api = ort()
    name = text(one("const char *", api.OpAttr_GetName, pointer))
    kind = one("int", api.OpAttr_GetType, pointer)
    if kind == _TENSOR:
        value = one("OrtValue *", api.OpAttr_GetTensorAttributeAsOrtValue, pointer)
        try:
            return ir.AttrTensor(name, tensor_of(value, name))
        except TypeError:
            return None
        finally:
            api.ReleaseValue(value)
    if not _INT <= kind <= _STRINGS:
        return None
    raw = _read_bytes(pointer, kind)
    if kind == _INT:
        return ir.AttrInt64(name, int(np.frombuffer(raw, np.int64)[0]))
    if kind == _INTS:
        return ir.AttrInt64s(name, np.frombuffer(raw, np.int64).tolist())
    if kind == _FLOAT:
        return ir.AttrFloat32(name, float(np.frombuffer(raw, np.float32)[0]))
    if kind == _FLOATS:
        return ir.AttrFloat32s(name, np.frombuffer(raw, np.float32).tolist())
    parts = [raw] if kind == _STRING else raw.split(b"\0")[:-1]
    texts = [part.decode("utf-8", "surrogateescape") for part in parts]
    return ir.AttrString(name, texts[0]) if kind == _STRING else ir.AttrStrings(name, texts)


def _read_bytes(pointer: Any, kind: int) -> bytes:
    api = ort()
    size = ffi.new("size_t *")
    # The first call may fail for want of room; it says how much is needed.
    status = api.ReadOpAttr(pointer, kind, ffi.NULL, 0, size)
    if status != ffi.NULL:
        api.ReleaseStatus(status)
    data = ffi.new("char[]", max(1, size[0]))
    if size[0]:
        check(api.ReadOpAttr(pointer, kind, data, size[0], size))
    return bytes(ffi.buffer(data, size[0]))


def tensor_of(value: Any, name: str, *, copy: bool = True) -> ir.TensorProtocol:
    """Return a tensor of onnxruntime, in memory of its own where `copy`.

    Raises:
        TypeError: of a type that cannot be copied byte by byte.
    """
    dtype, shape = element_type(value)
    if dtype is None or dtype == ir.DataType.STRING:
        raise TypeError(f"tensor {name!r} has elements of another type than numbers")
    raw = memory_of(value)
    if copy:
        raw = raw.copy()
    if dtype.bitwidth < 8:
        return ir.PackedTensor(raw, dtype, shape=ir.Shape(shape), name=name)
    return ir.Tensor(raw.view(dtype.numpy()).reshape(shape), dtype=dtype, name=name)


def element_type(value: Any) -> tuple[ir.DataType | None, tuple[int, ...]]:
    """Return the element type of a tensor, None for one that only onnxruntime knows; its shape."""
    kind, shape, rank = ffi.new("int *"), ffi.new("const int64_t **"), ffi.new("size_t *")
    check(ort().GetTensorElementTypeAndShapeDataReference(value, kind, shape, rank))
    dims = tuple(int(shape[0][axis]) for axis in range(rank[0]))
    return ir.DataType(kind[0]) if 0 < kind[0] <= _LAST_SHARED_TYPE else None, dims


def memory_of(value: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the bytes of a tensor where they lie, uint8[size]; valid as long as the tensor."""
    api = ort()
    size = one("size_t", api.GetTensorSizeInBytes, value)
    if not size:
        return np.empty(0, np.uint8)
    data = one("const void *", api.GetTensorData, value)
    return np.frombuffer(ffi.buffer(data, size), np.uint8)


def _sorted(nodes: Sequence[Node]) -> list[Node]:
    """Return nodes so that each comes after those that it reads from, else in the given order."""
    producers = {name: node for node in nodes for name in node.outputs if name}
    done: set[str] = set()
    found: list[Node] = []
    for first in nodes:
        stack = [(first, False)]
        while stack:
            node, ready = stack.pop()
            if node.name in done:
                continue
            if ready:
                done.add(node.name)
                found.append(node)
                continue
            stack.append((node, True))
            needed = [
                producers[name] for name in (*node.inputs, *node.captured) if name in producers
            ]
            stack += [(each, False) for each in reversed(needed) if each.name not in done]
    return found
