"""What is right: onnxruntime, where it is installed, and onnx's evaluator."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator

from narrowpass_testing.random_models._elements import TYPES

Values = dict[str, Any]
"""Outputs by name: arrays, lists of them for sequences, None for an empty optional."""


class Phase:
    """Writes what runs right now, so that whoever finds the process dead knows what it died of."""

    def __init__(self, descriptor: int | None = None) -> None:
        self.descriptor = descriptor
        self.seed = -1

    def __call__(self, name: str) -> None:
        """Note that `name` begins."""
        if self.descriptor is not None:
            os.pwrite(self.descriptor, f"{self.seed} {name}".ljust(120).encode(), 0)


PHASE = Phase()
"""Of this process."""


@cache
def _runtime() -> Any:
    """Return onnxruntime; None where it is not installed."""
    if find_spec("onnxruntime") is None:
        return None
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    return onnxruntime


def run_onnxruntime(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> Values | None:
    """Return onnxruntime's outputs, each node as it is written.

    None where it refuses the model, or is not installed.
    """
    PHASE("onnxruntime")
    runtime = _runtime()
    if runtime is None:
        return None
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    given = {}
    try:
        for name, array in feeds.items():
            if isinstance(array, np.ndarray) and array.dtype == TYPES["bfloat16"]:
                # ascontiguousarray turns scalars into vectors.
                bits = np.ascontiguousarray(array).view(np.uint16).reshape(array.shape)
                given[name] = runtime.OrtValue.ortvalue_from_numpy_with_onnx_type(
                    bits, onnx.TensorProto.BFLOAT16
                )
            else:
                given[name] = array
        session = runtime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        names = [value.name for value in session.get_outputs()]
        outputs = session.run(names, given)
    except Exception:  # noqa: BLE001  # its errors have no common base
        return None
    return dict(zip(names, outputs, strict=True))


def run_evaluator(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> Values | None:
    """Return the outputs of onnx's evaluator; None where it fails."""
    PHASE("onnx's evaluator")
    names = [value.name for value in model.graph.output]
    try:
        with warnings.catch_warnings(action="ignore"), np.errstate(all="ignore"):
            outputs = ReferenceEvaluator(model).run(None, dict(feeds))
    except Exception:  # noqa: BLE001  # anything
        return None
    return dict(zip(names, map(_as_array, outputs), strict=True))


def _as_array(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, np.ndarray | np.generic) else value


def run_nodes(
    nodes: Sequence[onnx.NodeProto],
    values: Mapping[str, Any],
    names: Sequence[str],
    imports: Sequence[onnx.OperatorSetIdProto],
) -> list[Any] | None:
    """Return the outputs of nodes: onnxruntime's, else the evaluator's; None if both fail."""
    infos = []
    for name, value in values.items():
        if isinstance(value, list):
            kind = helper.np_dtype_to_tensor_dtype(value[0].dtype) if value else 1
            infos.append(helper.make_tensor_sequence_value_info(name, kind, None))
        else:
            kind = helper.np_dtype_to_tensor_dtype(value.dtype)
            infos.append(helper.make_tensor_value_info(name, kind, value.shape))
    results = [onnx.ValueInfoProto(name=name) for name in names]
    graph = helper.make_graph(list(nodes), "g", infos, results)
    model = helper.make_model(graph, opset_imports=list(imports), ir_version=10)
    found = run_onnxruntime(model, values)
    if found is None:
        found = run_evaluator(model, values)
    if found is None or any(found.get(name) is None for name in names):
        return None
    return [_as_array(found[name]) for name in names]
