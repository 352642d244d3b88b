"""What is right: onnx's evaluator and onnxruntime, each by itself and where they agree."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator

from differential.doubts import is_doubtful
from differential.elements import TYPES, Array, is_float
from differential.upstream import part_of

Values = dict[str, Any]

ALIKE = {"float": 2e-4, "float16": 1e-2, "bfloat16": 8e-2, "double": 2e-4}
"""How far two oracles may be apart, relative to the largest element, and still agree.

float32 and double: 2e-4 is what 2,000 terms in another order err (2 sqrt(n) u, u = 2**-24, times
30 for functions in sequence); onnxruntime computes some operators on double in float32.
float16: 20 u, and bfloat16: 20 u, as one of them may keep intermediate values in float32."""


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
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    return onnxruntime


def run_onnxruntime(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> Values | None:
    """Return onnxruntime's outputs, each node as it is written; None where it refuses."""
    PHASE("onnxruntime")
    runtime = _runtime()
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


@dataclass(frozen=True)
class Verdict:
    """What the oracles say about a case.

    Attributes:
        candidates: the outputs of each oracle that ran, by its name, without those of onnx's
            evaluator that are doubtful: all of them where it ran alone, those that differ where
            both ran. One that refuses a model has the outputs of which it runs what they need.
        apart: how they differ, by the outputs about which both count.
        alone: outputs about which onnxruntime decides, as they differ and are doubtful.
        both: whether each oracle runs the whole model, with nodes that no output needs.
    """

    candidates: dict[str, Values]
    apart: Mapping[str, str] = field(default_factory=dict)
    alone: frozenset[str] = frozenset()
    both: bool = False

    @property
    def values(self) -> Values:
        """All outputs that an oracle has, onnxruntime's where both have one."""
        found: Values = {}
        for outputs in reversed(self.candidates.values()):
            found.update(outputs)
        return found


def difference(got: Any, expected: Any, tolerance: float | None, slack: float = 0.0) -> str:
    """Say how a result differs from what is right; "" where it does not.

    Args:
        got: an array, a list of them for a sequence, or None for an empty optional.
        expected: likewise.
        tolerance: relative to the largest element; None for that of the type.
        slack: an absolute error that is allowed in addition; integers may then be one step off.
    """
    if isinstance(expected, list) or isinstance(got, list):
        if not (isinstance(expected, list) and isinstance(got, list)):
            return f"{type(got).__name__}, not {type(expected).__name__}"
        if len(got) != len(expected):
            return f"a sequence of {len(got)}, not of {len(expected)}"
        parts = [difference(a, b, tolerance, slack) for a, b in zip(got, expected, strict=True)]
        return next(filter(None, parts), "")
    if expected is None or got is None:
        return "" if got is expected else f"{got!r}, not {expected!r}"
    got, expected = np.asarray(got), np.asarray(expected)
    if _type(got) != _type(expected) or got.shape != expected.shape:
        return f"{got.dtype}{list(got.shape)}, not {expected.dtype}{list(expected.shape)}"
    if not is_float(expected.dtype):
        # One quantum is one step of a quantized result.
        step = int(slack > 0 and expected.dtype != np.bool_)
        far = got.astype(np.int64) - expected.astype(np.int64) if step else got != expected
        wrong = int(np.sum(np.abs(far) > step)) if step else int(np.sum(far))
        return f"{wrong} of {got.size} elements differ" if wrong else ""
    a, b = got.astype(np.float64), expected.astype(np.float64)
    if not np.array_equal(np.isnan(a), np.isnan(b)):
        return "NaN in other places"
    infinite = np.isinf(b)
    if not np.array_equal(a[infinite], b[infinite]) or np.isinf(a[~infinite]).any():
        return "infinite in other places"
    finite = np.isfinite(b)
    if not finite.any():
        return ""
    name = _type(expected)
    limit = tolerance if tolerance is not None else ALIKE.get(name, 0.0)
    # Elements that cancel come from operands of about 1.
    size = max(float(np.abs(b[finite]).max()), 0.1)
    error = float(np.abs(a[finite] - b[finite]).max())
    return f"{error:.3g} of {size:.3g}" if error > limit * size + slack else ""


def _type(array: Array) -> str:
    if array.dtype.kind in "OUS":
        return "string"
    return next((n for n, t in TYPES.items() if t == array.dtype), str(array.dtype))


def differences(
    got: Values, expected: Values, tolerance: float | None, slack: float
) -> dict[str, str]:
    """Say how outputs differ, by those that do."""
    found = {}
    for name, value in expected.items():
        text = "is not there"
        if name in got:
            text = difference(got[name], value, tolerance, slack)
        if text:
            found[name] = text
    return found


def judge(model: onnx.ModelProto, feeds: Mapping[str, Array], slack: float = 0.0) -> Verdict:
    """Ask both oracles; onnx's evaluator decides nothing alone where it may be wrong."""
    logging.disable(logging.WARNING)
    whole = [run(model, feeds) for run in (run_onnxruntime, run_evaluator)]
    runtime = _by_output(run_onnxruntime, model, feeds) if whole[0] is None else whole[0]
    other = _by_output(run_evaluator, model, feeds) if whole[1] is None else whole[1]
    shared = {name: value for name, value in runtime.items() if name in other}
    apart = differences(other, shared, None, slack)
    doubtful = {n for n in other if (n in apart or n not in shared) and is_doubtful(model, n)}
    sure = {name: value for name, value in other.items() if name not in doubtful}
    return Verdict(
        {name: found for name, found in (("onnxruntime", runtime), ("onnx", sure)) if found},
        {name: text for name, text in apart.items() if name not in doubtful},
        frozenset(doubtful & apart.keys()),
        None not in whole,
    )


def _by_output(
    run: Callable[[onnx.ModelProto, Mapping[str, Any]], Values | None],
    model: onnx.ModelProto,
    feeds: Mapping[str, Array],
) -> Values:
    """Return what an oracle says that does not run a model, but may run what an output needs."""
    found: Values = {}
    if len(model.graph.output) == 1:
        return found
    for output in model.graph.output:
        part = part_of(model, output.name)
        given = {value.name: feeds[value.name] for value in part.graph.input}
        found.update(run(part, given) or {})
    return found
