"""Dynamically quantized matmuls and convolutions, in the forms that other tools emit.

DynamicQuantizeLinear computes the range of a whole tensor; MatMulInteger or ConvInteger multiplies
the integers, and a Cast and a Mul scale the accumulators; onnxruntime's own operators fuse several
of these. All become a float operator with a dequantized int8 weight. Where the backend supports
dynamic per-token quantization, the operator requests it: results then differ by the rounding of
activations, half a step of each. Otherwise DynamicQuantizeLinear stays, and a DequantizeLinear
follows it: the accumulators are the same but for rounding to float32.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from narrowpass.framework.classify import ACTIVATIONS
from narrowpass_int8_sym.repair.editing import Editor
from narrowpass_int8_sym.repair.qoperator import (
    FIRST_PER_CHANNEL,
    MICROSOFT,
    no_per_channel_scales,
)
from narrowpass_int8_sym.repair.quantization import (
    FLOAT,
    Quantization,
    axis_problem,
    dims_of,
    input_of,
    is_node,
    only_reader,
    read_quantization,
)
from narrowpass_ir.constants import constant_tensor

_SEPARATE = {"MatMulInteger": "MatMul", "ConvInteger": "Conv"}


@dataclass(frozen=True)
class DynamicOperator:
    """A matmul or convolution of dynamically quantized activations and a constant.

    Attributes:
        op_type: of the float operator.
        last: the node with the float32 result.
        between: nodes from the integer operator to `last`, in order, which are removed.
        integers: the quantized activations: integers, scale, zero point; None where the node
            quantizes them itself.
        numbers: the float activations.
        weight: integers.
        quantization: of the weight.
        bias: float32, added to the result; None for none.
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


def match_dynamic(node: ir.Node, version: int) -> DynamicOperator | str | None:
    """Match a dynamically quantized matmul or convolution.

    Returns:
        None for other nodes, and a reason for one that cannot be read.
    """
    kind = node.domain, node.op_type
    if kind == (MICROSOFT, "DynamicQuantizeMatMul"):
        found = _dynamic_quantize_matmul(node)
    elif kind == (MICROSOFT, "MatMulIntegerToFloat"):
        found = _matmul_integer_to_float(node)
    elif not node.domain and node.op_type in _SEPARATE:
        found = _integer_operator(node)
    else:
        return None
    per_channel = isinstance(found, DynamicOperator) and found.quantization.axis is not None
    if per_channel and version < FIRST_PER_CHANNEL:
        return no_per_channel_scales(version)
    return found


def rewrite(editor: Editor, weighted: DynamicOperator, dynamic: Collection[str]) -> ir.Node:
    """Replace the match by a float operator, which is returned.

    Args:
        editor: of the model.
        weighted: the match.
        dynamic: operators for which the backend supports dynamic per-token quantization.
    """
    last = weighted.last
    asked = weighted.op_type in dynamic
    activations = weighted.numbers
    if not asked:
        integers = weighted.integers or _quantized(editor, last, weighted.numbers)
        activations = _dequantized(editor, last, *integers)
    weight = editor.dequantize(last, weighted.weight, weighted.quantization)
    name = weighted.between[0].name if weighted.between else last.name
    result = _result(editor, last)
    operator = ir.node(
        weighted.op_type,
        [activations, weight],
        attributes={item.name: item for item in weighted.attributes},
        outputs=[result],
        name=name,
        metadata_props={ACTIVATIONS: "dynamic"} if asked else None,
    )
    editor.insert_before(last, operator)
    if weighted.bias is not None:
        total = _result(editor, last)
        adding = ir.node("Add", [result, weighted.bias], outputs=[total])
        adding.name = editor.reserve_name(f"{name or result.name}/bias")
        editor.insert_before(last, adding)
        result = total
    editor.replace_node(last, result)
    waiting = [*reversed(weighted.between)]
    while waiting:
        node = waiting.pop(0)
        if node.graph is None or any(v.uses() or v.is_graph_output() for v in node.outputs):
            continue
        producers = [value.producer() for value in node.inputs if value is not None]
        editor.remove(node)
        waiting += [p for p in producers if p and is_node(p, "DynamicQuantizeLinear", "Mul")]
    return operator


def _result(editor: Editor, near: ir.Node) -> ir.Value:
    value = near.outputs[0]
    name = editor.reserve_name(f"{value.name}.float")
    return ir.Value(name=name, shape=value.shape, type=ir.TensorType(FLOAT))


def _quantized(
    editor: Editor, near: ir.Node, numbers: ir.Value
) -> tuple[ir.Value, ir.Value, ir.Value | None]:
    """Insert a DynamicQuantizeLinear; return integers, scale and zero point."""
    kinds = {"uint8": ir.DataType.UINT8, "scale": FLOAT, "zero_point": ir.DataType.UINT8}
    results = [
        ir.Value(name=editor.reserve_name(f"{numbers.name}.{suffix}"), type=ir.TensorType(kind))
        for suffix, kind in kinds.items()
    ]
    results[0].shape = numbers.shape
    name = editor.reserve_name(f"{numbers.name}/DynamicQuantizeLinear")
    node = ir.node("DynamicQuantizeLinear", [numbers], outputs=results, name=name)
    editor.insert_before(near, node)
    return results[0], results[1], results[2]


def _dequantized(
    editor: Editor, near: ir.Node, integers: ir.Value, scale: ir.Value, zero: ir.Value | None
) -> ir.Value:
    """Insert a DequantizeLinear with a computed scale; return its result."""
    result = ir.Value(
        name=editor.reserve_name(f"{integers.name}.float"),
        shape=integers.shape,
        type=ir.TensorType(FLOAT),
    )
    node = ir.node(
        "DequantizeLinear",
        [integers, scale, *([zero] if zero is not None else [])],
        outputs=[result],
        name=editor.reserve_name(f"{integers.name}/DequantizeLinear"),
    )
    editor.insert_before(near, node)
    return result


def _weight(
    value: ir.Value | None, scale: ir.Value | None, zero: ir.Value | None, axis: int
) -> Quantization | str:
    """Return the quantization of a constant weight, or why it is not usable."""
    tensor, dims = constant_tensor(value), dims_of(value)
    if value is None or tensor is None or dims is None:
        return "its weight is computed"
    if value.is_graph_input():
        return f"its weight {value.name!r} may be fed"
    found = read_quantization(scale, zero, tensor.dtype, axis)
    if isinstance(found, str):
        return found
    if found.axis is not None:
        found = Quantization(found.scale, found.zero_point, found.dtype, axis % len(dims))
    return axis_problem(found, dims) or found


def _dynamic_quantize_matmul(node: ir.Node) -> DynamicOperator | str:
    numbers, weight = input_of(node, 0), input_of(node, 1)
    how = _weight(weight, input_of(node, 2), input_of(node, 3), -1)
    if isinstance(how, str):
        return how
    if numbers is None or weight is None:
        return "an operand is missing"
    return DynamicOperator("MatMul", node, (), None, numbers, weight, how, input_of(node, 4))


def _source(
    integers: ir.Value | None, scale: ir.Value | None, zero: ir.Value | None
) -> ir.Value | None:
    """Return the input of the DynamicQuantizeLinear that computes all three, if there is one."""
    producer = None if integers is None else integers.producer()
    if producer is None or not is_node(producer, "DynamicQuantizeLinear"):
        return None
    wanted = [integers, scale, zero]
    same = all(a is b for a, b in zip(producer.outputs, wanted, strict=False))
    return producer.inputs[0] if same else None


_NOT_DYNAMIC = "its operand is not the result of a DynamicQuantizeLinear"


def _matmul_integer_to_float(node: ir.Node) -> DynamicOperator | str:
    integers, weight, scale = input_of(node, 0), input_of(node, 1), input_of(node, 2)
    how = _weight(weight, input_of(node, 3), input_of(node, 5), -1)
    if isinstance(how, str):
        return how
    numbers = _source(integers, scale, input_of(node, 4))
    if numbers is None or integers is None or scale is None or weight is None:
        return _NOT_DYNAMIC
    given = integers, scale, input_of(node, 4)
    return DynamicOperator("MatMul", node, (), given, numbers, weight, how, input_of(node, 6))


def _integer_operator(node: ir.Node) -> DynamicOperator | str:
    """Match MatMulInteger or ConvInteger, a Cast of its accumulators and a Mul by both scales."""
    integers, weight = input_of(node, 0), input_of(node, 1)
    casting = only_reader(node.outputs[0])
    if casting is None or not is_node(casting, "Cast") or casting.outputs[0].name is None:
        return "its int32 accumulators are read as integers"
    if casting.attributes.get_int("to", 0) != FLOAT:
        return "its int32 accumulators are cast to another type than float32"
    scaling = only_reader(casting.outputs[0])
    if scaling is None or not is_node(scaling, "Mul"):
        return "its accumulators are not scaled by a Mul"
    factor = next((v for v in scaling.inputs if v is not casting.outputs[0]), None)
    pair = None if factor is None else factor.producer()
    producer = None if integers is None else integers.producer()
    if producer is None or not is_node(producer, "DynamicQuantizeLinear"):
        return _NOT_DYNAMIC
    scale = producer.outputs[1]
    if pair is None or not is_node(pair, "Mul") or scale not in pair.inputs:
        return "its accumulators are not scaled by both scales multiplied"
    own = next((v for v in pair.inputs if v is not scale), None)
    axis = 0 if node.op_type == "ConvInteger" else -1
    found = _scales(own, axis)
    if isinstance(found, str):
        return found
    how = _weight(weight, found, input_of(node, 3), axis)
    if isinstance(how, str):
        return how
    numbers = _source(integers, scale, input_of(node, 2))
    if numbers is None or integers is None or weight is None:
        return _NOT_DYNAMIC
    given = integers, scale, input_of(node, 2)
    return DynamicOperator(
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
    """Return the scales of a weight from the factor that multiplies its accumulators."""
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
