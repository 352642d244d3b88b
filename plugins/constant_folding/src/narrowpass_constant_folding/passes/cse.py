"""The pass ``cse``: common subexpression elimination by value numbering.

Dominator-based, within each graph: P. Briggs, K. Cooper and L. T. Simpson, "Value Numbering",
Software: Practice and Experience 27(6), 1997.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import onnx_ir as ir

from narrowpass_constant_folding.folding.rules import Rules
from narrowpass_constant_folding.graphs.constants import constant_of
from narrowpass_constant_folding.graphs.matching import dtype_of
from narrowpass_constant_folding.graphs.scopes import is_used
from narrowpass_constant_folding.rewrite import Rewrite
from narrowpass_ir.subgraphs import subgraphs

if TYPE_CHECKING:
    from collections.abc import Hashable

    from narrowpass_constant_folding.graphs.scope import Scope
    from narrowpass_constant_folding.rewrite import Work

_COMMUTATIVE = frozenset(
    {"Add", "And", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Equal", "Mul", "Or", "Xor"}
)
_SMALL_BYTES = 1 << 12
_SHAPE_DTYPES = frozenset({ir.DataType.INT64, ir.DataType.INT32})


@dataclass(frozen=True)
class Cse(Rewrite):
    """Eliminate common subexpressions: nodes with equal operator, inputs and attributes.

    Also nodes that compute equal integers from shapes in different ways. Random operators
    never count as equal. Two nodes that both produce graph outputs stay: each output has a
    name of its own.
    """

    name: ClassVar[str] = "cse"

    def apply(self, work: Work) -> None:
        """Merge equal nodes into the first of them.

        Counters: ``merged``.
        """
        rules = Rules(work.model, frozenset())
        for scope in work.scopes():
            _Merger(work, scope, rules).run()


class _Merger:
    def __init__(self, work: Work, scope: Scope, rules: Rules) -> None:
        self._work = work
        self._scope = scope
        self._rules = rules
        self._seen: dict[Hashable, ir.Node] = {}

    def run(self) -> None:
        for node in self._scope.graph:
            if not self._scope.can_edit(node):
                continue
            keys = self._keys(node)
            equal = (self._seen[key] for key in keys if key in self._seen)
            first = next((other for other in equal if self._merge(other, node)), node)
            for key in keys:
                self._seen.setdefault(key, first)

    def _keys(self, node: ir.Node) -> list[Hashable]:
        """Return the value numbers of a node: its form, and the integers that it computes."""
        keys: list[Hashable] = []
        form = _form(node)
        if form is not None and self._rules.refuse_node(node, self._scope.root.opsets) is None:
            keys.append(form)
        elements = self._elements(node)
        if elements is not None:
            keys.append(elements)
        return keys

    def _elements(self, node: ir.Node) -> Hashable | None:
        if node.domain or len(node.outputs) != 1 or node.op_type == "Constant":
            return None
        output = node.outputs[0]
        dtype = dtype_of(output)
        if dtype not in _SHAPE_DTYPES or constant_of(output) is not None:
            return None
        found = self._scope.values.elements(output)
        if found is None or None in found.items:
            return None
        return dtype, found

    def _merge(self, first: ir.Node, node: ir.Node) -> bool:
        """Replace all uses of `node` by `first`."""
        if len(node.outputs) != len(first.outputs):
            return False
        names = self._scope.names
        for old, new in zip(node.outputs, first.outputs, strict=True):
            if is_used(old) and (old.is_graph_output() or not new.name):
                return False
            if names.is_shadowed(old.name) or names.is_shadowed(new.name):
                return False
        for old, new in zip(node.outputs, first.outputs, strict=True):
            if new.type is None:
                new.type = old.type
            if new.shape is None:
                new.shape = old.shape
            old.replace_all_uses_with(new)
        self._scope.remove(node)
        self._work.report.record(node, "merged", "cse", f"as {first.name or first.op_type!r} does")
        return True


def _form(node: ir.Node) -> Hashable | None:
    """Return operator, inputs and attributes in a form that is equal for equal nodes."""
    if node.attributes and next(subgraphs(node), None) is not None:
        return None
    inputs: tuple[int, ...] = tuple(0 if value is None else id(value) for value in node.inputs)
    if not node.domain and node.op_type in _COMMUTATIVE:
        inputs = tuple(sorted(inputs))
    attributes = tuple((name, _attribute(attr)) for name, attr in sorted(node.attributes.items()))
    outputs = tuple(bool(value.name) for value in node.outputs)
    return node.op_identifier(), inputs, attributes, outputs


def _attribute(attr: ir.Attr) -> Hashable:
    if attr.is_ref():
        return ("reference", attr.ref_attr_name)
    if attr.type == ir.AttributeType.TENSOR:
        tensor = attr.value
        if tensor.nbytes > _SMALL_BYTES or tensor.dtype == ir.DataType.STRING:
            return id(attr)
        return tensor.dtype, tuple(tensor.shape.numpy()), tensor.tobytes()
    value = tuple(attr.value) if isinstance(attr.value, (list, tuple)) else attr.value
    try:
        hash(value)
    except TypeError:
        return id(attr)
    # repr distinguishes -0.0 from 0.0, and an integer from a float.
    return attr.type, repr(value)
