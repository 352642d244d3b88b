"""Models, candidates and searches for the tests of ``auto``."""

import ml_dtypes
import numpy as np
import onnx_ir as ir

from narrowpass import Candidate
from narrowpass_auto.choice.offers import Offers
from narrowpass_auto.choice.problem import KEEP
from narrowpass_auto.graph.units import find_regions, find_units
from narrowpass_auto.measure.trials import Offer


def dense(layers=4, width=16, seed=0):
    """Return a chain of matmuls with Relu between, whose nodes have names."""
    rng = np.random.default_rng(seed)
    lines = []
    last = "x"
    for layer in range(layers):
        lines += [f"[mm{layer}] h{layer} = MatMul({last}, w{layer})"]
        last = f"h{layer}"
        if layer < layers - 1:
            lines += [f"[relu{layer}] r{layer} = Relu({last})"]
            last = f"r{layer}"
    text = (
        f'<ir_version: 10, opset_import: ["" : 21]> g (float[batch, {width}] x) '
        f"=> (float[batch, {width}] {last}) {{ {' '.join(lines)} }}"
    )
    # The parser knows no large constants: they are registered afterwards.
    declared = ", ".join(f"float[{width}, {width}] w{layer}" for layer in range(layers))
    model = ir.from_onnx_text(text.replace("x) =>", f"x, {declared}) =>"))
    for layer in range(layers):
        value = next(v for v in model.graph.inputs if v.name == f"w{layer}")
        weights = (rng.standard_normal((width, width)) / np.sqrt(width)).astype(np.float32)
        value.const_value = ir.Tensor(weights, name=f"w{layer}")
        model.graph.inputs.remove(value)
        model.graph.initializers[f"w{layer}"] = value
    return model


def rows(count=6, width=16, batch=4, seed=1):
    """Return samples for `dense`."""
    rng = np.random.default_rng(seed)
    return [{"x": rng.standard_normal((batch, width)).astype(np.float32)} for _ in range(count)]


class Coarse(Candidate):
    """Rounds the weights of nodes to a number of bits after the point, and stores them so.

    A candidate that needs no plugin: weights become int8, or int4, with one scale, which a
    DequantizeLinear turns back.
    """

    rank = 40

    def __init__(self, name, bits):
        self.name, self.bits = name, bits

    def rewrite(self, model, nodes, ctx):
        for node in list(model.graph):
            weight = node.inputs[1] if len(node.inputs) > 1 else None
            if node.name not in nodes or weight is None or weight.const_value is None:
                continue
            array = weight.const_value.numpy()
            scale = np.float32(np.abs(array).max() / (2 ** (self.bits - 1) - 1))
            stored = np.round(array / scale).astype(np.int8 if self.bits > 4 else ml_dtypes.int4)
            name = f"{weight.name}.{self.name}"
            values = []
            for suffix, constant in (("", stored), (".scale", scale)):
                tensor = ir.Tensor(np.asarray(constant), name=name + suffix)
                value = ir.Value(
                    name=name + suffix,
                    type=ir.TensorType(tensor.dtype),
                    shape=ir.Shape(tensor.shape.numpy()),
                    const_value=tensor,
                )
                model.graph.initializers[value.name] = value
                values.append(value)
            wide = ir.node("DequantizeLinear", values, name=f"{name}/DequantizeLinear")
            model.graph.insert_before(node, wide)
            node.replace_input_with(1, wide.outputs[0])
            if not weight.uses():
                del model.graph.initializers[weight.name]
        return model


def offer(harm=0.0, seconds=1.0, size=100, entering=0.0, leaving=0.0):
    return Offer(harm, (harm,), seconds, entering, leaving, size, f"{harm} {seconds} {size}")


def synthetic(costs):
    """Return the offers of a chain of matmuls.

    Args:
        costs: for each node a dict of what its candidates offer; `KEEP` is added.
    """
    model = dense(len(costs))
    units = find_units(model)
    by_unit = [{KEEP: offer(), **given} for given in costs]
    return Offers(units, find_regions(units), by_unit, [{} for _ in costs])
