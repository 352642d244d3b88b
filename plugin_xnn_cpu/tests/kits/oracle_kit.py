"""Expected values from outside of this project: onnxruntime, then onnx's own evaluator.

The reference backend of this project replaces Conv, MaxPool, LSTM, Pad, Resize and others by code
of its own: it is the last oracle, by name (`oracle="project"`) where `test_oracles.py` lists and
counts it, and for `WRONG_IN_ONNX` where onnxruntime is absent.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Mapping
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
    "saturate is only used for cast to float 8": "a Cast to other types may have the attribute",
    "is under development": "onnxruntime has not released the operator set yet",
}
"""Parts of the errors with which onnxruntime refuses a valid model, and what each says."""

WRONG_IN_ONNX = {
    "Softmax": (13, "does not flatten the axes before operator set 13"),
    "LogSoftmax": (13, "does not flatten the axes before operator set 13"),
    "Hardmax": (13, "does not flatten the axes before operator set 13"),
    "LRN": (99, "adds up the squares of other channels"),
    "ConvTranspose": (99, "fails where there are groups"),
    "DequantizeLinear": (19, "has no implementation before operator set 19"),
}
"""Operators that onnx's evaluator gets wrong below an operator set, and how.

Where onnxruntime is absent by intent, the reference backend stands in for these: the same tests
compare with onnxruntime in CI with one version of Python. `test_oracles.py` shows each to be wrong,
so that an entry goes when onnx corrects it."""


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
    onnxruntime = pytest.importorskip("onnxruntime")  # conftest.py stops CI without it
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
    with warnings.catch_warnings(action="ignore"):  # numpy's of NaN and overflow
        return dict(zip(names, ReferenceEvaluator(model).run(None, dict(feeds)), strict=True))


def is_wrong_in_onnx(model: onnx.ModelProto) -> bool:
    """Report whether a model has an operator of `WRONG_IN_ONNX`."""
    opset = next((each.version for each in model.opset_import if not each.domain), 1)
    return any(opset < WRONG_IN_ONNX.get(node.op_type, (0, ""))[0] for node in model.graph.node)


def run_project(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Any]:
    """Run a model with the reference backend of this project: the last resort."""
    from narrowpass import Bundle, CompileOptions
    from narrowpass_reference import ReferenceBackend

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
    if oracle is None and absent and is_wrong_in_onnx(model):
        return run_project(model, feeds)
    if oracle == "onnx" or (oracle is None and absent):
        return run_onnx(model, feeds)
    assert oracle in (None, "onnxruntime"), oracle
    try:
        return run_onnxruntime(model, feeds)
    except Exception as error:  # its classes are private: the text decides
        if oracle is not None or not any(part in str(error) for part in LACKING):
            raise
        return run_onnx(model, feeds)
