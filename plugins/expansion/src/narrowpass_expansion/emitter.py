"""Emits the nodes that an operator is expanded to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from narrowpass_ir.inference import KNOWN_SHAPE

OPSET = 24
"""The opset of the emitted nodes."""

_OPSET_OF_2_BITS = 25

Dims = tuple[int | str | None, ...]


class Unsupported(Exception):  # noqa: N818  # a reason, no error
    """The node has a form that is not expanded; the message names it."""


class AlreadyExpanded(Exception):  # noqa: N818  # no error either
    """The node already has the form that it would be expanded to."""


Key = tuple[Any, ...]
EmittedNodes = dict[Key, Sequence[ir.Value]]
"""Outputs of emitted nodes by operator, inputs and attributes."""


class Emitter:
    """Emits the nodes of one expansion, detached from the graph.

    A node equal to one emitted before is reused (local value numbering), so that layers share
    their masks.

    Args:
        node: the node to expand, with types and shapes of its inputs as far as known.
        label: the prefix of names of nodes and values.
        known: nodes emitted into the graph before.
        sizes: by symbolic dimension, a graph input that has it and the axis.

    Attributes:
        node: the node to expand.
        nodes: the emitted nodes, in order.
        weights: constants that become initializers, as large as weights.
        new: the outputs of these nodes.
    """

    def __init__(
        self,
        node: ir.Node,
        label: str,
        known: EmittedNodes,
        sizes: Mapping[str, tuple[ir.Value, int]],
    ) -> None:
        self.node = node
        self.new: EmittedNodes = {}
        self._known = known
        self._sizes = sizes
        self.nodes: list[ir.Node] = []
        self.weights: list[ir.Value] = []
        self._label = label

    def discard(self) -> None:
        """Disconnect the emitted nodes from the graph."""
        for node in self.nodes:
            for index in range(len(node.inputs)):
                node.replace_input_with(index, None)

    def get(self, name: str, default: Any) -> Any:
        """Return an attribute's value, or the default.

        Raises:
            Unsupported: it refers to an attribute of the enclosing function.
        """
        attribute = self.node.attributes.get(name)
        if attribute is None:
            return default
        if attribute.is_ref():
            raise Unsupported(f"its attribute {name} is a parameter of a function")
        return attribute.value

    def input(self, index: int) -> ir.Value | None:
        """Return an input; None if it is omitted."""
        return self.node.inputs[index] if index < len(self.node.inputs) else None

    def required(self, index: int, name: str) -> ir.Value:
        """Return a required input.

        Raises:
            Unsupported: it is omitted.
        """
        value = self.input(index)
        if value is None:
            raise Unsupported(f"its input {name} is left out")
        return value

    def reject_inputs(self, **inputs: int) -> None:
        """Check that the inputs, index by name, are omitted.

        Raises:
            Unsupported: one is present.
        """
        for name, index in inputs.items():
            if self.input(index) is not None:
                raise Unsupported(f"its input {name} is given")

    def is_used(self, index: int) -> bool:
        """Return whether an output of the node is used."""
        if index >= len(self.node.outputs):
            return False
        value = self.node.outputs[index]
        return bool(value.uses()) or value.is_graph_output()

    def op(self, op_type: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        """Emit a node with one output, and return that output."""
        return self.ops(op_type, *inputs, outputs=1, **attributes)[0]

    def ops(
        self, op_type: str, *inputs: ir.Value | None, outputs: int, **attributes: Any
    ) -> Sequence[ir.Value]:
        """Emit a node with several outputs, and return these."""
        key = op_type, outputs, inputs, tuple(sorted((k, str(v)) for k, v in attributes.items()))
        before = self._before(key)
        if before is not None:
            return before
        given = {key: value for key, value in attributes.items() if value is not None}
        output = self._write("", op_type, inputs, outputs, given, OPSET)
        self.new[key] = output
        return output

    def copy(self, value: ir.Value) -> ir.Value:
        """Emit an Identity that is never shared, for a value that needs its own name."""
        return self._write("", "Identity", [value], 1, {}, OPSET)[0]

    def op_in_domain(
        self, domain: str, op_type: str, *inputs: ir.Value | None, **attributes: Any
    ) -> ir.Value:
        """Emit a node of another domain, in the expanded node's version."""
        given = {key: value for key, value in attributes.items() if value is not None}
        return self._write(domain, op_type, inputs, 1, given, self.node.version)[0]

    def _write(
        self,
        domain: str,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        outputs: int,
        attributes: Mapping[str, Any],
        version: int | None,
    ) -> list[ir.Value]:
        name = f"{self._label}/{op_type}_{len(self.nodes)}"
        output = [ir.Value(name=f"{name}:{index}") for index in range(outputs)]
        self.nodes.append(
            ir.Node(
                domain,
                op_type,
                inputs,
                ir.convenience.convert_attributes(attributes),
                outputs=output,
                name=name,
                version=version,
            )
        )
        return output

    def _before(self, key: Key) -> Sequence[ir.Value] | None:
        return self.new.get(key) or self._known.get(key)

    def const(self, values: Any, dtype: Any = np.int64) -> ir.Value:
        """Return a small constant, shared between equal values.

        Args:
            values: array-like.
            dtype: a NumPy dtype or `ir.DataType`.
        """
        kind = dtype.numpy() if isinstance(dtype, ir.DataType) else np.dtype(dtype)
        array = np.asarray(values).astype(kind)
        key = "Constant", str(array.dtype), array.shape, array.tobytes()
        before = self._before(key)
        if before is not None:
            return before[0]
        name = f"{self._label}/Constant_{len(self.nodes)}"
        value = ir.Value(
            name=f"{name}:0",
            shape=ir.Shape(array.shape),
            type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
        )
        attribute = ir.AttrTensor("value", ir.tensor(array, name=value.name))
        self.nodes.append(
            ir.Node("", "Constant", [], [attribute], outputs=[value], name=name, version=OPSET)
        )
        self.new[key] = [value]
        return value

    def weight(self, hint: str, tensor: ir.TensorProtocol) -> ir.Value:
        """Return a new initializer that holds `tensor`."""
        name = f"{self._label}/{hint}"
        value = ir.Value(
            name=name,
            type=ir.TensorType(tensor.dtype),
            shape=ir.Shape(tensor.shape.numpy()),
            const_value=tensor,
        )
        self.weights.append(value)
        return value

    def dtype(self, value: ir.Value) -> ir.DataType:
        """Return the element type of an input.

        Raises:
            Unsupported: it is unknown.
        """
        if isinstance(value.type, ir.TensorType):
            return value.type.dtype
        if value.const_value is not None:
            return value.const_value.dtype
        raise Unsupported(f"the element type of {value.name!r} is not known")

    def dims(self, value: ir.Value) -> Dims:
        """Return the dimensions of an input: integers, symbolic names, or None.

        Raises:
            Unsupported: the rank is unknown.
        """
        if value.const_value is not None:
            return tuple(value.const_value.shape.numpy())
        if value.shape is None:
            raise Unsupported(f"the rank of {value.name!r} is not known")
        return tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)

    def rank(self, value: ir.Value, name: str, *ranks: int) -> int:
        """Return the rank of an input, which must be one of `ranks`.

        Raises:
            Unsupported: it is another, or unknown.
        """
        found = len(self.dims(value))
        if found not in ranks:
            wanted = " or ".join(map(str, ranks))
            raise Unsupported(f"its input {name} has {found} dimensions, not {wanted}")
        return found

    def dim(self, value: ir.Value, axis: int) -> ir.Value:
        """Emit the size of an axis, int64 [1].

        A symbolic size is read from a graph input where one has it, so that all layers share it.
        """
        known = None if value.shape is None else value.shape[axis]
        if isinstance(known, int):
            return self.const([known])
        if known is not None and known.value is not None and known.value in self._sizes:
            value, axis = self._sizes[known.value]
        end = axis + 1 if axis != -1 else None
        return self.op("Shape", value, start=axis, end=end)

    def reshape(self, value: ir.Value, *target: int) -> ir.Value:
        """Emit a Reshape; 0 keeps a size, -1 is inferred."""
        return self.op("Reshape", value, self.const(target))

    def transpose(self, value: ir.Value, *perm: int) -> ir.Value:
        """Emit a Transpose."""
        return self.op("Transpose", value, perm=list(perm))

    def unsqueeze(self, value: ir.Value, *axes: int) -> ir.Value:
        """Emit an Unsqueeze."""
        return self.op("Unsqueeze", value, self.const(axes))

    def cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """Emit a Cast; that of 2 bits, which is younger than `OPSET`, is not shared."""
        if value.dtype in (ir.DataType.UINT2, ir.DataType.INT2):
            return self._write("", "Cast", [value], 1, {"to": int(dtype)}, _OPSET_OF_2_BITS)[0]
        return self.op("Cast", value, to=int(dtype))

    def with_dims(self, value: ir.Value, *dims: int | str | None) -> ir.Value:
        """Annotate `value` with dimensions that shape inference cannot derive, and return it."""
        value.meta[KNOWN_SHAPE] = dims
        return value
