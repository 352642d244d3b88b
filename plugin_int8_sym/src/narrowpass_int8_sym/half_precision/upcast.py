"""Upcasts the 16-bit nodes of a model to float32."""

from __future__ import annotations

import onnx_ir as ir

from narrowpass_int8_sym.half_precision.casts import (
    BORDER,
    FLOAT,
    HALVES,
    MARK,
    UpcastTensor,
    cast_behind,
    graph_of,
    is_cast,
    remove,
    replace_output,
)
from narrowpass_int8_sym.storage import add_initializer, drop_unread, taken_names
from narrowpass_ir.constants import constant_tensor
from narrowpass_ir.inference import inferred
from narrowpass_ir.subgraphs import nested_graphs, reserve_name, subgraphs

_TYPED = frozenset({"dtype", "output_dtype", "to", "value"})
"""Attributes that set, or imply, the type of a result."""


_OWN_TYPES = frozenset(
    {"Bernoulli", "Cast", "CastLike", "DequantizeLinear", "DynamicQuantizeLinear", "QuantizeLinear"}
)
"""Operators that convert, or whose result type does not follow from the type of their inputs."""


def has_half_precision(model: ir.Model) -> bool:
    """Return whether a model has 16-bit float constants, inputs, or results of Casts."""
    for graph in nested_graphs(model.graph):
        tensors = [constant_tensor(value) for value in graph.initializers.values()]
        tensors += [
            constant_tensor(node.outputs[0]) for node in graph if node.op_type == "Constant"
        ]
        if any(tensor is not None and tensor.dtype in HALVES for tensor in tensors):
            return True
        if any(value.dtype in HALVES for value in graph.inputs):
            return True
        if any(is_cast(node, dtype) for node in graph for dtype in HALVES):
            return True
    return False


def upcast(model: ir.Model) -> bool:
    """Upcast 16-bit nodes of a model to float32; return whether anything changed.

    Inputs and outputs keep their types. Operators of other domains, those with subgraphs, and those
    that are quantized already are not changed.

    Args:
        model: changed; `downcast` undoes it.
    """
    declared = {value.name: value.shape for value in model.graph.outputs}
    with inferred(model):
        halves = _halves(model)
        wide = [node for node in model.graph.all_nodes() if _can_be_wide(node, halves)]
        casts = [node for node in model.graph.all_nodes() if _stores_half(node)]
        if wide or casts:
            _Upcast(model, halves, wide).run(casts)
    for value in model.graph.outputs:  # new ones have what was inferred meanwhile
        value.shape = declared[value.name]
    return bool(wide or casts)


def _halves(model: ir.Model) -> dict[ir.Value, ir.DataType]:
    """Return the values that are tensors of 16-bit floats, with their types."""
    found: dict[ir.Value, ir.DataType] = {}
    for graph in nested_graphs(model.graph):
        values = [*graph.inputs, *graph.initializers.values()]
        values += [value for node in graph for value in node.outputs]
        for value in values:
            kind, dtype = value.type, value.dtype
            if kind is None and value.const_value is not None:
                kind, dtype = ir.TensorType(value.const_value.dtype), value.const_value.dtype
            if isinstance(kind, ir.TensorType) and dtype in HALVES:
                found[value] = dtype
    return found


def _can_be_wide(node: ir.Node, halves: dict[ir.Value, ir.DataType]) -> bool:
    if node.domain or node.op_type in _OWN_TYPES or any(True for _ in subgraphs(node)):
        return False
    if not _TYPED.isdisjoint(node.attributes) or node.op_type == "Constant":
        return False
    values = [*node.inputs, *node.outputs]
    kinds = {halves[value] for value in values if value in halves}
    if len(kinds) != 1 or any(not _is_tensor(value) for value in values):
        return False
    producers = [value.producer() for value in node.inputs if value is not None]
    readers = [use.node for value in node.outputs for use in value.uses()]
    quantized = any(each is not None and each.op_type == "DequantizeLinear" for each in producers)
    return not quantized and all(reader.op_type != "QuantizeLinear" for reader in readers)


def _is_tensor(value: ir.Value | None) -> bool:
    return value is None or value.type is None or isinstance(value.type, ir.TensorType)


def _stores_half(node: ir.Node) -> bool:
    """Return whether a node is the Cast of a 16-bit constant to float32."""
    if node.op_type != "Cast" or node.domain or node.outputs[0].is_graph_output():
        return False
    given = node.inputs[0]
    tensor = constant_tensor(given)
    if given is None or tensor is None or given.is_graph_input() or tensor.dtype not in HALVES:
        return False
    return node.attributes.get_int("to", 0) == int(FLOAT)


class _Upcast:
    """One call of `upcast`."""

    def __init__(
        self, model: ir.Model, halves: dict[ir.Value, ir.DataType], wide: list[ir.Node]
    ) -> None:
        self._model = model
        self._halves, self._wide = halves, dict.fromkeys(wide)
        self._taken = taken_names(model)
        self._constants: dict[ir.Value, ir.Value] = {}
        self._floats: dict[ir.Value, ir.Value] = {}

    def run(self, casts: list[ir.Node]) -> None:
        for cast in casts:
            self._inline(cast)
        for node in self._wide:
            self._mark(node)
        computed = {value for node in self._wide for value in node.outputs if value in self._halves}
        for node in self._wide:
            for index, value in enumerate(node.inputs):
                if value in self._halves and value not in computed:
                    node.replace_input_with(index, self._float(value))
        for value in computed:
            self._upcast(value)
        for value in self._constants:
            drop_unread(value)

    def _inline(self, cast: ir.Node) -> None:
        """Replace a 16-bit constant and its Cast by a float32 constant."""
        result, source = cast.outputs[0], cast.inputs[0]
        tensor = constant_tensor(source)
        if source is None or tensor is None or not isinstance(cast.graph, ir.Graph):
            return
        if source not in self._constants:
            name = result.name or reserve_name("constant", self._taken)
            result.name = reserve_name(f"{name}.before", self._taken)
            stored = UpcastTensor(tensor, name, behind_cast=True)
            self._constants[source] = add_initializer(graph_of(source), stored)
        result.replace_all_uses_with(self._constants[source])
        remove(cast)

    def _mark(self, node: ir.Node) -> None:
        places = [
            ",".join(str(index) for index, value in enumerate(values) if value in self._halves)
            for values in (node.inputs, node.outputs)
        ]
        dtype = next(self._halves[v] for v in (*node.inputs, *node.outputs) if v in self._halves)
        node.metadata_props[MARK] = ";".join([dtype.name, *places])

    def _float(self, value: ir.Value) -> ir.Value:
        """Return the float32 form of an input, a constant, or the result of a 16-bit node."""
        if value in self._floats:
            return self._floats[value]
        if value in self._constants:
            return self._constants[value]
        tensor, producer = constant_tensor(value), value.producer()
        if tensor is not None and not value.is_graph_input():
            found = self._constant(value, tensor)
        else:
            found = self._border(value, producer)
        self._floats[value] = found
        return found

    def _border(self, value: ir.Value, producer: ir.Node | None) -> ir.Value:
        given = _cast_float(producer)
        if producer is not None and given is not None:
            # `downcast` removes it where nothing else reads the rounded value.
            producer.metadata_props[BORDER] = ""
            return given
        name = reserve_name(f"{value.name}.wide", self._taken)
        return cast_behind(value, FLOAT, name, self._taken, {BORDER: ""})

    def _constant(self, value: ir.Value, tensor: ir.TensorProtocol) -> ir.Value:
        name, graph = value.name or "constant", graph_of(value)
        alone = all(use.node in self._wide for use in value.uses()) and not value.is_graph_output()
        if alone:
            # Nothing reads the 16-bit form, so that the float32 one keeps its name. The tensor
            # belongs to the caller, and would be renamed with the value.
            if value.producer() is None:
                del graph.initializers[name]
        else:
            name = reserve_name(f"{name}.wide", self._taken)
        self._constants[value] = add_initializer(
            graph, UpcastTensor(tensor, name, behind_cast=False)
        )
        return self._constants[value]

    def _upcast(self, value: ir.Value) -> None:
        """Set a result to float32, and insert a Cast before its 16-bit consumers."""
        dtype = self._halves[value]
        value.type = ir.TensorType(FLOAT)
        others = []
        for use in tuple(value.uses()):
            if use.node in self._wide:
                continue
            result = use.node.outputs[0]
            if is_cast(use.node, FLOAT) and not result.is_graph_output():
                result.replace_all_uses_with(value)
                remove(use.node)
            else:
                others.append(use)
        if not others and not value.is_graph_output():
            return
        name, output = value.name or "value", value.is_graph_output()
        if output:
            value.name = reserve_name(f"{name}.wide", self._taken)
        else:
            name = reserve_name(f"{name}.narrow", self._taken)
        half = cast_behind(value, dtype, name, self._taken, {BORDER: ""})
        for use in others:
            use.node.replace_input_with(use.idx, half)
        if output:
            replace_output(self._model, value, half)


def _cast_float(node: ir.Node | None) -> ir.Value | None:
    """Return the float32 value that a Cast downcasts; None for other nodes."""
    if node is None or node.op_type != "Cast" or node.domain:
        return None
    given = node.inputs[0]
    return given if given is not None and given.dtype == FLOAT else None
