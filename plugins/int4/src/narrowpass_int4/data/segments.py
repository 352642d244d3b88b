"""A model run in segments of its nodes, with the values between them kept for all samples.

So the layers before a weight are computed once, as they are after quantization, and only the
weights of one segment are in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import onnx_ir as ir

from narrowpass import Samples
from narrowpass.errors import DataError, PassError
from narrowpass_analysis.values import run_on_samples
from narrowpass_int4.data.parts import Parts
from narrowpass_int4.data.states import States

if TYPE_CHECKING:
    from narrowpass import Backend

Array = np.ndarray[Any, Any]
See = Callable[[str, Array, str], None]
"""Is passed the name of a value, its elements on a sample, and what to call that sample."""


class Segments:
    """Runs the nodes of a graph from the first on, a range at a time.

    Args:
        model: not changed; its nodes stay in their order while this is in use.
        samples: feeds for the model.
        backend: what runs it.
        memory: bytes of values that stay in memory between two segments; more are on disk.
    """

    def __init__(self, model: ir.Model, samples: Samples, backend: Backend, memory: int) -> None:
        self._parts = Parts(model)
        self._samples, self._backend = samples, backend
        self._states = States(memory)
        self._at, self._started = 0, False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Delete the values."""
        self._states.close()

    def advance(
        self,
        stop: int,
        weights: Mapping[str, ir.TensorProtocol],
        names: Sequence[str],
        see: See,
    ) -> None:
        """Run the nodes up to `stop`, and look at values that the nodes from there on read.

        Args:
            stop: the number of the first node, of the graph, that does not run.
            weights: what initializers are in place of what they are in the model, by name.
            names: of the values.
            see: is called with each of them on each sample.

        Raises:
            DataError: a value has an element that is NaN or infinite.
            BackendError: the segment cannot be run.
            PassError: a value between segments is no tensor, or cannot be written.
        """
        live = self._parts.live(stop)
        computed = [name for name in live if self._parts.produced[name] >= self._at]
        model = None
        if computed:
            model = self._parts.part(self._at, stop, computed, weights, self._first())
        for number, state, values in self._run(model, computed):
            held = {name: state[name] for name in live if name in state}
            held |= {name: values[name] for name in computed}
            where = f"sample {number} of {self._samples.source}"
            for name in names:
                if name not in held:
                    raise DataError(f"{where} has no {name!r}")
                _seen(see, name, held[name], where)
            self._states.append(held)
            del state, values, held
        self._at, self._started = stop, True

    def held(self, name: str) -> Iterator[Array]:
        """Yield a value that nodes from the present one on read, for each sample in turn."""
        return self._states.each(name)

    def _first(self) -> dict[str, Array]:
        return self._states.first() if self._started else next(self._feeds(), {})

    def _feeds(self) -> Iterator[dict[str, Array]]:
        """Yield what each sample has so far, and forget what is kept of it."""
        if self._started:
            yield from self._states.drain()
            return
        for feeds in self._samples:
            # Who reads samples may reuse the arrays, and these stay until later segments.
            yield {name: _copied(name, array) for name, array in feeds.items()}

    def _run(
        self, model: ir.Model | None, names: Sequence[str]
    ) -> Iterator[tuple[int, dict[str, Array], Mapping[str, Any]]]:
        """Yield the number of each sample, all its values so far, and those of these names."""
        if model is None:
            yield from ((number, feeds, {}) for number, feeds in enumerate(self._feeds(), 1))
            return
        wanted = {value.name for value in model.graph.inputs}
        states: list[dict[str, Array]] = []

        def fed() -> Iterator[dict[str, Array]]:
            for state in self._feeds():
                states.append(state)
                yield {name: array for name, array in state.items() if name in wanted}

        source = Samples(self._samples.source, fed)
        for number, _, values in run_on_samples(model, list(names), source, self._backend):
            yield number, states.pop(0), values


def _copied(name: str, array: Any) -> Array:
    if isinstance(array, (list, dict)) or array is None:
        raise PassError(f"value {name!r} is no tensor: the model cannot be run in segments")
    return np.array(array)


def _seen(see: See, name: str, array: Array, where: str) -> None:
    if not np.isfinite(np.asarray(array, np.float32)).all():
        raise DataError(f"value {name!r} on {where} is NaN or infinite")
    see(name, array, where)
