"""Constants that take factors: read, scaled, put in their place."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from narrowpass.ir.subgraphs import nested_graphs
from narrowpass_int8_sym.channels.operand import Operand
from narrowpass_int8_sym.channels.regions import Region

Array = np.ndarray[Any, Any]


def divide(model: ir.Model, region: Region, factors: Array) -> bool:
    """Divide the values of a region by a factor for each channel; what it feeds stays as it is.

    Args:
        model: changed, but for its tensors.
        region: of the model.
        factors: [C], positive, float64.

    Returns:
        Whether it was done. It is not where a constant would overflow.
    """
    made: dict[tuple[ir.Node, int], tuple[Operand, Array]] = {}
    shares = [(operand, 1 / factors) for operand in region.sources]
    shares += [(operand, factors) for operand, _ in region.sinks]
    for operand, share in shares:
        # The weight of a product within a residual block is divided and multiplied.
        key = operand.node, operand.index
        array = made[key][1] if key in made else operand.read()
        with np.errstate(over="ignore"):
            made[key] = operand, (array * operand.spread(share)).astype(np.float32)
    if not all(np.isfinite(array).all() for _, array in made.values()):
        return False
    for operand, array in made.values():
        put(model, operand, array)
    return True


def put(model: ir.Model, operand: Operand, array: Array) -> None:
    """Give a node another constant.

    An initializer that nothing else reads keeps its name; what others read stays as it is.
    """
    old = operand.value
    if old.producer() is None and len(old.uses()) == 1 and not old.is_graph_output():
        old.const_value = ir.Tensor(array, name=old.name)
        old.shape = ir.Shape(array.shape)
        return
    name = unique_name(model, f"{old.name}.scaled")
    new = ir.Value(
        name=name,
        shape=ir.Shape(array.shape),
        type=ir.TensorType(ir.DataType.FLOAT),
        const_value=ir.Tensor(array, name=name),
    )
    model.graph.initializers[name] = new
    operand.node.replace_input_with(operand.index, new)
    producer = old.producer()
    if producer is not None and not old.uses() and not old.is_graph_output():
        model.graph.remove(producer, safe=True)


def unique_name(model: ir.Model, wanted: str) -> str:
    """Return a name that no value or node of a model has: `wanted`, or with a number."""
    taken: set[str | None] = set()
    for graph in nested_graphs(model.graph):
        taken |= {value.name for value in (*graph.inputs, *graph.initializers.values())}
        taken |= {value.name for node in graph for value in node.outputs}
        taken |= {node.name for node in graph}
    chosen, number = wanted, 1
    while chosen in taken:
        chosen, number = f"{wanted}.{number}", number + 1
    return chosen
