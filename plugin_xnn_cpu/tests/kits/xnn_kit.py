"""What the tests of this folder share: models of one node, feeds, comparison with the oracle."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from oracle_kit import expected_outputs
from tolerances import ACCUMULATED, tolerance_of

from narrowpass import Bundle, CompileOptions, Program
from narrowpass_xnn_cpu.backend import XnnCpuBackend
from narrowpass_xnn_cpu.native import target

Array = np.ndarray[Any, Any]

TOLERANCE = ACCUMULATED.relative

THREADS = int(os.environ.get("NARROWPASS_TEST_THREADS", "1"))
"""Of programs, unless a test chooses: `tools/sanitize.py` looks for races between several."""


def fully_connected() -> str:
    """Return what explain calls a matmul with a constant matrix of float32 on this processor."""
    ours = target.current().has_fp32_gemm
    return "fully connected" if ours else "xnn fully connected"


def skip_where_nan_is_lost() -> None:
    """Skip a test of NaN in matmuls that are XNNPACK's for processors without AVX2.

    Their clamp, which even operators without bounds have, turns NaN into infinity.
    """
    if not target.current().has_fp32_gemm:
        pytest.skip("XNNPACK's matmuls for processors without AVX2 lose NaN (see xnn-cpu.md)")


def compile_model(model: onnx.ModelProto | ir.Model, **options: Any) -> Program:
    """Compile for xnn-cpu, on `THREADS` by default; see `compile_with`."""
    source = ir.from_proto(model) if isinstance(model, onnx.ModelProto) else model
    return compile_with(Bundle({"main": source}), {"threads": THREADS, **options})


def compile_with(bundle: Bundle, options: Mapping[str, Any]) -> Program:
    """Compile with options of the backend, and of `CompileOptions`.

    Nodes without a kernel run on the reference evaluator, whatever else is installed.
    """
    own = {field.name for field in dataclasses.fields(XnnCpuBackend)} & options.keys()
    backend = XnnCpuBackend(**{"fallback": "reference", **{name: options[name] for name in own}})
    others = {name: value for name, value in options.items() if name not in own}
    return backend.compile(bundle, CompileOptions(**others))


def one_node(
    op_type: str,
    shapes: Sequence[Sequence[int | str] | Array | None],
    opset: int = 18,
    outputs: int = 1,
    **attributes: Any,
) -> onnx.ModelProto:
    """Build a model of one node; arrays become initializers, shapes float32 inputs."""
    inputs, initializers, names = [], [], []
    for index, given in enumerate(shapes):
        name = "" if given is None else f"x{index}"
        names.append(name)
        if isinstance(given, np.ndarray):
            initializers.append(numpy_helper.from_array(given, name))
        elif given is not None:
            inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, given))
    results = [f"y{index}" for index in range(outputs)]
    node = helper.make_node(op_type, names, results, name="node", **attributes)
    graph = helper.make_graph(
        [node], "g", inputs, [onnx.ValueInfoProto(name=name) for name in results], initializers
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


def feeds_for(
    model: onnx.ModelProto, seed: int = 0, sizes: Mapping[str, int] | None = None
) -> dict[str, Array]:
    """Build standard normal feeds; `sizes` maps symbolic dimensions to numbers."""
    rng = np.random.default_rng(seed)
    given = {tensor.name for tensor in model.graph.initializer}
    feeds = {}
    for value in model.graph.input:
        if value.name in given:
            continue
        dims = value.type.tensor_type.shape.dim
        shape = [(sizes or {})[d.dim_param] if d.dim_param else d.dim_value for d in dims]
        feeds[value.name] = np.asarray(rng.standard_normal(shape), np.float32)
    return feeds


def close(got: Any, expected: Any, tolerance: float = TOLERANCE, least: float = 0.0) -> None:
    """Assert equal type and shape, and elements that differ little.

    By `tolerance` times the largest finite element, or `least` where that is more.
    """
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    if got.dtype.kind != "f":
        np.testing.assert_array_equal(got, expected)
        return
    finite = np.abs(expected[np.isfinite(expected)])
    scale = max(float(finite.max()) if finite.size else 1.0, least)
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance * scale)


def check(
    model: onnx.ModelProto,
    feeds: Mapping[str, Array] | None = None,
    *,
    native: bool | None = True,
    tolerance: float | None = None,
    program: Program | None = None,
    oracle: str | None = None,
    least: float = 0.0,
) -> Program:
    """Compare with an oracle; assert that all nodes ran natively, or that none did.

    By default the tolerance is that of the operator (`tolerances.py`).
    The oracle is onnxruntime unless `oracle` names another (see `oracle_kit.expected_outputs`).

    Returns:
        The program, for more.
    """
    feeds = feeds_for(model) if feeds is None else feeds
    program = program or compile_model(model)
    if any(plan.kernel.startswith("onnx.reference") for plan in program.explain()):
        # What computes here is onnx's evaluator, with or without corrections: no oracle for itself.
        assert oracle in (None, "onnxruntime"), oracle
        oracle = "onnxruntime"
    expected = expected_outputs(model, feeds, oracle)
    got = program.run(feeds)
    assert list(got) == list(expected)
    if tolerance is None:
        tolerance = tolerance_of(model).relative
    for name, value in expected.items():
        close(got[name], value, tolerance, least)
    if native is not None:
        host = ("numpy", "onnx.reference")
        left = {p.node: p.kernel for p in program.explain() if p.kernel.startswith(host)}
        assert (not left) is native, left
    return program
