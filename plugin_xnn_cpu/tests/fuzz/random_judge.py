"""Runs a random model in many ways, and compares each with onnxruntime."""

from __future__ import annotations

import faulthandler
import itertools
import math
import os
import pickle
import random
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper
from random_operators import DIMS, Array, Graph, node_captures, onnxruntime_session

import narrowpass
from narrowpass import Bundle, CompileOptions, Program
from narrowpass.errors import NarrowpassError
from narrowpass_xnn_cpu.backend import XnnCpuBackend
from narrowpass_xnn_cpu.native import kernels
from narrowpass_xnn_cpu.native import target as targets

Feeds = dict[str, Array]


@dataclass(frozen=True)
class Finding:
    """What is wrong: a word for the class, what it happened in, and the details."""

    kind: str
    where: str
    message: str


def oracle(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> Feeds | None:
    """onnxruntime's results; None where it refuses."""
    if any(array.size == 0 for array in feeds.values()):
        return apart(model, feeds)
    return computed(model, feeds)


def apart(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> Feeds | None:
    """onnxruntime's results, computed in another process; None where that ends without any."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            faulthandler.disable()
            os.close(reader)
            with os.fdopen(writer, "wb") as file:
                pickle.dump(computed(model, feeds), file)
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        data = file.read()
    status = os.waitpid(child, 0)[1]
    return pickle.loads(data) if status == 0 and data else None


def computed(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> Feeds | None:
    try:
        session = onnxruntime_session(model)
        names = [value.name for value in session.get_outputs()]
        return {
            n: np.asarray(a) for n, a in zip(names, session.run(None, dict(feeds)), strict=True)
        }
    except Exception:  # noqa: BLE001  # its errors have no common base
        return None


def evaluator(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> Feeds | None:
    """The results of onnx's evaluator; None where it fails."""
    from onnx.reference import ReferenceEvaluator

    try:
        outputs = ReferenceEvaluator(model).run(None, dict(feeds))
        return {v.name: np.asarray(a) for v, a in zip(model.graph.output, outputs, strict=True)}
    except Exception:  # noqa: BLE001  # anything
        return None


def part_for(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """The nodes that one output depends on."""
    needed, nodes = {name}, []
    for node in reversed(model.graph.node):
        if needed & set(node.output):
            nodes.insert(0, node)
            needed |= {*node.input, *node_captures(node)}
    part = onnx.ModelProto()
    part.CopyFrom(model)
    del part.graph.node[:]
    part.graph.node.extend(nodes)
    outputs = [value for value in model.graph.output if value.name == name]
    del part.graph.output[:]
    part.graph.output.extend(outputs)
    return part


@contextmanager
def code(target: str, ours: bool) -> Iterator[None]:
    """Let kernels of ours be those of another processor."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(kernels, "TARGET", target))
        if ours:
            stack.enter_context(patch.dict(targets.OVERRIDES, {"fp32_lanes": 8}))
        yield


def sized(g: Graph, sizes: Mapping[str, int], feeds: Mapping[str, Array]) -> Feeds:
    """Feeds for other sizes: elements are those of the first ones, again and again."""
    resized = {}
    for name, array in feeds.items():
        shape = [sizes.get(d, 0) if isinstance(d, str) else d for d in g.dims[name]]
        resized[name] = np.resize(array, shape) if array.size else np.ones(shape, array.dtype)
    return resized


def off(got: Any, expected: Array, tolerance: float, scale: float) -> str | None:
    """Say how a result differs; None where it does not."""
    if not isinstance(got, np.ndarray):
        return f"it is {type(got)}"
    if got.dtype == expected.dtype and got.ndim == expected.ndim and not got.size + expected.size:
        return None  # outputs of a Loop without trips have no known sizes
    if got.dtype != expected.dtype or got.shape != expected.shape:
        return f"{got.dtype}{list(got.shape)}, not {expected.dtype}{list(expected.shape)}"
    if expected.dtype.kind in "iub":
        wrong = int(np.sum(got != expected))
        return f"{wrong} of {got.size} integers differ" if wrong else None
    if not got.size:
        return None
    a, b = got.astype(np.float64), expected.astype(np.float64)
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return "not finite in other places"
    finite = np.isfinite(b)
    if not finite.any():
        return None
    size = max(float(np.abs(b[finite]).max()), min(scale, 1e4), 1e-3)
    error = float(np.abs(a[finite] - b[finite]).max())
    return f"{error:.3g} of {size:.3g}" if error > tolerance * size else None


class Judge:
    """One model and its runs."""

    def __init__(self, g: Graph, *, zeros: bool = True) -> None:
        self.g, self.zeros = g, zeros
        self.model = g.model()
        self.rng = random.Random(len(g.nodes))
        kinds = {a.dtype for a in g.values.values()}
        kinds |= {np.dtype(np.float32)} if any(n.op_type in LOSSY for n in g.nodes) else set()
        self.tolerance = 2e-2 if np.dtype(np.float16) in kinds else 1e-4
        if np.dtype(np.float32) not in kinds and np.dtype(np.float16) not in kinds:
            self.tolerance = 1e-9
        self.scale = max(g.scale.values(), default=1.0)
        self.feeds = dict(g.inputs)
        self.expected = oracle(self.model, self.feeds)
        self.runs = 0

    def findings(self, pipelines: Mapping[str, float]) -> Iterator[Finding]:
        if self.expected is None or not self.g.nodes:
            return
        targets = [("best", False)] * 3 + [("plain", True), ("avx2", True), ("best", True)]
        target, ours = self.rng.choice(targets)
        with code(target, ours):
            yield from self.compiled(f"{target}{'+' * ours}")
        for pipeline, tolerance in pipelines.items():
            yield from self.piped(pipeline, tolerance)

    def compiled(self, where: str) -> Iterator[Finding]:
        source = ir.from_proto(self.model)
        results = {}
        for threads in (1, 2):
            here = f"{where}/{threads}"
            try:
                program = XnnCpuBackend().compile(
                    Bundle({"main": source}), CompileOptions(threads=threads)
                )
            except NarrowpassError as error:
                yield Finding("refused", here, str(error))
                return
            except Exception as error:  # noqa: BLE001  # it is what is looked for
                yield Finding("exception", here, f"{type(error).__name__}: {error}")
                return
            with program:
                found = yield from self.series(program, here)
            results[threads] = found
        one, two = results[1], results[2]
        if one is not None and two is not None:
            for name, array in one.items():
                if two[name].tobytes() != array.tobytes():
                    message = off(two[name], array, self.tolerance / 10, self.scale)
                    # Kernels depend on the number of threads: another order of accumulation.
                    if message:
                        yield Finding("threads", where, f"{name}: {message}")

    def series(self, program: Program, where: str) -> Iterator[Finding]:
        """The first sizes, twice; others; the first again."""
        assert self.expected is not None
        first = yield from self.run(program, self.feeds, self.expected, where)
        if first is None:
            return None
        again = yield from self.run(program, self.feeds, self.expected, f"{where}/again")
        yield from same_bits(first, again, f"{where}/again")
        yield from self.run(program, self.feeds, self.expected, f"{where}/laid out")
        for sizes in self.other_sizes():
            feeds = sized(self.g, sizes, self.feeds)
            here = f"{where}/{sizes}"
            expected = oracle(self.model, feeds)
            if expected is None:
                yield from self.fails(program, feeds, here)
            else:
                yield from self.run(program, feeds, expected, here)
        if self.g.sizes:
            back = yield from self.run(program, self.feeds, self.expected, f"{where}/back")
            yield from same_bits(first, back, f"{where}/back")
        return first

    def other_sizes(self) -> list[dict[str, int]]:
        names = list(self.g.sizes)
        if not any(isinstance(d, str) for dims in self.g.dims.values() for d in dims):
            return []
        bigger = {n: self.g.sizes[n] + self.rng.choice([1, 3, 16]) for n in names}
        smaller = {n: self.rng.choice([1, 1, 2, 3]) for n in names}
        other = {n: self.rng.choice(DIMS) for n in names}
        zero = self.rng.random() < 0.15 and self.zeros
        nothing = [dict.fromkeys(names, 0)] if zero else []
        return [bigger, smaller, other, *nothing]

    def fails(self, program: Program, feeds: Feeds, where: str) -> Iterator[Finding]:
        """What onnxruntime refuses may be refused or computed, and no more than that."""
        try:
            program.run(feeds)
        except NarrowpassError:
            return
        except Exception as error:  # noqa: BLE001  # it is what is looked for
            yield Finding("exception", where, f"{type(error).__name__}: {error}")

    def run(
        self, program: Program, feeds: Feeds, expected: Feeds, where: str, tolerance: float = 0.0
    ):
        self.runs += 1
        # The layout may change the order of accumulation, and so the bits.
        odd = not where.endswith(("/1", "/2", "/again", "/back"))
        given = {n: self.laid_out(a) if odd else a.copy() for n, a in feeds.items()}
        out = {}
        if self.rng.random() < 0.15:
            out = {n: np.empty_like(a) for n, a in expected.items() if self.rng.random() < 0.7}
        try:
            got = program.run(given, out=out)
        except NarrowpassError as error:
            alone = evaluator(self.model, feeds) is not None
            yield Finding("fails" if alone else "fails as onnx", where, str(error))
            return None
        except Exception as error:  # noqa: BLE001  # it is what is looked for
            yield Finding("exception", where, f"{type(error).__name__}: {error}")
            return None
        for name, array in feeds.items():
            if given[name].tobytes() != array.tobytes():
                yield Finding("input written", where, name)
        arrays = {**{f"feed {n}": a for n, a in given.items()}, **got}
        for (a, one), (b, other) in itertools.combinations(arrays.items(), 2):
            if np.may_share_memory(one, other) and one.size and other.size and b in got:
                yield Finding("shared memory", where, f"{a} and {b}")
        for name, array in out.items():
            if got[name] is not array:
                yield Finding("out", where, f"{name} is another array")
        for name, array in got.items():
            if not array.flags.writeable:
                yield Finding("shared memory", where, f"{name} cannot be written to")
        if list(got) != list(expected):
            yield Finding("outputs", where, f"{list(got)}, not {list(expected)}")
            return None
        for name, value in expected.items():
            message = off(got[name], value, tolerance or self.tolerance, self.scale)
            if message and self.convincing(feeds, name, got[name], value, tolerance):
                vote = self.vote(feeds, name, got[name], value, tolerance)
                yield Finding(vote, where, f"{name}: {message}")
        return got

    def laid_out(self, array: Array) -> Array:
        """A copy of a feed, now and then one whose elements do not lie one behind the other."""
        if array.ndim == 0 or self.rng.random() < 0.7:
            return array.copy()
        form = self.rng.randrange(3)
        if form == 0:
            return np.asfortranarray(array.copy())
        if form == 1:
            return np.flip(np.flip(array, 0).copy(), 0)
        wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
        wide[..., ::2] = array
        return wide[..., ::2]

    def convincing(
        self, feeds: Feeds, name: str, got: Array, expected: Array, tolerance: float
    ) -> bool:
        """Whether errors of single roundings do not explain the difference."""
        if got.shape != expected.shape or got.dtype != expected.dtype or got.dtype.kind != "f":
            return True
        rng = np.random.default_rng(1)
        amount = (tolerance or self.tolerance) / 10

        def nudged(a: Array) -> Array:
            if a.dtype.kind != "f":
                return a
            return np.asarray(a * (1 + amount * rng.uniform(-1, 1, a.shape))).astype(a.dtype)

        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        for tensor in model.graph.initializer:
            array = numpy_helper.to_array(tensor)
            tensor.CopyFrom(numpy_helper.from_array(nudged(array), tensor.name))
        other = oracle(model, {n: nudged(a) for n, a in feeds.items()})
        if other is None or other[name].shape != expected.shape:
            return True
        with np.errstate(all="ignore"):
            change = np.nanmax(
                np.abs(other[name].astype(float) - expected.astype(float)), initial=0
            )
            error = np.nanmax(np.abs(got.astype(float) - expected.astype(float)), initial=0)
        return not (math.isfinite(change) and math.isfinite(error) and error <= 10 * change)

    def vote(self, feeds: Feeds, name: str, got: Array, expected: Array, tolerance: float) -> str:
        other = evaluator(part_for(self.model, name), feeds)
        if other is None:
            return "wrong; the evaluator fails"
        limit = tolerance or self.tolerance
        if off(got, other[name], limit, self.scale) is None:
            return "onnxruntime alone differs"
        if off(other[name], expected, limit, self.scale) is None:
            return "wrong"
        return "all differ"

    def piped(self, pipeline: str, tolerance: float) -> Iterator[Finding]:
        assert self.expected is not None
        try:
            bundle = narrowpass.build(ir.from_proto(self.model), pipeline)
            program = narrowpass.load(bundle, "xnn-cpu", threads=1)
        except NarrowpassError as error:
            yield Finding("refused", pipeline, str(error))
            return
        except Exception as error:  # noqa: BLE001  # it is what is looked for
            yield Finding("exception", pipeline, f"{type(error).__name__}: {error}")
            return
        with program:
            first = yield from self.run(program, self.feeds, self.expected, pipeline, tolerance)
            for sizes in self.other_sizes()[:2] if first is not None else []:
                feeds = sized(self.g, sizes, self.feeds)
                expected = oracle(self.model, feeds)
                if expected is not None:
                    yield from self.run(program, feeds, expected, f"{pipeline}/{sizes}", tolerance)


LOSSY = frozenset({"MatMulNBits"})


def same_bits(first: Feeds, again: Feeds | None, where: str) -> Iterator[Finding]:
    for name, array in first.items():
        if again is not None and again[name].tobytes() != array.tobytes():
            yield Finding("other bits", where, f"{name}: {off(again[name], array, 0, 0)}")
