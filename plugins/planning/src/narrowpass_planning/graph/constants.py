"""Constants that nodes derive from constants: views, casts, quantized and dequantized weights."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from narrowpass_ir.constants import constant_tensor
from narrowpass_planning.graph.blocked import blocks_of, derive_blocks
from narrowpass_planning.graph.facts import NARROW, Array, Facts
from narrowpass_planning.graph.op import Op
from narrowpass_planning.graph.repeatable import repeatable
from narrowpass_planning.host import kernels
from narrowpass_planning.host.quantization import dequantized, quantized
from narrowpass_planning.weights.weight import Quantized, Weight, digest

_SMALL = 1 << 12
"""Elements that are computed at once, when a graph is compiled."""

_LEFT = {"QuantizeLinear", "DequantizeLinear", "RNN", "GRU", "LSTM", "Constant", "Shape", "Size"}
"""Operators that others look at: the form in which weights are stored; or that have no elements."""


_FLOATS = {ir.DataType.FLOAT, ir.DataType.DOUBLE, *NARROW}
_QUANTIZED = {
    ir.DataType.INT2,
    ir.DataType.UINT2,
    ir.DataType.INT4,
    ir.DataType.UINT4,
    ir.DataType.INT8,
    ir.DataType.UINT8,
    ir.DataType.INT16,
    ir.DataType.UINT16,
    ir.DataType.INT32,
    ir.DataType.FLOAT8E4M3FN,
    ir.DataType.FLOAT8E4M3FNUZ,
    ir.DataType.FLOAT8E5M2,
    ir.DataType.FLOAT8E5M2FNUZ,
}


def derive_constants(graph: ir.Graph, facts: Facts, version: Callable[[ir.Node], int]) -> None:
    """Record in `facts` constants that a node computes from constants.

    `fold` leaves such nodes where a second copy of a large weight would enlarge the file;
    Constant nodes are there where it did not run. More than another view or another type of
    elements is computed at once where it is small, and otherwise when somebody needs it.
    """
    for node in graph:
        _derive_view(node, facts)
        if not node.domain and not any(map(facts.is_constant, node.outputs)):
            _derive_computed(node, version(node), facts)


def _derive_view(node: ir.Node, facts: Facts) -> None:
    """Record the elements of a constant in another order, shape or type."""
    if node.op_type == "Constant" and not node.domain:
        tensor = constant_tensor(node.outputs[0])
        if tensor is not None and tensor.dtype != ir.DataType.STRING:
            facts.derive(node.outputs[0], _inline(tensor))
        return
    given = node.inputs[0] if node.inputs else None
    if node.op_type == "Reshape" and not node.domain and derive_blocks(node, facts):
        return
    if node.domain or given is None or not facts.is_constant(given):
        return
    value = node.outputs[0]
    if node.op_type == "Reshape" and len(node.inputs) == 2:
        dims = facts.dims(value)
        sizes = tuple(dim for dim in dims or () if isinstance(dim, int))
        weight = facts.stored(given)
        if dims is not None and len(sizes) == len(dims) and math.prod(sizes) == weight.size:
            facts.derive(value, weight.reshape(*sizes))
    elif node.op_type == "QuantizeLinear":
        _derive_quantized(node, value, facts)
    elif node.op_type == "DequantizeLinear":
        _derive_dequantized(node, value, facts)
    elif node.op_type == "Slice":
        _derive_start(node, value, facts)
    elif len(node.inputs) != 1:
        return
    elif node.op_type == "Transpose":
        perm = node.attributes.get("perm")
        axes = tuple(range(facts.rank(given) or 0))[::-1]
        if perm is not None:
            axes, rank = tuple(perm.as_ints()), len(axes)
            if sorted(axes) != list(range(rank)):
                return  # whoever runs the node will say so
        facts.derive(value, facts.stored(given).transpose(*axes))
    elif node.op_type == "Identity":
        facts.derive(value, facts.stored(given))
    elif node.op_type == "Cast":
        target = ir.DataType(node.attributes.get_int("to", 0))
        if target in _FLOATS and facts.dtype(given) in _FLOATS:
            facts.derive(value, facts.stored(given).cast(target.numpy()))


def _derive_dequantized(node: ir.Node, value: ir.Value, facts: Facts) -> None:
    """Record weights that are stored as integers; scales and zero points are small."""
    parameters = [item for item in node.inputs[1:] if item is not None]
    block = node.attributes.get_int("block_size", 0)
    known = facts.dtype(node.inputs[0]) in _QUANTIZED and facts.is_float(parameters[0])
    if not known or not all(facts.is_constant(item) for item in parameters):
        return
    axis = node.attributes.get_int("axis", 1)
    x, scale, *zeros = (facts.stored(item) for item in node.inputs if item is not None)
    zero = zeros[0] if zeros else None
    if not block:
        scale = scale.reshape(scale.size)
        zero = None if zero is None else zero.reshape(zero.size)

    def elements(array: Array) -> Array:
        zeros = None if zero is None else zero.array()
        return dequantized(array, scale.array(), zeros, axis, block)

    derived = x.then("", elements, dtype=scale.dtype)
    parts = [part.identity for part in (x, scale, *zeros)]
    identity = digest("dequantize", axis, block, *parts) if all(parts) else ""
    stored = None if block else _stored_as(x, scale, zero, axis)
    blocks = blocks_of(node, facts)
    derived = dataclasses.replace(
        derived, identity=identity, quantized=stored, blocks=blocks, stored=x.dtype.name
    )
    facts.derive(value, derived)


def _derive_quantized(node: ir.Node, value: ir.Value, facts: Facts) -> None:
    """Record weights that are stored as float32 and quantized in the model, as by PyTorch."""
    given, scale, zero = [*node.inputs, None][:3]
    if given is None or facts.dtype(given) != ir.DataType.FLOAT:
        return
    if scale is None or facts.dtype(scale) != ir.DataType.FLOAT:
        return
    parameters = [item for item in (scale, zero) if item is not None]
    dtype = facts.dtype(value)
    if dtype not in (ir.DataType.INT8, ir.DataType.UINT8):
        return
    if not all(facts.is_constant(item) for item in parameters):
        return
    if node.attributes.get_int("block_size", 0) or node.attributes.get_int("precision", 1) != 1:
        return
    axis, kind = node.attributes.get_int("axis", 1), dtype.numpy()
    x, *others = (facts.stored(item) for item in (given, *parameters))

    def elements(array: Array) -> Array:
        zeros = others[1].array() if len(others) > 1 else None
        return quantized(array, others[0].array(), zeros, axis, kind)

    derived = x.then("", elements, dtype=kind)
    parts = [part.identity for part in (x, *others)]
    identity = digest("quantize", axis, kind.name, *parts) if all(parts) else ""
    facts.derive(value, dataclasses.replace(derived, identity=identity))


def _derive_start(node: ir.Node, value: ir.Value, facts: Facts) -> None:
    """Record the first columns of a matrix: the last block of a row may exceed the columns used."""
    given, bounds = node.inputs[0], [facts.constant(item) for item in node.inputs[1:]]
    if given is None or len(bounds) != 3 or facts.rank(given) != 2:
        return
    starts, ends, axes = ([int(x) for x in b.reshape(-1)] if b is not None else [] for b in bounds)
    weight = facts.stored(given)
    if starts != [0] or axes not in ([1], [-1]) or not 0 < ends[0] <= weight.shape[1]:
        return
    count = ends[0]
    shape = weight.shape[0], count
    derived = weight.then(f"columns {count}", lambda array: array[:, :count], shape)
    blocks = weight.blocks
    whole = None if blocks is None else (blocks.scale.shape[1] - 1) * blocks.size
    if blocks is not None and whole is not None and not blocks.transposed and count > whole:
        blocks = dataclasses.replace(blocks, columns=count)
        derived = dataclasses.replace(derived, blocks=blocks)
    facts.derive(value, derived)


def _stored_as(x: Weight, scale: Weight, zero: Weight | None, axis: int) -> Quantized | None:
    """Return integers and scales that a kernel may take as they are; None where none does."""
    rank = len(x.shape)
    if x.dtype not in (np.int8, np.uint8) or not rank:
        return None
    scale = scale.cast(np.dtype(np.float32))
    if x.dtype == np.uint8:
        x, zero = _signed(x), _signed(Weight.of(np.zeros(1, np.uint8)) if zero is None else zero)
    if scale.size == 1:
        return Quantized(x, scale, zero, 0)
    return Quantized(x, scale, zero, axis % rank) if -rank <= axis < rank else None


def _signed(x: Weight) -> Weight:
    """Return bytes from 0 to 255 less 128."""
    return x.then("less 128", lambda a: (a ^ np.uint8(128)).view(np.int8), dtype=np.dtype(np.int8))


def _inline(tensor: ir.TensorProtocol) -> Weight:
    """Return a tensor that stands in the model itself: small, so that it is named by its bytes."""
    array = tensor.numpy()
    name = digest("inline", tensor.dtype, array.shape, hashlib.sha256(array.tobytes()).hexdigest())
    return Weight.of(array, name)


def _derive_computed(node: ir.Node, version: int, facts: Facts) -> None:
    """Record in `facts` the outputs of a node whose inputs are all constants.

    The pass `fold` does not see the branches that take the place of an If, and does not run in
    every pipeline.
    """
    given = [value for value in node.inputs if value is not None]
    if node.op_type in _LEFT or not given or not all(map(facts.is_constant, given)):
        return
    op = Op.of(node, version)
    kernel = kernels.kernel_for(op, facts) if repeatable(op, facts) else None
    if kernel is None:
        return
    weights = [None if value is None else facts.stored(value) for value in node.inputs]
    known = [weight for weight in weights if weight is not None]
    parts = [weight.identity for weight in known]
    recipe = node.op_type, version, sorted(op.attributes.items(), key=lambda item: item[0])
    name = digest("computed", *recipe, *parts) if all(parts) and _plain(op) else ""

    def compute() -> list[Array]:
        with np.errstate(all="ignore"):
            results = kernel(*(None if weight is None else weight.compute() for weight in weights))
            return [np.asarray(result) for result in kernels.as_results(results)]

    shapes = [facts.dims(value) for value in node.outputs]
    later = all(
        shape is not None and all(isinstance(dim, int) for dim in shape) for shape in shapes
    )
    if sum(weight.size for weight in known) <= _SMALL:
        try:
            results = compute()
        except kernels.FAILURES:
            return  # who runs the node says so
        if sum(result.size for result in results) <= _SMALL:
            for index, (value, result) in enumerate(zip(node.outputs, results, strict=True)):
                facts.derive(value, Weight.of(result, name and digest(name, index)))
            return
    if not later:
        return
    for index, (value, shape) in enumerate(zip(node.outputs, shapes, strict=True)):
        sizes = tuple(dim for dim in shape or () if isinstance(dim, int))
        dtype = facts.dtype(value)
        if dtype is None or not math.prod(sizes):
            return
        derived = Weight(sizes, dtype.numpy(), name and digest(name, index), _pick(compute, index))
        facts.derive(value, derived)


def _pick(compute: Callable[[], list[Array]], index: int) -> Callable[[], Array]:
    return lambda: compute()[index]


def _plain(op: Op) -> bool:
    """Return whether the attributes are numbers and texts, so that they can be a part of a name."""
    return all(
        isinstance(value, int | float | str | tuple | list) for value in op.attributes.values()
    )
