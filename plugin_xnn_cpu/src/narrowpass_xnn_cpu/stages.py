"""``narrowpass explain --stage``: the lowered plan after each stage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from narrowpass.errors import BackendError
from narrowpass.runtime.backend import CompileOptions
from narrowpass_planning.plan.partition import Partition
from narrowpass_planning.plan.shapes import ShapeNode
from narrowpass_planning.program.method import canonical
from narrowpass_planning.program.models import inferred
from narrowpass_planning.weights import names
from narrowpass_xnn_cpu.lower import stages
from narrowpass_xnn_cpu.lower.numerics import DEFAULT, Numerics
from narrowpass_xnn_cpu.lowered.op import LoweredOp
from narrowpass_xnn_cpu.lowered.packed import PackedStep
from narrowpass_xnn_cpu.lowered.partition import LoweredPartition
from narrowpass_xnn_cpu.lowered.plan import LoweredPlan, Section
from narrowpass_xnn_cpu.lowering import XnnLowering
from narrowpass_xnn_cpu.program import XnnProgram

if TYPE_CHECKING:
    from narrowpass.bundle import Bundle

STAGES = (*stages.STAGES, "pack", "bind")
"""In the order in which they run. The last two need the native library."""


def plans(
    bundle: Bundle, stage: str, options: CompileOptions, numerics: Numerics = DEFAULT
) -> Iterator[LoweredPlan]:
    """Return the plan of each method after a stage.

    Args:
        bundle: its methods.
        stage: one of `STAGES`.
        options: see `CompileOptions`.
        numerics: which roundings kernels may choose.

    Raises:
        BackendError: a method that cannot be lowered.
        UsageError: there is no such stage.
    """
    if stage in ("pack", "bind"):
        with XnnProgram(bundle, options, numerics) as program:
            for method in program.methods:
                facts = _facts
                if stage == "bind":
                    program.run(_zeros(program, method), method)
                    facts = _bound_facts
                sections = [_section(each, facts) for each in program.partitions[method]]
                yield LoweredPlan(stage, method, tuple(sections))
        return
    identities = names.printed(bundle)
    lowering = XnnLowering(numerics)
    for name, model in bundle.methods.items():
        graph = canonical(inferred(model, lowering), lowering)
        yield stages.plan_of(stage, name, graph, identities, numerics)


def _zeros(program: XnnProgram, method: str) -> dict[str, np.ndarray[Any, Any]]:
    """Return inputs to bind a method with: zeros, with 1 for symbolic dimensions.

    Raises:
        BackendError: an input that is not a tensor of known dtype and rank.
    """
    feeds = {}
    for spec in program.inputs(method):
        if spec.has_default:
            continue
        dtype = ir.DataType.__members__.get((spec.dtype or "").upper())
        if dtype is None or spec.shape is None:
            raise BackendError(
                f"stage 'bind': input {spec.name!r} is no tensor of a known dtype and rank"
            )
        sizes = [size if isinstance(size, int) else 1 for size in spec.shape]
        feeds[spec.name] = np.zeros(sizes, dtype.numpy())
    return feeds


def _section(
    partition: Partition, facts_of: Callable[[PackedStep, Partition], Mapping[str, Any]]
) -> Section:
    """Return a partition with the facts of each operation."""
    facts: dict[LoweredOp, Mapping[str, Any]] = {}
    items: list[LoweredOp | ShapeNode] = []
    for item in partition.items:
        if isinstance(item, PackedStep):
            items.append(item.op)
            facts[item.op] = facts_of(item, partition)
        elif isinstance(item, ShapeNode):
            items.append(item)
    fixed = {name: slot for slot, name in partition.fixed.items()}
    lowered = LoweredPartition(
        tuple(items), partition.inputs, partition.outputs, fixed, partition.places
    )
    return Section("native", lowered, facts)


def _bound_facts(step: PackedStep, partition: Partition) -> Mapping[str, Any]:
    """Return the call of a bound step, and shape, memory and offset of its output."""
    bound = partition.bound
    if bound is None:
        return {}
    placement = bound.placements()[step]
    facts: dict[str, Any] = {"shape": placement.shape, "memory": placement.memory}
    if placement.offset:
        facts["offset"] = placement.offset
    facts["call"] = placement.call or "none"
    if placement.scratch:
        facts["scratch"] = placement.scratch
    return facts


def _facts(step: PackedStep, partition: Partition) -> Mapping[str, Any]:
    """Return the kernel of a packed step, its precision, and the bytes of its packed weights."""
    facts: dict[str, Any] = {"kernel": step.kernel}
    if step.precision:
        facts["precision"] = step.precision
    block = getattr(step.packed, "block", None)
    if block is not None:
        facts["bytes"] = block.size
    return facts
