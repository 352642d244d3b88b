"""One graph that is being rewritten: changes that keep every name that others may know."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from narrowpass_constant_folding.graphs.constants import constant_of
from narrowpass_constant_folding.graphs.matching import broadcast_constant
from narrowpass_constant_folding.graphs.names import Names
from narrowpass_constant_folding.graphs.scopes import Root, inner_nodes, output_positions
from narrowpass_constant_folding.shapes.values import ShapeValues


@dataclass
class Scope:
    """A graph, with what may be asked of it and done to it.

    Nodes that are removed are cut off at once, so that what they read has one reader less, and
    leave the graph when `commit` is called.

    Attributes:
        graph: the graph: of the model, of a function, or within a node of one.
        root: what it belongs to.
        kept: nodes that the caller wants left alone.
        names: the names that the model uses.
        values: what is known of integers that are computed from shapes.
        holds_initializers: whether a new constant becomes an initializer, and no Constant node.
        changed: whether anything was changed.
    """

    graph: ir.Graph
    root: Root
    kept: frozenset[ir.Node]
    names: Names
    values: ShapeValues
    holds_initializers: bool
    changed: bool = False
    _gone: dict[ir.Node, None] = field(default_factory=dict)
    _positions: dict[ir.Value, list[int]] | None = None

    @property
    def opset(self) -> int:
        """The version of the standard operator set; 0 where it is not imported."""
        return self.root.opsets.get("", 0)

    def can_edit(self, node: ir.Node) -> bool:
        """Whether the node may be changed: not kept, and not removed already."""
        return node not in self.kept and node not in self._gone

    def constant(self, value: ir.Value | None) -> ir.TensorProtocol | None:
        """Return the tensor that a value always has, or None. Its data is not read."""
        return None if value is None else constant_of(value)

    def broadcast_constant(self, value: ir.Value | None) -> ir.TensorProtocol | None:
        """Return the constant of a value, also through Expand and ConstantOfShape."""
        return None if value is None else broadcast_constant(value)

    def only_reader(self, value: ir.Value) -> ir.Node | None:
        """Return the node of this graph that alone reads the value, and once; else None."""
        if value.is_graph_output():
            return None
        uses = value.uses()
        if len(uses) != 1:
            return None
        reader = next(iter(uses)).node
        return reader if reader.graph is self.graph else None

    def producer(self, value: ir.Value | None) -> ir.Node | None:
        """Return the value's producer in this graph; None for a value of another graph."""
        node = None if value is None else value.producer()
        return node if node is not None and node.graph is self.graph else None

    def add_constant(self, name: str, tensor: ir.TensorProtocol, before: ir.Node) -> ir.Value:
        """Add a constant.

        Args:
            name: derived from the names of the values that it is computed from, so that
                it is the same from run to run; it gets a number where that name is taken.
            tensor: its data.
            before: the node that reads it first; of this graph.
        """
        value = ir.Value(
            name=self.names.unique(name),
            type=ir.TensorType(tensor.dtype),
            shape=ir.Shape(tensor.shape.numpy()),
        )
        self.changed = True
        if self.holds_initializers:
            value.const_value = tensor
            self.graph.initializers.add(value)
        else:
            label = self.names.unique_node(value.name)
            node = ir.Node(
                "", "Constant", [], [ir.AttrTensor("value", tensor)], outputs=[value], name=label
            )
            self.graph.insert_before(before, node)
        return value

    def add_value(self, name: str, like: ir.Value | None = None) -> ir.Value:
        """Return a value for an output of a new node, with the type and shape of `like`."""
        return ir.Value(
            name=self.names.unique(name),
            type=None if like is None else like.type,
            shape=None if like is None else like.shape,
        )

    def successor(self, old: ir.Value) -> ir.Value:
        """Return a value that a new node may produce in place of `old`, under its name."""
        new = ir.Value(name=old.name, type=old.type, shape=old.shape, doc_string=old.doc_string)
        new.metadata_props.update(old.metadata_props)
        return new

    def replace(self, at: ir.Node, new: ir.Node, outputs: Mapping[ir.Value, ir.Value]) -> None:
        """Put a new node in the place of an old one.

        Args:
            at: a node of this graph; it is removed. All that `new` reads is there before it.
            new: the new node.
            outputs: for each output of an old node that anything reads, the output of `new` that
                all readers get instead; from `successor`.
        """
        if new.graph is None:
            self.graph.insert_before(at, new)
        for old, value in outputs.items():
            self.pass_on(old, value)
        self.remove(at)

    def bypass(self, node: ir.Node, source: ir.Value) -> bool:
        """Replace all uses of the node's first output by `source`, and remove the node.

        The name of a graph output moves to `source`, where a node of this graph produces it
        and is no output itself.

        Args:
            node: a node of this graph whose other outputs nothing reads.
            source: a value that always equals the first output; visible where that is.

        Returns:
            Whether it was done. It is not where a graph output would lose its name, or where
            one of the names stands for two values, of which a reader might get the wrong one.
        """
        old = node.outputs[0]
        if self.names.is_shadowed(source.name) or self.names.is_shadowed(old.name):
            return False
        if not old.is_graph_output():
            _complete_type(source, old)
            old.replace_all_uses_with(source)
            self.remove(node)
            return True
        if self.producer(source) is None or source.is_graph_output():
            return False
        self._move_outputs(old, source)
        old.replace_all_uses_with(source)
        _take_signature(source, old)
        self.remove(node)
        return True

    def pass_on(self, old: ir.Value, new: ir.Value) -> None:
        """Replace `old`, among the outputs too, by `new`, which takes its name."""
        if old.is_graph_output():
            self._move_outputs(old, new)
        old.replace_all_uses_with(new)

    def remove(self, node: ir.Node) -> None:
        """Remove a node of this graph whose outputs nothing reads."""
        for inner in (node, *inner_nodes(node)):
            for index in range(len(inner.inputs)):
                inner.replace_input_with(index, None)
        self._gone[node] = None
        self.changed = True

    def commit(self) -> bool:
        """Take the removed nodes out; return whether anything was changed."""
        if self._gone:
            self.graph.remove(list(self._gone), safe=True)
            self._gone.clear()
        return self.changed

    def _move_outputs(self, old: ir.Value, new: ir.Value) -> None:
        if self._positions is None:
            self._positions = output_positions(self.graph)
        positions = self._positions.pop(old)
        for index in positions:
            self.graph.outputs[index] = new
        self._positions[new] = positions


def _complete_type(source: ir.Value, copy: ir.Value) -> None:
    if source.is_graph_input() or source.is_graph_output():
        return
    if source.type is None:
        source.type = copy.type
    if source.shape is None:
        source.shape = copy.shape


def _take_signature(source: ir.Value, copy: ir.Value) -> None:
    """Replace the output `copy` by `source`."""
    name = copy.name
    copy.name = None
    source.name = name
    source.type = copy.type
    source.shape = copy.shape
    source.doc_string = copy.doc_string
    source.metadata_props.clear()
    source.metadata_props.update(copy.metadata_props)


def clone_as(
    node: ir.Node,
    op_type: str,
    inputs: Sequence[ir.Value | None],
    attributes: Iterable[ir.Attr],
    outputs: Sequence[ir.Value],
) -> ir.Node:
    """Return a node of the standard domain that has the name and the comments of an old one.

    Args:
        node: the old one; it stays as it is.
        op_type: the operator of the new one.
        inputs: what it reads.
        attributes: its attributes.
        outputs: its outputs; no other node may have them.
    """
    return ir.Node(
        "",
        op_type,
        inputs,
        attributes,
        outputs=outputs,
        name=node.name,
        doc_string=node.doc_string,
        metadata_props=dict(node.metadata_props),
    )
