"""Whether shapes that are inferred are those that are computed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import onnx_ir as ir

from narrowpass_ir.inference import infer
from narrowpass_testing.random_models import PHASE, Case, Finding, Verdict

INFERENCE = "inference"
"""The subject of these findings."""


def wrong_shapes(case: Case, verdict: Verdict) -> Iterator[Finding]:
    """Compare the known sizes of outputs with those of results on which both oracles agree."""
    PHASE(INFERENCE)
    proto = onnx.ModelProto()
    proto.CopyFrom(case.model)
    for output in proto.graph.output:
        output.type.tensor_type.ClearField("shape")  # what follows, not what is declared
    model = ir.from_proto(proto)
    infer(model)
    for output in model.graph.outputs:
        name = output.name or ""
        right = verdict.values.get(name)
        if not isinstance(right, np.ndarray) or output.shape is None or _is_apart(verdict, name):
            continue
        dims = [dim if isinstance(dim, int) else None for dim in output.shape]
        alike = len(dims) == right.ndim and all(
            dim in (None, size) for dim, size in zip(dims, right.shape, strict=True)
        )
        if not alike:
            message = f"{name}: {dims} is inferred, {list(right.shape)} is computed"
            yield Finding("wrong shape", INFERENCE, message)


def _is_apart(verdict: Verdict, name: str) -> bool:
    return not verdict.both or name in verdict.apart or name in verdict.alone
