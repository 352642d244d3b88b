"""The values that units read, on samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from narrowpass_analysis.values import run_on_samples
from narrowpass_auto.graph.flat import operands

if TYPE_CHECKING:
    import onnx_ir as ir

    from narrowpass.calibration.samples import Samples
    from narrowpass.runtime.backend import Backend
    from narrowpass_auto.graph.units import Unit

Array = np.ndarray[Any, Any]

_MOST_BYTES = 256 << 20
"""Recorded values that are in memory at once."""


def recorded_groups(
    model: ir.Model, units: Sequence[Unit], samples: Samples, backend: Backend, limit: int
) -> Iterator[tuple[list[Unit], list[Mapping[str, Array]]]]:
    """Yield units, as many as fit the memory, with the values that they read on each sample.

    Args:
        model: that the units are of.
        units: of the model.
        samples: feeds for the model; sizes are those of the first.
        backend: what runs it.
        limit: take so many samples at most.

    Raises:
        BackendError: the model cannot be run.
        DataError: a sample does not fit.
    """
    waiting = [unit for unit in units if operands(unit)]
    sizes = _sizes(model, waiting, samples, backend)
    while waiting:
        group: list[Unit] = []
        read: dict[str, int] = {}
        for unit in waiting:
            more = {name: sizes[name] for name in operands(unit)}
            if group and limit * sum({**read, **more}.values()) > _MOST_BYTES:
                break
            group.append(unit)
            read |= more
        waiting = waiting[len(group) :]
        yield group, _values(model, list(read), samples, backend, limit)


def _values(
    model: ir.Model, names: Sequence[str], samples: Samples, backend: Backend, limit: int
) -> list[Mapping[str, Array]]:
    fed = {value.name for value in model.graph.inputs}
    computed = [name for name in names if name not in fed]
    if not computed:
        return [{name: feeds[name] for name in names} for feeds in islice(samples, limit)]
    found: list[Mapping[str, Array]] = []
    for _, feeds, values in run_on_samples(model, computed, samples, backend, limit):
        both = {**values, **{name: feeds[name] for name in names if name in fed}}
        found.append({name: np.array(both[name]) for name in names})
    return found


def _sizes(
    model: ir.Model, units: Sequence[Unit], samples: Samples, backend: Backend
) -> dict[str, int]:
    """Return the bytes of each value that units read, on the first sample."""
    names = list(dict.fromkeys(name for unit in units for name in operands(unit)))
    sizes: dict[str, int] = {}
    for start in range(0, len(names), _AT_ONCE):
        (values,) = _values(model, names[start : start + _AT_ONCE], samples, backend, 1)
        sizes |= {name: array.nbytes for name, array in values.items()}
    return sizes


_AT_ONCE = 512
"""Values that are kept in the run that measures their sizes."""
