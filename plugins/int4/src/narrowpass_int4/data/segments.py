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
from narrowpass_int4.data.states import States
from narrowpass_ir.subgraphs import subgraphs

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


class Parts:
    """Cuts a graph between its nodes.

    Args:
        model: not changed; its nodes stay in their order while this is in use.

    Attributes:
        produced: the number of the node that computes a value, by the value's name; -1 of an input
            of the graph. Outputs of Constant are not among them.
    """

    def __init__(self, model: ir.Model) -> None:
        graph = model.graph
        self._model, self._nodes = model, list(graph)
        self._reads = [_reads(node) for node in self._nodes]
        self._last: dict[str, int] = {}
        for place, names in enumerate(self._reads):
            self._last.update(dict.fromkeys(names, place))
        self._values: dict[str, ir.Value] = dict(graph.initializers)
        self._values.update((value.name, value) for value in graph.inputs if value.name)
        self.produced: dict[str, int] = {value.name: -1 for value in graph.inputs if value.name}
        self._constants: dict[str, ir.Node] = {}
        for place, node in enumerate(self._nodes):
            constant = node.op_type == "Constant" and not node.domain
            for value in node.outputs:
                if not value.name:
                    continue
                self._values[value.name] = value
                if constant:
                    self._constants[value.name] = node
                else:
                    self.produced[value.name] = place
        # An input that has a default is a constant, unless it is fed.
        self._defaults = set(graph.initializers) & set(self.produced)

    def live(self, stop: int) -> list[str]:
        """Return the values, inputs among them, that are known before node `stop` and read there.

        Those that are read by a node after it are among them, those that none reads are not.
        """
        return [
            name
            for name, place in self.produced.items()
            if place < stop and self._last.get(name, -1) >= stop
        ]

    def part(
        self,
        start: int,
        stop: int,
        outputs: Sequence[str],
        weights: Mapping[str, ir.TensorProtocol],
        first: Mapping[str, Array],
    ) -> ir.Model:
        """Return what computes values from those that are known before a node.

        Args:
            start: the number of the first node.
            stop: the number of the node after the last.
            outputs: names of the values.
            weights: what initializers are in place of what they are in the model, by name.
            first: what is known, of the first sample.

        Raises:
            DataError: a value that is read is not known.
        """
        needed = self._needed(start, stop, outputs)
        reads: set[str] = set().union(*(self._reads[place] for place in needed))
        inputs, constants = [], []
        for name in sorted(reads):
            place = self.produced.get(name)
            default = place == -1 and name in self._defaults and name not in first
            if place is not None and place < start and not default:
                if name not in first:
                    raise DataError(f"the first sample has no {name!r}")
                inputs.append(self._values[name])
            elif name in self._model.graph.initializers:
                constants.append(self._values[name])
        literals = {self._constants[name] for name in reads if name in self._constants}
        nodes = [n for p, n in enumerate(self._nodes) if p in needed or n in literals]
        view = ir.GraphView(
            inputs,
            [self._values[name] for name in outputs],
            nodes=nodes,
            initializers=constants,
            opset_imports=dict(self._model.graph.opset_imports),
            name=self._model.graph.name,
        )
        graph = view.clone()
        for value in graph.inputs:
            array = np.asarray(first[value.name or ""])
            value.type = value.type or ir.TensorType(ir.DataType.from_numpy(array.dtype))
            value.shape = ir.Shape([None] * array.ndim)
            value.const_value = None
        for name, value in graph.initializers.items():
            if name in weights:
                value.const_value = weights[name]
        functions = [function.clone() for function in self._model.functions.values()]
        return ir.Model(graph, ir_version=self._model.ir_version, functions=functions)

    def _needed(self, start: int, stop: int, outputs: Sequence[str]) -> set[int]:
        """Return the nodes of a range that these values depend on."""
        producers = {name: place for name, place in self.produced.items() if place >= start}
        waiting = [producers[name] for name in outputs]
        found: set[int] = set()
        while waiting:
            place = waiting.pop()
            if place in found or place >= stop:
                continue
            found.add(place)
            waiting += [producers[name] for name in self._reads[place] if name in producers]
        return found


def _reads(node: ir.Node) -> set[str]:
    """Return the names that a node reads, within its bodies too."""
    found = {value.name for value in node.inputs if value is not None and value.name}
    for graph in subgraphs(node):
        for inner in graph:
            found |= _reads(inner)
        found |= {value.name for value in graph.outputs if value.name}
    return found
