"""``narrowpass explain --stage``: what each stage of lowering decided, as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from narrowpass.runtime.backend import CompileOptions
from narrowpass_planning.plan.partition import Partition
from narrowpass_planning.plan.shapes import ShapeNode
from narrowpass_planning.program.method import canonical
from narrowpass_planning.program.program import inferred
from narrowpass_planning.weights import names
from narrowpass_xnn_cpu.lower import stages
from narrowpass_xnn_cpu.lowered.op import LoweredOp
from narrowpass_xnn_cpu.lowered.packed import PackedStep
from narrowpass_xnn_cpu.lowered.partition import LoweredPartition
from narrowpass_xnn_cpu.lowered.plan import LoweredPlan, Section
from narrowpass_xnn_cpu.lowering import XnnLowering
from narrowpass_xnn_cpu.program import XnnProgram

if TYPE_CHECKING:
    from narrowpass.bundle import Bundle
    from narrowpass_xnn_cpu.backend import XnnCpuBackend

STAGES = (*stages.STAGES, "pack")
"""In the order in which they run. The last one needs the native library."""


def plans(
    bundle: Bundle, stage: str, options: CompileOptions, backend: XnnCpuBackend
) -> Iterator[LoweredPlan]:
    """Return the plan of each method after a stage.

    Args:
        bundle: its methods.
        stage: one of `STAGES`.
        options: see `CompileOptions`.
        backend: whose options hold.

    Raises:
        BackendError: a method that cannot be lowered.
        UsageError: there is no such stage.
    """
    if stage == "pack":
        with XnnProgram(bundle, options, backend) as program:
            for method, partitions in program.partitions.items():
                sections = [_packed(partition) for partition in partitions]
                yield LoweredPlan(stage, method, tuple(sections))
        return
    identities = names.printed(bundle)
    lowering = XnnLowering(winograd=backend.winograd)
    for name, model in bundle.methods.items():
        graph = canonical(inferred(model, lowering), lowering)
        yield stages.plan_of(stage, name, graph, identities, winograd=backend.winograd)


def _packed(partition: Partition) -> Section:
    """Return a partition with the kernel of each operation and the bytes that it packed."""
    facts: dict[LoweredOp, Mapping[str, Any]] = {}
    items: list[LoweredOp | ShapeNode] = []
    for item in partition.items:
        if isinstance(item, PackedStep):
            items.append(item.op)
            facts[item.op] = _facts(item)
        elif isinstance(item, ShapeNode):
            items.append(item)
    fixed = {name: slot for slot, name in partition.fixed.items()}
    lowered = LoweredPartition(
        tuple(items), partition.inputs, partition.outputs, fixed, partition.places
    )
    return Section("native", lowered, facts)


def _facts(step: PackedStep) -> Mapping[str, Any]:
    facts: dict[str, Any] = {"kernel": step.kernel}
    if step.precision:
        facts["precision"] = step.precision
    block = getattr(step.packed, "block", None)
    if block is not None:
        facts["bytes"] = block.size
    return facts
