"""The largest element that each value has on data, in float32."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from narrowpass import Samples
from narrowpass.values import check_elements, check_numbers, in_groups, on_samples
from narrowpass.verification import judges

if TYPE_CHECKING:
    from collections.abc import Iterator

    from narrowpass import Backend
    from narrowpass.backend import Feeds


def observe(model: ir.Model, samples: Samples, target: Backend | None) -> dict[str, float]:
    """Run a model on samples, and give the largest finite magnitude of each float32 value.

    Those of the main graph and its inputs: values within branches, loops and functions cannot be
    had.

    Args:
        model: as it was before anything is narrow; not changed.
        samples: gone through once for every `narrowpass.values.AT_ONCE` values.
        target: what runs it; None for the reference evaluator.

    Raises:
        DataError: an input is NaN on a sample, or nothing is computed of it; the message names
            both.
        BackendError: the model cannot be run.
    """
    names = [
        value.name
        for node in model.graph
        for value in node.outputs
        if value.name and value.dtype == ir.DataType.FLOAT
    ]
    backend = judges(target)[-1]
    largest: dict[str, float] = {}
    for group in in_groups(names):
        for number, feeds, values in on_samples(model, group, _checked(samples), backend):
            check_elements(feeds, values, f"sample {number} of {samples.source}")
            inputs = {name: x for name, x in feeds.items() if np.asarray(x).dtype == np.float32}
            for name, array in (*inputs.items(), *values.items()):
                largest[name] = max(largest.get(name, 0.0), _largest(array))
            del values, array  # before the next ones are computed
    return largest


def _checked(samples: Samples) -> Samples:
    """Give samples that are refused, before anything runs on them, where an input is NaN."""

    def opened() -> Iterator[Feeds]:
        for number, feeds in enumerate(samples, start=1):
            check_numbers(feeds, f"sample {number} of {samples.source}")
            yield feeds

    return Samples(samples.source, opened)


def _largest(array: object) -> float:
    """Give the largest finite magnitude.

    Infinity is what a mask adds, and NaN what some models put where nothing is known; both stay
    what they are in the narrow type.
    """
    if not isinstance(array, np.ndarray) or not array.size:
        return 0.0
    size = float(np.abs(array).max())
    if np.isfinite(size):
        return size
    finite = np.abs(array[np.isfinite(array)])
    return float(finite.max()) if finite.size else 0.0
