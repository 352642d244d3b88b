"""Inserts QuantizeLinear and DequantizeLinear into a graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from narrowpass.runtime.quantization import Parameters
from narrowpass_int8_sym.half_precision import keep_epilogue_float32, keep_float32
from narrowpass_int8_sym.static.parameters import (
    QuantizationParameters,
    Scheme,
    float_bias,
    quantized_bias,
)
from narrowpass_int8_sym.static.selection import Selection
from narrowpass_int8_sym.static.units import NodeUnit
from narrowpass_int8_sym.weights import (
    add_dequantize_linear,
    add_initializer,
    add_quantized_weight,
    drop_unread,
    taken_names,
)
from narrowpass_ir.constants import constant_tensor
from narrowpass_ir.subgraphs import reserve_name

Array = np.ndarray[Any, Any]


def emit(
    model: ir.Model,
    choice: Selection,
    quantization_parameters: QuantizationParameters,
    scheme: Scheme,
) -> int:
    """Insert Q/DQ around the selected units, in place.

    Each value gets at most one QuantizeLinear and one DequantizeLinear, after its producer. Float
    consumers of the result of a quantized unit read the dequantized value, too.

    Returns:
        The number of values that have become int8.
    """
    return _Emission(model, choice, quantization_parameters, scheme).run()


class _Emission:
    def __init__(
        self,
        model: ir.Model,
        choice: Selection,
        quantization_parameters: QuantizationParameters,
        scheme: Scheme,
    ) -> None:
        self._graph, self._choice, self._scheme = model.graph, choice, scheme
        self._quantization = quantization_parameters
        self._taken = taken_names(model)
        self._parameters: dict[Parameters, tuple[ir.Value, ir.Value]] = {}
        self._weights: dict[tuple[ir.Value, int | None, bytes, float], ir.Value] = {}
        self._constants: dict[ir.Value, ir.Value] = {}

    def run(self) -> int:
        chosen = self._choice.units
        inside = {node for unit in chosen for node in unit.nodes}
        computed = {
            value
            for unit in chosen
            if unit not in self._choice.float_results
            for value in unit.outputs
        }
        values = self._choice.values()
        for value in values:
            self._insert_qdq(value, None if value in computed else inside)
        for unit in chosen:
            keep_float32(unit.nodes)
            if unit in self._choice.float_results:
                keep_epilogue_float32(unit.nodes[-1])
            self._quantize_weight(unit)
            for value in unit.constants:
                self._quantize_constant(unit, value)
        return len(values)

    def _insert_qdq(self, value: ir.Value, readers: set[ir.Node] | None) -> None:
        """Insert Q/DQ after a value, for some of its consumers; None for all of them."""
        uses = [use for use in value.uses() if readers is None or use.node in readers]
        output = value.is_graph_output() and readers is None
        if not uses and not output:
            return
        scale, zero_point = self._parameters_of(value)
        name = value.name or "value"
        integers = ir.Value(
            name=reserve_name(f"{name}.int8", self._taken),
            shape=value.shape,
            type=ir.TensorType(ir.DataType.INT8),
        )
        wide = ir.Value(
            name=reserve_name(f"{name}.float", self._taken),
            shape=value.shape,
            type=ir.TensorType(ir.DataType.FLOAT),
        )
        conversions = [
            ir.node(
                op_type,
                [read, scale, zero_point],
                outputs=[result],
                name=reserve_name(f"{name}/{op_type}", self._taken),
            )
            for op_type, read, result in (
                ("QuantizeLinear", value, integers),
                ("DequantizeLinear", integers, wide),
            )
        ]
        producer = value.producer()
        if producer is None:
            self._graph.insert_before(next(iter(self._graph)), conversions)
        else:
            self._graph.insert_after(producer, conversions)
        for use in uses:
            use.node.replace_input_with(use.idx, wide)
        if output:
            for place, given in enumerate(self._graph.outputs):
                if given is value:
                    self._graph.outputs[place] = wide
            value.name, wide.name = wide.name, value.name

    def _parameters_of(self, value: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Return the scale and the zero point of a value as initializers; equal ones are shared."""
        found = self._quantization.values[value]
        if found not in self._parameters:
            name = value.name or "value"
            self._parameters[found] = (
                self._stored(f"{name}.scale", np.array(found.scale, np.float32)),
                self._stored(f"{name}.zero_point", np.array(found.zero_point, np.int8)),
            )
        return self._parameters[found]

    def _stored(self, name: str, array: Array) -> ir.Value:
        return add_initializer(self._graph, ir.Tensor(array, name=reserve_name(name, self._taken)))

    def _quantize_weight(self, unit: NodeUnit) -> None:
        """Replace a weight by int8, and its bias by int32, each with DequantizeLinear."""
        weighted = unit.weighted
        if weighted is None:
            return
        node, axis = weighted.node, self._scheme.axis(weighted)
        effective = self._quantization.weights[unit]
        alpha = node.attributes.get_float("alpha", 1.0) if node.op_type == "Gemm" else 1.0
        scales = effective if alpha == 1.0 else np.asarray(effective / np.float32(alpha))
        key = weighted.weight, axis, scales.tobytes(), alpha
        if key not in self._weights:
            self._weights[key] = add_quantized_weight(
                weighted.weight, axis, scales, self._taken, factor=alpha
            )
        weighted.replace_weight(self._weights[key], self._taken)
        if unit.bias is not None and not self._choice.adds_floats(unit):
            self._quantize_bias(unit, unit.bias, effective)
        for name in ("alpha", "beta"):
            if node.op_type == "Gemm" and name in node.attributes:
                del node.attributes[name]

    def _quantize_bias(self, unit: NodeUnit, bias: ir.Value, weights: Array) -> None:
        operand = self._quantization.values[unit.inputs[0]].scale
        integers, scales = quantized_bias(float_bias(unit), operand, weights)
        name = bias.name or "bias"
        tensor = ir.Tensor(integers, name=reserve_name(f"{name}.int32", self._taken))
        axis = 0 if scales.ndim else None
        wide = add_dequantize_linear(self._graph, tensor, [scales], axis, name, self._taken)
        reader = next(node for node in unit.nodes if bias in node.inputs)
        for index, value in enumerate(reader.inputs):
            if value is bias:
                reader.replace_input_with(index, wide)
        drop_unread(bias)

    def _quantize_constant(self, unit: NodeUnit, value: ir.Value) -> None:
        """Replace a constant operand of a unit by int8 with DequantizeLinear."""
        tensor = constant_tensor(value)
        if tensor is None:
            return
        if value not in self._constants:
            found = self._quantization.values[value]
            name = value.name or "constant"
            integers = np.rint(tensor.numpy() / np.float32(found.scale)) + found.zero_point
            stored = np.clip(integers, -128, 127).astype(np.int8)
            bytes_ = ir.Tensor(stored, name=reserve_name(f"{name}.int8", self._taken))
            parameters: list[Array] = [
                np.array(found.scale, np.float32),
                np.array(found.zero_point, np.int8),
            ]
            self._constants[value] = add_dequantize_linear(
                self._graph, bytes_, parameters, None, name, self._taken
            )
        for index, read in enumerate(unit.nodes[0].inputs):
            if read is value:
                unit.nodes[0].replace_input_with(index, self._constants[value])
        drop_unread(value)
