"""Checks of quantized models, operator by operator."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx_ir as ir

import narrowpass
from narrowpass.bundle import Bundle
from narrowpass_reference import NodeEvaluator
from narrowpass_xnn_cpu.backend import XnnCpuBackend


def off_by(model: ir.Model, feeds: dict[str, np.ndarray], threads: int = 1) -> Counter[int]:
    """Count by how many steps bytes differ from what onnx's evaluator gives.

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
    values: dict[str, Any] = dict(feeds)
    steps: Counter[int] = Counter()
    for node in model.graph:
        evaluator = NodeEvaluator([node], model)
        made = evaluator.run({name: values[name] for name in evaluator.inputs})
        values.update(made)
        name = node.outputs[0].name or ""
        if node.op_type == "QuantizeLinear":
            difference = np.abs(made[name].astype(np.int32) - got[name].astype(np.int32))
            assert got[name].shape == made[name].shape
            assert got[name].dtype == made[name].dtype
            numbers, counts = np.unique(difference, return_counts=True)
            steps.update(dict(zip(numbers.tolist(), counts.tolist(), strict=True)))
            values[name] = got[name]
        elif name in outputs:
            largest = np.abs(made[name]).max(initial=1e-30)
            assert np.abs(made[name] - got[name]).max(initial=0) <= 1e-5 * largest
    return steps
