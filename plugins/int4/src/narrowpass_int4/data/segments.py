"""A model run in segments of its nodes, with the values between them on disk.

So the layers before a weight are computed once, as they are after quantization, and only the
weights of one segment are in memory.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import onnx_ir as ir

from narrowpass import Samples
from narrowpass.errors import DataError, PassError
from narrowpass_analysis.values import run_on_samples
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
        limit: take so many samples at most, the first ones; None for all.
    """

    def __init__(
        self, model: ir.Model, samples: Samples, backend: Backend, limit: int | None = None
    ) -> None:
        self._model, self._samples, self._backend, self._limit = model, samples, backend, limit
        self._folder = tempfile.TemporaryDirectory(prefix="narrowpass-int4-")
        self._nodes = list(model.graph)
        self._reads = [_reads(node) for node in self._nodes]
        self._last: dict[str, int] = {}
        for place, names in enumerate(self._reads):
            self._last.update(dict.fromkeys(names, place))
        constants = {name for name in model.graph.initializers if name}
        self._produced: dict[str, int] = {
            value.name: -1 for value in model.graph.inputs if value.name
        }
        for place, node in enumerate(self._nodes):
            if _is_constant(node):
                continue
            self._produced.update((value.name, place) for value in node.outputs if value.name)
        # An input that has a default is a constant, unless it is fed.
        self._defaults = constants & set(self._produced)
        self._at, self._started = 0, False
        self._files: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Delete the values on disk."""
        self._folder.cleanup()

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
        live = [
            name
            for name, place in self._produced.items()
            if place < stop and self._last.get(name, -1) >= stop
        ]
        computed = [name for name in live if self._produced[name] >= self._at]
        model = self._part(stop, computed, weights) if computed else None
        files: list[str] = []
        for number, state, values in self._run(model, computed):
            held = {name: state[name] for name in live if name in state}
            held |= {name: values[name] for name in computed}
            where = f"sample {number} of {self._samples.source}"
            for name in names:
                if name not in held:
                    raise DataError(f"{where} has no {name!r}")
                _seen(see, name, held[name], where)
            path = Path(self._folder.name) / f"{stop}-{number}.npz"
            _write(path, held)
            files.append(str(path))
            del values, held
        for file in self._files:
            if file not in files:
                Path(file).unlink()
        self._files, self._at, self._started = files, stop, True

    def held(self, name: str) -> Iterator[Array]:
        """Yield a value that nodes from the present one on read, for each sample in turn."""
        for file in self._files:
            yield _read(Path(file), name)[name]

    def _feeds(self) -> Iterator[dict[str, Array]]:
        if not self._started:
            for number, feeds in enumerate(self._samples, 1):
                if self._limit is not None and number > self._limit:
                    return
                yield dict(feeds)
            return
        for file in self._files:
            yield _read(Path(file))

    def _run(
        self, model: ir.Model | None, names: Sequence[str]
    ) -> Iterator[tuple[int, Mapping[str, Any], Mapping[str, Any]]]:
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

    def _part(
        self, stop: int, outputs: Sequence[str], weights: Mapping[str, ir.TensorProtocol]
    ) -> ir.Model:
        """Return the nodes from the present one up to `stop` as a model."""
        first = next(iter(self._feeds()))
        clone = self._model.clone()
        graph = clone.graph
        nodes = list(graph)
        needed = self._needed(stop, outputs)
        reads: set[str] = set().union(*(self._reads[place] for place in needed))
        known = {value.name: value for value in graph.inputs}
        known.update((value.name, value) for node in nodes for value in node.outputs)
        inputs = []
        for name in sorted(reads):
            place = self._produced.get(name)
            default = place == -1 and name in self._defaults and name not in first
            if place is None or place >= self._at or default:
                continue
            fed, before = _input(name, known[name], first), known[name]
            for use in tuple(before.uses()):
                use.node.replace_input_with(use.idx, fed)
            graph.initializers.pop(name, None)
            before.name = f"{name}.before"
            inputs.append(fed)
        graph.outputs.clear()
        graph.outputs.extend(known[name] for name in outputs)
        graph.inputs.clear()
        graph.inputs.extend(inputs)
        gone = [
            node
            for place, node in enumerate(nodes)
            if place not in needed and not (_is_constant(node) and _is_read(node, reads))
        ]
        for node in gone:
            _detach_bodies(node)
        graph.remove(gone, safe=True)
        for name, value in list(graph.initializers.items()):
            if not value.uses() and not value.is_graph_output():
                del graph.initializers[name]
            elif name in weights:
                value.const_value = weights[name]
        return clone

    def _needed(self, stop: int, outputs: Sequence[str]) -> set[int]:
        """Return the nodes from the present one up to `stop` that these values depend on."""
        producers = {name: place for name, place in self._produced.items() if place >= self._at}
        waiting = [producers[name] for name in outputs]
        found: set[int] = set()
        while waiting:
            place = waiting.pop()
            if place in found or place >= stop:
                continue
            found.add(place)
            waiting += [producers[name] for name in self._reads[place] if name in producers]
        return found


def _detach_bodies(node: ir.Node) -> None:
    """Let the bodies of a node that is to be removed read nothing."""
    for graph in subgraphs(node):
        graph.outputs.clear()
        for inner in graph:
            _detach_bodies(inner)
            for index in range(len(inner.inputs)):
                inner.replace_input_with(index, None)


def _is_constant(node: ir.Node) -> bool:
    return node.op_type == "Constant" and not node.domain


def _is_read(node: ir.Node, reads: set[str]) -> bool:
    return any(value.name in reads for value in node.outputs)


def _input(name: str, like: ir.Value, first: Mapping[str, Array]) -> ir.Value:
    """Return an input for a value, of the type of the first sample and of any size."""
    if name not in first:
        raise DataError(f"the first sample has no {name!r}")
    array = np.asarray(first[name])
    return ir.Value(
        name=name,
        type=like.type or ir.TensorType(ir.DataType.from_numpy(array.dtype)),
        shape=ir.Shape([None] * array.ndim),
    )


def _reads(node: ir.Node) -> set[str]:
    """Return the names that a node reads, within its bodies too."""
    found = {value.name for value in node.inputs if value is not None and value.name}
    for graph in subgraphs(node):
        for inner in graph:
            found |= _reads(inner)
        found |= {value.name for value in graph.outputs if value.name}
    return found


def _seen(see: See, name: str, array: Array, where: str) -> None:
    if not np.isfinite(np.asarray(array, np.float32)).all():
        raise DataError(f"value {name!r} on {where} is NaN or infinite")
    see(name, array, where)


def _write(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write arrays, of types that numpy has not as bytes."""
    plain: dict[str, Array] = {}
    for number, (name, array) in enumerate(arrays.items()):
        if not isinstance(array, np.ndarray):
            raise PassError(f"value {name!r} is no tensor: the model cannot be run in segments")
        plain[f"{number}"] = array.view(np.uint8) if array.dtype.kind == "V" else array
        plain[f"{number}.name"] = np.array([name, array.dtype.name])
    np.savez(path, **plain)  # type: ignore[arg-type]  # its keywords are arrays


def _read(path: Path, only: str | None = None) -> dict[str, Array]:
    """Return the arrays of a file, or one of them."""
    import ml_dtypes

    found: dict[str, Array] = {}
    with np.load(path) as file:
        for number in range(len(file.files) // 2):
            name, kind = (str(text) for text in file[f"{number}.name"])
            if only is not None and name != only:
                continue
            array = file[f"{number}"]
            if array.dtype.name != kind:
                array = array.view(np.dtype(getattr(ml_dtypes, kind)))
            found[name] = array
    return found
