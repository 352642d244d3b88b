"""Writing a placement into the model: types, casts, narrow constants."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from narrowpass.classify import ACCUMULATE
from narrowpass.constants import constant_tensor
from narrowpass.io import ConvertedTensor
from narrowpass.subgraphs import Opsets, model_graphs
from narrowpass_fp16.placement import Placement, Uses
from narrowpass_fp16.schemas import FLOAT, sums_attribute

_FLOATS = {
    "float64": ir.DataType.DOUBLE,
    "float32": ir.DataType.FLOAT,
    "float16": ir.DataType.FLOAT16,
    "bfloat16": ir.DataType.BFLOAT16,
}

Replace = Callable[[ir.Node | ir.Graph, int, ir.Value], None]


class Emission:
    """Changes a model as a placement says.

    Args:
        model: changed in place.
        placement: of its values.
        dtype: the narrow type.
        accumulate: gives what the sums of a node are to be kept in; empty for nothing.

    Attributes:
        casts: how many were written.
        constants: how many constants were stored narrow.
    """

    def __init__(
        self,
        model: ir.Model,
        placement: Placement,
        dtype: ir.DataType,
        accumulate: Callable[[ir.Node], str],
    ) -> None:
        self._model, self._placement, self._dtype = model, placement, dtype
        self._accumulate = accumulate
        self._taken = {
            name for graph in model_graphs(model) for name in _names(graph) if name is not None
        }
        self._opsets = Opsets(model)
        self._outer = {model.graph, *(function.graph for function in model.functions.values())}
        self.casts = self.constants = 0

    def run(self) -> None:
        """Change the model."""
        for (node, _), variable in self._placement.variables.items():
            if self._placement.narrow(variable):
                self._change_attributes(node)
                self._ask_for_sums(node)
        for value, uses in list(self._placement.uses.items()):
            if uses.maker is None:
                self._store(value, uses)
            else:
                self._type(value, uses)

    def _store(self, value: ir.Value, uses: Uses) -> None:
        """Store a constant as its readers need it."""
        narrow, wide = self._split(uses, narrow=True)
        graph, tensor = value.graph, value.const_value
        if not narrow or graph is None or tensor is None or value.name is None:
            return
        alone = not wide and not value.is_graph_output()
        name = value.name if alone else self._unique(f"{value.name}.{self._dtype.name.lower()}")
        made = ir.Value(
            name=name,
            shape=value.shape,
            type=ir.TensorType(self._dtype),
            const_value=ConvertedTensor(tensor, self._dtype, name),
        )
        for node, index in narrow:
            _replace(node, index, made)
        if alone:
            del graph.initializers[value.name]
        graph.initializers[name] = made
        self.constants += 1

    def _type(self, value: ir.Value, uses: Uses) -> None:
        """Give a computed value its type, and a cast for those that read it as the other."""
        is_narrow = self._placement.narrow(uses.maker)
        if is_narrow:
            value.type = ir.TensorType(self._dtype)
            if value.const_value is not None:  # the default of an input
                value.const_value = ConvertedTensor(value.const_value, self._dtype, value.name)
                self.constants += 1
        others, _ = self._split(uses, narrow=not is_narrow)
        if not others:
            return
        target = FLOAT if is_narrow else self._dtype
        name = self._unique(f"{value.name or 'value'}.{target.name.lower()}")
        made = ir.Value(name=name, type=ir.TensorType(target))
        if any(node in self._outer for node, _ in others):
            # The output of the model, or function, keeps its name.
            value.name, made.name = name, value.name
        cast = ir.node(
            "Cast",
            [value],
            attributes={"to": int(target)},
            outputs=[made],
            name=self._unique(f"{name}/Cast"),
        )
        for node, index in others:
            _replace(node, index, made)
        _insert(value, cast)
        self.casts += 1

    def _split(
        self, uses: Uses, *, narrow: bool
    ) -> tuple[list[tuple[ir.Node | ir.Graph, int]], list[tuple[ir.Node | ir.Graph, int]]]:
        """Give who reads a value as narrow (or wide), and who does not."""
        same: list[tuple[ir.Node | ir.Graph, int]] = []
        others: list[tuple[ir.Node | ir.Graph, int]] = []
        for variable, readers in uses.readers.items():
            chosen = same if self._placement.narrow(variable) == narrow else others
            chosen += readers
        return same, others

    def _change_attributes(self, node: ir.Node) -> None:
        """Change attributes that say the type of an output."""
        if node.domain or node.op_type not in ("Cast", "Constant", "ConstantOfShape"):
            return
        if node.op_type == "Cast":
            node.attributes["to"] = ir.AttrInt64("to", int(self._dtype))
            return
        tensor = constant_tensor(node.outputs[0])
        if node.op_type == "ConstantOfShape":
            value = node.attributes.get("value")
            tensor = None if value is None else value.as_tensor()
        if tensor is None:
            array = ir.DataType.FLOAT.numpy().type([0])
            tensor = ir.tensor(array)
        node.attributes.clear()
        node.attributes["value"] = ir.AttrTensor("value", ConvertedTensor(tensor, self._dtype))

    def _ask_for_sums(self, node: ir.Node) -> None:
        """Say what sums are kept in: by the operator's attribute if it has one, or as metadata."""
        name = self._accumulate(node)
        if not name:
            return
        attribute = sums_attribute(node, self._opsets.version(node))
        if not attribute:
            node.metadata_props[ACCUMULATE] = name
            return
        dtype = int(_FLOATS[name])
        if node.attributes.get_int(attribute, 0) != dtype:
            node.attributes[attribute] = ir.AttrInt64(attribute, dtype)

    def _unique(self, name: str) -> str:
        chosen, number = name, 1
        while chosen in self._taken:
            chosen, number = f"{name}.{number}", number + 1
        self._taken.add(chosen)
        return chosen


def _replace(node: ir.Node | ir.Graph, index: int, value: ir.Value) -> None:
    if isinstance(node, ir.Graph):
        node.outputs[index] = value
    else:
        node.replace_input_with(index, value)


def _insert(value: ir.Value, cast: ir.Node) -> None:
    """Put a cast right behind what makes its input."""
    producer = value.producer()
    if producer is not None and producer.graph is not None:
        producer.graph.insert_after(producer, cast)
        return
    graph = value.graph
    if graph is None:
        raise ValueError(f"{value.name!r} is in no graph")
    first = next(iter(graph), None)
    if first is None:
        graph.append(cast)
    else:
        graph.insert_before(first, cast)


def _names(graph: ir.Graph) -> list[str | None]:
    names = [value.name for value in (*graph.inputs, *graph.initializers.values())]
    for node in graph:
        names.append(node.name)
        names += [value.name for value in node.outputs]
    return names
