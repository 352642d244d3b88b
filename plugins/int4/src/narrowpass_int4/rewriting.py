"""The weights of a model: quantized one after the other, then put into the graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from narrowpass import Decision
from narrowpass.ir.constants import constant_tensor
from narrowpass.ir.subgraphs import nested_graphs
from narrowpass_int4.grid import Grid
from narrowpass_int4.layers import Loss, Packer, choice, quantize
from narrowpass_int4.matrices import Matrix, drop_unread, label_of
from narrowpass_int4.plan import Job, Left, Plan
from narrowpass_int4.storage.emission import Emitter
from narrowpass_int4.storage.packing import NbitsPacker, Packed, QdqPacker, stored_block
from narrowpass_int4.storage.pieces import Layout

if TYPE_CHECKING:
    from narrowpass import Context

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Options:
    """How weights are quantized and stored.

    Attributes:
        block: elements along K that share a scale; None for all of them.
        symmetric: whether there are no zero points.
        method: what chooses the integers.
        format: ``qdq`` or ``nbits``.
        tolerance: the largest relative error of a layer; None for any.
    """

    block: int | None
    symmetric: bool
    method: str
    format: str
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
        self._before = self._after = 0
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

        Raises:
            DataError: an element of a weight is infinite or NaN.
            PassError: there is no space for temporary files.
        """
        total = len(self._plan.jobs)
        for number, job in enumerate(self._plan.jobs):
            self._ctx.observer.progress("quantizing weights", number, total)
            self.quantize_one(job)
        self._ctx.observer.progress("quantizing weights", total, total)

    def quantize_one(self, job: Job, hessian: Array | None = None) -> None:
        """Quantize a weight.

        Args:
            job: what to do.
            hessian: float [K, K], of what it is multiplied with on data; None without data.
        """
        tensor = constant_tensor(job.weight)
        if tensor is None:
            raise ValueError(f"{job.weight.name!r} is no constant")
        dims = tuple(int(size) for size in tensor.shape.numpy())
        layout = Layout.of(dims, job.axis)
        obstacle = self._obstacle(job, layout)
        nbits = self._options.format == "nbits" and not obstacle
        dtype = tensor.dtype.numpy()
        method = self._options.method if job.bits == 4 else "rtn"
        symmetric = self._options.symmetric or job.bits == 8
        # GatherBlockQuantized has no zero points that are fractions.
        fractions = nbits and method == "hqq" and not symmetric and not job.gathers
        grid = Grid(job.bits, symmetric, dtype, fractions)
        block = self._block(job, layout, nbits=nbits)
        packer: Packer = (NbitsPacker if nbits else QdqPacker)(grid, layout, block)
        importance = None if hessian is None else np.diag(hessian).astype(np.float32)
        choose = choice(method, grid, block, importance)
        packed, loss = quantize(tensor, layout, grid, block, choose, packer, hessian)
        limit = self._options.tolerance
        if limit is not None and loss.relative > limit and not job.green:
            self._plan.left.extend(self._refused(job, loss, limit))
            return
        self._done.append(Done(job, packed, loss, nbits, obstacle))
        self._before += tensor.nbytes
        self._after += packed.nbytes

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
    for matrix in job.matrices:
        if done.nbits:
            bias = matrix.node.inputs[2] if len(matrix.node.inputs) > 2 else None
            emitter.matmul_nbits(matrix, packed, bias)
        else:
            dequantized = dequantized or emitter.dequantized(job.weight, packed, job.axis)
            matrix.read(dequantized, emitter.taken)
    drop_unread(job.weight)


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
