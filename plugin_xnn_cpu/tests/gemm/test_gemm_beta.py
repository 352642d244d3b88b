"""Gemm with a factor for what it adds, against float64."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import narrowpass


@pytest.mark.parametrize("after", ["", "y = Relu(p)"], ids=["alone", "Relu"])
@pytest.mark.parametrize("added", ["[n, 9]", "[9]", "[n, 1]", "[1]"])
@pytest.mark.parametrize("dtype", ["float", "float16", "bfloat16"])
def test_gemm_adds_a_part_of_a_computed_operand(dtype, added, after):
    """beta · C, where C is no constant. Tolerance: two roundings to the type."""
    text = f"""<ir_version: 8, opset_import: ["": 17]>
    g ({dtype}[n, 7] x, {dtype}{added} c) => ({dtype}[n, 9] y)
    {{ {"p" if after else "y"} = Gemm <alpha = 0.5, beta = -1.5> (x, w, c) {after} }}"""
    proto = onnx.parser.parse_model(text)
    kind = onnx.helper.tensor_dtype_to_np_dtype(proto.graph.input[0].type.tensor_type.elem_type)
    rng = np.random.default_rng(7)
    w = rng.standard_normal((7, 9)).astype(kind)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    unit = {"float": 2.0**-22, "float16": 2.0**-10, "bfloat16": 2.0**-7}[dtype]
    with narrowpass.load(proto, "xnn-cpu", cache=False) as program:
        assert [plan.reason for plan in program.explain() if plan.op_type == "Gemm"] == [""]
        for rows in (1, 4):
            shape = [rows if n == "n" else int(n) for n in added.strip("[]").split(", ")]
            x, c = (rng.standard_normal(dims).astype(kind) for dims in ((rows, 7), shape))
            got = program.run({"x": x, "c": c})["y"].astype(np.float64)
            wide = [array.astype(np.float64) for array in (x, w, c)]
            exact = 0.5 * wide[0] @ wide[1] - 1.5 * wide[2]
            error = np.abs(got - (np.maximum(exact, 0) if after else exact)).max()
            assert error <= 3 * unit * (np.abs(exact).max() + 1)
