"""Two models run side by side."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import onnx_ir as ir

from narrowpass.bundle import Bundle, is_bundle
from narrowpass.calibration.samples import Samples
from narrowpass.driver import open_bundle
from narrowpass.errors import DataError, UsageError
from narrowpass.runtime.backend import CompileOptions, Feeds, Outputs, Program, compile_bundle
from narrowpass_analysis.inputs import describe_input, random_inputs
from narrowpass_analysis.latency import Latency, measure
from narrowpass_analysis.metrics import Difference, difference
from narrowpass_analysis.nonfinite import NanCount
from narrowpass_analysis.values import check_elements
from narrowpass_ir.sizes import disk_bytes

if TYPE_CHECKING:
    from narrowpass.cli.state import State

Show = Callable[[str, int, int], None]


@dataclass
class MethodRow:
    """The result of comparing one method.

    Attributes:
        latencies: of A and of B.
        differences: the worst over the samples, by output.
        nan: the share of NaN in A and in B, by output.
    """

    latencies: list[Latency] = field(default_factory=list)
    differences: dict[str, Difference] = field(default_factory=dict)
    nan: dict[str, tuple[NanCount, NanCount]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        a, b = self.latencies
        return {
            "a": a.to_json(),
            "b": b.to_json(),
            "outputs": {
                name: {
                    **value.to_json(),
                    **{f"nan_{s}": n.share for s, n in zip("ab", self.nan[name], strict=True)},
                }
                for name, value in self.differences.items()
            },
        }


@dataclass
class Comparison(contextlib.AbstractContextManager["Comparison"]):
    """Two compiled models and the methods of theirs that are compared.

    Attributes:
        paths: of A and B.
        sizes: on disk, in bytes.
        backend: what runs both, with its options.
        bundles: A and B.
        programs: A and B, compiled.
        pairs: names in A and in B of each method.
        count: number of samples that were run.
    """

    paths: tuple[str, str]
    sizes: tuple[int, int]
    backend: str
    bundles: tuple[Bundle, Bundle]
    programs: tuple[Program, Program]
    pairs: tuple[tuple[str, str], ...]
    count: int = 0

    @classmethod
    def open(
        cls,
        state: State,
        paths: tuple[str, str],
        *,
        backend: str | None,
        pipeline: str | None,
        threads: int | None,
        method: str | None,
    ) -> Self:
        """Open and compile both.

        Raises:
            UsageError: a pipeline for a bundle, methods or signatures that differ.
            InputError: a model that cannot be used.
        """
        chosen = state.registry.backend(backend)
        if pipeline is not None and is_bundle(paths[1]):
            raise UsageError(
                f"-p: {paths[1]} is a bundle, which is built already; pass the ONNX file as B"
            )
        first, second = (
            open_bundle(
                path,
                chosen,
                pipeline=None if is_bundle(path) else text,
                plugins=state.plugins,
            )
            for path, text in zip(paths, ("", pipeline or ""), strict=True)
        )
        pairs = _pairs(first, second, method)
        for one, other in pairs:
            _check_signatures(first.methods[one].graph, second.methods[other].graph, one)
        sizes = tuple(
            disk_bytes(path, list(bundle.methods.values()))
            for path, bundle in zip(paths, (first, second), strict=True)
        )
        options = CompileOptions(threads=threads)
        programs = tuple(compile_bundle(chosen, bundle, options) for bundle in (first, second))
        return cls(
            paths,
            (sizes[0], sizes[1]),
            str(chosen),
            (first, second),
            (programs[0], programs[1]),
            pairs,
        )

    def __exit__(self, *_: object) -> None:
        for program in self.programs:
            program.close()

    def samples(
        self, data: str | None, shapes: Mapping[str, tuple[int, ...]], seed: int
    ) -> tuple[dict[str, Iterable[Feeds]], list[str]]:
        """Return the samples for each method (by its name in A), and notes on them.

        Raises:
            UsageError: data that is for one method where several are compared.
        """
        if data is not None:
            if len(self.pairs) > 1:
                names = ", ".join(one for one, _ in self.pairs)
                raise UsageError(f"--data fits one method: choose it with --method: {names}")
            return {self.pairs[0][0]: Samples.parse(data)}, []
        samples: dict[str, Iterable[Feeds]] = {}
        notes: list[str] = []
        for one, _ in self.pairs:
            feeds, more = random_inputs(self.bundles[0].methods[one].graph, shapes, seed)
            samples[one] = [feeds]
            notes += more
        return samples, notes

    def run(
        self, samples: Mapping[str, Iterable[Feeds]], runs: int, show: Show
    ) -> dict[str, MethodRow]:
        """Run both on all samples.

        Raises:
            DataError: a sample that does not fit, or of which nothing is computed; outputs of
                different shapes.
            BackendError: a run failed.
        """
        rows: dict[str, MethodRow] = {}
        self.count = 0
        for one, other in self.pairs:
            row = rows[one] = MethodRow()
            first: tuple[Feeds, Feeds] | None = None
            for number, feeds in enumerate(samples[one], start=1):
                show(f"{one}: sample {number}", 0, 0)
                both = (feeds, self._converted(feeds, other))
                first = first or both
                a = self.programs[0].run(both[0], one)
                b = self.programs[1].run(both[1], other)
                where = f"method {one!r}, sample {number}"
                check_elements(both[0], a, where)
                _add(row, a, b, where)
                self.count = max(self.count, number)
            if first is None:
                raise DataError(f"method {one!r}: there is no sample to run on")
            show(f"{one}: latency", 0, 0)
            row.latencies = self._latencies(one, other, first, runs)
        return rows

    def _latencies(
        self, one: str, other: str, feeds: tuple[Feeds, Feeds], runs: int
    ) -> list[Latency]:
        a, b = self.programs
        turns = (lambda: a.run(feeds[0], one), lambda: b.run(feeds[1], other))
        return measure(turns, runs, warm_up=1)

    def _converted(self, feeds: Feeds, method: str) -> Feeds:
        """Return feeds of A with the floating-point types that B takes."""
        types = {v.name: v.type for v in self.bundles[1].methods[method].graph.inputs}
        converted = {}
        for name, array in feeds.items():
            kind = types.get(name)
            floats = isinstance(kind, ir.TensorType) and kind.dtype.is_floating_point()
            if kind is not None and floats and isinstance(array, np.ndarray):
                converted[name] = array.astype(kind.dtype.numpy(), copy=False)
            else:
                converted[name] = array
        return converted

    def to_json(self) -> dict[str, Any]:
        """Return what is compared, for JSON."""
        sides = {
            side: {"path": path, "bytes": size, "backend": self.backend}
            for side, path, size in zip(("a", "b"), self.paths, self.sizes, strict=True)
        }
        return {**sides, "samples": self.count}


def _add(row: MethodRow, a: Outputs, b: Outputs, where: str) -> None:
    rows = row.differences
    for name, reference in a.items():
        try:
            found = difference(b[name], reference)
        except DataError as error:
            raise DataError(f"{where}: output {name!r} of B and A: {error}") from error
        rows[name] = rows[name].worst(found) if name in rows else found
        for count, value in zip(
            row.nan.setdefault(name, (NanCount(), NanCount())), (reference, b[name]), strict=True
        ):
            count.add(value)


def _pairs(a: Bundle, b: Bundle, method: str | None) -> tuple[tuple[str, str], ...]:
    """Return the names in A and in B of the methods to compare."""
    if method is None and len(a.methods) == len(b.methods) == 1:
        return ((next(iter(a.methods)), next(iter(b.methods))),)
    ours, theirs = list(a.methods), list(b.methods)
    listed = f"A has {', '.join(ours)}; B has {', '.join(theirs)}"
    if method is not None:
        if method not in ours or method not in theirs:
            raise UsageError(f"--method {method}: it is not in both: {listed}")
        return ((method, method),)
    if set(ours) != set(theirs):
        raise UsageError(f"the methods differ: {listed}; choose one with --method")
    return tuple((name, name) for name in ours)


def _check_signatures(a: ir.Graph, b: ir.Graph, method: str) -> None:
    """Refuse methods that cannot take the same data.

    Raises:
        UsageError: with all inputs and outputs that differ.
    """
    problems = [
        problem
        for what, ours, theirs in (
            ("input", a.inputs, b.inputs),
            ("output", a.outputs, b.outputs),
        )
        for problem in _differences(what, _by_name(ours), _by_name(theirs))
    ]
    if problems:
        raise UsageError(f"method {method!r} of A and B cannot be compared: {'; '.join(problems)}")


def _by_name(values: Iterable[ir.Value]) -> dict[str, ir.Value]:
    return {value.name or "": value for value in values}


def _differences(
    what: str, ours: Mapping[str, ir.Value], theirs: Mapping[str, ir.Value]
) -> list[str]:
    problems = []
    for name in [*ours, *(name for name in theirs if name not in ours)]:
        if name not in theirs or name not in ours:
            side, value = ("A", ours.get(name)) if name in ours else ("B", theirs.get(name))
            if value is not None and not (what == "input" and value.is_initializer()):
                problems.append(f"only {side} has {what} {describe_input(value)}")
        elif not _alike(ours[name], theirs[name]):
            problems.append(
                f"{what} {describe_input(ours[name])} of A is {describe_input(theirs[name])} in B"
            )
    return problems


def _alike(ours: ir.Value, theirs: ir.Value) -> bool:
    """Return whether two values accept the same data: rank, static sizes and kind of type."""
    if ours.shape is not None and theirs.shape is not None:
        if len(ours.shape) != len(theirs.shape):
            return False
        for one, other in zip(ours.shape, theirs.shape, strict=True):
            if isinstance(one, int) and isinstance(other, int) and one != other:
                return False
    if isinstance(ours.type, ir.TensorType) and isinstance(theirs.type, ir.TensorType):
        floats = [kind.dtype.is_floating_point() for kind in (ours.type, theirs.type)]
        return all(floats) or ours.type.dtype == theirs.type.dtype
    return ours.type == theirs.type or None in (ours.type, theirs.type)
