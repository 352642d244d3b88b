"""Values between the nodes of a model, as they are while it runs on samples.

For passes that look at data before they change a model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import onnx_ir as ir

from narrowpass.backend import CompileOptions
from narrowpass.bundle import Bundle

if TYPE_CHECKING:
    from narrowpass.backend import Backend, Feeds, Outputs
    from narrowpass.calibration import Samples

AT_ONCE = 128
"""Values that are kept in one run: more of them would fill the memory."""


def in_groups(names: Sequence[str], size: int = AT_ONCE) -> Iterator[list[str]]:
    """Give names, so many at a time as are to be kept in one run."""
    for start in range(0, len(names), size):
        yield list(names[start : start + size])


def on_samples(
    model: ir.Model,
    names: Sequence[str],
    samples: Samples,
    backend: Backend,
    limit: int | None = None,
) -> Iterator[tuple[int, Feeds, Outputs]]:
    """Run a model on samples; give the number of each, its feeds, and the values of these names.

    Values stay in memory while a caller holds them: one that lets go of them before it goes on has
    those of one sample at a time.

    Args:
        model: not changed.
        names: of values of its graph, outputs among them or not; the outputs where there are none.
        samples: feeds for the model.
        backend: what runs it.
        limit: take so many samples at most, the first ones.

    Raises:
        BackendError: the model cannot be run. This and what follows comes when samples are taken.
        DataError: a sample cannot be read, or does not fit the inputs.
        UsageError: the graph has no value of such a name.
    """
    outputs = {value.name for value in model.graph.outputs}
    keep = tuple(name for name in names if name not in outputs)
    options = CompileOptions(keep=keep, cache=False)
    with backend.compile(Bundle({"main": model}), options) as program:
        for number, feeds in enumerate(islice(samples, limit), start=1):
            yield number, feeds, program.run(feeds, outputs=names or None)
