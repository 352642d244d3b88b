"""Expected values from outside of this project: onnxruntime, then onnx's own evaluator.

The reference backend of this project replaces Conv, MaxPool, LSTM, Pad, Resize and others by code
of its own: it is the last oracle, only by name (`oracle="project"`), and `test_oracles.py` lists
and counts where it is used.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

Array = np.ndarray[Any, Any]

ORACLES = ("onnxruntime", "onnx", "project")

LACKING = {
    "NOT_IMPLEMENTED": "onnxruntime has no CPU kernel for this operator with these types",
    "is not a registered function/op": "the operator's version or domain is not in onnxruntime",
    "is under development": "onnxruntime has not released the operator set yet",
}
"""Parts of the errors with which onnxruntime refuses a valid model, and what each says."""


def require_peer(name: str) -> ModuleType:
    """Import another implementation, or skip the test or the module that calls this.

    Where `NARROWPASS_TEST_PEERS` is set, as in CI with one version of Python, a missing peer is a
    failure: a test that compares with it must not vanish.
    """
    if importlib.util.find_spec(name.partition(".")[0]) is None:
        assert "NARROWPASS_TEST_PEERS" not in os.environ, f"{name} is not installed"
        pytest.skip(f"{name} is not installed", allow_module_level=True)
    return importlib.import_module(name)


def run_onnxruntime(
    model: onnx.ModelProto, feeds: Mapping[str, Array], *, optimize: bool = False
) -> dict[str, Any]:
    """Run a model with onnxruntime's CPU kernels on one thread.

    Args:
        model: to run; its IR version is lowered to one that onnxruntime reads.
        feeds: arrays by input.
        optimize: also fuse and fold; without it each node runs as it is written, so that a
            quantized model computes in float32 between DequantizeLinear and QuantizeLinear.
    """
    onnxruntime = require_peer("onnxruntime")
    older = onnx.ModelProto()
    older.CopyFrom(model)
    older.ir_version = min(older.ir_version, 10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    if not optimize:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        older.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def run_onnx(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Any]:
    """Run a model with onnx's evaluator, unmodified."""
    names = [value.name for value in model.graph.output]
    return dict(zip(names, ReferenceEvaluator(model).run(None, dict(feeds)), strict=True))


def run_project(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Any]:
    """Run a model with the reference backend of this project: the last resort."""
    from narrowpass import Bundle, CompileOptions
    from narrowpass.reference import ReferenceBackend

    bundle = Bundle({"main": ir.from_proto(model)})
    return ReferenceBackend().compile(bundle, CompileOptions()).run(feeds)


def expected_outputs(
    model: onnx.ModelProto, feeds: Mapping[str, Array], oracle: str | None = None
) -> dict[str, Any]:
    """Compute what a model's outputs must be.

    Args:
        model: to run.
        feeds: arrays by input.
        oracle: one of `ORACLES`, for what only that one gets right: a test that needs onnxruntime
            is skipped where that is absent by intent. By default onnxruntime, and onnx's evaluator
            where onnxruntime is absent or refuses the model as `LACKING` says.
    """
    if oracle == "project":
        return run_project(model, feeds)
    absent = importlib.util.find_spec("onnxruntime") is None
    if oracle == "onnx" or (
        oracle is None and absent and "NARROWPASS_TEST_PEERS" not in os.environ
    ):
        return run_onnx(model, feeds)
    assert oracle in (None, "onnxruntime"), oracle
    try:
        return run_onnxruntime(model, feeds)
    except Exception as error:  # its classes are private: the text decides
        if oracle is not None or not any(part in str(error) for part in LACKING):
            raise
        return run_onnx(model, feeds)
