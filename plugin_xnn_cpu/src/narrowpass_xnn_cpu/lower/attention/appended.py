"""KV caches that are appended to in place, and attention over the rows that they have so far.

A session keeps a KV cache in a buffer of more rows than it has. New rows are written behind those
that are there, and attention reads as many as there are then. Their number is an operand: all
shapes are those of the buffer, and a token changes none of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from narrowpass.errors import BackendError
from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.plan.step import Array, Run, Shape, Sizing, Slot, elements
from narrowpass_planning.state.errors import AppendError, CacheFullError
from narrowpass_planning.state.narrow import FLOAT32
from narrowpass_planning.state.operators import APPEND_ROWS, CAUSAL_MASK, DOMAIN
from narrowpass_xnn_cpu.lower.attention.computation import Attention
from narrowpass_xnn_cpu.lower.builder import Builder
from narrowpass_xnn_cpu.lower.op import Op, check_dtype
from narrowpass_xnn_cpu.lower.rule import Rule, rules
from narrowpass_xnn_cpu.lower.steps import Reshape
from narrowpass_xnn_cpu.lower.views import View
from narrowpass_xnn_cpu.lowered.op import Computation, LoweredOp, PackedStep, Perm
from narrowpass_xnn_cpu.lowered.partition import LoweredPartition
from narrowpass_xnn_cpu.lowered.record import record
from narrowpass_xnn_cpu.native import attention_params, kernels

_ROUNDED = ("bfloat16", "int8")
"""Types of caches whose rows are rounded as bfloat16 is, or more: attention may round, too."""


@record
class AppendRows(Computation):
    """Rows written behind those that a KV cache has so far; the result is the cache itself.

    Operands are the cache, [.., capacity, depth] in the layout of ONNX, the new rows, and the
    number of rows before, int64[1].

    Attributes:
        axis: of rows, in the layout of ONNX.
        perm: layout of the new rows.
        stored: type of the cache's elements; see `narrow.CACHE_DTYPES`.
    """

    mnemonic = "append_rows"
    kernel = "append"
    axis: int
    perm: Perm
    stored: str = FLOAT32

    def reuse_key(self) -> Hashable:
        """See `Computation.reuse_key`."""
        return self

    def appended(self) -> tuple[int, int, int]:
        """See `Computation.appended`."""
        return 1, self.perm.index(self.axis), self.axis

    def new_rows(self, shape: Shape) -> int:
        """Return the number of new rows from the shape of their slot."""
        return shape[self.perm.index(self.axis)]

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        cache, new, _ = shapes
        view, axis = View(new, self.perm), self.axis
        others = [(*shape[:axis], *shape[axis + 1 :]) for shape in (cache, view.shape)]
        if others[0] != others[1]:
            raise BackendError(f"rows of {list(view.shape)} do not fit a cache of {list(cache)}")
        if view.shape[axis] > cache[axis]:
            raise CacheFullError(view.shape[axis], cache[axis])
        if self.stored != FLOAT32 and (axis == len(cache) - 1 or not cache[-1]):
            raise BackendError(f"rows of a cache of {list(cache)} have no elements to narrow")
        if not elements(new):
            return Run(cache, view=0)
        strides = kernels.dense_strides(cache)
        if self.stored != FLOAT32:
            params = attention_params.narrow_append(
                view.shape, view.steps, cache, axis, self.stored
            )
            return Run(cache, "NP_NARROW_APPEND", params=params, view=0)
        itemsize = step.op.output.dtype.itemsize
        rows = kernels.copy(view.shape, view.steps, strides, itemsize)
        params = kernels.append(rows, view.shape[axis], cache[axis], strides[axis] * itemsize)
        return Run(cache, "NP_APPEND", params=params, view=0)


@record
class AppendedAttention(Computation):
    """Attention over the rows that appended KV caches have so far.

    Operands are those of attention, the number of rows before this run, and the new keys.

    Attributes:
        attention: with keys and values of the whole caches.
        append: of the keys.
        columns: whether the mask has a column for each row of the caches, and not one for all.
    """

    mnemonic = "appended_attention"
    kernel = "attention, appended"
    attention: Attention
    append: AppendRows
    columns: bool = False

    def precision(self, op: LoweredOp, packed: Any) -> str:
        """See `Computation.precision`."""
        return self.attention.precision(op, packed)

    def elastic(self) -> tuple[int, ...]:
        """See `Computation.elastic`: the columns of the mask."""
        return (3,) if self.columns else ()

    def shape_values(self) -> tuple[str, ...]:
        """See `Computation.shape_values`."""
        return self.attention.shape_values()

    def reuse_key(self) -> Hashable:
        """See `Computation.reuse_key`."""
        return self.attention.reuse_key(), self.append, self.columns

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        *operands, _, new = shapes
        capacity = View(shapes[1], self.attention.perms[1]).shape[-2]
        if self.columns:
            operands[3] = (*operands[3][:-1], capacity)

        def value(name: str) -> Array:
            # Heads are expanded to a shape that has the rows of so far.
            found = np.array(sizing.value(name))
            if name in self.attention.targets:
                found.reshape(-1)[-2] = capacity
            return found

        rows = self.append.new_rows(new)
        queries = View(shapes[0], self.attention.perms[0]).shape[-2]
        if self.attention.visible and queries != rows:
            raise BackendError(
                f"{queries} queries and {rows} new rows have no causal mask; feed as many tokens "
                "as are appended"
            )
        run = self.attention.size_of(operands, dataclasses.replace(sizing, value=value))
        if run.params is None:
            return run
        threads = sizing.pool.threads
        params, workspace = attention_params.appended_attention(
            run.params, len(operands), rows, capacity, threads, columns=self.columns
        )
        workspace = max(workspace, run.workspace)
        if self.append.stored == FLOAT32:
            return Run(run.shape, "NP_APPENDED_ATTENTION", params=params, workspace=workspace)
        caches = elements(shapes[1]), elements(shapes[2])
        params, workspace = attention_params.narrow_attention(
            params, caches, self.append.stored, threads
        )
        return Run(run.shape, "NP_NARROW_ATTENTION", params=params, workspace=workspace)


def appended_attention(
    attention: Attention,
    operands: Sequence[Slot],
    writers: Sequence[LoweredOp],
    builder: Builder,
    mask: ir.Value | None,
) -> tuple[AppendedAttention, list[Slot]] | None:
    """Return attention over appended keys and values, with its operands.

    Args:
        attention: of the whole caches.
        operands: of it.
        writers: the operations that write keys and values.
        builder: of the partition.
        mask: of the scores.

    Returns:
        None where these are not two caches of the same rows.
    """
    if len(writers) != 2:
        return None
    keys, values = writers
    append, other = keys.computation, values.computation
    if not isinstance(append, AppendRows) or not isinstance(other, AppendRows):
        return None
    length = keys.operands[2]
    if values.operands[2] is not length or append.axis != other.axis:
        return None
    if append.stored != other.stored:
        return None
    if append.stored in _ROUNDED and not builder.numerics.deterministic:
        attention = dataclasses.replace(attention, rounded=True)
    shape = None if mask is None else mask.shape
    columns = shape is not None and len(shape) > 0 and shape[-1] != 1
    return AppendedAttention(attention, append, columns), [*operands, length, keys.operands[1]]


def check_readers(partition: LoweredPartition) -> None:
    """Check that only attention over the rows of so far reads appended caches.

    Raises:
        AppendError: another operation would read the rows behind them.
    """
    caches = {op.operands[0] for op in partition.ops if isinstance(op.computation, AppendRows)}
    given = set(partition.outputs.values())
    for op in partition.ops:
        computation = op.computation
        read = [index for index, slot in enumerate(op.operands) if slot in caches]
        if isinstance(computation, AppendRows):
            if read != [0]:
                raise AppendError(f"node {op.name!r} appends rows of a cache to another one")
            caches.add(op.output)
        elif isinstance(computation, Reshape) and read:
            caches.add(op.output)
        elif read and not (isinstance(computation, AppendedAttention) and set(read) <= {1, 2}):
            raise AppendError(
                f"node {op.name!r} ({computation.mnemonic}) reads a cache other than as the "
                "keys or the values of attention, each a cache of its own"
            )
    if not caches.isdisjoint(given):
        raise AppendError("a cache is read outside of its partition")


def _check(op: Op, facts: Facts) -> str | None:
    for value in (op.required(0), op.required(1)):
        if reason := check_dtype(value, facts, ir.DataType.FLOAT):
            return reason
        dtype = facts.dtype(value)
        if dtype is not None and dtype != ir.DataType.FLOAT:
            return f"{value.name!r} is {dtype.name.lower()}; rows are appended to float32 caches"
    return None


def _append(op: Op, builder: Builder) -> None:
    cache, new, length = (op.required(index) for index in range(3))
    perm = builder.layout(new)
    axis = op.get("axis", 0) % builder.rank(cache)
    slots = [builder.stored(cache), builder.slot_of(new, perm), builder.stored(length)]
    stored = op.get("stored", FLOAT32)
    builder.compute(AppendRows(axis, perm, stored), slots, op.output)


def _check_mask(op: Op, facts: Facts) -> str | None:
    """Return why a causal mask is computed: those that are masks of attention are not."""
    readers = [use.node for use in op.output.uses()]
    names = ", ".join(f"{node.name or node.outputs[0].name!r} ({node.op_type})" for node in readers)
    return f"it is read by {names}, which is not fused into attention"


def _lower_mask(op: Op, builder: Builder) -> None:
    raise AppendError(f"{op.output.name!r} is no mask of attention")


RULES: tuple[Rule, ...] = (
    *rules(APPEND_ROWS, domain=DOMAIN, lower=_append, check=_check),
    *rules(CAUSAL_MASK, domain=DOMAIN, lower=_lower_mask, check=_check_mask),
)
