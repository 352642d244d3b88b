"""Steps as records, so that compiled methods can be stored; see `StepStorage`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from narrowpass_planning.plan.step import Step
from narrowpass_planning.stored.errors import NotStorableError, StaleError
from narrowpass_xnn_cpu.lower.matmul.packed import PackedConstantMatMul
from narrowpass_xnn_cpu.lower.numerics import Numerics
from narrowpass_xnn_cpu.lower.vocabulary import CLASSES, COMPUTATIONS
from narrowpass_xnn_cpu.lowered.op import LoweredOp
from narrowpass_xnn_cpu.lowered.packed import PackedStep
from narrowpass_xnn_cpu.native import target
from narrowpass_xnn_cpu.native.packer import PACKER
from narrowpass_xnn_cpu.native.problems.quantization import UnfitError

_CLASSES: Mapping[str, type[Any]] = {
    **CLASSES,
    **{each.__name__: each for each in (*COMPUTATIONS, LoweredOp)},
}


class XnnStorage:
    """The record of a step is its lowered operation.

    Args:
        numerics: which roundings kernels may choose.
    """

    packages: Sequence[str] = ("narrowpass_xnn_cpu", "narrowpass_expansion")

    def __init__(self, numerics: Numerics) -> None:
        self._numerics = numerics

    def classes(self) -> Mapping[str, type[Any]]:
        """See `StepStorage.classes`."""
        return _CLASSES

    def planned_for(self) -> str:
        """See `StepStorage.planned_for`."""
        return f"xnn-cpu {self._numerics} {target.current()} {PACKER.build()}"

    def record(self, step: Step) -> LoweredOp:
        """See `StepStorage.record`."""
        if not isinstance(step, PackedStep):
            raise NotStorableError(f"step {step.name!r} is not packed")
        if isinstance(step.packed, PackedConstantMatMul) and step.packed.packs_later:
            raise NotStorableError(f"step {step.name!r} packs weights when it first has few rows")
        return step.op

    def step(self, record: LoweredOp, session: Any) -> PackedStep:
        """See `StepStorage.step`."""
        try:
            return PackedStep(record, session)
        except UnfitError as error:
            raise StaleError(f"step {record.name!r}: {error}") from error
