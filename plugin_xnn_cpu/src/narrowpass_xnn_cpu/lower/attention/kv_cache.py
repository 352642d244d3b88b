"""TensorScatter: KV caches of fixed size that rows are written into."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from narrowpass.errors import BackendError
from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.plan.step import Run, Shape, Sizing, elements
from narrowpass_xnn_cpu.lower.builder import Builder
from narrowpass_xnn_cpu.lower.op import Op, check_dtype, check_floats
from narrowpass_xnn_cpu.lower.rule import Rule, rules
from narrowpass_xnn_cpu.lowered.op import Computation, PackedStep
from narrowpass_xnn_cpu.lowered.record import record
from narrowpass_xnn_cpu.native import kernels


@record
class ScatterRows(Computation):
    """A KV cache with some rows overwritten.

    Operands are the cache, the new rows, and optionally the index of the first row for each batch.

    Attributes:
        axis: of rows; not 0.
        circular: whether indices wrap around at the end of the cache.
    """

    mnemonic = "scatter_rows"
    kernel = "scatter rows"
    axis: int
    circular: bool

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        cache, update, *starts = shapes
        axis = self.axis
        if (*cache[:axis], *cache[axis + 1 :]) != (*update[:axis], *update[axis + 1 :]):
            raise BackendError(f"rows of {list(update)} do not fit a cache of {list(cache)}")
        if starts and starts[0] != cache[:1]:
            raise BackendError(f"{list(starts[0])} places are not one for each of {cache[0]}")
        if not elements(cache):
            return Run(cache)
        params = kernels.scatter_rows(
            cache[0],
            elements(cache[1:axis]),
            cache[axis],
            update[axis],
            elements(cache[axis + 1 :]) * step.op.output.dtype.itemsize,
            starts=bool(starts),
            circular=self.circular,
        )
        return Run(cache, "NP_SCATTER_ROWS", params=params)


def _check(op: Op, facts: Facts) -> str | None:
    reason = check_floats(op, facts, 2)
    if reason:
        return reason
    starts = op.input(2)
    if starts is not None and (reason := check_dtype(starts, facts, ir.DataType.INT64)):
        return reason
    rank = facts.rank(op.input(0)) or 0
    axis = op.get("axis", -2)
    if not -rank <= axis < rank or not axis % rank:
        return f"axis {axis} is none of rows, of an input of rank {rank}"
    return None if facts.rank(op.input(1)) == rank else "its operands differ in rank"


def _tensor_scatter(op: Op, builder: Builder) -> None:
    axis = op.get("axis", -2) % builder.rank(op.required(0))
    slots = [builder.slot_of(value) for value in op.inputs if value is not None]
    circular = op.get("mode", "linear") == "circular"
    builder.compute(ScatterRows(axis, circular), slots, op.output)


RULES: tuple[Rule, ...] = (*rules("TensorScatter", lower=_tensor_scatter, check=_check),)
