"""The weights of a model: quantized one after the other, then put into the graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from narrowpass.framework.classify import ACTIVATIONS
from narrowpass_analysis.verification import judging_backends
from narrowpass_int4.data.hessian import Hessian
from narrowpass_int4.data.observation import Group, Observation, groups
from narrowpass_int4.layers import Packer, quantize
from narrowpass_int4.matrices import Matrix, drop_unread
from narrowpass_int4.plan import Job, Plan
from narrowpass_int4.reporting import Done, refused, report, summary
from narrowpass_int4.requests import INT8_ROWS
from narrowpass_int4.scaling import Scaling, divide, find_scaling
from narrowpass_int4.settings import Options, Settings
from narrowpass_int4.storage.emission import Emitter
from narrowpass_int4.storage.packing import FloatPacker, NbitsPacker, QdqPacker, stored_block
from narrowpass_int4.storage.pieces import Layout
from narrowpass_int4.threads import threads_for
from narrowpass_ir.constants import constant_tensor
from narrowpass_ir.subgraphs import nested_graphs

if TYPE_CHECKING:
    from narrowpass import Context


Array = np.ndarray[Any, Any]


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
        self._settings = Settings(options)
        self._ranks = ranks_of(plan.jobs)
        self._done: list[Done] = []
        self._scaled: list[Scaling] = []
        self._observed: Observation | None = None

    @property
    def changed(self) -> bool:
        """Whether a weight is quantized."""
        return bool(self._done)

    @property
    def _needs_errors(self) -> bool:
        """Whether data says more than how important channels are: what layers' outputs lose."""
        options = self._options
        by_data = options.method in ("gptq", "awq") or options.tolerance is not None
        return by_data or self._ctx.observer.reads_decisions

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
        compared = self._options.method == "gptq"
        done = 0
        with Observation(
            self._model, samples, backend, compared=compared, whole=self._needs_errors
        ) as self._observed:
            for group in groups(self._model.graph, self._plan.jobs):
                self._progress(done, total)
                hessian = self._observed.hessian(group)
                with threads_for(group.inner):
                    self._quantize_group(group, hessian)
                done += len(group.jobs)
        self._progress(total, total)

    def _progress(self, done: int, total: int) -> None:
        self._ctx.observer.progress("quantizing weights", done, total)

    def _quantize_group(self, group: Group, hessian: Hessian | None) -> None:
        scaling: Scaling | None = None
        if hessian is not None and self._options.method == "awq":
            scaling = find_scaling(
                group, hessian, self._settings, self._options, self._plan.jobs, self._done
            )
        before = len(self._done)
        for job in group.jobs:
            self._quantize_one(job, hessian, scaling)
        if scaling is None:
            return
        if len(self._done) - before < len(group.jobs):
            # A weight that stays wide was not multiplied: none of the group may be.
            del self._done[before:]
            nodes = {node for job in group.jobs for node in job.nodes}
            self._plan.left[:] = [each for each in self._plan.left if each.node not in nodes]
            for job in group.jobs:
                self._quantize_one(job, hessian, None)
            return
        self._scaled.append(scaling)

    def _quantize_one(self, job: Job, data: Hessian | None, scaling: Scaling | None) -> None:
        """Quantize a weight.

        Args:
            job: what to do.
            data: of what it is multiplied with; None without data.
            scaling: what it is multiplied by first; None for nothing.
        """
        layout = Layout.of(job.dims, job.axis)
        obstacle = ""
        if self._options.format == "nbits":
            wanted = self._settings.block(job, layout, nbits=True)
            obstacle = nbits_obstacle(job, layout, wanted, self._ranks)
        nbits = self._options.format == "nbits" and not obstacle
        grid = self._settings.grid(job, nbits=nbits)
        block = self._settings.block(job, layout, nbits=nbits)
        packer: Packer = (NbitsPacker if nbits else QdqPacker)(grid, layout, block)
        factors = None if scaling is None else scaling.factors
        floats = None if self._observed is None else FloatPacker(layout)
        packed, loss = quantize(
            job.tensor,
            layout,
            grid,
            block,
            self._settings.choice(job, grid, block, data, factors),
            packer,
            self._settings.survey(job),
            data.matrix if data is not None and data.whole else None,
            floats,
            factors,
            None if data is None else data.turn,
        )
        limit = self._options.tolerance
        if limit is not None and loss.relative > limit and not job.green:
            self._plan.left.extend(refused(job, loss, limit))
            return
        packed.evict()
        self._done.append(Done(job, packed, loss, nbits, obstacle, job.tensor.nbytes))
        if self._observed is not None and floats is not None:
            self._observed.replace(job, floats)

    def emit(self) -> None:
        """Put the quantized weights into the graph, and report them."""
        emitter = Emitter(self._model, taken_names(self._model))
        packed = {done.job.weight: done.packed for done in self._done}
        for scaling in self._scaled:
            for divisor in scaling.divisors:
                if divisor.value in packed:
                    packed[divisor.value].divide_outputs(scaling.factors)
                else:
                    divide(divisor, scaling.factors, emitter.taken)
        for done in self._done:
            _emit(done, emitter, self._options)
            report(done, self._options, self._ctx)

    def summary(self) -> str:
        """Return a line on what was done."""
        return summary(self._done, len(self._plan.left))


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


def taken_names(model: ir.Model) -> set[str | None]:
    """Return the names of all nodes and values of a model's graphs."""
    found: set[str | None] = set()
    for graph in nested_graphs(model.graph):
        found |= {value.name for value in (*graph.inputs, *graph.initializers.values())}
        for node in graph:
            found |= {node.name, *(value.name for value in node.outputs)}
    return found


def ranks_of(jobs: list[Job]) -> dict[ir.Value, int]:
    """Return the rank of what each weight is multiplied with, where its shape is known."""
    return {
        value: len(value.shape)
        for job in jobs
        for matrix in job.matrices
        if (value := matrix.node.inputs[0]) is not None and value.shape is not None
    }


def nbits_obstacle(job: Job, layout: Layout, block: int, ranks: Mapping[ir.Value, int]) -> str:
    """Return why a weight cannot be one of MatMulNBits or GatherBlockQuantized; empty if it can.

    Args:
        job: the weight and its nodes.
        layout: of it.
        block: elements along K that share a scale, in `nbits`.
        ranks: of the first operands of matmuls, where they are known: see `ranks_of`.
    """
    for matrix in job.matrices:
        why = _matmul_obstacle(matrix, ranks)
        if why:
            return f"a DequantizeLinear, and no MatMulNBits: {why}"
    if job.gathers:
        stored = stored_block(layout.inner, block)
        if layout.inner % stored:
            return (
                f"a DequantizeLinear, and no GatherBlockQuantized: {layout.inner} columns are "
                f"no multiple of {stored}"
            )
    return ""


def _matmul_obstacle(matrix: Matrix, ranks: Mapping[ir.Value, int]) -> str:
    node = matrix.node
    if not matrix.is_matmul:
        return f"there is none for {node.op_type} of such weights"
    rank = None if node.inputs[0] is None else ranks.get(node.inputs[0])
    if rank is None or rank < 2:
        return "its rows have " + ("an unknown shape" if rank is None else "one dimension")
    if node.op_type == "Gemm":
        return _gemm_obstacle(node, matrix)
    return ""


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
