"""Quantized weights in a model: DequantizeLinear, MatMulNBits, GatherBlockQuantized."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from narrowpass_int4.matrices import Matrix, drop_unread
from narrowpass_int4.storage.packing import Packed
from narrowpass_int4.storage.spool import Buffer
from narrowpass_ir.constants import constant_tensor
from narrowpass_ir.subgraphs import reserve_name

MICROSOFT = "com.microsoft"


class Emitter:
    """Puts quantized weights into the place of float ones.

    Args:
        model: changed in place.
        taken: names of its nodes and values; those of new ones are added.
    """

    def __init__(self, model: ir.Model, taken: set[str | None]) -> None:
        self._model, self._taken = model, taken
        self._known: dict[tuple[Buffer, tuple[int, ...]], ir.Value] = {}
        self._wide: dict[ir.Value, ir.Value] = {}
        self._front: dict[ir.Graph, ir.Node] = {}

    @property
    def taken(self) -> set[str | None]:
        """Names that others have."""
        return self._taken

    def dequantized(self, weight: ir.Value, packed: Packed, axis: int) -> ir.Value:
        """Add integers and their DequantizeLinear to the graph of a constant.

        Args:
            weight: the constant.
            packed: of a `QdqPacker`.
            axis: of the constant, along which K lies.

        Returns:
            The result of the DequantizeLinear, of the constant's shape and type.
        """
        graph, name = _graph(weight), weight.name or "weight"
        layout, grid = packed.layout, packed.grid
        dims = _dims(weight)
        attributes: dict[str, int] = {}
        if packed.blocks == 1 and layout.count == 1:
            others = [place for place in range(len(dims)) if place != axis]
            shape: tuple[int, ...] = (layout.outputs,)
            # The axis of outputs stands behind those of a stack of one matrix, [1, K, N], and
            # before the spatial ones of a Conv, [N, K, 1, 1].
            attributes["axis"] = max(others, key=lambda place: dims[place])
        else:
            shape = (*dims[:axis], packed.blocks, *dims[axis + 1 :])
            attributes |= {"axis": axis, "block_size": packed.block}
        kind = ir.DataType.from_numpy(grid.weight_dtype)
        inputs = [
            self._initializer(graph, packed, "integers", dims, f"{name}.int{grid.bits}"),
            self._scales(graph, packed, shape, name),
        ]
        if packed.zeros is not None:
            inputs.append(self._initializer(graph, packed, "zeros", shape, f"{name}.zero_point"))
        result = ir.Value(
            name=reserve_name(f"{name}.dequantized", self._taken),
            shape=ir.Shape(dims),
            type=ir.TensorType(kind),
        )
        node = ir.node(
            "DequantizeLinear",
            inputs,
            attributes=attributes,
            outputs=[result],
            name=reserve_name(f"{name}/DequantizeLinear", self._taken),
        )
        self._prepend(graph, node)
        return result

    def gathered_rows(self, node: ir.Node, table: ir.Value, packed: Packed) -> None:
        """Let a Gather look up rows of bytes and their scales, and multiply both.

        Args:
            node: the Gather.
            table: the constant.
            packed: 8 bits, with one scale for each row.
        """
        columns = packed.layout.inner
        name, rows = table.name or "table", packed.layout.outputs
        graph = _graph(table)
        whole = self._initializer(graph, packed, "integers", (rows, columns), f"{name}.int8")
        scales = self._scales(graph, packed, (rows, 1), name)
        kind = ir.DataType.from_numpy(packed.grid.weight_dtype)
        result, places = node.outputs[0], node.inputs[1]
        label = result.name or "rows"

        def value(suffix: str, dtype: ir.DataType) -> ir.Value:
            return ir.Value(
                name=reserve_name(f"{label}.{suffix}", self._taken), type=ir.TensorType(dtype)
            )

        gathered, scale = value("int8", ir.DataType.INT8), value("scale", kind)
        cast = value("cast", kind)
        parts = [
            ir.node("Gather", [whole, places], outputs=[gathered], name=self._label(label)),
            ir.node(
                "Gather",
                [scales, places],
                outputs=[scale],
                name=self._label(label),
            ),
            ir.node(
                "Cast",
                [gathered],
                attributes={"to": int(kind)},
                outputs=[cast],
                name=reserve_name(f"{label}/Cast", self._taken),
            ),
            ir.node("Mul", [cast, scale], name=reserve_name(f"{label}/Mul", self._taken)),
        ]
        self.replace(node, parts)

    def _label(self, name: str) -> str:
        return reserve_name(f"{name}/Gather", self._taken)

    def matmul_nbits(
        self, matrix: Matrix, packed: Packed, bias: ir.Value | None, level: int
    ) -> None:
        """Put MatMulNBits into the place of a MatMul or Gemm.

        Args:
            matrix: of the node.
            packed: of a `NbitsPacker`.
            bias: [N], or None.
            level: ``accuracy_level``: 0 for any, 4 for rows in int8.
        """
        node, grid = matrix.node, packed.grid
        outputs = packed.layout.outputs
        graph, name = _graph(matrix.weight), matrix.weight.name or "weight"
        shape = outputs, packed.blocks, packed.stored_block * grid.bits // 8
        inputs: list[ir.Value | None] = [
            node.inputs[0],
            self._initializer(graph, packed, "integers", shape, f"{name}.nbits"),
            self._scales(graph, packed, (outputs, packed.blocks), name),
        ]
        if packed.zeros is not None:
            inputs.append(self._zeros(graph, packed, name))
        if bias is not None:
            inputs += [None] * (5 - len(inputs)) + [bias]
        attributes = {
            "K": packed.layout.inner,
            "N": outputs,
            "bits": grid.bits,
            "block_size": packed.stored_block,
            **({"accuracy_level": level} if level else {}),
        }
        emitted = ir.node(
            "MatMulNBits",
            inputs,
            attributes,
            domain=MICROSOFT,
            name=node.name or reserve_name(f"{name}/MatMulNBits", self._taken),
        )
        self._model.opset_imports.setdefault(MICROSOFT, 1)
        self.replace(node, [emitted])
        drop_unread(matrix.weight, matrix.transpose)

    def gather_nbits(self, node: ir.Node, table: ir.Value, packed: Packed) -> None:
        """Put GatherBlockQuantized into the place of a Gather.

        Args:
            node: the Gather.
            table: the constant.
            packed: of a `NbitsPacker`; no row ends within a block.
        """
        grid, graph, name = packed.grid, _graph(table), table.name or "table"
        rows = packed.layout.outputs
        shape = rows, packed.layout.inner * grid.bits // 8
        inputs: list[ir.Value | None] = [
            self._initializer(graph, packed, "integers", shape, f"{name}.rows"),
            node.inputs[1],
            self._scales(graph, packed, (rows, packed.blocks), name),
        ]
        if packed.zeros is not None:
            inputs.append(self._zeros(graph, packed, name))
        attributes = {
            "bits": grid.bits,
            "block_size": packed.stored_block,
            "gather_axis": 0,
            "quantize_axis": 1,
        }
        emitted = ir.node(
            "GatherBlockQuantized",
            inputs,
            attributes,
            domain=MICROSOFT,
            name=node.name or reserve_name(f"{name}/GatherBlockQuantized", self._taken),
        )
        self._model.opset_imports.setdefault(MICROSOFT, 1)
        self.replace(node, [emitted])

    def _scales(
        self, graph: ir.Graph, packed: Packed, shape: tuple[int, ...], name: str
    ) -> ir.Value:
        """Return the scales of a weight in its dtype: cast to it, where they are stored in another.

        Operators that read scales have results of their dtype.
        """
        stored = self._initializer(graph, packed, "scales", shape, f"{name}.scale")
        grid = packed.grid
        if grid.dtype == grid.weight_dtype:
            return stored
        if stored in self._wide:
            return self._wide[stored]
        kind = ir.DataType.from_numpy(grid.weight_dtype)
        label = reserve_name(f"{name}.scale.{kind.name.lower()}", self._taken)
        wide = ir.Value(name=label, shape=ir.Shape(shape), type=ir.TensorType(kind))
        node = ir.node(
            "Cast",
            [stored],
            attributes={"to": int(kind)},
            outputs=[wide],
            name=reserve_name(f"{name}/Cast", self._taken),
        )
        self._prepend(graph, node)
        self._wide[stored] = wide
        return wide

    def _zeros(self, graph: ir.Graph, packed: Packed, name: str) -> ir.Value:
        rows = packed.layout.outputs
        width = packed.blocks
        if not packed.grid.float_zeros:
            width = -(-width * packed.grid.bits // 8)
        return self._initializer(graph, packed, "zeros", (rows, width), f"{name}.zero_points")

    def _initializer(
        self, graph: ir.Graph, packed: Packed, part: str, shape: tuple[int, ...], name: str
    ) -> ir.Value:
        """Return a part of a weight as an initializer; the same for all that read it alike."""
        buffer = getattr(packed, part)
        if (buffer, shape) in self._known:
            return self._known[buffer, shape]
        if part == "scales":
            kind = ir.DataType.from_numpy(packed.grid.dtype)
        elif part == "zeros" and packed.grid.float_zeros:
            kind = ir.DataType.from_numpy(packed.grid.weight_dtype)
        else:
            kind = packed.kind
        value = add_initializer(graph, buffer.tensor(kind, shape, reserve_name(name, self._taken)))
        self._known[buffer, shape] = value
        return value

    def _prepend(self, graph: ir.Graph, node: ir.Node) -> None:
        """Put a node before those of the model, and after those that were put there before."""
        last = self._front.get(graph)
        if last is None:
            graph.insert_before(next(iter(graph)), node)
        else:
            graph.insert_after(last, node)
        self._front[graph] = node

    def replace(self, node: ir.Node, parts: Sequence[ir.Node]) -> None:
        """Put nodes into the place of one; the result of the last keeps its name and its type."""
        graph, result = node.graph, node.outputs[0]
        new = parts[-1].outputs[0]
        if graph is None:
            raise ValueError(f"{node.name!r} is in no graph")
        new.type, new.shape = result.type, result.shape
        graph.insert_after(node, parts)
        for use in tuple(result.uses()):
            use.node.replace_input_with(use.idx, new)
        for place, output in enumerate(graph.outputs):
            if output is result:
                graph.outputs[place] = new
        name = result.name
        result.name = reserve_name(f"{name}.before", self._taken)
        new.name = name
        graph.remove(node, safe=True)


def add_initializer(graph: ir.Graph, tensor: ir.TensorProtocol) -> ir.Value:
    """Add a tensor to a graph, under its name."""
    value = ir.Value(
        name=tensor.name,
        shape=ir.Shape(tuple(tensor.shape.numpy())),
        type=ir.TensorType(tensor.dtype),
        const_value=tensor,
    )
    graph.initializers[tensor.name or ""] = value
    return value


def _dims(weight: ir.Value) -> tuple[int, ...]:
    tensor = constant_tensor(weight)
    if tensor is None:
        raise ValueError(f"{weight.name!r} is no constant")
    return tuple(int(size) for size in tensor.shape.numpy())


def _graph(weight: ir.Value) -> ir.Graph:
    producer = weight.producer()
    graph = weight.graph if producer is None else producer.graph
    if not isinstance(graph, ir.Graph):
        raise ValueError(f"{weight.name!r} is no constant of a graph")
    return graph
