"""One model run in several ways: whether its outputs have the same bits.

==========  =======================================================================================
axis        what differs
==========  =======================================================================================
`threads`   the number of threads
`batch`     the rows beside a row, and its place among them: each alone, half of them, in reverse
`padding`   columns behind the tokens of a text, which the attention mask leaves out
`isa`       the instruction sets: each that the backend can be held to on this processor
==========  =======================================================================================
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import onnx_ir as ir

from narrowpass.bundle import Bundle
from narrowpass.driver import open_bundle
from narrowpass.errors import BackendError, UsageError
from narrowpass.runtime.backend import Backend, CompileOptions, Outputs, Program, compile_bundle
from narrowpass_analysis.metrics import difference

Array = np.ndarray[Any, Any]
Feeds = Mapping[str, Array]
Run = Callable[[Feeds, int], Outputs]
"""Runs the method on feeds with so many threads."""

AXES = ("threads", "batch", "padding", "isa")
BATCH = 8
"""Rows of random data along the axis of the batch."""
_THREADS = (1, 2, 3, 4)
_PADDING = (1, 7, 32)
_MASK = re.compile(r"(?i)mask")


@runtime_checkable
class HasInstructionSets(Protocol):
    """A backend that can be held to fewer instruction sets than the processor has."""

    def instruction_sets(self) -> Mapping[str, Mapping[str, str]]:
        """Return those of this processor, by name: the environment of a process that uses them."""
        ...


@dataclass(frozen=True)
class Case:
    """One output of one way to run the model, beside the first way.

    Attributes:
        axis: one of `AXES`.
        case: what is different, such as ``2 threads``.
        output: its name.
        same: whether all bits are the same.
        max_abs: the largest absolute difference.
        relative: the same, as a share of the largest value.
    """

    axis: str
    case: str
    output: str
    same: bool
    max_abs: float
    relative: float


@dataclass(frozen=True)
class Method:
    """A method, and the feeds that it is run on.

    Attributes:
        source: the bundle or ONNX file.
        pipeline: for an ONNX file; None for none.
        backend: what runs it.
        name: of the method.
        graph: of the method.
        feeds: a sample.
    """

    source: str
    pipeline: str | None
    backend: Backend
    name: str
    graph: ir.Graph
    feeds: Feeds

    def cases(self, axis: str, run: Run) -> Iterator[Case]:
        """Run the model in the ways of an axis; yield each output of each.

        Raises:
            UsageError: the method has no such axis; the message says why.
            BackendError: a run failed.
        """
        ways = {
            "threads": self._threads,
            "batch": self._batch,
            "padding": self._padding,
            "isa": self._instruction_sets,
        }
        yield from ways[axis](run)

    def _threads(self, run: Run) -> Iterator[Case]:
        expected = run(self.feeds, _THREADS[0])
        for count in _THREADS[1:]:
            yield from _compared("threads", f"{count} threads", expected, run(self.feeds, count))

    def _batch(self, run: Run) -> Iterator[Case]:
        batched = [v.name or "" for v in self.graph.inputs if v.name in self.feeds and _grows(v, 0)]
        sizes = {self.feeds[name].shape[0] for name in batched}
        rows = max(sizes, default=0)
        if len(sizes) != 1 or rows < 2:
            raise UsageError(
                f"method {self.name!r} has no batch to divide: no inputs whose first dimension is "
                "symbolic, or samples of one row; pass --data with samples of several rows"
            )
        expected = run(self.feeds, 1)
        along = {name for name, value in expected.items() if _size(value, 0) == rows}
        if not along:
            raise UsageError(f"no output of method {self.name!r} has a row for each of the batch")

        def taken(order: Sequence[int]) -> Outputs:
            feeds = {n: a[list(order)] if n in batched else a for n, a in self.feeds.items()}
            return run(feeds, 1)

        def of(order: Sequence[int]) -> Outputs:
            return {name: expected[name][list(order)] for name in along}

        ways: dict[str, list[Sequence[int]]] = {
            "each row alone": [[row] for row in range(rows)],
            "half of the rows": [range(rows // 2), range(rows // 2, rows)],
            "in reverse": [range(rows)[::-1]],
        }
        for case, orders in ways.items():
            parts = [taken(order) for order in orders]
            whole = {name: np.concatenate([part[name] for part in parts]) for name in along}
            order = [row for some in orders for row in some]
            yield from _compared("batch", case, of(order), whole)

    def _padding(self, run: Run) -> Iterator[Case]:
        masks = [v for v in self.graph.inputs if _MASK.search(v.name or "") and _grows(v, 1)]
        if not masks:
            raise UsageError(
                f"method {self.name!r} has no attention mask [N, S] to leave columns out"
            )
        mask = masks[0]
        columns = self.feeds[mask.name or ""].shape[1]
        padded = [v.name or "" for v in self.graph.inputs if _symbol(v, 1) == _symbol(mask, 1)]
        feeds = dict(self.feeds)
        feeds[mask.name or ""] = np.ones_like(feeds[mask.name or ""])
        expected = run(feeds, 1)
        for count in _PADDING:
            wide = {
                name: np.concatenate(
                    [array, np.zeros((array.shape[0], count, *array.shape[2:]), array.dtype)], 1
                )
                if name in padded
                else array
                for name, array in feeds.items()
            }
            found = {
                name: value[:, :columns] if _size(value, 1) == columns + count else value
                for name, value in run(wide, 1).items()
            }
            yield from _compared("padding", f"{count} columns", expected, found)

    def _instruction_sets(self, run: Run) -> Iterator[Case]:
        if not isinstance(self.backend, HasInstructionSets):
            raise UsageError(f"backend {self.backend.name!r} cannot be held to instruction sets")
        expected = run(self.feeds, 1)
        for name, variables in self.backend.instruction_sets().items():
            yield from _compared("isa", name, expected, self._apart(variables))

    def _apart(self, variables: Mapping[str, str]) -> Outputs:
        """Run the model in a process with these environment variables."""
        with tempfile.TemporaryDirectory() as folder:
            feeds, results = Path(folder, "feeds.npz"), Path(folder, "results.npz")
            # Arrays of narrow types are stored as their bytes.
            _save(feeds, self.feeds)
            request = {
                "source": self.source,
                "pipeline": self.pipeline,
                "backend": str(self.backend),
                "method": self.name,
                "feeds": str(feeds),
                "results": str(results),
            }
            code = "from narrowpass_analysis.across import serve; serve()"
            done = subprocess.run(
                [sys.executable, "-c", code],
                input=json.dumps(request),
                env={**os.environ, **variables},
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                last = (done.stderr.strip().splitlines() or ["it was ended"])[-1]
                text = ", ".join(f"{key}={value}" for key, value in variables.items())
                raise BackendError(f"a process with {text} failed: {last}")
            return _load(results)


def with_data(method: Method, samples: Sequence[Feeds]) -> Method:
    """Return the method with samples of equal shapes side by side, as one batch."""
    first = samples[0]
    alike = [s for s in samples if all(s[n].shape == a.shape for n, a in first.items())]
    batched = [v.name or "" for v in method.graph.inputs if v.name in first and _grows(v, 0)]
    feeds = {
        name: np.concatenate([sample[name] for sample in alike[:BATCH]])
        if name in batched
        else array
        for name, array in first.items()
    }
    return replace(method, feeds=feeds)


def batch_shapes(graph: ir.Graph) -> dict[str, tuple[int, ...]]:
    """Return shapes with `BATCH` rows, and with as many columns where these are symbolic, too."""
    found = {}
    for value in graph.inputs:
        if _grows(value, 0) and value.shape is not None and value.name not in graph.initializers:
            found[value.name or ""] = tuple(d if isinstance(d, int) else BATCH for d in value.shape)
    return found


def runs_of(bundle: Bundle, backend: Backend, name: str) -> Run:
    """Return what runs a method, with programs that are compiled when they are first needed."""
    programs: dict[int, Program] = {}

    def run(feeds: Feeds, threads: int) -> Outputs:
        if threads not in programs:
            programs[threads] = compile_bundle(backend, bundle, CompileOptions(threads=threads))
        return programs[threads].run(feeds, name)

    return run


def serve() -> None:
    """Run a method as the JSON document on standard input says: in a process of its own."""
    from narrowpass import load_plugins

    request = json.loads(sys.stdin.read())
    plugins = load_plugins()
    backend = plugins.registry.backend(request["backend"])
    bundle = open_bundle(request["source"], backend, pipeline=request["pipeline"], plugins=plugins)
    run = runs_of(bundle, backend, request["method"])
    _save(Path(request["results"]), run(_load(Path(request["feeds"])), 1))


def _save(path: Path, arrays: Mapping[str, Any]) -> None:
    parts = {}
    for number, (name, array) in enumerate(arrays.items()):
        dense = np.ascontiguousarray(array)
        parts[f"{number}.bytes"] = np.frombuffer(dense.tobytes(), np.uint8)
        described = json.dumps([name, dense.dtype.name, list(array.shape)])
        parts[f"{number}.form"] = np.array(described)
    np.savez(path, allow_pickle=False, **parts)


def _load(path: Path) -> Outputs:
    found: Outputs = {}
    with np.load(path, allow_pickle=False) as parts:
        for number in range(len(parts.files) // 2):
            name, dtype, shape = json.loads(str(parts[f"{number}.form"]))
            kind = ir.DataType.from_numpy(np.dtype(dtype)).numpy()
            found[name] = parts[f"{number}.bytes"].view(kind).reshape(shape)
    return found


def _compared(axis: str, case: str, expected: Outputs, found: Outputs) -> Iterator[Case]:
    for name, wanted in expected.items():
        value, reference = np.asarray(found[name]), np.asarray(wanted)
        off = difference(value, reference)
        same = value.dtype == reference.dtype and value.tobytes() == reference.tobytes()
        yield Case(axis, case, name, same, off.max_abs, off.relative)


def _symbol(value: ir.Value, axis: int) -> str | None:
    dims = () if value.shape is None else value.shape
    dim = dims[axis] if len(dims) > axis else 0
    return None if isinstance(dim, int) else dim.value


def _grows(value: ir.Value, axis: int) -> bool:
    """Return whether an axis is there, and has no fixed size."""
    return (
        value.shape is not None
        and len(value.shape) > axis
        and not isinstance(value.shape[axis], int)
    )


def _size(value: Any, axis: int) -> int | None:
    shape = getattr(value, "shape", ())
    return shape[axis] if len(shape) > axis else None
