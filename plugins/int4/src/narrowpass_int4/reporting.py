"""What was done to each weight, for the report of the pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from narrowpass import Decision
from narrowpass_int4.layers import Loss
from narrowpass_int4.matrices import label_of
from narrowpass_int4.plan import Job, Left
from narrowpass_int4.settings import Options
from narrowpass_int4.storage.packing import Packed

if TYPE_CHECKING:
    from narrowpass import Context


@dataclass(frozen=True)
class Done:
    """A weight that is quantized.

    Attributes:
        job: what was to be done.
        packed: the integers.
        loss: what they lost.
        nbits: whether they are stored for MatMulNBits.
        note: why not, where they were to be, or what else is to be said.
        before: the bytes of the weight as the model had it.
    """

    job: Job
    packed: Packed
    loss: Loss
    nbits: bool
    note: str
    before: int

    @property
    def elements(self) -> int:
        """How many weights there are."""
        layout = self.packed.layout
        return layout.count * layout.outputs * layout.inner


def refused(job: Job, loss: Loss, limit: float) -> list[Left]:
    """Return the nodes of a weight that loses more than the tolerance, each with the reason."""
    what = "outputs" if loss.output_error is not None else "weights"
    reason = f"its {what} would lose {loss.relative:.4f} of their magnitude"
    by = f"tolerance={limit:g}"
    return [Left(node, by, reason) for node in dict.fromkeys(job.nodes)]


def report(done: Done, options: Options, ctx: Context) -> None:
    """Count a quantized weight, and add a decision on each node that reads it."""
    job, loss = done.job, done.loss
    kind = f"int{job.bits}"
    ctx.counters[kind] += 1
    bits = f"{done.packed.nbytes * 8 / done.elements:.2f} bits a weight"
    by = job.by if job.by != "rule" else f"method={options.method}"
    for node in dict.fromkeys(job.nodes):
        ctx.decisions.append(
            Decision(
                label_of(node),
                node.op_type,
                kind,
                by,
                f"{bits}; {done.note}" if done.note else bits,
                measured=loss.relative,
                limit=options.tolerance,
                sqnr=loss.sqnr,
                histogram=loss.histogram,
            )
        )


def summary(every: Sequence[Done], left: int) -> str:
    """Return a line on what was done.

    Args:
        every: the weights that are quantized.
        left: how many nodes stay wide.
    """
    if not every:
        return "int4: all layers are above the tolerance, and stay wide"
    worst = max(every, key=lambda done: done.loss.relative)
    before = sum(done.before for done in every)
    after = sum(done.packed.nbytes for done in every)
    elements = sum(done.elements for done in every)
    return (
        f"int4: {len(every)} weights, {before / 1e6:.1f} MB, become "
        f"{after / 1e6:.1f} MB: {after * 8 / elements:.2f} bits each; "
        f"{left} nodes stay wide; the largest relative error is "
        f"{worst.loss.relative:.4f}, of {label_of(worst.job.nodes[0])!r}"
    )
