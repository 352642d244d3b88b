"""Models in float16 or bfloat16: computed in float32 while they are quantized, and narrow after it.

Backends find an int8 operator by its form: DequantizeLinear and QuantizeLinear with scales in
float32 around an operator in float32. So what becomes int8 has that form in a half-precision model,
too, with a Cast on its border, and calibration, smoothing and limits see float32 throughout.
Everything else has the type again that it had.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import onnx_ir as ir

from narrowpass.constants import constant_tensor
from narrowpass.inference import inferred
from narrowpass.io import ConvertedTensor
from narrowpass.subgraphs import nested_graphs, subgraphs
from narrowpass_int8_sym.storage import drop_unread, initializer, taken_names, unique

FLOAT = ir.DataType.FLOAT
HALVES = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})

_MARK = "narrowpass.int8-sym.half"
"""Metadata of nodes that compute in float32 for now: the type, and which inputs and outputs have
it. Removed by `narrow`."""

_BORDER = "narrowpass.int8-sym.border"
"""Metadata of Casts that `widen` has added."""

_TYPED = frozenset({"dtype", "output_dtype", "to", "value"})
"""Attributes that say, or imply, the type of a result."""

_OWN_TYPES = frozenset(
    {"Bernoulli", "Cast", "CastLike", "DequantizeLinear", "DynamicQuantizeLinear", "QuantizeLinear"}
)
"""Operators whose operand says what type the result has, or that convert."""

_EPILOGUE = frozenset(
    {"Add", "Clip", "Elu", "Gelu", "HardSwish", "LeakyRelu", "Mul", "Relu", "Sigmoid", "Tanh"}
)
"""Operators that a backend fuses with the product before them."""


class Widened(ConvertedTensor):
    """A constant of 16 bits, as float32.

    Attributes:
        behind_cast: whether the model has it so, by a Cast.
    """

    def __init__(self, source: ir.TensorProtocol, name: str | None, *, behind_cast: bool) -> None:
        super().__init__(source, FLOAT, name)
        self.behind_cast = behind_cast


def has_halves(model: ir.Model) -> bool:
    """Tell whether a model has constants, inputs, or results of Casts, of 16 bits."""
    for graph in nested_graphs(model.graph):
        tensors = [constant_tensor(value) for value in graph.initializers.values()]
        tensors += [
            constant_tensor(node.outputs[0]) for node in graph if node.op_type == "Constant"
        ]
        if any(tensor is not None and tensor.dtype in HALVES for tensor in tensors):
            return True
        if any(value.dtype in HALVES for value in graph.inputs):
            return True
        if any(_is_cast(node, dtype) for node in graph for dtype in HALVES):
            return True
    return False


def widen(model: ir.Model) -> bool:
    """Let a model compute in float32 what it computes with 16 bits; tell whether anything changed.

    Inputs and outputs keep their types. Operators of other domains, those that hold graphs, and
    those that are quantized already, stay as they are.

    Args:
        model: changed; `narrow` undoes it.
    """
    with inferred(model):
        halves = _halves(model)
        wide = [node for node in model.graph.all_nodes() if _can_be_wide(node, halves)]
        casts = [node for node in model.graph.all_nodes() if _stores_half(node)]
        if wide or casts:
            _Widening(model, halves, wide).run(casts)
    return bool(wide or casts)


def narrow(model: ir.Model) -> None:
    """Undo `widen`, but for the nodes that stay wide.

    Args:
        model: changed.
    """
    _Narrowing(model).run()


def stay_wide(nodes: Iterable[ir.Node]) -> None:
    """Let nodes compute in float32 for good: they have become int8."""
    for node in nodes:
        node.metadata_props.pop(_MARK, None)


def stay_wide_after(product: ir.Node) -> None:
    """Let what follows a product in float32, as its epilogue, compute in float32, too."""
    node = product
    while True:
        stay_wide([node])
        uses = tuple(node.outputs[0].uses())
        if len(uses) != 1 or node.outputs[0].is_graph_output():
            return
        node = uses[0].node
        computed = [v for v in node.inputs if v is not None and constant_tensor(v) is None]
        if node.op_type not in _EPILOGUE or _MARK not in node.metadata_props or len(computed) != 1:
            return


def _halves(model: ir.Model) -> dict[ir.Value, ir.DataType]:
    """Give the tensors of 16-bit floats."""
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
    makers = [value.producer() for value in node.inputs if value is not None]
    readers = [use.node for value in node.outputs for use in value.uses()]
    quantized = any(maker is not None and maker.op_type == "DequantizeLinear" for maker in makers)
    return not quantized and all(reader.op_type != "QuantizeLinear" for reader in readers)


def _is_tensor(value: ir.Value | None) -> bool:
    return value is None or value.type is None or isinstance(value.type, ir.TensorType)


def _stores_half(node: ir.Node) -> bool:
    """Tell whether a node makes a constant of 16 bits float32."""
    if node.op_type != "Cast" or node.domain or node.outputs[0].is_graph_output():
        return False
    given = node.inputs[0]
    tensor = constant_tensor(given)
    if given is None or tensor is None or given.is_graph_input() or tensor.dtype not in HALVES:
        return False
    return node.attributes.get_int("to", 0) == int(FLOAT)


def _graph_of(value: ir.Value) -> ir.Graph:
    producer = value.producer()
    graph = value.graph if producer is None else producer.graph
    if not isinstance(graph, ir.Graph):
        raise ValueError(f"{value.name!r} is in no graph")
    return graph


def _remove(node: ir.Node) -> None:
    if node.graph is not None:
        node.graph.remove(node, safe=True)


def _behind(value: ir.Value, node: ir.Node) -> None:
    """Put a node next to what computes a value."""
    producer, graph = value.producer(), _graph_of(value)
    if producer is not None:
        graph.insert_after(producer, node)
    elif len(graph):
        graph.insert_before(graph[0], node)
    else:
        graph.append(node)


def _cast(
    value: ir.Value,
    dtype: ir.DataType,
    name: str,
    taken: set[str | None],
    metadata: Mapping[str, str] | None = None,
) -> ir.Value:
    """Put a Cast behind a value; give its result, which has that name."""
    result = ir.Value(name=name, type=ir.TensorType(dtype), shape=value.shape)
    node = ir.node("Cast", [value], {"to": int(dtype)}, outputs=[result])
    node.name = unique(f"{name}/Cast", taken)
    node.metadata_props.update(metadata or {})
    _behind(value, node)
    return result


def _replace_output(model: ir.Model, old: ir.Value, new: ir.Value) -> None:
    """Let graphs give another value where they give this one."""
    for graph in nested_graphs(model.graph):
        for place, value in enumerate(graph.outputs):
            if value is old:
                graph.outputs[place] = new


class _Widening:
    """One call of `widen`."""

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
        made = {value for node in self._wide for value in node.outputs if value in self._halves}
        for node in self._wide:
            for index, value in enumerate(node.inputs):
                if value in self._halves and value not in made:
                    node.replace_input_with(index, self._float(value))
        for value in made:
            self._widen(value)
        for value in self._constants:
            drop_unread(value)

    def _inline(self, cast: ir.Node) -> None:
        """Put a constant in float32 in the place of one of 16 bits and its Cast."""
        result, source = cast.outputs[0], cast.inputs[0]
        tensor = constant_tensor(source)
        if source is None or tensor is None or not isinstance(cast.graph, ir.Graph):
            return
        if source not in self._constants:
            name = result.name or unique("constant", self._taken)
            result.name = unique(f"{name}.before", self._taken)
            stored = Widened(tensor, name, behind_cast=True)
            self._constants[source] = initializer(_graph_of(source), stored)
        result.replace_all_uses_with(self._constants[source])
        _remove(cast)

    def _mark(self, node: ir.Node) -> None:
        places = [
            ",".join(str(index) for index, value in enumerate(values) if value in self._halves)
            for values in (node.inputs, node.outputs)
        ]
        dtype = next(self._halves[v] for v in (*node.inputs, *node.outputs) if v in self._halves)
        node.metadata_props[_MARK] = ";".join([dtype.name, *places])

    def _float(self, value: ir.Value) -> ir.Value:
        """Give in float32 what is fed, a constant, or computed by a node that is as it was."""
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
            # Where nothing else reads what was rounded, it is gone at the end.
            producer.metadata_props[_BORDER] = ""
            return given
        name = unique(f"{value.name}.wide", self._taken)
        return _cast(value, FLOAT, name, self._taken, {_BORDER: ""})

    def _constant(self, value: ir.Value, tensor: ir.TensorProtocol) -> ir.Value:
        name, graph = value.name or "constant", _graph_of(value)
        alone = all(use.node in self._wide for use in value.uses()) and not value.is_graph_output()
        if alone:
            # Nothing reads it as it was, so that it keeps its name. The tensor is the caller's, and
            # would be renamed with the value.
            if value.producer() is None:
                del graph.initializers[name]
        else:
            name = unique(f"{name}.wide", self._taken)
        self._constants[value] = initializer(graph, Widened(tensor, name, behind_cast=False))
        return self._constants[value]

    def _widen(self, value: ir.Value) -> None:
        """Let a wide node give float32; who wants what it gave has a Cast before it."""
        dtype = self._halves[value]
        value.type = ir.TensorType(FLOAT)
        others = []
        for use in tuple(value.uses()):
            if use.node in self._wide:
                continue
            result = use.node.outputs[0]
            if _is_cast(use.node, FLOAT) and not result.is_graph_output():
                result.replace_all_uses_with(value)
                _remove(use.node)
            else:
                others.append(use)
        if not others and not value.is_graph_output():
            return
        name, output = value.name or "value", value.is_graph_output()
        if output:
            value.name = unique(f"{name}.wide", self._taken)
        else:
            name = unique(f"{name}.narrow", self._taken)
        half = _cast(value, dtype, name, self._taken, {_BORDER: ""})
        for use in others:
            use.node.replace_input_with(use.idx, half)
        if output:
            _replace_output(self._model, value, half)


def _is_cast(node: ir.Node | None, dtype: ir.DataType) -> bool:
    if node is None or node.op_type != "Cast" or node.domain:
        return False
    return node.attributes.get_int("to", 0) == int(dtype)


def _cast_float(node: ir.Node | None) -> ir.Value | None:
    """Give the computed float32 value that a Cast makes narrow."""
    if node is None or node.op_type != "Cast" or node.domain:
        return None
    given = node.inputs[0]
    return given if given is not None and given.dtype == FLOAT else None


class _Narrowing:
    """One call of `narrow`."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._taken = taken_names(model)
        self._casts: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}
        self._constants: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}

    def run(self) -> None:
        nodes = list(self._model.graph.all_nodes())
        read: dict[ir.Node, tuple[ir.DataType, list[int]]] = {}
        made: dict[ir.Value, ir.DataType] = {}
        for node in nodes:
            mark = node.metadata_props.pop(_MARK, None)
            if mark is None:
                continue
            name, inputs, outputs = mark.split(";")
            dtype = ir.DataType[name]
            read[node] = dtype, _numbers(inputs)
            made.update((node.outputs[index], dtype) for index in _numbers(outputs))
        for value, dtype in made.items():
            value.type = ir.TensorType(dtype)
        borders = [node for node in nodes if node.metadata_props.pop(_BORDER, None) is not None]
        for value, dtype in made.items():
            self._give(value, dtype, read)
        for node, (dtype, indices) in read.items():
            for index in indices:
                given = node.inputs[index]
                if given is not None and given not in made:
                    node.replace_input_with(index, self._half(given, dtype, read))
        for border in borders:
            result = border.outputs[0]
            if not result.uses() and not result.is_graph_output():
                _remove(border)
        for graph in nested_graphs(self._model.graph):
            for value in list(graph.initializers.values()):
                self._store(graph, value)

    def _give(self, value: ir.Value, dtype: ir.DataType, narrow: Collection[ir.Node]) -> None:
        """Let those who read a value that has 16 bits again have what they want."""
        for use in tuple(value.uses()):
            if use.node in narrow or use.node.graph is None:
                continue
            result = use.node.outputs[0]
            if not _is_cast(use.node, dtype):
                use.node.replace_input_with(use.idx, self._cast(value, FLOAT, "wide"))
                continue
            if result.is_graph_output():
                _replace_output(self._model, result, value)
                name, result.name = result.name, unique(f"{result.name}.before", self._taken)
                value.name = name
            result.replace_all_uses_with(value)
            _remove(use.node)

    def _half(self, value: ir.Value, dtype: ir.DataType, narrow: Collection[ir.Node]) -> ir.Value:
        """Give with 16 bits what is a constant, or computed in float32."""
        tensor, producer = value.const_value, value.producer()
        if tensor is not None and producer is None and not value.is_graph_input():
            return self._constant(value, tensor, dtype, narrow)
        given = producer.inputs[0] if producer is not None and _is_cast(producer, FLOAT) else None
        if given is not None and given.dtype == dtype:
            return given
        for use in value.uses():
            if _is_cast(use.node, dtype) and use.node.graph is _graph_of(value):
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
        same = isinstance(tensor, Widened) and tensor.source.dtype == dtype
        alone = all(use.node in narrow for use in value.uses()) and not value.is_graph_output()
        name, graph = value.name or "constant", _graph_of(value)
        if alone:
            del graph.initializers[name]
        else:
            name = unique(f"{name}.narrow", self._taken)
        source = tensor.source if isinstance(tensor, Widened) and same else tensor
        self._constants[key] = _stored(graph, source, dtype, name)
        return self._constants[key]

    def _cast(self, value: ir.Value, dtype: ir.DataType, suffix: str) -> ir.Value:
        key = value, dtype
        if key not in self._casts:
            name = unique(f"{value.name}.{suffix}", self._taken)
            self._casts[key] = _cast(value, dtype, name, self._taken)
        return self._casts[key]

    def _store(self, graph: ir.Graph, value: ir.Value) -> None:
        """Store a constant with 16 bits again that was so, and whose reader has not become int8."""
        tensor = value.const_value
        if not isinstance(tensor, Widened) or not tensor.behind_cast or not value.uses():
            return
        name = value.name or "constant"
        del graph.initializers[name]
        value.name = unique(f"{name}.before", self._taken)
        stored = unique(tensor.source.name or name, self._taken)
        source = _stored(graph, tensor.source, tensor.source.dtype, stored)
        result = _cast(source, FLOAT, name, self._taken)
        value.replace_all_uses_with(result)


def _stored(graph: ir.Graph, tensor: ir.TensorProtocol, dtype: ir.DataType, name: str) -> ir.Value:
    """Add a tensor with elements of a type to a graph; itself, where it is so already."""
    if tensor.dtype == dtype and tensor.name == name:
        return initializer(graph, tensor)
    return initializer(graph, ConvertedTensor(tensor, dtype, name))


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]
