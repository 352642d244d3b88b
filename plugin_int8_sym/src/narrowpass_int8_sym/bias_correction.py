"""Biases that make up for what rounding the weights adds to the mean of each channel.

A product with rounded weights ``Wq`` gives ``Wq x`` for ``W x``. Where the mean of ``x`` is not
zero, as after a Relu, the mean of the difference is not zero either, and the same for each element
of a channel of the result: taken off the bias, it is gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from narrowpass.constants import constant_tensor
from narrowpass_int8_sym.channels.observe import observe_channels
from narrowpass_int8_sym.channels.operand import Operand, known
from narrowpass_int8_sym.channels.places import Place
from narrowpass_int8_sym.channels.rewrite import put, unique_name
from narrowpass_int8_sym.products import Product
from narrowpass_int8_sym.weights import quantized

if TYPE_CHECKING:
    from narrowpass import Backend, Samples

Array = np.ndarray[Any, Any]

SAMPLES = 16
"""So many samples are looked at, at most."""


def mean_shifts(
    model: ir.Model,
    products: Mapping[int, Product],
    samples: Samples,
    target: Backend | None,
    *,
    per_channel: bool,
    least: float = 0.0,
) -> dict[int, Array]:
    """Give how far rounded weights move the mean of each channel of products.

    The model runs with a twin of each product, which has the rounding errors of the weights for
    weights and reads the same; so the borders of convolutions and strides are counted as they are.

    Args:
        model: in float32; not changed.
        products: by the number of the node among all of the model; those within other nodes are
            left out.
        samples: feeds for the model.
        target: what runs the model; the reference evaluator where it is None or not available.
        per_channel: whether weights have a scale for each channel of the result.
        least: the least scale of a weight.

    Returns:
        float64 [channels of the result], by the same numbers.

    Raises:
        DataError: a weight or a value is infinite or NaN.
    """
    clone = model.clone()
    nodes = list(clone.graph.all_nodes())
    places: dict[int, Place] = {}
    for number, product in products.items():
        node = nodes[number]
        if node.graph is not clone.graph:
            continue
        error = _rounding_error(product, product.axis if per_channel else None, least)
        twin = _twin(clone, node, product.index, error)
        rank = len(known(product.weight) or ())
        convolution = node.op_type in ("Conv", "ConvTranspose")
        places[number] = Place(twin.outputs[0], 1 - rank if convolution else -1)
    found = observe_channels(clone, list(places.values()), samples, target, SAMPLES)
    return {number: found[place.value.name or ""].all.mean for number, place in places.items()}


def take_off(model: ir.Model, product: Product, shift: Array) -> str:
    """Subtract a shift from the bias of a product.

    Args:
        model: changed, but for its tensors.
        product: of the model. A Conv, ConvTranspose or Gemm without bias gets one; a MatMul has
            one where nothing but an addition of a constant for each channel reads it.
        shift: [channels of the result].

    Returns:
        Why it was not done; empty where it was.
    """
    node = product.node
    if node.op_type == "MatMul":
        return _take_off_addend(model, node, shift)
    beta = node.attributes.get_float("beta", 1.0) if node.op_type == "Gemm" else 1.0
    if beta == 0:
        return "its beta is 0"
    if len(node.inputs) < 3 or node.inputs[2] is None:
        _add_bias(model, node, (-shift / beta).astype(np.float32))
        return ""
    bias = constant_tensor(node.inputs[2])
    if bias is None or node.inputs[2].is_graph_input() or bias.dtype != ir.DataType.FLOAT:
        return "its bias is no float32 constant"
    put(model, Operand(node, 2), (bias.numpy() - shift / beta).astype(np.float32))
    return ""


def _rounding_error(product: Product, axis: int | None, least: float) -> Array:
    """Give what rounding adds to the weight of a product, float32."""
    weight = constant_tensor(product.weight)
    if weight is None:
        raise ValueError(f"{product.weight.name!r} is no constant")
    rounded, scales = quantized(weight, axis, "", least)
    wide = np.asarray(weight.numpy(), np.float32)
    if axis is not None:
        scales = scales.reshape([-1 if each == axis else 1 for each in range(wide.ndim)])
    error: Array = rounded.numpy().astype(np.float32) * scales - wide
    return error


def _twin(model: ir.Model, node: ir.Node, index: int, error: Array) -> ir.Node:
    """Put a node behind another that computes the same with other weights, and without bias."""
    name = unique_name(model, f"{node.outputs[0].name}.error")
    weight = ir.Value(
        name=f"{name}.weight",
        shape=ir.Shape(error.shape),
        type=ir.TensorType(ir.DataType.FLOAT),
        const_value=ir.Tensor(error, name=f"{name}.weight"),
    )
    model.graph.initializers[weight.name or ""] = weight
    output = ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT))
    inputs = [weight if number == index else node.inputs[number] for number in (0, 1)]
    twin = ir.Node("", node.op_type, inputs, node.attributes.values(), outputs=[output], name=name)
    model.graph.insert_after(node, twin)
    return twin


def _take_off_addend(model: ir.Model, node: ir.Node, shift: Array) -> str:
    uses = node.outputs[0].uses()
    add = next(iter(uses)).node if len(uses) == 1 else None
    if add is None or add.op_type != "Add" or add.domain or node.outputs[0].is_graph_output():
        return "no addition of a bias alone reads it"
    operand = Operand(add, 1 if add.inputs[0] is node.outputs[0] else 0)
    bias = constant_tensor(add.inputs[operand.index])
    if bias is None or operand.value.is_graph_input() or bias.dtype != ir.DataType.FLOAT:
        return "what is added to it is no float32 constant"
    if bias.size != len(shift) or bias.shape.numpy()[-1] != len(shift):
        return "what is added to it is no number for each channel"
    put(model, operand, (bias.numpy() - shift).astype(np.float32))
    return ""


def _add_bias(model: ir.Model, node: ir.Node, bias: Array) -> None:
    name = unique_name(model, f"{node.outputs[0].name}.bias")
    value = ir.Value(
        name=name,
        shape=ir.Shape(bias.shape),
        type=ir.TensorType(ir.DataType.FLOAT),
        const_value=ir.Tensor(bias, name=name),
    )
    model.graph.initializers[name] = value
    if len(node.inputs) < 3:
        node.resize_inputs(3)
    node.replace_input_with(2, value)
