"""Models written with a newer version of ONNX's operator set, by onnx's version converter."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import numpy as np
import onnx
import onnx_ir as ir
from onnx import version_converter

from narrowpass_ir.errors import UpgradeError
from narrowpass_ir.inference import READS_TYPES, inferred

_FIRST_WITH_COORDINATES = 11
"""The operator set from which Resize says where samples lie."""

_FIRST_WITH_OPERANDS = 11
"""The operator set from which what Pad adds, and the bounds of Clip, are of the data's type."""

_FIRST_WITH_AXIS = 13
"""The operator set from which Softmax, LogSoftmax and Hardmax are along one axis alone."""

_FIRST_WITH_ZEROS = 14
"""The operator set from which Reshape has ``allowzero``."""

_SMALL = 4096
"""Bytes of a constant up to which the converter sees its elements: sizes, axes, scales."""


def upgrade(model: ir.Model, to: int) -> tuple[ir.Model, list[ir.Node]]:
    """Write a model with a newer version of ONNX's operator set.

    The model keeps its weights, which the converter never sees, its names and its metadata.

    Args:
        model: its large constants are taken out of it; it is of no use afterwards.
        to: the version; a model of that or a newer one stays as it is.

    Returns:
        A new model, or the same one where there is nothing to do; and the nodes that have another
        version's definition.

    Raises:
        UpgradeError: a version that this onnx does not know; a model with functions, which the
            converter would drop; an operator that it cannot convert.
    """
    before = model.opset_imports.get("", 1)
    newest = onnx.defs.onnx_opset_version()
    if not 1 <= to <= newest:
        raise UpgradeError(f"to={to}: this onnx knows operator sets 1 to {newest}")
    if before >= to or not any(not node.domain for node in model.graph.all_nodes()):
        return model, []
    if model.functions:
        raise UpgradeError("models with functions cannot be upgraded; export with a newer set")
    reading = any(node.op_type in READS_TYPES for node in model.graph.all_nodes())
    with inferred(model) if reading else contextlib.nullcontext():
        _refuse_problems(model, before, to)
    sampled = {
        value.name
        for node in model.graph.all_nodes()
        if node.op_type in ("Resize", "Upsample") and before < _FIRST_WITH_COORDINATES
        for value in node.outputs
    }
    changed = _changed(model.graph.all_nodes(), before, to)
    flattened = {
        node.outputs[0].name
        for node in model.graph.all_nodes()
        if node.op_type in ("Softmax", "LogSoftmax", "Hardmax")
        and before < _FIRST_WITH_AXIS
        and to >= _FIRST_WITH_ZEROS
    }
    if before < _FIRST_WITH_AXIS <= to:
        _flatten_hardmax(model)
    declared = {value.name: (value.type, value.shape) for value in model.graph.outputs}
    weights = _take_weights(model)
    with inferred(model) if reading else contextlib.nullcontext():
        proto = ir.to_proto(model)
    try:
        converted = version_converter.convert_version(proto, to)
    except RuntimeError as error:
        raise UpgradeError(
            f"operator set {before} cannot become {to}: {_last_line(error)}; export the model "
            "with a newer set"
        ) from error
    upgraded = ir.from_proto(converted)
    if before < _FIRST_WITH_OPERANDS <= to:
        for node in upgraded.graph.all_nodes():
            if node.op_type == "Pad" and not node.domain:
                node.attributes.pop("value", None)  # the converter may keep it
                _take_type_of_data(node, 2)
            if node.op_type == "Clip" and not node.domain:
                _take_type_of_data(node, 1)
                _take_type_of_data(node, 2)
    _declare_as_before(model, upgraded)
    for node in upgraded.graph.all_nodes():
        if node.op_type == "Resize" and node.outputs[0].name in sampled:
            # What was the only way; the converter leaves the newer default.
            _set_text_attribute(node, "coordinate_transformation_mode", "asymmetric")
            _set_text_attribute(node, "nearest_mode", "floor")
        if node.op_type == "Reshape" and node.outputs[0].name in flattened:
            # Its target is a shape, whose zeros are sizes.
            node.attributes["allowzero"] = ir.AttrInt64("allowzero", 1)
    _restore_weights(upgraded, weights, [value.name for value in model.graph.inputs if value.name])
    for value in upgraded.graph.outputs:  # one may be an initializer, too
        value.type, value.shape = declared[value.name]
    imports = [onnx.helper.make_opsetid(d, v) for d, v in upgraded.opset_imports.items()]
    least = onnx.helper.find_min_ir_version_for(imports, ignore_unknown=True)
    upgraded.ir_version = max(upgraded.ir_version, least)
    return upgraded, changed


def _refuse_problems(model: ir.Model, before: int, to: int) -> None:
    for node in model.graph.all_nodes():
        problem = _conversion_problem(node, before, to)
        if problem:
            name = node.name or node.outputs[0].name
            raise UpgradeError(
                f"{node.op_type} {name!r} cannot be upgraded: {problem}; export the model with "
                "a newer set"
            )


def _conversion_problem(node: ir.Node, before: int, to: int) -> str:
    """Return what the converter would get wrong about a node; empty for nothing."""
    if node.op_type in READS_TYPES and any(
        value is not None and value.type is None for value in node.inputs
    ):
        return "the types of its inputs must be known, and one is unknown"
    if node.domain:
        return ""
    if node.op_type == "Scan" and before < 9 <= to:
        return "its inputs were others before operator set 9"
    if node.op_type == "GroupNormalization" and before < 21 <= to:
        return "its scales were those of groups before operator set 21"
    return ""


def _flatten_hardmax(model: ir.Model) -> None:
    """Write each Hardmax over several axes as one over the rows of a matrix.

    The converter does so for Softmax and LogSoftmax; of Hardmax it changes the version alone.
    """
    nodes = list(model.graph.all_nodes())
    names = {value.name for node in nodes for value in (*node.inputs, *node.outputs) if value}
    for node in nodes:
        graph, given = node.graph, node.inputs[0] if node.inputs else None
        if node.op_type != "Hardmax" or node.domain or given is None or graph is None:
            continue
        axis = node.attributes.get_int("axis", 1)
        if axis == -1 or (given.shape is not None and axis == len(given.shape) - 1):
            continue
        result = node.outputs[0]
        shape, rows, ones = (_named(f"{result.name}_{part}", names) for part in _PARTS)
        graph.insert_before(
            node,
            [
                ir.Node("", "Shape", [given], outputs=[shape]),
                ir.Node("", "Flatten", [given], [ir.AttrInt64("axis", axis)], outputs=[rows]),
                ir.Node("", "Hardmax", [rows], [ir.AttrInt64("axis", 1)], outputs=[ones]),
            ],
        )
        # The node keeps its output, which may be one of the graph.
        node.op_type = "Reshape"
        node.attributes.clear()
        node.resize_inputs(2)
        node.replace_input_with(0, ones)
        node.replace_input_with(1, shape)


_PARTS = ("shape", "rows", "ones")
"""What the names of the values end with that `_flatten_hardmax` adds."""


def _named(name: str, taken: set[str | None]) -> ir.Value:
    """Return a new value of a name that is not taken, which is then."""
    while name in taken:
        name += "_"
    taken.add(name)
    return ir.Value(name=name)


def _take_type_of_data(node: ir.Node, index: int) -> None:
    """Set the type of a number among the operands to the data's; the converter writes float32."""
    data, number = node.inputs[0], node.inputs[index] if len(node.inputs) > index else None
    if data is None or data.dtype is None or number is None:
        return
    producer = number.producer()
    constant = number.const_value if producer is None else producer.attributes.get_tensor("value")
    if constant is None or constant.dtype == data.dtype:
        return
    with np.errstate(over="ignore"):  # a bound that the type cannot hold bounds nothing
        elements = constant.numpy().astype(data.dtype.numpy())
    tensor = ir.Tensor(elements, dtype=data.dtype, name=constant.name)
    number.dtype = data.dtype
    if producer is None:
        number.const_value = tensor
    else:
        producer.attributes["value"] = ir.AttrTensor("value", tensor)


def _set_text_attribute(node: ir.Node, name: str, text: str) -> None:
    node.attributes[name] = ir.AttrString(name, text)


def _last_line(error: RuntimeError) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__


def _take_weights(model: ir.Model) -> dict[str, tuple[ir.TensorProtocol, bool]]:
    """Turn large constants into graph inputs; return their tensors, and whether each was one."""
    taken: dict[str, tuple[ir.TensorProtocol, bool]] = {}
    graph = model.graph
    for name, value in list(graph.initializers.items()):
        tensor = value.const_value
        if tensor is None:
            continue
        alone = not value.is_graph_input()
        taken[name] = tensor, alone
        if tensor.nbytes <= _SMALL:
            continue
        value.type = ir.TensorType(tensor.dtype)
        value.shape = ir.Shape(tuple(tensor.shape.numpy()))
        del graph.initializers[name]
        value.const_value = None
        if alone:
            graph.inputs.append(value)
    return taken


def _restore_weights(
    model: ir.Model, weights: dict[str, tuple[ir.TensorProtocol, bool]], inputs: list[str]
) -> None:
    """Restore the constants of a graph, in their order, and the inputs that it had."""
    graph = model.graph
    known = {value.name: value for value in graph.inputs}
    known.update(graph.initializers)
    others = [value for name, value in graph.initializers.items() if name not in weights]
    graph.initializers.clear()
    added = {name for name, (_, alone) in weights.items() if alone}
    kept = [value for value in graph.inputs if value.name not in added]
    order = {name: place for place, name in enumerate(inputs)}
    graph.inputs.clear()
    graph.inputs.extend(sorted(kept, key=lambda value: order.get(value.name or "", len(order))))
    for name, (tensor, _) in weights.items():
        value = known.get(name)
        if value is not None and (
            value.uses() or value.is_graph_input() or value.is_graph_output()
        ):
            value.const_value = tensor
            graph.initializers[name] = value
    for value in others:
        if value.name:
            graph.initializers[value.name] = value


def _declare_as_before(before: ir.Model, after: ir.Model) -> None:
    """Copy names, metadata and documentation, and what was declared of values, no more and no less.

    The converter infers shapes, with names of its own for dimensions.
    """
    after.metadata_props.update(before.metadata_props)
    after.meta.update(before.meta)
    after.graph.meta.update(before.graph.meta)
    after.graph.metadata_props.update(before.graph.metadata_props)
    after.graph.name, after.doc_string = before.graph.name, before.doc_string
    after.graph.doc_string = before.graph.doc_string
    known = {value.name: value for value in before.graph.inputs}
    producers: dict[str | None, ir.Node] = {}
    for node in before.graph.all_nodes():
        known.update((value.name, value) for value in node.outputs if value.name)
        producers.update((value.name, node) for value in node.outputs if value.name)
    outputs = [value for node in after.graph.all_nodes() for value in node.outputs]
    for value in (*after.graph.inputs, *outputs):
        declared = known.get(value.name)
        value.type = None if declared is None else declared.type
        value.shape = None if declared is None else declared.shape
    for node in after.graph.all_nodes():
        producer = next((producers[v.name] for v in node.outputs if v.name in producers), None)
        if producer is not None and node.op_type == producer.op_type:
            node.name = producer.name
            node.metadata_props.update(producer.metadata_props)
            node.doc_string = producer.doc_string


def _changed(nodes: Iterable[ir.Node], before: int, to: int) -> list[ir.Node]:
    """Return the nodes whose operator is defined anew between two versions."""
    found = []
    for node in nodes:
        if node.domain:
            continue
        try:
            versions = {
                onnx.defs.get_schema(node.op_type, version, "").since_version
                for version in (before, to)
            }
        except onnx.defs.SchemaError:
            versions = {before, to}
        if len(versions) > 1:
            found.append(node)
    return found
