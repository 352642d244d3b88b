"""Group, instance and local response normalization of images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from narrowpass.errors import BackendError
from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.plan.step import Run, Shape, Sizing, elements
from narrowpass_xnn_cpu.lower.builder import Builder, identity
from narrowpass_xnn_cpu.lower.op import Op, check_floats
from narrowpass_xnn_cpu.lower.rule import Rule, rules
from narrowpass_xnn_cpu.lowered.op import Computation, LoweredOp, PackedStep, Perm
from narrowpass_xnn_cpu.lowered.record import record
from narrowpass_xnn_cpu.native import kernels


@record
class GroupNorm(Computation):
    """Normalization of groups of channels, with scale and bias (Wu and He, 2018).

    Operands are images, scale and bias.

    Attributes:
        groups: their number; 0 for one for each channel (instance normalization).
        epsilon: added to the variance.
        channels_last: whether the channels are the last axis, and not the second one.
        by_group: whether there is one scale and bias for each group, not for each channel.
    """

    mnemonic = "group_norm"
    overwrites: ClassVar[tuple[int, ...]] = (0,)
    groups: int
    epsilon: float
    channels_last: bool
    by_group: bool

    def kernel_name(self, op: LoweredOp, packed: Any) -> str:
        """See `Computation.kernel_name`."""
        return "group norm" if self.groups else "instance norm"

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        shape, *others = shapes
        channels = shape[-1] if self.channels_last else shape[1]
        groups = self.groups or channels
        wanted = groups if self.by_group else channels
        for other in others:
            if other != (wanted,):
                raise BackendError(f"a scale or bias of {list(other)} is not of {wanted} channels")
        if not elements(shape):
            return Run(shape)
        params = kernels.group_norm(
            shape,
            groups,
            self.epsilon,
            channels_last=self.channels_last,
            by_group=self.by_group,
        )
        return Run(shape, "NP_GROUP_NORM", params=params)


def images_layout(rank: int, perm: Perm) -> tuple[Perm, bool]:
    """Return the layout for normalization of channels, and whether it is channels-last."""
    last = (0, *range(2, rank), 1)
    return (last, True) if perm == last and rank > 2 else (identity(rank), False)


def _check(op: Op, facts: Facts) -> str | None:
    reason = check_floats(op, facts, 3)
    if reason:
        return reason
    if (facts.rank(op.input(0)) or 0) < 2:
        return "its input has no channels"
    return None


def _group_norm(op: Op, builder: Builder) -> None:
    given, scale, bias = (op.required(index) for index in range(3))
    perm, channels_last = images_layout(builder.rank(given), builder.layout(given))
    grouped = op.kind == "GroupNormalization"
    norm = GroupNorm(
        op.attributes["num_groups"] if grouped else 0,
        op.get("epsilon", 1e-5),
        channels_last,
        by_group=grouped and op.version < 21,
    )
    operands = builder.slot_of(given, perm), builder.slot_of(scale), builder.slot_of(bias)
    builder.compute(norm, operands, op.output, perm)


@record
class LocalResponseNorm(Computation):
    """Local response normalization across channels (Krizhevsky et al., AlexNet, 2012).

    Attributes:
        channels: number of neighbouring channels that are summed, the own one included.
        alpha: factor of the sum.
        beta: the power.
        bias: added to the sum.
        channels_last: whether the channels are the last axis, and not the second one.
    """

    mnemonic = "local_response_norm"
    kernel = "local response norm"
    channels: int
    alpha: float
    beta: float
    bias: float
    channels_last: bool

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        (shape,) = shapes
        if not elements(shape):
            return Run(shape)
        numbers = self.alpha, self.beta, self.bias
        params = kernels.lrn(shape, self.channels, *numbers, channels_last=self.channels_last)
        return Run(shape, "NP_LRN", params=params)


def _check_lrn(op: Op, facts: Facts) -> str | None:
    reason = check_floats(op, facts)
    if reason:
        return reason
    if (facts.rank(op.input(0)) or 0) < 2:
        return "its input has no channels"
    return None if op.get("size", 0) > 0 else "its size is not positive"


def _lrn(op: Op, builder: Builder) -> None:
    given = op.required(0)
    perm, channels_last = images_layout(builder.rank(given), builder.layout(given))
    numbers = op.get("alpha", 1e-4), op.get("beta", 0.75), op.get("bias", 1.0)
    norm = LocalResponseNorm(op.attributes["size"], *numbers, channels_last)
    builder.compute(norm, [builder.slot_of(given, perm)], op.output, perm)


RULES: tuple[Rule, ...] = (
    *rules("InstanceNormalization", "GroupNormalization", lower=_group_norm, check=_check),
    *rules("LRN", lower=_lrn, check=_check_lrn),
)
