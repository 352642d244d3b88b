"""Single nodes on onnxruntime: what other backends leave runs here, not in Python."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import onnx_ir as ir

from narrowpass.bundle import Bundle
from narrowpass.errors import BackendError, NarrowpassError
from narrowpass.runtime.backend import CompileOptions

if TYPE_CHECKING:
    from narrowpass import Program

Compile: TypeAlias = "Callable[[Bundle, CompileOptions], Program]"
"""Compiles a bundle for onnxruntime; see `Backend.compile`."""

_DRAWING = frozenset(
    {
        "Bernoulli",
        "Dropout",
        "Multinomial",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
    }
)
"""Operators that draw random numbers, of a generator of their own."""

_DIFFERENT = frozenset(
    {
        "Attention",
        "ConvInteger",
        "DFT",
        "LinearAttention",
        "MaxUnpool",
        "ReduceMax",
        "STFT",
    }
)
"""Operators of which onnxruntime fails tests of the ONNX node suite."""

_KNOWN = frozenset(
    {
        ir.DataType.BOOL,
        ir.DataType.DOUBLE,
        ir.DataType.FLOAT,
        ir.DataType.FLOAT16,
        ir.DataType.INT8,
        ir.DataType.INT16,
        ir.DataType.INT32,
        ir.DataType.INT64,
        ir.DataType.UINT8,
        ir.DataType.UINT16,
        ir.DataType.UINT32,
        ir.DataType.UINT64,
    }
)
"""Element types that onnxruntime and numpy have in common."""

_RANKS = {"MaxRoiPool": (4, 2)}
"""Ranks of operands without which no kernel of onnxruntime is called. It checks shapes that a model
declares, and nodes alone declare none."""

_POSITIVE = frozenset(
    {"blocksize", "dilations", "group", "kernel_shape", "num_groups", "num_outputs", "strides"}
)
"""Attributes that are 1 or more in every valid node: onnxruntime is given no other ones."""

_NESTED = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
_HEAVY = frozenset({"Conv", "ConvTranspose", "Einsum", "GRU", "Gemm", "LSTM", "MatMul", "RNN"})
"""Operators whose sessions have as many threads as the program. Others have one: each session would
have a pool of its own."""

_log = logging.getLogger("narrowpass.onnxruntime")


class NodeSession:
    """A node as a session of onnxruntime.

    Args:
        model: of the node alone, with its initializers.
        threads: of a run.
        compile_: compiles it.

    Attributes:
        kernel: for `explain`.
        inputs: names of the values that it is fed.

    Raises:
        BackendError: onnxruntime has no kernel for it.
    """

    kernel = "onnxruntime"

    def __init__(self, model: ir.Model, threads: int, compile_: Compile) -> None:
        self._bundle = Bundle({"main": model}, states=())
        self._options = CompileOptions(threads=threads)
        self._compile = compile_
        node = model.graph[0]
        self._name = node.name or model.graph.outputs[0].name
        ranks = () if node.domain else _RANKS.get(node.op_type, ())
        self._ranks = {
            value.name or "": rank
            for value, rank in zip(node.inputs, ranks, strict=False)
            if value is not None
        }
        for name, value in model.graph.initializers.items():
            self._check(name, value.const_value)
        self._program, self._process = self._compiled()
        self.inputs = tuple(value.name or "" for value in model.graph.inputs)

    def run(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the outputs of the node, by name.

        Raises:
            BackendError: it fails.
        """
        for name in self._ranks.keys() & values.keys():
            self._check(name, values[name])
        if self._process != os.getpid():
            self._program, self._process = self._compiled()  # a fork copies no threads
        try:
            return dict(self._program.run({name: values[name] for name in self.inputs}))
        except BackendError as error:
            reason = error.__cause__ or error  # as onnxruntime says it
            raise BackendError(f"node {self._name!r} failed: {reason}") from error

    def _check(self, name: str, value: Any) -> None:
        rank, shape = self._ranks.get(name), list(value.shape)
        if rank is not None and len(shape) != rank:
            raise BackendError(f"node {self._name!r} failed: {name!r} is of {shape}, not {rank}-D")

    def _compiled(self) -> tuple[Program, int]:
        return self._compile(self._bundle, self._options), os.getpid()


def node_session(
    node: ir.Node, model: ir.Model, threads: int, compile_: Compile
) -> NodeSession | None:
    """Return a node as a session; None for one that is left.

    Args:
        node: with the types of its values.
        model: that it is of.
        threads: that a run may use.
        compile_: compiles it.
    """
    reason = _left(node, model)
    if not reason:
        used = threads if node.op_type in _HEAVY else 1
        try:
            return NodeSession(_alone(node, model), used, compile_)
        except NarrowpassError as error:
            reason = str(error)
    _log.info("%s %r stays with the reference evaluator: %s", node.op_type, node.name, reason)
    return None


def _left(node: ir.Node, model: ir.Model) -> str:
    """Return why a node is left before onnxruntime is asked; empty where it is not."""
    if any(key[:2] == (node.domain, node.op_type) for key in model.functions):
        return "it is a function of the model"
    if node.op_type in _DRAWING:
        return "it draws random numbers"
    if not node.domain and node.op_type in _DIFFERENT:
        return "onnxruntime has other results than the specification"
    if node.op_type == "Resize" and _aligns_corners(node):
        return "onnxruntime aligns corners to sizes that are rounded"
    if any(attribute.type in _NESTED for attribute in node.attributes.values()):
        return "it has subgraphs"
    for name in _POSITIVE & node.attributes.keys():
        given = node.attributes[name].value
        if any(not isinstance(n, int) or n < 1 for n in (given if _is_list(given) else [given])):
            return f"its {name} is not from 1 on"
    for value in (*node.inputs, *node.outputs):
        if value is None or not value.name:
            continue
        if not isinstance(value.type, ir.TensorType) or value.dtype not in _KNOWN:
            return f"{value.name!r} is no tensor of numbers that numpy has, or of an unknown type"
        if value.is_initializer() and value.is_graph_input():
            return f"{value.name!r} has a default that may be overridden"
    return ""


def _is_list(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _aligns_corners(node: ir.Node) -> bool:
    mode = node.attributes.get("coordinate_transformation_mode")
    return mode is not None and mode.as_string() == "align_corners"


def _alone(node: ir.Node, model: ir.Model) -> ir.Model:
    """Return a model of a node. Inputs have no shapes: those that a model says may be wrong."""
    values: dict[str, ir.Value] = {}

    def value(given: ir.Value | None) -> ir.Value | None:
        if given is None or not given.name:
            return None
        if given.name not in values:
            values[given.name] = ir.Value(name=given.name, type=given.type)
            values[given.name].const_value = given.const_value if given.is_initializer() else None
        return values[given.name]

    inputs = [value(each) for each in node.inputs]
    constants = [each for each in values.values() if each.const_value is not None]
    fed = [each for each in values.values() if each.const_value is None]
    outputs = [value(each) or ir.Value(name="") for each in node.outputs]
    clone = ir.Node(
        node.domain,
        node.op_type,
        inputs,
        node.attributes.values(),
        outputs=outputs,
        name=node.name,
    )
    opsets = dict(model.opset_imports)
    if node.version:
        opsets[node.domain] = node.version
    graph = ir.Graph(
        fed,
        [each for each in outputs if each.name],
        nodes=[clone],
        initializers=constants,
        opset_imports=opsets,
        name="node",
    )
    return ir.Model(graph, ir_version=model.ir_version)
