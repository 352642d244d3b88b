"""Values between the nodes of a model, as they are while it runs on samples.

For passes that look at data before they change a model.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from narrowpass.bundle import Bundle
from narrowpass.errors import BackendError, DataError, NarrowpassError
from narrowpass.runtime.backend import CompileOptions

if TYPE_CHECKING:
    from narrowpass.calibration.samples import Samples
    from narrowpass.runtime.backend import Backend, Feeds, Outputs

AT_ONCE = 128
"""Values that are kept in one run: more of them would fill the memory."""


def split_groups(names: Sequence[str], size: int = AT_ONCE) -> Iterator[list[str]]:
    """Yield names, so many at a time as are to be kept in one run."""
    for start in range(0, len(names), size):
        yield list(names[start : start + size])


def run_on_samples(
    model: ir.Model,
    names: Sequence[str],
    samples: Samples,
    backend: Backend,
    limit: int | None = None,
) -> Iterator[tuple[int, Feeds, Outputs]]:
    """Run a model on samples; yield the number of each, its feeds, and the values of these names.

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
        DataError: a sample cannot be read, or does not fit the inputs; or outputs are asked for,
            and none has an element on it.
        UsageError: the graph has no value of such a name.
    """
    outputs = {value.name for value in model.graph.outputs}
    keep = tuple(name for name in names if name not in outputs)
    options = CompileOptions(keep=keep, cache=False)
    with attribute_errors(backend, ""):
        compiled = backend.compile(Bundle({"main": model}), options)
    with compiled as program:
        for number, feeds in enumerate(islice(samples, limit), start=1):
            where = f"sample {number} of {samples.source}"
            with attribute_errors(backend, where):
                values = program.run(feeds, outputs=names or None)
            if not names:
                check_elements(feeds, values, where)
            yield number, feeds, values
            del values


@contextlib.contextmanager
def attribute_errors(backend: Backend, where: str) -> Iterator[None]:
    """Say of an error that it is the backend's, or the sample's, and not that of a pass.

    Args:
        backend: what compiles or runs a model within the block.
        where: the sample; empty while the model is compiled.

    Raises:
        BackendError: whatever the backend raised but for what follows. The message names the
            backend and says what can be done.
        DataError: a sample does not fit the inputs; the message names the sample.
    """
    try:
        yield
    except DataError as error:
        raise DataError(f"{where}: {error}" if where else str(error)) from error
    except BackendError as error:
        raise BackendError(f"{_backend_text(backend, where)}: {error}; {_REMEDY}") from error
    except (NarrowpassError, MemoryError):
        raise
    except Exception as error:  # the boundary to plugin code: else it would be the pass's fault
        raise BackendError(
            f"{_backend_text(backend, where)}: {type(error).__name__}: {error}; this is a defect "
            f"of the backend; {_REMEDY}"
        ) from error


_REMEDY = (
    "the pass needs the model to run on its data: repair the model where it cannot, or build for "
    "another backend with --target"
)


def _backend_text(backend: Backend, where: str) -> str:
    doing = f"run the model on {where}" if where else "compile the model"
    return f"backend {backend.name!r} cannot {doing}"


def check_numbers(feeds: Feeds, where: str) -> None:
    """Refuse a sample that is NaN: outputs that are NaN, too, are equal to whatever is compared.

    Raises:
        DataError: an input has an element that is NaN; the message names it.
    """
    for name, array in feeds.items():
        kind = getattr(array, "dtype", None)  # a sequence has none
        floats = kind is not None and (kind.kind == "f" or kind.name == "bfloat16")
        if floats and np.isnan(array).any():
            raise DataError(f"input {name!r} is NaN on {where}")


def check_elements(feeds: Feeds, values: Mapping[str, Any], where: str) -> None:
    """Refuse a sample on which a model computes nothing, such as a batch of 0.

    Whatever is compared on it is equal, and whatever is measured has no range. An input without
    elements alone is no reason: the cache of a decoder is empty at first.

    Args:
        feeds: the sample.
        values: what was computed of it; numbers of rank 0 do not count.
        where: names the sample, for the message.

    Raises:
        DataError: no value has an element, because inputs have none; the message names them.
    """
    arrays = [value for value in values.values() if isinstance(value, np.ndarray) and value.ndim]
    if not arrays or any(array.size for array in arrays):
        return
    empty = {name: array for name, array in feeds.items() if not getattr(array, "size", 1)}
    if empty:
        named = ", ".join(f"{name!r} has shape {list(a.shape)}" for name, a in empty.items())
        raise DataError(
            f"{where} has no elements: input {named}, and nothing can be measured on it; leave "
            "the sample out, or add at least one row"
        )
