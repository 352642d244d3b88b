"""Writing a placement into the model: types, casts, narrow constants."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from narrowpass.framework.classify import ACCUMULATE
from narrowpass_fp16.placement.placement import Placement, Uses
from narrowpass_fp16.schemas import FLOAT, accumulator_attribute
from narrowpass_ir.constants import constant_tensor
from narrowpass_ir.io import ConvertedTensor
from narrowpass_ir.subgraphs import Opsets, model_graphs

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
        accumulate: returns the requested type of a node's accumulators; empty for none.

    Attributes:
        casts: how many were written.
        constants: how many constants were stored narrow.
        changed: whether anything was changed.
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
        self._without_effect: list[ir.Node] = []
        self.casts = self.constants = 0
        self.changed = False

    def run(self) -> None:
        """Change the model."""
        for (node, name), variable in self._placement.variables.items():
            if self._placement.narrow(variable):
                self._change_attributes(node, name)
                self._request_accumulators(node)
                self.changed = True
        for value, uses in list(self._placement.uses.items()):
            if uses.producer is None:
                self._store(value, uses)
            else:
                self._type(value, uses)
        for node in self._without_effect:
            self._bypass(node)

    def _store(self, value: ir.Value, uses: Uses) -> None:
        """Store a constant as its readers need it."""
        narrow, wide = self._split(uses, narrow=True)
        if not narrow or value.name is None:
            return
        alone = not wide and not value.is_graph_output()
        producer = value.producer()
        if producer is None:
            narrowed = self._narrow_initializer(value, value, alone=alone)
        elif producer.op_type == "Constant":
            narrowed = self._narrow_constant(producer, alone=alone)
        else:
            narrowed = self._narrow_stored(producer, alone=alone)
        if narrowed is not value:
            for node, index in narrow:
                _replace(node, index, narrowed)
        if producer is not None and producer.graph is not None and alone and narrowed is not value:
            producer.graph.remove(producer, safe=True)
        self.changed = True

    def _narrow_initializer(self, value: ir.Value, source: ir.Value, *, alone: bool) -> ir.Value:
        """Store a constant narrow where `source` is, which goes if it was there for it alone."""
        graph, tensor = source.graph, source.const_value
        if graph is None or tensor is None or value.name is None or source.name is None:
            raise ValueError(f"{source.name!r} is no initializer")
        name = source.name if alone else self._unique(f"{value.name}.{self._dtype.name.lower()}")
        narrowed = ir.Value(
            name=name,
            shape=value.shape,
            type=ir.TensorType(self._dtype),
            const_value=ConvertedTensor(tensor, self._dtype, name),
        )
        if alone:
            del graph.initializers[source.name]
        graph.initializers[name] = narrowed
        self.constants += 1
        return narrowed

    def _narrow_constant(self, node: ir.Node, *, alone: bool) -> ir.Value:
        """Let a Constant be narrow, or put one that is beside it."""
        value = node.outputs[0]
        tensor = constant_tensor(value)
        if tensor is None or node.graph is None:
            raise ValueError(f"{value.name!r} is no constant")
        narrow = ConvertedTensor(tensor, self._dtype)
        self.constants += 1
        if alone:
            node.attributes.clear()
            node.attributes["value"] = ir.AttrTensor("value", narrow)
            value.type = ir.TensorType(self._dtype)
            return value
        name = self._unique(f"{value.name}.{self._dtype.name.lower()}")
        narrowed = ir.Value(name=name, shape=value.shape, type=ir.TensorType(self._dtype))
        beside = ir.node(
            "Constant", [], attributes={"value": narrow}, outputs=[narrowed], name=name
        )
        node.graph.insert_after(node, beside)
        return narrowed

    def _narrow_stored(self, cast: ir.Node, *, alone: bool) -> ir.Value:
        """Return a 16-bit constant with a Cast to float32 as it is, or in the other 16-bit type."""
        source = cast.inputs[0]
        if source is None or source.const_value is None:
            raise ValueError(f"{cast.name!r} reads no constant")
        if source.const_value.dtype == self._dtype:
            return source
        only = alone and len(source.uses()) == 1 and not source.is_graph_output()
        return self._narrow_initializer(cast.outputs[0], source, alone=only)

    def _type(self, value: ir.Value, uses: Uses) -> None:
        """Set the type of a computed value, and insert a cast for users of the other type."""
        is_narrow = self._placement.narrow(uses.producer)
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
        narrowed = ir.Value(name=name, type=ir.TensorType(target))
        if any(node in self._outer for node, _ in others):
            # The output of the model, or function, keeps its name.
            value.name, narrowed.name = name, value.name
        cast = ir.node(
            "Cast",
            [value],
            attributes={"to": int(target)},
            outputs=[narrowed],
            name=self._unique(f"{name}/Cast"),
        )
        for node, index in others:
            _replace(node, index, narrowed)
        _insert(value, cast)
        self.casts += 1

    def _split(
        self, uses: Uses, *, narrow: bool
    ) -> tuple[list[tuple[ir.Node | ir.Graph, int]], list[tuple[ir.Node | ir.Graph, int]]]:
        """Return who reads a value as narrow (or wide), and who does not."""
        same: list[tuple[ir.Node | ir.Graph, int]] = []
        others: list[tuple[ir.Node | ir.Graph, int]] = []
        for variable, readers in uses.readers.items():
            chosen = same if self._placement.narrow(variable) == narrow else others
            chosen += readers
        return same, others

    def _change_attributes(self, node: ir.Node, name: str) -> None:
        """Change attributes that say the type of an output."""
        if node.domain or node.op_type not in ("Cast", "ConstantOfShape"):
            return
        if node.op_type == "Cast":
            if name != "T2":
                return
            node.attributes["to"] = ir.AttrInt64("to", int(self._dtype))
            source = node.inputs[0]
            if source is not None and source.dtype == self._dtype:
                self._without_effect.append(node)
            return
        value = node.attributes.get("value")
        tensor = ir.tensor(np.zeros(1, np.float32)) if value is None else value.as_tensor()
        node.attributes.clear()
        node.attributes["value"] = ir.AttrTensor("value", ConvertedTensor(tensor, self._dtype))

    def _bypass(self, node: ir.Node) -> None:
        """Take away a Cast from the narrow type that has become one to it."""
        source, result = node.inputs[0], node.outputs[0]
        if source is None or result.is_graph_output() or node.graph is None:
            return
        result.replace_all_uses_with(source)
        node.graph.remove(node, safe=True)

    def _request_accumulators(self, node: ir.Node) -> None:
        """Set the accumulators' type: by the operator's attribute if it has one, or as metadata."""
        name = self._accumulate(node)
        if not name:
            return
        attribute = accumulator_attribute(node, self._opsets.version(node))
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
    """Put a cast right after the producer of its input."""
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
