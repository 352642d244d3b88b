"""The weights of a model: quantized one after the other, then put into the graph."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from narrowpass import Decision
from narrowpass.framework.classify import ACTIVATIONS
from narrowpass_analysis.verification import judging_backends
from narrowpass_int4.data.groups import Group, groups, last_place
from narrowpass_int4.data.hessian import Hessian, columns_of
from narrowpass_int4.data.segments import Segments
from narrowpass_int4.data.states import memory_limit
from narrowpass_int4.grid import Grid
from narrowpass_int4.layers import Choose, Loss, Packer, choice, quantize
from narrowpass_int4.matrices import Matrix, drop_unread, label_of
from narrowpass_int4.methods.absorb import Divisor, divide, find_divisors
from narrowpass_int4.methods.awq import search_factors
from narrowpass_int4.methods.gptq import gptq
from narrowpass_int4.plan import Job, Left, Plan
from narrowpass_int4.storage.emission import Emitter
from narrowpass_int4.storage.packing import (
    FloatPacker,
    NbitsPacker,
    Packed,
    QdqPacker,
    stored_block,
)
from narrowpass_int4.storage.pieces import Layout, Survey, survey
from narrowpass_int4.stored import INT8_ROWS
from narrowpass_ir.constants import constant_tensor
from narrowpass_ir.subgraphs import nested_graphs

if TYPE_CHECKING:
    from narrowpass import Context

Array = np.ndarray[Any, Any]

LARGEST_OF_FLOAT16 = 2.0**18
"""The largest magnitude of a weight whose scales are stored as float16: they are up to 2^15."""

LEAST_OF_FLOAT16 = 2.0**-9
"""The least largest magnitude of such a weight: its scale is 2^-12, and blocks whose elements are a
thirty times smaller still have scales of 7 bits."""


@dataclass(frozen=True)
class Options:
    """How weights are quantized and stored.

    Attributes:
        block: elements along K that share a scale; None for all of them.
        symmetric: whether there are no zero points.
        method: what chooses the integers.
        format: ``qdq`` or ``nbits``.
        scales: ``float16``, or ``weight`` for the dtype of the weight.
        activations: ``float``, or ``dynamic`` for rows that are quantized when the model runs.
        tolerance: the largest relative error of a layer; None for any.
    """

    block: int | None
    symmetric: bool
    method: str
    format: str
    scales: str
    activations: str
    tolerance: float | None


@dataclass(frozen=True)
class Done:
    """A weight that is quantized.

    Attributes:
        job: what was to be done.
        packed: the integers.
        loss: what they lost.
        nbits: whether they are stored for MatMulNBits.
        note: why not, where they were to be, or what else is to be said.
    """

    job: Job
    packed: Packed
    loss: Loss
    nbits: bool
    note: str


class Rewriting:
    """One run of the pass on a model.

    Args:
        model: with types and shapes of its values; changed by `emit` alone.
        plan: what to do.
        options: how.
        ctx: receives decisions and counts.
    """

    def __init__(self, model: ir.Model, plan: Plan, options: Options, ctx: Context) -> None:
        self._model, self._plan, self._options, self._ctx = model, plan, options, ctx
        self._done: list[Done] = []
        self._floats: dict[str, ir.TensorProtocol] = {}
        self._last: dict[str, int] = {}
        self._places = {node: place for place, node in enumerate(model.graph)}
        self._divided: list[tuple[Divisor, Array]] = []
        self._before = self._after = 0
        self._surveys: dict[ir.Value, Survey] = {}
        self._ranks = {
            value: len(value.shape)
            for job in plan.jobs
            for matrix in job.matrices
            if (value := matrix.node.inputs[0]) is not None and value.shape is not None
        }

    @property
    def changed(self) -> bool:
        """Whether a weight is quantized."""
        return bool(self._done)

    def quantize(self) -> None:
        """Quantize all weights, one after the other.

        With data, each layer sees activations as the quantized layers before it compute them.

        Raises:
            DataError: an element of a weight, or of an activation, is infinite or NaN.
            BackendError: the model cannot be run on the samples.
            PassError: there is no space for temporary files.
        """
        total = len(self._plan.jobs)
        samples = self._ctx.samples
        if samples is None:
            for number, job in enumerate(self._plan.jobs):
                self._progress(number, total)
                self._quantize_one(job, None, None)
            self._progress(total, total)
            return
        backend = judging_backends(self._ctx.target)[-1]
        done = 0
        with contextlib.ExitStack() as stack:
            compared = self._options.method == "gptq"
            memory = memory_limit() // (2 if compared else 1)
            segments = stack.enter_context(Segments(self._model, samples, backend, memory))
            floats: Segments | None = None
            if compared:
                floats = stack.enter_context(Segments(self._model, samples, backend, memory))
            for group in groups(self._model.graph, self._plan.jobs):
                self._progress(done, total)
                hessian = self._observed(group, segments, floats)
                self._quantize_group(group, hessian)
                done += len(group.jobs)
        self._floats.clear()
        self._progress(total, total)

    def _progress(self, done: int, total: int) -> None:
        self._ctx.observer.progress("quantizing weights", done, total)

    def _observed(
        self, group: Group, segments: Segments, floats: Segments | None
    ) -> Hessian | None:
        """Run the model up to the group; return what its weights are multiplied with.

        Args:
            group: of weights that are multiplied with the same value.
            segments: of the narrow model.
            floats: of the float model, if what it computes is to be compared.
        """
        value = group.value
        if value is None or value.name is None:
            return None
        matrix = group.matrix
        hessian = Hessian(matrix.inner, value.name, compared=floats is not None)
        rights: Iterator[Array] = iter(())
        if floats is not None:
            floats.advance(group.place, {}, [], lambda name, array, where: None)
            rights = floats.held(value.name)

        def see(name: str, array: Array, where: str) -> None:
            columns = None if floats is None else columns_of(matrix, next(rights))
            hessian.add(columns_of(matrix, array), where, columns)

        segments.advance(group.place, self._floats, [value.name], see)
        for name in [name for name, last in self._last.items() if last < group.place]:
            self._floats.pop(name, None)
        return hessian if hessian.count else None

    def _quantize_group(self, group: Group, hessian: Hessian | None) -> None:
        factors: Array | None = None
        divisors: list[Divisor] = []
        if hessian is not None and self._options.method == "awq":
            factors, divisors = self._factors(group, hessian)
        before = len(self._done)
        for job in group.jobs:
            self._quantize_one(job, hessian, factors)
        if factors is None:
            return
        if len(self._done) - before < len(group.jobs):
            # A weight that stays wide was not multiplied: none of the group may be.
            for done in self._done[before:]:
                self._count(done, -1)
            del self._done[before:]
            nodes = {node for job in group.jobs for node in job.nodes}
            self._plan.left[:] = [each for each in self._plan.left if each.node not in nodes]
            for job in group.jobs:
                self._quantize_one(job, hessian, None)
            return
        self._divided.extend((divisor, factors) for divisor in divisors)

    def _factors(self, group: Group, hessian: Hessian) -> tuple[Array | None, list[Divisor]]:
        """Return the factors of AWQ and the constants that divide by them, if there are such."""
        value = group.value
        readers = {node for job in group.jobs for node in job.nodes}
        narrow = all(job.bits == 4 and job.matrices[0].is_matmul for job in group.jobs)
        if value is None or not narrow:
            return None, []
        channels = group.matrix.inner
        divisors = find_divisors(value, readers, channels)
        if not divisors or any(each.value in self._planned_twice(each) for each in divisors):
            return None, []
        weights = [_rows(job) for job in group.jobs]
        grid, block = self._grid(group.jobs[0], nbits=False), self._options.block or channels
        magnitude = hessian.magnitude / hessian.count
        factors = search_factors(weights, hessian.matrix, magnitude, grid, block)
        if factors is None or not self._can_divide(divisors, factors):
            return None, []
        return factors, divisors

    def _can_divide(self, divisors: list[Divisor], factors: Array) -> bool:
        """Return whether the stored scales of the weights that are divided represent the result."""
        values = {divisor.value for divisor in divisors}
        packed = [done.packed for done in self._done if done.job.weight in values]
        return all(each.can_divide(float(factors.min()), float(factors.max())) for each in packed)

    def _planned_twice(self, divisor: Divisor) -> set[ir.Value]:
        """Return the constant where it is a weight of several nodes or one that is not done yet."""
        if not divisor.matrix:
            return set()
        done = {each.job.weight for each in self._done}
        planned = {job.weight for job in self._plan.jobs}
        value = divisor.value
        return {value} if value in planned and value not in done else set()

    def _grid(self, job: Job, *, nbits: bool) -> Grid:
        tensor = constant_tensor(job.weight)
        if tensor is None:
            raise ValueError(f"{job.weight.name!r} is no constant")
        symmetric = self._options.symmetric or job.bits == 8
        # GatherBlockQuantized has no zero points that are fractions.
        fractions = nbits and self._options.method == "hqq" and not symmetric and not job.gathers
        dtype = tensor.dtype.numpy()
        scales = np.dtype(np.float16) if self._has_float16_scales(job, tensor) else dtype
        return Grid(job.bits, symmetric, scales, dtype, fractions and job.bits == 4)

    def _has_float16_scales(self, job: Job, tensor: ir.TensorProtocol) -> bool:
        """Return whether scales are stored as float16 and cast: of float32 weights in its range."""
        if self._options.scales == "weight" or tensor.dtype != ir.DataType.FLOAT:
            return False
        seen = self._survey(job.weight, tensor)
        largest = max(abs(seen.low), abs(seen.high))
        return job.bits == 4 and LEAST_OF_FLOAT16 <= largest <= LARGEST_OF_FLOAT16

    def _survey(self, weight: ir.Value, tensor: ir.TensorProtocol) -> Survey:
        if weight not in self._surveys:
            self._surveys[weight] = survey(tensor)
        return self._surveys[weight]

    def _quantize_one(self, job: Job, data: Hessian | None, factors: Array | None) -> None:
        """Quantize a weight.

        Args:
            job: what to do.
            data: of what it is multiplied with; None without data.
            factors: float32 [K], that it is multiplied by first; None for ones.
        """
        tensor = constant_tensor(job.weight)
        if tensor is None:
            raise ValueError(f"{job.weight.name!r} is no constant")
        dims = tuple(int(size) for size in tensor.shape.numpy())
        layout = Layout.of(dims, job.axis)
        obstacle = self._obstacle(job, layout)
        nbits = self._options.format == "nbits" and not obstacle
        grid = self._grid(job, nbits=nbits)
        block = self._block(job, layout, nbits=nbits)
        packer: Packer = (NbitsPacker if nbits else QdqPacker)(grid, layout, block)
        hessian = None if data is None else data.matrix
        floats = None if self._ctx.samples is None else FloatPacker(layout)
        packed, loss = quantize(
            tensor,
            layout,
            grid,
            block,
            self._choice(job, grid, block, data, factors),
            packer,
            self._survey(job.weight, tensor),
            hessian,
            floats,
            factors,
            None if data is None else data.turn,
        )
        limit = self._options.tolerance
        if limit is not None and loss.relative > limit and not job.green:
            self._plan.left.extend(self._refused(job, loss, limit))
            return
        packed.evict()
        self._done.append(Done(job, packed, loss, nbits, obstacle))
        self._count(self._done[-1], 1)
        if floats is not None and job.weight.name and tensor.dtype == ir.DataType.FLOAT:
            self._floats[job.weight.name] = floats.tensor(dims, job.weight.name)
            self._last[job.weight.name] = last_place(self._places, job)

    def _count(self, done: Done, sign: int) -> None:
        """Add the bytes of a weight to those before and after, or take them away."""
        tensor = constant_tensor(done.job.weight)
        self._before += sign * (0 if tensor is None else tensor.nbytes)
        self._after += sign * done.packed.nbytes

    def _choice(
        self, job: Job, grid: Grid, block: int, data: Hessian | None, factors: Array | None
    ) -> Choose:
        """Return what quantizes the rows of a weight."""
        method = self._options.method
        if job.bits == 8:
            return choice("rtn", grid, block)
        if data is None:
            return choice("mse" if method in ("gptq", "awq") else method, grid, block)
        if method == "gptq":
            return gptq(data.curvature, grid, block)
        importance = np.diag(data.matrix).astype(np.float64)
        if factors is not None:
            importance = importance / factors.astype(np.float64) ** 2
        importance = importance / max(float(importance.mean()), 1e-30)
        chosen = "mse" if method == "awq" else method
        return choice(chosen, grid, block, np.maximum(importance, 1e-6).astype(np.float32))

    def _refused(self, job: Job, loss: Loss, limit: float) -> list[Left]:
        what = "outputs" if loss.output_error is not None else "weights"
        reason = f"its {what} would lose {loss.relative:.4f} of their magnitude"
        by = f"tolerance={limit:g}"
        return [Left(node, by, reason) for node in dict.fromkeys(job.nodes)]

    def _block(self, job: Job, layout: Layout, *, nbits: bool) -> int:
        """Return how many elements along K share a scale."""
        if job.bits == 8:
            # A row of bytes has one scale; MatMulNBits has blocks in any case.
            return stored_block(layout.inner, layout.inner) if nbits else layout.inner
        return layout.inner if self._options.block is None else self._options.block

    def _obstacle(self, job: Job, layout: Layout) -> str:
        """Return why a weight is stored for DequantizeLinear although nbits are wanted."""
        if self._options.format != "nbits":
            return ""
        for matrix in job.matrices:
            why = self._matmul_obstacle(matrix)
            if why:
                return f"a DequantizeLinear, and no MatMulNBits: {why}"
        if job.gathers:
            block = stored_block(layout.inner, self._block(job, layout, nbits=True))
            if layout.inner % block:
                return (
                    f"a DequantizeLinear, and no GatherBlockQuantized: {layout.inner} columns are "
                    f"no multiple of {block}"
                )
        return ""

    def _matmul_obstacle(self, matrix: Matrix) -> str:
        node = matrix.node
        if not matrix.is_matmul:
            return f"there is none for {node.op_type} of such weights"
        rank = None if node.inputs[0] is None else self._ranks.get(node.inputs[0])
        if rank is None or rank < 2:
            return "its rows have " + ("an unknown shape" if rank is None else "one dimension")
        if node.op_type == "Gemm":
            return _gemm_obstacle(node, matrix)
        return ""

    def emit(self) -> None:
        """Put the quantized weights into the graph, and report them."""
        emitter = Emitter(self._model, taken_names(self._model))
        packed = {done.job.weight: done.packed for done in self._done}
        for divisor, factors in self._divided:
            if divisor.value in packed:
                packed[divisor.value].divide_outputs(factors)
            else:
                divide(divisor, factors, emitter.taken)
        for done in self._done:
            _emit(done, emitter, self._options)
            self._report(done)

    def _report(self, done: Done) -> None:
        job, loss = done.job, done.loss
        kind = f"int{job.bits}"
        self._ctx.counters[kind] += 1
        size = done.packed.layout
        bits = done.packed.nbytes * 8 / (size.count * size.outputs * size.inner)
        by = job.by if job.by != "rule" else f"method={self._options.method}"
        reason = (
            f"{bits:.2f} bits a weight; {done.note}" if done.note else f"{bits:.2f} bits a weight"
        )
        for node in dict.fromkeys(job.nodes):
            self._ctx.decisions.append(
                Decision(
                    label_of(node),
                    node.op_type,
                    kind,
                    by,
                    reason,
                    measured=loss.relative,
                    limit=self._options.tolerance,
                    sqnr=loss.sqnr,
                    histogram=loss.histogram,
                )
            )

    def summary(self) -> str:
        """Return a line on what was done."""
        if not self._done:
            return "int4: all layers are above the tolerance, and stay wide"
        worst = max(self._done, key=lambda done: done.loss.relative)
        elements = sum(
            each.packed.layout.count * each.packed.layout.outputs * each.packed.layout.inner
            for each in self._done
        )
        return (
            f"int4: {len(self._done)} weights, {self._before / 1e6:.1f} MB, become "
            f"{self._after / 1e6:.1f} MB: {self._after * 8 / elements:.2f} bits each; "
            f"{len(self._plan.left)} nodes stay wide; the largest relative error is "
            f"{worst.loss.relative:.4f}, of {label_of(worst.job.nodes[0])!r}"
        )


def _emit(done: Done, emitter: Emitter, options: Options) -> None:
    job, packed = done.job, done.packed
    rows_of_bytes = job.bits == 8 and packed.blocks == 1 and not done.nbits
    dequantized: ir.Value | None = None
    for node in job.gathers:
        if done.nbits:
            emitter.gather_nbits(node, job.weight, packed)
        elif rows_of_bytes:
            emitter.gathered_rows(node, job.weight, packed)
        else:
            dequantized = dequantized or emitter.dequantized(job.weight, packed, job.axis)
            node.replace_input_with(0, dequantized)
    dynamic = options.activations == "dynamic"
    for matrix in job.matrices:
        if done.nbits:
            bias = matrix.node.inputs[2] if len(matrix.node.inputs) > 2 else None
            emitter.matmul_nbits(matrix, packed, bias, level=INT8_ROWS if dynamic else 0)
        else:
            if dynamic and matrix.is_matmul:
                matrix.node.metadata_props[ACTIVATIONS] = "dynamic"
            dequantized = dequantized or emitter.dequantized(job.weight, packed, job.axis)
            matrix.read(dequantized, emitter.taken)
    drop_unread(job.weight)


def _rows(job: Job) -> Array:
    """Return a weight as float32 [N, K]."""
    tensor = constant_tensor(job.weight)
    if tensor is None:
        raise ValueError(f"{job.weight.name!r} is no constant")
    array = tensor.numpy().astype(np.float32)
    return array if job.axis == 1 else np.ascontiguousarray(array.T)


def _gemm_obstacle(node: ir.Node, matrix: Matrix) -> str:
    for name in ("alpha", "beta"):
        number = node.attributes.get_float(name, 1.0)
        if number != 1.0 and not (name == "beta" and len(node.inputs) < 3):
            return f"its {name} is {number:g}"
    if node.attributes.get_int("transA", 0):
        return "its first operand is transposed"
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if bias is None:
        return ""
    dims = matrix.dims
    outputs = dims[1 - matrix.axis]
    shape = None if bias.shape is None else tuple(bias.shape)
    if shape is None:
        tensor = constant_tensor(bias)
        shape = None if tensor is None else tuple(tensor.shape.numpy())
    return "" if shape == (outputs,) else "its bias is no number for each output"


def taken_names(model: ir.Model) -> set[str | None]:
    """Return the names of all nodes and values of a model's graphs."""
    found: set[str | None] = set()
    for graph in nested_graphs(model.graph):
        found |= {value.name for value in (*graph.inputs, *graph.initializers.values())}
        for node in graph:
            found |= {node.name, *(value.name for value in node.outputs)}
    return found
