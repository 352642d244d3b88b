"""Nodes that compute what is known as a function of indices, from sizes and the rows of caches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from narrowpass_planning.state.symbolic.affine import ROWS, Affine, index
from narrowpass_planning.state.symbolic.tensor import ONE, Tensor


class SizeEmitter:
    """Emits nodes, each once.

    Args:
        graph: that they are inserted into.
        sources: the value and the axis of each size.
        length: the input with the number of rows before a run, int64[1].
        buffer: the value, and the axis, that has the rows of the buffers.
        rows: the new ones.
    """

    def __init__(
        self,
        graph: ir.Graph,
        sources: Mapping[str, tuple[ir.Value, int]],
        length: ir.Value,
        buffer: tuple[ir.Value, int],
        rows: Affine,
    ) -> None:
        self._graph, self._sources, self._length = graph, sources, length
        self._buffer, self._rows = buffer, rows
        self._known: dict[object, ir.Value] = {}

    def shape(self, sizes: Sequence[Affine], before: ir.Node) -> ir.Value | None:
        """Return a shape in which the rows of caches, with the new ones, are those of buffers.

        None where a size has no source.
        """
        whole = Affine.of(ROWS) + self._rows
        parts = []
        for size in sizes:
            count = size.factor(ROWS)
            part = self._sum(size - whole.times(count), before, (*self._buffer, count))
            if part is None:
                return None
            parts.append(part)
        return self._joined(parts, before)

    def data(self, tensor: Tensor, dtype: ir.DataType, before: ir.Node) -> ir.Value | None:
        """Return a tensor of integers that are affine in indices and sizes; None for another."""
        if tensor.items is not None:
            parts = [self._data_of(item, before) for item in tensor.items]
            known = [part for part in parts if part is not None]
            if len(known) != len(parts):
                return None
            found = self._joined(known, before)
            if tensor.rank == 0:
                found = self._reshape(found, [], before)
        else:
            indexed = self._indexed(tensor, before)
            if indexed is None:
                return None
            found = indexed
        if dtype == ir.DataType.INT64:
            return found
        to = [ir.AttrInt64("to", int(dtype))]
        return self._op("Cast", [found], before, to, dtype=dtype)

    def _data_of(self, item: object, before: ir.Node) -> ir.Value | None:
        """Return an integer as data, int64[1]."""
        if not isinstance(item, Affine):
            return None
        count = item.factor(ROWS)
        rest = self._sum(item - Affine.of(ROWS).times(count), before)
        return None if rest is None else self._with_length(rest, count, before)

    def _with_length(self, value: ir.Value, count: int, before: ir.Node) -> ir.Value:
        if not count:
            return value
        length = self._length
        if count != 1:
            length = self._op("Mul", [length, self._constant([count])], before)
        return self._op("Add", [value, length], before)

    def _indexed(self, tensor: Tensor, before: ir.Node) -> ir.Value | None:
        element = tensor.element
        if not isinstance(element, Affine):
            return None
        rank, count = tensor.rank, element.factor(ROWS)
        covered = [a for a in range(rank) if element.factor(index(rank - a))]
        indices = Affine(
            tuple((index(rank - axis), element.factor(index(rank - axis))) for axis in covered)
        )
        rest = self._sum(element - indices - Affine.of(ROWS).times(count), before)
        if rest is None:
            return None
        found = self._reshape(rest, [1] * rank, before)
        for axis in covered:
            steps = self._steps(tensor.dims[axis], before)
            if steps is None:
                return None
            factor = element.factor(index(rank - axis))
            if factor != 1:
                steps = self._op("Mul", [steps, self._constant([factor])], before)
            target = [1] * rank
            target[axis] = -1
            steps = self._reshape(steps, target, before)
            found = self._op("Add", [found, steps], before)
        if any(dim != ONE and axis not in covered for axis, dim in enumerate(tensor.dims)):
            target_shape = self.shape(tensor.dims, before)
            if target_shape is None:
                return None
            found = self._op("Expand", [found, target_shape], before, rank=rank)
        return self._with_length(found, count, before)

    def _steps(self, size: Affine, before: ir.Node) -> ir.Value | None:
        """Return the integers below a size."""
        count = self._sum(size, before)
        if count is None:
            return None
        limit = self._reshape(count, [], before)
        given = [self._constant(0), limit, self._constant(1)]
        return self._op("Range", given, before, rank=1)

    def _sum(
        self, size: Affine, before: ir.Node, more: tuple[ir.Value, int, int] | None = None
    ) -> ir.Value | None:
        """Return a size that shapes have, int64[1]; `more` is another one, with its factor."""
        terms = []
        for symbol, factor in size.terms:
            if symbol not in self._sources:
                return None
            terms.append((*self._sources[symbol], factor))
        if more is not None and more[2]:
            terms.append(more)
        found: ir.Value | None = None
        for value, axis, factor in terms:
            shape = self._op("Shape", [value], before, rank=1)
            term = self._op(
                "Gather", [shape, self._constant([axis])], before, [ir.AttrInt64("axis", 0)]
            )
            if factor != 1:
                term = self._op("Mul", [term, self._constant([factor])], before)
            found = term if found is None else self._op("Add", [found, term], before)
        if found is None:
            return self._constant([size.constant])
        if size.constant:
            found = self._op("Add", [found, self._constant([size.constant])], before)
        return found

    def _joined(self, parts: Sequence[ir.Value], before: ir.Node) -> ir.Value:
        if len(parts) == 1:
            return parts[0]
        return self._op("Concat", parts, before, [ir.AttrInt64("axis", 0)])

    def _reshape(self, value: ir.Value, target: list[int], before: ir.Node) -> ir.Value:
        return self._op("Reshape", [value, self._constant(target)], before, rank=len(target))

    def _constant(self, numbers: int | list[int]) -> ir.Value:
        key = "constant", tuple(numbers) if isinstance(numbers, list) else numbers
        if key not in self._known:
            name = f"narrowpass.state.{len(self._known)}"
            tensor = ir.Tensor(np.array(numbers, np.int64), name=name)
            value = ir.Value(
                name=name,
                type=ir.TensorType(ir.DataType.INT64),
                shape=tensor.shape,
                const_value=tensor,
            )
            self._graph.register_initializer(value)
            self._known[key] = value
        return self._known[key]

    def _op(
        self,
        op_type: str,
        given: Sequence[ir.Value],
        before: ir.Node,
        attributes: Sequence[ir.Attr] = (),
        *,
        rank: int | None = None,
        dtype: ir.DataType = ir.DataType.INT64,
    ) -> ir.Value:
        key = op_type, tuple(map(id, given)), tuple((a.name, a.value) for a in attributes)
        if key not in self._known:
            known = max(0 if v.shape is None else len(v.shape) for v in given)
            node = ir.Node(
                "",
                op_type,
                given,
                attributes,
                name=f"narrowpass.state.{len(self._known)}.{op_type}",
                outputs=[
                    ir.Value(
                        name=f"narrowpass.state.{len(self._known)}",
                        type=ir.TensorType(dtype),
                        shape=ir.Shape([None] * (known if rank is None else rank)),
                    )
                ],
            )
            self._graph.insert_before(before, node)
            self._known[key] = node.outputs[0]
        return self._known[key]
