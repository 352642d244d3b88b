"""Products of activations that are quantized when the model runs, as other tools write them.

DynamicQuantizeLinear finds the range of a whole tensor; MatMulInteger or ConvInteger multiplies
the integers, and what follows scales the sums; onnxruntime's own operators do several of these at
once. All become a float operator that reads its weight from bytes. Where the backend quantizes rows
at run time, it is asked to do that, each by its own range: the model then differs by what its own
rounding did, half a step of each activation. Otherwise DynamicQuantizeLinear stays, and a
DequantizeLinear follows it: the sums are those of the integers but for rounding to float32.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from narrowpass.framework.classify import ACTIVATIONS
from narrowpass.ir.constants import constant_tensor
from narrowpass_int8_sym.repair.editing import Editor
from narrowpass_int8_sym.repair.forms import MICROSOFT
from narrowpass_int8_sym.repair.quantization import (
    FLOAT,
    Quantization,
    dims_of,
    is_node,
    misfit,
    read,
)
from narrowpass_int8_sym.repair.rewriting import FIRST_PER_CHANNEL, no_channels, take_place

_SEPARATE = {"MatMulInteger": "MatMul", "ConvInteger": "Conv"}


@dataclass(frozen=True)
class WeightedNode:
    """A product of dynamically quantized activations and a constant.

    Attributes:
        op_type: of the float operator.
        last: the node that gives the result in float32.
        between: nodes from the product to `last`, in order, which become needless.
        integers: the quantized activations: integers, scale, zero point; None where the node
            quantizes by itself.
        numbers: what is quantized.
        weight: integers.
        quantization: of the weight.
        bias: added to the product; None for none.
        attributes: of the float operator.
    """

    op_type: str
    last: ir.Node
    between: tuple[ir.Node, ...]
    integers: tuple[ir.Value, ir.Value, ir.Value | None] | None
    numbers: ir.Value
    weight: ir.Value
    quantization: Quantization
    bias: ir.Value | None = None
    attributes: tuple[ir.Attr, ...] = ()


def weighted_node_of(node: ir.Node, version: int) -> WeightedNode | str | None:
    """Read a dynamically quantized product.

    Returns:
        None for other nodes, and a reason for one that cannot be read.
    """
    kind = node.domain, node.op_type
    if kind == (MICROSOFT, "DynamicQuantizeMatMul"):
        found = _whole(node)
    elif kind == (MICROSOFT, "MatMulIntegerToFloat"):
        found = _scaled(node)
    elif not node.domain and node.op_type in _SEPARATE:
        found = _separate(node)
    else:
        return None
    per_channel = isinstance(found, WeightedNode) and found.quantization.axis is not None
    if per_channel and version < FIRST_PER_CHANNEL:
        return no_channels(version)
    return found


def rewrite(editor: Editor, weighted: WeightedNode, dynamic: Collection[str]) -> ir.Node:
    """Replace a product; return the float operator.

    Args:
        editor: of the model.
        weighted: what is replaced.
        dynamic: operators whose rows the backend quantizes at run time.
    """
    last = weighted.last
    asked = weighted.op_type in dynamic
    activations = weighted.numbers
    if not asked:
        integers = weighted.integers or _quantized(editor, last, weighted.numbers)
        activations = _dequantized(editor, last, *integers)
    weight = editor.dequantize(last, weighted.weight, weighted.quantization)
    name = weighted.between[0].name if weighted.between else last.name
    made = _result(editor, last)
    operator = ir.node(
        weighted.op_type,
        [activations, weight],
        attributes={item.name: item for item in weighted.attributes},
        outputs=[made],
        name=name,
        metadata_props={ACTIVATIONS: "dynamic"} if asked else None,
    )
    editor.insert_before(last, operator)
    if weighted.bias is not None:
        total = _result(editor, last)
        adding = ir.node("Add", [made, weighted.bias], outputs=[total])
        adding.name = editor.unique(f"{name or made.name}/bias")
        editor.insert_before(last, adding)
        made = total
    take_place(editor, last, made)
    waiting = [*reversed(weighted.between)]
    while waiting:
        node = waiting.pop(0)
        if node.graph is None or any(v.uses() or v.is_graph_output() for v in node.outputs):
            continue
        producers = [value.producer() for value in node.inputs if value is not None]
        editor.remove(node)
        makers = [p for p in producers if p is not None]
        waiting += [p for p in makers if is_node(p, "DynamicQuantizeLinear", "Mul")]
    return operator


def _result(editor: Editor, near: ir.Node) -> ir.Value:
    value = near.outputs[0]
    name = editor.unique(f"{value.name}.float")
    return ir.Value(name=name, shape=value.shape, type=ir.TensorType(FLOAT))


def _quantized(
    editor: Editor, near: ir.Node, numbers: ir.Value
) -> tuple[ir.Value, ir.Value, ir.Value | None]:
    """Quantize activations by the range of the whole tensor."""
    kinds = {"uint8": ir.DataType.UINT8, "scale": FLOAT, "zero_point": ir.DataType.UINT8}
    made = [
        ir.Value(name=editor.unique(f"{numbers.name}.{suffix}"), type=ir.TensorType(kind))
        for suffix, kind in kinds.items()
    ]
    made[0].shape = numbers.shape
    name = editor.unique(f"{numbers.name}/DynamicQuantizeLinear")
    node = ir.node("DynamicQuantizeLinear", [numbers], outputs=made, name=name)
    editor.insert_before(near, node)
    return made[0], made[1], made[2]


def _dequantized(
    editor: Editor, near: ir.Node, integers: ir.Value, scale: ir.Value, zero: ir.Value | None
) -> ir.Value:
    """Return the numbers of integers whose scale is computed."""
    result = ir.Value(
        name=editor.unique(f"{integers.name}.float"),
        shape=integers.shape,
        type=ir.TensorType(FLOAT),
    )
    node = ir.node(
        "DequantizeLinear",
        [integers, scale, *([zero] if zero is not None else [])],
        outputs=[result],
        name=editor.unique(f"{integers.name}/DequantizeLinear"),
    )
    editor.insert_before(near, node)
    return result


def _input(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


def _weight(
    value: ir.Value | None, scale: ir.Value | None, zero: ir.Value | None, axis: int
) -> Quantization | str:
    """Read how a constant weight is quantized; `axis` may be negative."""
    tensor, dims = constant_tensor(value), dims_of(value)
    if value is None or tensor is None or dims is None:
        return "its weight is computed"
    if value.is_graph_input():
        return f"its weight {value.name!r} may be fed"
    found = read(scale, zero, tensor.dtype, axis)
    if isinstance(found, str):
        return found
    if found.axis is not None:
        found = Quantization(found.scale, found.zero_point, found.dtype, axis % len(dims))
    return misfit(found, dims) or found


def _whole(node: ir.Node) -> WeightedNode | str:
    numbers, weight = _input(node, 0), _input(node, 1)
    how = _weight(weight, _input(node, 2), _input(node, 3), -1)
    if isinstance(how, str):
        return how
    if numbers is None or weight is None:
        return "an operand is missing"
    return WeightedNode("MatMul", node, (), None, numbers, weight, how, _input(node, 4))


def _source(
    integers: ir.Value | None, scale: ir.Value | None, zero: ir.Value | None
) -> ir.Value | None:
    """Return what a DynamicQuantizeLinear reads, if one makes all three of these."""
    producer = None if integers is None else integers.producer()
    if producer is None or not is_node(producer, "DynamicQuantizeLinear"):
        return None
    wanted = [integers, scale, zero]
    same = all(a is b for a, b in zip(producer.outputs, wanted, strict=False))
    return producer.inputs[0] if same else None


_NOT_DYNAMIC = "its operand is not what a DynamicQuantizeLinear makes"


def _scaled(node: ir.Node) -> WeightedNode | str:
    integers, weight, scale = _input(node, 0), _input(node, 1), _input(node, 2)
    how = _weight(weight, _input(node, 3), _input(node, 5), -1)
    if isinstance(how, str):
        return how
    numbers = _source(integers, scale, _input(node, 4))
    if numbers is None or integers is None or scale is None or weight is None:
        return _NOT_DYNAMIC
    given = integers, scale, _input(node, 4)
    return WeightedNode("MatMul", node, (), given, numbers, weight, how, _input(node, 6))


def _separate(node: ir.Node) -> WeightedNode | str:
    """Read an integer product, the Cast of its sums and the Mul with both scales."""
    integers, weight = _input(node, 0), _input(node, 1)
    casting = _only_reader(node)
    if casting is None or not is_node(casting, "Cast") or casting.outputs[0].name is None:
        return "its 32-bit sums are read as integers"
    if casting.attributes.get_int("to", 0) != FLOAT:
        return "its 32-bit sums become another type than float32"
    scaling = _only_reader(casting)
    if scaling is None or not is_node(scaling, "Mul"):
        return "its sums are not scaled by a Mul"
    factor = next((v for v in scaling.inputs if v is not casting.outputs[0]), None)
    pair = None if factor is None else factor.producer()
    producer = None if integers is None else integers.producer()
    if producer is None or not is_node(producer, "DynamicQuantizeLinear"):
        return _NOT_DYNAMIC
    scale = producer.outputs[1]
    if pair is None or not is_node(pair, "Mul") or scale not in pair.inputs:
        return "its sums are not scaled by the product of both scales"
    own = next((v for v in pair.inputs if v is not scale), None)
    axis = 0 if node.op_type == "ConvInteger" else -1
    found = _scales(own, axis)
    if isinstance(found, str):
        return found
    how = _weight(weight, found, _input(node, 3), axis)
    if isinstance(how, str):
        return how
    numbers = _source(integers, scale, _input(node, 2))
    if numbers is None or integers is None or weight is None:
        return _NOT_DYNAMIC
    given = integers, scale, _input(node, 2)
    return WeightedNode(
        _SEPARATE[node.op_type],
        scaling,
        (node, casting, pair),
        given,
        numbers,
        weight,
        how,
        attributes=tuple(node.attributes.values()),
    )


def _scales(value: ir.Value | None, axis: int) -> ir.Value | str:
    """Return the scales of a weight from what its sums are multiplied with."""
    tensor = constant_tensor(value)
    if value is None or tensor is None:
        return "the scale of its weight is computed"
    dims = tensor.shape.numpy()
    if tensor.size == 1 or (axis == -1 and len(dims) == 1):
        return value
    # Of a convolution the channels of the result are its axis 1; other axes must have one element.
    at = len(dims) - 1 if axis == -1 else 1
    if sum(dim != 1 for dim in dims) == 1 and 0 <= at < len(dims) and dims[at] == tensor.size:
        flat = ir.Tensor(np.ravel(tensor.numpy()), name=value.name)
        return ir.Value(name=value.name, const_value=flat)
    return f"the scales {value.name!r} of its weight do not lie along its channels"


def _only_reader(node: ir.Node) -> ir.Node | None:
    value = node.outputs[0]
    readers = [user for user, _ in value.uses()]
    return readers[0] if len(readers) == 1 and not value.is_graph_output() else None
