"""Writes the nodes that one operator becomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from narrowpass.ir.inference import KNOWN_SHAPE

OPSET = 24
"""The operator set whose operators are written."""

Dims = tuple[int | str | None, ...]


class Unsupported(Exception):  # noqa: N818  # it says why a node stays, and is no error
    """What a node asks for is not expanded; the message says what."""


class Kept(Exception):  # noqa: N818  # no error either
    """A node is already what it would be expanded to."""


Key = tuple[Any, ...]
Memory = dict[Key, Sequence[ir.Value]]
"""What nodes of a graph give, by operator, inputs and attributes."""


class Emitter:
    """Gathers the nodes that a node becomes.

    Nothing of the graph is changed until all of them are there. A node that is there already is
    not written again: layers of a model have their masks in common.

    Args:
        node: the one that is expanded, with types and shapes of its inputs as far as known.
        label: what the names of nodes and values begin with.
        known: what was written into the graph before.
        sizes: inputs of the graph that have a named dimension, and which it is.

    Attributes:
        node: that node.
        nodes: those that were written, in order.
        weights: constants that are to be initializers, since they are as large as weights.
        new: what these nodes give.
    """

    def __init__(
        self,
        node: ir.Node,
        label: str,
        known: Memory,
        sizes: Mapping[str, tuple[ir.Value, int]],
    ) -> None:
        self.node = node
        self.new: Memory = {}
        self._known = known
        self._sizes = sizes
        self.nodes: list[ir.Node] = []
        self.weights: list[ir.Value] = []
        self._label = label

    def discard(self) -> None:
        """Let nothing of the graph be read by what was written."""
        for node in self.nodes:
            for index in range(len(node.inputs)):
                node.replace_input_with(index, None)

    def get(self, name: str, default: Any) -> Any:
        """Give an attribute, or its default.

        Raises:
            Unsupported: it is a parameter of the function around the node.
        """
        attribute = self.node.attributes.get(name)
        if attribute is None:
            return default
        if attribute.is_ref():
            raise Unsupported(f"its attribute {name} is a parameter of a function")
        return attribute.value

    def input(self, index: int) -> ir.Value | None:
        """Give an input; None where it is left out."""
        return self.node.inputs[index] if index < len(self.node.inputs) else None

    def required(self, index: int, name: str) -> ir.Value:
        """Give an input that there must be.

        Raises:
            Unsupported: it is left out.
        """
        value = self.input(index)
        if value is None:
            raise Unsupported(f"its input {name} is left out")
        return value

    def refuse(self, **inputs: int) -> None:
        """Check that inputs, given by name and place, are left out.

        Raises:
            Unsupported: one is not.
        """
        for name, index in inputs.items():
            if self.input(index) is not None:
                raise Unsupported(f"its input {name} is given")

    def wants(self, index: int) -> bool:
        """Tell whether anybody reads an output."""
        if index >= len(self.node.outputs):
            return False
        value = self.node.outputs[index]
        return bool(value.uses()) or value.is_graph_output()

    def op(self, op_type: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        """Write a node with one output, and give that."""
        return self.ops(op_type, *inputs, outputs=1, **attributes)[0]

    def ops(
        self, op_type: str, *inputs: ir.Value | None, outputs: int, **attributes: Any
    ) -> Sequence[ir.Value]:
        """Write a node with several outputs, and give them."""
        key = op_type, outputs, inputs, tuple(sorted((k, str(v)) for k, v in attributes.items()))
        before = self._before(key)
        if before is not None:
            return before
        given = {key: value for key, value in attributes.items() if value is not None}
        made = self._write("", op_type, inputs, outputs, given, OPSET)
        self.new[key] = made
        return made

    def copy(self, value: ir.Value) -> ir.Value:
        """Write an Identity that is nobody else's, for a value that needs a name of its own."""
        return self._write("", "Identity", [value], 1, {}, OPSET)[0]

    def op_of(
        self, domain: str, op_type: str, *inputs: ir.Value | None, **attributes: Any
    ) -> ir.Value:
        """Write a node of another domain, of the version that the expanded node has."""
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
        made = [ir.Value(name=f"{name}:{index}") for index in range(outputs)]
        self.nodes.append(
            ir.Node(
                domain,
                op_type,
                inputs,
                ir.convenience.convert_attributes(attributes),
                outputs=made,
                name=name,
                version=version,
            )
        )
        return made

    def _before(self, key: Key) -> Sequence[ir.Value] | None:
        return self.new.get(key) or self._known.get(key)

    def const(self, values: Any, dtype: Any = np.int64) -> ir.Value:
        """Give a small constant; the same one for the same values.

        Args:
            values: what numpy makes an array of.
            dtype: numpy's, or `ir.DataType`.
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
        """Give a constant that is stored as weights are."""
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
        """Give the element type of an input.

        Raises:
            Unsupported: it is not known.
        """
        if isinstance(value.type, ir.TensorType):
            return value.type.dtype
        if value.const_value is not None:
            return value.const_value.dtype
        raise Unsupported(f"the element type of {value.name!r} is not known")

    def dims(self, value: ir.Value) -> Dims:
        """Give the dimensions of an input: numbers, names, None where nothing is known.

        Raises:
            Unsupported: not even the rank is known.
        """
        if value.const_value is not None:
            return tuple(value.const_value.shape.numpy())
        if value.shape is None:
            raise Unsupported(f"the rank of {value.name!r} is not known")
        return tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)

    def rank(self, value: ir.Value, name: str, *ranks: int) -> int:
        """Give the rank of an input, which must be one of `ranks`.

        Raises:
            Unsupported: it is not, or is not known.
        """
        found = len(self.dims(value))
        if found not in ranks:
            wanted = " or ".join(map(str, ranks))
            raise Unsupported(f"its input {name} has {found} dimensions, not {wanted}")
        return found

    def dim(self, value: ir.Value, axis: int) -> ir.Value:
        """Write the size of an axis, as a tensor of one number.

        It is read from an input of the graph where one has it, so that all layers share it.
        """
        known = None if value.shape is None else value.shape[axis]
        if isinstance(known, int):
            return self.const([known])
        if known is not None and known.value is not None and known.value in self._sizes:
            value, axis = self._sizes[known.value]
        end = axis + 1 if axis != -1 else None
        return self.op("Shape", value, start=axis, end=end)

    def reshape(self, value: ir.Value, *target: int) -> ir.Value:
        """Write a Reshape; 0 keeps a size, -1 takes what is left."""
        return self.op("Reshape", value, self.const(target))

    def transpose(self, value: ir.Value, *perm: int) -> ir.Value:
        """Write a Transpose."""
        return self.op("Transpose", value, perm=list(perm))

    def unsqueeze(self, value: ir.Value, *axes: int) -> ir.Value:
        """Write an Unsqueeze."""
        return self.op("Unsqueeze", value, self.const(axes))

    def cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """Write a Cast."""
        return self.op("Cast", value, to=int(dtype))

    def like(self, value: ir.Value, *dims: int | str | None) -> ir.Value:
        """Say what is known of a shape that inference does not see, and give the value."""
        value.meta[KNOWN_SHAPE] = dims
        return value
