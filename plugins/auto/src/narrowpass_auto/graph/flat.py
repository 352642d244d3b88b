"""A model of several units side by side, each with inputs of its own.

One compilation and one run of it show what a candidate takes and loses in each unit, with the
weights of all others read in between, as in the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from narrowpass_auto.graph.units import Unit, is_constant
from narrowpass_ir.constants import constant_tensor

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Flat:
    """A model of units, and samples of what they read.

    Attributes:
        model: as it is before a candidate rewrites it; clone it first.
        samples: feeds of the model.
        outputs: names of the outputs of each unit, by its index.
    """

    model: ir.Model
    samples: Sequence[Mapping[str, Array]]
    outputs: Mapping[int, tuple[str, ...]]


def operands(unit: Unit) -> list[str]:
    """Return the names of the computed values that a unit reads, each once, in order."""
    read = (value for value in unit.node.inputs if value is not None and not is_constant(value))
    return list(dict.fromkeys(value.name or "" for value in read))


def build_flat(
    model: ir.Model, units: Sequence[Unit], recorded: Sequence[Mapping[str, Array]]
) -> Flat:
    """Build a model of units.

    Args:
        model: that the units are of; not changed.
        units: some of them, at least one.
        recorded: for each sample the values that the units read, by name.
    """
    inputs: list[ir.Value] = []
    results: list[ir.Value] = []
    nodes: list[ir.Node] = []
    initializers: dict[str, ir.Value] = {}
    samples: list[dict[str, Array]] = [{} for _ in recorded]
    outputs: dict[int, tuple[str, ...]] = {}
    for unit in units:
        fed: dict[str, ir.Value] = {}
        for number, name in enumerate(operands(unit)):
            arrays = [sample[name] for sample in recorded]
            fed[name] = input_of(f"u{unit.index}.in{number}", arrays)
            for sample, array in zip(samples, arrays, strict=True):
                sample[fed[name].name or ""] = array
        inputs += fed.values()
        copy = _copy(unit, fed, initializers)
        nodes.append(copy)
        results += copy.outputs
        outputs[unit.index] = tuple(value.name or "" for value in copy.outputs)
    graph = ir.Graph(
        inputs,
        results,
        nodes=nodes,
        initializers=list(initializers.values()),
        opset_imports=dict(model.graph.opset_imports),
        name="units",
    )
    return Flat(ir.Model(graph, ir_version=model.ir_version), samples, outputs)


def input_of(name: str, arrays: Sequence[Array]) -> ir.Value:
    """Return an input of the type of arrays; a dimension in which they differ is symbolic."""
    shape: list[int | str] = list(arrays[0].shape)
    for axis, size in enumerate(arrays[0].shape):
        if any(array.shape[axis] != size for array in arrays):
            shape[axis] = f"{name}.{axis}"
    kind = ir.TensorType(ir.DataType.from_numpy(arrays[0].dtype))
    return ir.Value(name=name, type=kind, shape=ir.Shape(shape))


def _copy(unit: Unit, fed: Mapping[str, ir.Value], initializers: dict[str, ir.Value]) -> ir.Node:
    node = unit.node
    read: list[ir.Value | None] = []
    for value in node.inputs:
        if value is None or not is_constant(value):
            read.append(None if value is None else fed[value.name or ""])
            continue
        name = value.name or ""
        if name not in initializers:
            tensor = constant_tensor(value)
            assert tensor is not None  # noqa: S101  # is_constant
            kind = ir.TensorType(tensor.dtype)
            shape = ir.Shape(tensor.shape.numpy())
            initializers[name] = ir.Value(name=name, type=kind, shape=shape, const_value=tensor)
        read.append(initializers[name])
    results = [
        ir.Value(
            name=f"u{unit.index}.out{number}",
            type=value.type,
            # A first dimension of the model may be another here: inference finds it.
            shape=None,
        )
        for number, value in enumerate(node.outputs)
    ]
    return ir.Node(
        node.domain,
        node.op_type,
        read,
        attributes=list(node.attributes.values()),
        overload=node.overload,
        outputs=results,
        version=node.version,
        name=node.name,
        metadata_props=dict(node.metadata_props),
    )


def component_nodes(model: ir.Model, outputs: Sequence[str]) -> list[ir.Node]:
    """Return the nodes that compute outputs of a model, those on constants alone included."""
    pending = [value for value in model.graph.outputs if value.name in outputs]
    found: dict[ir.Node, None] = {}
    while pending:
        node = pending.pop().producer()
        if node is None or node in found:
            continue
        found[node] = None
        pending += [value for value in node.inputs if value is not None]
    return list(found)
