"""The largest element that each value has on data, in float32."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from narrowpass import Bundle, CompileOptions
from narrowpass.errors import DataError
from narrowpass.verification import AT_ONCE

if TYPE_CHECKING:
    from narrowpass import Backend
    from narrowpass.calibration import Samples


def observe(model: ir.Model, samples: Samples, target: Backend | None) -> dict[str, float]:
    """Run a model on samples, and give the largest finite magnitude of each float32 value.

    Args:
        model: as it was before anything is narrow; not changed.
        samples: gone through once for every 256 values.
        target: what runs it; None for the reference evaluator.

    Raises:
        DataError: a value is infinite or NaN on a sample; the message names both.
        BackendError: the model cannot be run.
    """
    names = [
        value.name
        for node in model.graph
        for value in node.outputs
        if value.name and value.dtype == ir.DataType.FLOAT
    ]
    outputs = {value.name for value in model.graph.outputs}
    largest: dict[str, float] = {}
    for start in range(0, len(names), AT_ONCE):
        chosen = names[start : start + AT_ONCE]
        keep = tuple(name for name in chosen if name not in outputs)
        with _backend(target).compile(
            Bundle({"main": model}), CompileOptions(keep=keep, cache=False)
        ) as program:
            for number, feeds in enumerate(samples, start=1):
                for name, array in program.run(feeds, outputs=chosen).items():
                    largest[name] = max(
                        largest.get(name, 0.0), _largest(name, array, number, samples)
                    )
    return largest


def _largest(name: str, array: object, number: int, samples: Samples) -> float:
    if not isinstance(array, np.ndarray) or not array.size:
        return 0.0
    size = float(np.abs(array).max())
    if np.isnan(size):
        raise DataError(f"value {name!r} is NaN on sample {number} of {samples.source}")
    # Infinity is what a mask adds; it stays infinity in the narrow type.
    if np.isinf(size):
        finite = np.abs(array[np.isfinite(array)])
        return float(finite.max()) if finite.size else 0.0
    return size


def _backend(target: Backend | None) -> Backend:
    if target is not None and target.available() is None:
        return target
    from narrowpass.reference import ReferenceBackend

    return ReferenceBackend()
