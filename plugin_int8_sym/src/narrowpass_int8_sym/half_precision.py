"""Half precision: a float16 or bfloat16 model is upcast to float32, quantized, and restored.

Backends match an int8 operator by its Q/DQ pattern: DequantizeLinear and QuantizeLinear with
float32 scales around a float32 operator. So nodes that become int8 have that pattern in a
half-precision model, too, with Casts around it, and calibration and smoothing work on float32. All
other nodes get their own type back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import onnx_ir as ir

from narrowpass_int8_sym.weights import add_initializer, drop_unread, taken_names
from narrowpass_ir.constants import constant_tensor
from narrowpass_ir.inference import inferred
from narrowpass_ir.io import ConvertedTensor
from narrowpass_ir.subgraphs import nested_graphs, reserve_name, subgraphs

FLOAT = ir.DataType.FLOAT


HALVES = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})


MARK = "narrowpass.int8-sym.half"
"""Metadata of nodes that are float32 between `upcast` and `downcast`: their 16-bit type, and the
indices of inputs and outputs that have it. Removed by `downcast`."""


BORDER = "narrowpass.int8-sym.border"
"""Metadata of Casts that `upcast` has inserted."""


class UpcastTensor(ConvertedTensor):
    """A 16-bit constant, converted to float32.

    Attributes:
        behind_cast: whether the model itself converts it, by a Cast.
    """

    def __init__(self, source: ir.TensorProtocol, name: str | None, *, behind_cast: bool) -> None:
        super().__init__(source, FLOAT, name)
        self.behind_cast = behind_cast


def graph_of(value: ir.Value) -> ir.Graph:
    """Return the graph of a value."""
    producer = value.producer()
    graph = value.graph if producer is None else producer.graph
    if not isinstance(graph, ir.Graph):
        raise ValueError(f"{value.name!r} is in no graph")
    return graph


def remove(node: ir.Node) -> None:
    """Remove a node from its graph, if it is still in one."""
    if node.graph is not None:
        node.graph.remove(node, safe=True)


def is_cast(node: ir.Node | None, dtype: ir.DataType) -> bool:
    """Return whether a node is a Cast to a type."""
    if node is None or node.op_type != "Cast" or node.domain:
        return False
    return node.attributes.get_int("to", 0) == int(dtype)


def _behind(value: ir.Value, node: ir.Node) -> None:
    """Insert a node after the producer of a value, or at the beginning of its graph."""
    producer, graph = value.producer(), graph_of(value)
    if producer is not None:
        graph.insert_after(producer, node)
    elif len(graph):
        graph.insert_before(graph[0], node)
    else:
        graph.append(node)


def cast_behind(
    value: ir.Value,
    dtype: ir.DataType,
    name: str,
    taken: set[str | None],
    metadata: Mapping[str, str] | None = None,
) -> ir.Value:
    """Insert a Cast of a value; return its result, named `name`."""
    result = ir.Value(name=name, type=ir.TensorType(dtype), shape=value.shape)
    node = ir.node("Cast", [value], {"to": int(dtype)}, outputs=[result])
    node.name = reserve_name(f"{name}/Cast", taken)
    node.metadata_props.update(metadata or {})
    _behind(value, node)
    return result


def replace_output(model: ir.Model, old: ir.Value, new: ir.Value) -> None:
    """Replace a value among the outputs of all graphs."""
    for graph in nested_graphs(model.graph):
        for place, value in enumerate(graph.outputs):
            if value is old:
                graph.outputs[place] = new


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


_EPILOGUE = frozenset(
    {"Add", "Clip", "Elu", "Gelu", "HardSwish", "LeakyRelu", "Mul", "Relu", "Sigmoid", "Tanh"}
)
"""Operators that a backend fuses into the epilogue of the matmul or convolution before them."""


def downcast(model: ir.Model) -> None:
    """Undo `upcast`, except in nodes that stay float32.

    Args:
        model: changed.
    """
    _Downcast(model).run()


def keep_float32(nodes: Iterable[ir.Node]) -> None:
    """Keep nodes in float32, because they have become int8: `downcast` skips them."""
    for node in nodes:
        node.metadata_props.pop(MARK, None)


def keep_epilogue_float32(weighted: ir.Node) -> None:
    """Keep a weighted node and its fused epilogue in float32."""
    node = weighted
    while True:
        keep_float32([node])
        uses = tuple(node.outputs[0].uses())
        if len(uses) != 1 or node.outputs[0].is_graph_output():
            return
        node = uses[0].node
        computed = [v for v in node.inputs if v is not None and constant_tensor(v) is None]
        if node.op_type not in _EPILOGUE or MARK not in node.metadata_props or len(computed) != 1:
            return


class _Downcast:
    """One call of `downcast`."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._taken = taken_names(model)
        self._casts: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}
        self._constants: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}

    def run(self) -> None:
        nodes = list(self._model.graph.all_nodes())
        read: dict[ir.Node, tuple[ir.DataType, list[int]]] = {}
        computed: dict[ir.Value, ir.DataType] = {}
        for node in nodes:
            mark = node.metadata_props.pop(MARK, None)
            if mark is None:
                continue
            name, inputs, outputs = mark.split(";")
            dtype = ir.DataType[name]
            read[node] = dtype, _numbers(inputs)
            computed.update((node.outputs[index], dtype) for index in _numbers(outputs))
        for value, dtype in computed.items():
            value.type = ir.TensorType(dtype)
        borders = [node for node in nodes if node.metadata_props.pop(BORDER, None) is not None]
        for value, dtype in computed.items():
            self._connect_consumers(value, dtype, read)
        for node, (dtype, indices) in read.items():
            for index in indices:
                given = node.inputs[index]
                if given is not None and given not in computed:
                    node.replace_input_with(index, self._half(given, dtype, read))
        for border in borders:
            result = border.outputs[0]
            if not result.uses() and not result.is_graph_output():
                remove(border)
        for graph in nested_graphs(self._model.graph):
            for value in list(graph.initializers.values()):
                self._store(graph, value)

    def _connect_consumers(
        self, value: ir.Value, dtype: ir.DataType, narrow: Collection[ir.Node]
    ) -> None:
        """Insert a Cast before float32 consumers of a 16-bit value, and drop Casts to 16 bits."""
        for use in tuple(value.uses()):
            if use.node in narrow or use.node.graph is None:
                continue
            result = use.node.outputs[0]
            if not is_cast(use.node, dtype):
                use.node.replace_input_with(use.idx, self._cast(value, FLOAT, "wide"))
                continue
            if result.is_graph_output():
                replace_output(self._model, result, value)
                name, result.name = result.name, reserve_name(f"{result.name}.before", self._taken)
                value.name = name
            result.replace_all_uses_with(value)
            remove(use.node)

    def _half(self, value: ir.Value, dtype: ir.DataType, narrow: Collection[ir.Node]) -> ir.Value:
        """Return the 16-bit form of a constant, or of a value computed in float32."""
        tensor, producer = value.const_value, value.producer()
        if tensor is not None and producer is None and not value.is_graph_input():
            return self._constant(value, tensor, dtype, narrow)
        given = producer.inputs[0] if producer is not None and is_cast(producer, FLOAT) else None
        if given is not None and given.dtype == dtype:
            return given
        for use in value.uses():
            if is_cast(use.node, dtype) and use.node.graph is graph_of(value):
                self._casts.setdefault((value, dtype), use.node.outputs[0])
        return self._cast(value, dtype, "narrow")

    def _constant(
        self,
        value: ir.Value,
        tensor: ir.TensorProtocol,
        dtype: ir.DataType,
        narrow: Collection[ir.Node],
    ) -> ir.Value:
        if tensor.dtype == dtype:
            return value
        key = value, dtype
        if key in self._constants:
            return self._constants[key]
        same = isinstance(tensor, UpcastTensor) and tensor.source.dtype == dtype
        alone = all(use.node in narrow for use in value.uses()) and not value.is_graph_output()
        name, graph = value.name or "constant", graph_of(value)
        if alone:
            del graph.initializers[name]
        else:
            name = reserve_name(f"{name}.narrow", self._taken)
        source = tensor.source if isinstance(tensor, UpcastTensor) and same else tensor
        self._constants[key] = _stored(graph, source, dtype, name)
        return self._constants[key]

    def _cast(self, value: ir.Value, dtype: ir.DataType, suffix: str) -> ir.Value:
        key = value, dtype
        if key not in self._casts:
            name = reserve_name(f"{value.name}.{suffix}", self._taken)
            self._casts[key] = cast_behind(value, dtype, name, self._taken)
        return self._casts[key]

    def _store(self, graph: ir.Graph, value: ir.Value) -> None:
        """Restore a 16-bit constant and its Cast, if its consumers have not become int8."""
        tensor = value.const_value
        if not isinstance(tensor, UpcastTensor) or not tensor.behind_cast or not value.uses():
            return
        name = value.name or "constant"
        del graph.initializers[name]
        value.name = reserve_name(f"{name}.before", self._taken)
        stored = reserve_name(tensor.source.name or name, self._taken)
        source = _stored(graph, tensor.source, tensor.source.dtype, stored)
        result = cast_behind(source, FLOAT, name, self._taken)
        value.replace_all_uses_with(result)


def _stored(graph: ir.Graph, tensor: ir.TensorProtocol, dtype: ir.DataType, name: str) -> ir.Value:
    """Add a tensor, converted to a dtype, as an initializer."""
    if tensor.dtype == dtype and tensor.name == name:
        return add_initializer(graph, tensor)
    return add_initializer(graph, ConvertedTensor(tensor, dtype, name))


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]
