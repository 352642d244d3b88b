"""onnxruntime as an oracle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx
import pytest


def session_of(model: onnx.ModelProto, *, optimized: bool = False, **entries: str) -> Any:
    """Return a session of onnxruntime's CPU kernels on one thread; skip where it is not installed.

    Args:
        model: what it runs.
        optimized: also fuse and fold. Without it each node runs as it is written: a quantized
            model computes in float32 between DequantizeLinear and QuantizeLinear.
        **entries: of the configuration, with a dot for each double underscore.
    """
    onnxruntime = pytest.importorskip("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    for name, value in entries.items():
        options.add_session_config_entry(name.replace("__", "."), value)
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def run_onnxruntime(
    model: onnx.ModelProto, feeds: Mapping[str, Any], *, optimized: bool = False
) -> list[Any]:
    """Return the outputs of a model."""
    return list(session_of(model, optimized=optimized).run(None, dict(feeds)))
