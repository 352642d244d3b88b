"""Checks of quantized models, operator by operator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper
from oracle_kit import expected_outputs, run_onnx

import narrowpass
from narrowpass.bundle import Bundle
from narrowpass_xnn_cpu.backend import XnnCpuBackend


def off_by(model: ir.Model, feeds: dict[str, np.ndarray], threads: int = 1) -> Counter[int]:
    """Count by how many quantization steps bytes differ from those of onnxruntime.

    Each QuantizeLinear is evaluated, with all that lies before it, on the bytes that the backend
    had there: one that is a step off does not move those after it. Outputs that are floats must be
    equal within 1e-5 of the largest.
    """
    quantized = [n.outputs[0].name for n in model.graph if n.op_type == "QuantizeLinear"]
    outputs = [value.name for value in model.graph.outputs]
    keep = tuple(name for name in quantized if name and name not in outputs)
    options = narrowpass.CompileOptions(keep=keep, cache=False, threads=threads)
    with XnnCpuBackend().compile(Bundle({"main": model}), options) as program:
        got = program.run(feeds, outputs=(*keep, *(name for name in outputs if name)))
    constants = {name: value.const_value for name, value in model.graph.initializers.items()}
    values: dict[str, Any] = {k: v.numpy() for k, v in constants.items() if v is not None} | feeds
    steps: Counter[int] = Counter()
    for node in model.graph:
        exact = run_node(node, values, model.opset_imports)
        values.update(exact)
        name = node.outputs[0].name or ""
        if node.op_type == "QuantizeLinear":
            difference = np.abs(exact[name].astype(np.int32) - got[name].astype(np.int32))
            assert got[name].shape == exact[name].shape
            assert got[name].dtype == exact[name].dtype
            numbers, counts = np.unique(difference, return_counts=True)
            steps.update(dict(zip(numbers.tolist(), counts.tolist(), strict=True)))
            values[name] = got[name]
        elif name in outputs:
            largest = np.abs(exact[name]).max(initial=1e-30)
            assert np.abs(exact[name] - got[name]).max(initial=0) <= 1e-5 * largest
    return steps


def run_node(node: ir.Node, values: Mapping[str, Any], opsets: Mapping[str, int]) -> dict[str, Any]:
    """Evaluate one node whose operands are all known, as a model of constants."""
    proto = ir.to_proto(node)
    operands = {name: values[name] for name in proto.input if name}
    outputs = [onnx.ValueInfoProto(name=name) for name in proto.output if name]
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    if "Sequence" in proto.op_type:  # no initializer is a sequence
        inputs = [onnx.ValueInfoProto(name=name) for name in operands]
        graph = onnx.helper.make_graph([proto], "node", inputs, outputs)
        return run_onnx(onnx.helper.make_model(graph, opset_imports=imports), operands)
    constants = [numpy_helper.from_array(array, name) for name, array in operands.items()]
    graph = onnx.helper.make_graph([proto], "node", [], outputs, constants)
    return expected_outputs(onnx.helper.make_model(graph, opset_imports=imports), {})
