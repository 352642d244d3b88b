"""Writes QuantizeLinear and DequantizeLinear into a graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from narrowpass.ir.constants import constant_tensor
from narrowpass.runtime.quantization import Parameters
from narrowpass_int8_sym.halves import stay_wide, stay_wide_after
from narrowpass_int8_sym.static.bias import bias_row, stored_bias
from narrowpass_int8_sym.static.parameters import QuantizationParameters, Scheme
from narrowpass_int8_sym.static.selection import Choice
from narrowpass_int8_sym.static.units import Unit
from narrowpass_int8_sym.storage import (
    dequantized,
    drop_unread,
    initializer,
    store,
    taken_names,
    unique,
)

Array = np.ndarray[Any, Any]


def emit(
    model: ir.Model, choice: Choice, quantization_parameters: QuantizationParameters, scheme: Scheme
) -> int:
    """Rewrite a model in place, as was chosen.

    Each value has one QuantizeLinear and one DequantizeLinear at most, next to what computes it.
    What else reads the result of a quantized unit reads what int8 makes of it.

    Returns:
        How many values have become int8.
    """
    return _Emission(model, choice, quantization_parameters, scheme).run()


class _Emission:
    def __init__(
        self,
        model: ir.Model,
        choice: Choice,
        quantization_parameters: QuantizationParameters,
        scheme: Scheme,
    ) -> None:
        self._graph, self._choice, self._scheme = model.graph, choice, scheme
        self._quantities = quantization_parameters
        self._taken = taken_names(model)
        self._parameters: dict[Parameters, tuple[ir.Value, ir.Value]] = {}
        self._weights: dict[tuple[ir.Value, int | None, bytes, float], ir.Value] = {}
        self._constants: dict[ir.Value, ir.Value] = {}

    def run(self) -> int:
        chosen = self._choice.units
        inside = {node for unit in chosen for node in unit.nodes}
        computed = {
            value for unit in chosen if unit not in self._choice.wide for value in unit.outputs
        }
        values = self._choice.values()
        for value in values:
            self._convert(value, None if value in computed else inside)
        for unit in chosen:
            stay_wide(unit.nodes)
            if unit in self._choice.wide:
                stay_wide_after(unit.nodes[-1])
            self._read_weight(unit)
            for value in unit.constants:
                self._read_constant(unit, value)
        return len(values)

    def _convert(self, value: ir.Value, readers: set[ir.Node] | None) -> None:
        """Quantize a value, and let nodes read what int8 makes of it; None for all of them."""
        uses = [use for use in value.uses() if readers is None or use.node in readers]
        output = value.is_graph_output() and readers is None
        if not uses and not output:
            return
        scale, zero_point = self._parameters_of(value)
        name = value.name or "value"
        whole = ir.Value(
            name=unique(f"{name}.int8", self._taken),
            shape=value.shape,
            type=ir.TensorType(ir.DataType.INT8),
        )
        wide = ir.Value(
            name=unique(f"{name}.float", self._taken),
            shape=value.shape,
            type=ir.TensorType(ir.DataType.FLOAT),
        )
        made = [
            ir.node(
                op_type,
                [read, scale, zero_point],
                outputs=[result],
                name=unique(f"{name}/{op_type}", self._taken),
            )
            for op_type, read, result in (
                ("QuantizeLinear", value, whole),
                ("DequantizeLinear", whole, wide),
            )
        ]
        producer = value.producer()
        if producer is None:
            self._graph.insert_before(next(iter(self._graph)), made)
        else:
            self._graph.insert_after(producer, made)
        for use in uses:
            use.node.replace_input_with(use.idx, wide)
        if output:
            for place, given in enumerate(self._graph.outputs):
                if given is value:
                    self._graph.outputs[place] = wide
            value.name, wide.name = wide.name, value.name

    def _parameters_of(self, value: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Return the scale and the zero point of a value; equal ones are stored once."""
        found = self._quantities.values[value]
        if found not in self._parameters:
            name = value.name or "value"
            self._parameters[found] = (
                self._stored(f"{name}.scale", np.array(found.scale, np.float32)),
                self._stored(f"{name}.zero_point", np.array(found.zero_point, np.int8)),
            )
        return self._parameters[found]

    def _stored(self, name: str, array: Array) -> ir.Value:
        return initializer(self._graph, ir.Tensor(array, name=unique(name, self._taken)))

    def _read_weight(self, unit: Unit) -> None:
        """Let a product read its weight from bytes, and its bias from integers of 32 bits."""
        weighted = unit.weighted
        if weighted is None:
            return
        node, axis = weighted.node, self._scheme.axis(weighted)
        effective = self._quantities.weights[unit]
        alpha = node.attributes.get_float("alpha", 1.0) if node.op_type == "Gemm" else 1.0
        scales = effective if alpha == 1.0 else np.asarray(effective / np.float32(alpha))
        key = weighted.weight, axis, scales.tobytes(), alpha
        if key not in self._weights:
            self._weights[key] = store(weighted.weight, axis, scales, self._taken, factor=alpha)
        weighted.read(self._weights[key], self._taken)
        if unit.bias is not None and not self._choice.adds_floats(unit):
            self._read_bias(unit, unit.bias, effective)
        for name in ("alpha", "beta"):
            if node.op_type == "Gemm" and name in node.attributes:
                del node.attributes[name]

    def _read_bias(self, unit: Unit, bias: ir.Value, weights: Array) -> None:
        operand = self._quantities.values[unit.inputs[0]].scale
        whole, scales = stored_bias(bias_row(unit), operand, weights)
        name = bias.name or "bias"
        tensor = ir.Tensor(whole, name=unique(f"{name}.int32", self._taken))
        axis = 0 if scales.ndim else None
        wide = dequantized(self._graph, tensor, [scales], axis, name, self._taken)
        reader = next(node for node in unit.nodes if bias in node.inputs)
        for index, value in enumerate(reader.inputs):
            if value is bias:
                reader.replace_input_with(index, wide)
        drop_unread(bias)

    def _read_constant(self, unit: Unit, value: ir.Value) -> None:
        """Let a unit read a constant operand from bytes."""
        tensor = constant_tensor(value)
        if tensor is None:
            return
        if value not in self._constants:
            found = self._quantities.values[value]
            name = value.name or "constant"
            whole = np.rint(tensor.numpy() / np.float32(found.scale)) + found.zero_point
            stored = np.clip(whole, -128, 127).astype(np.int8)
            bytes_ = ir.Tensor(stored, name=unique(f"{name}.int8", self._taken))
            parameters: list[Array] = [
                np.array(found.scale, np.float32),
                np.array(found.zero_point, np.int8),
            ]
            self._constants[value] = dequantized(
                self._graph, bytes_, parameters, None, name, self._taken
            )
        for index, read in enumerate(unit.nodes[0].inputs):
            if read is value:
                unit.nodes[0].replace_input_with(index, self._constants[value])
        drop_unread(value)
