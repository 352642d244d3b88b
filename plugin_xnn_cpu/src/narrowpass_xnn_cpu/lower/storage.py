"""Steps as records, so that compiled methods can be stored; see `StepStorage`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from narrowpass_planning.plan.step import Step
from narrowpass_planning.stored.storage import NotStorableError, StaleError
from narrowpass_planning.weights.weight import Quantized
from narrowpass_xnn_cpu.lower import steps
from narrowpass_xnn_cpu.lower.conv import conv2d, resize, separable, transposed
from narrowpass_xnn_cpu.lower.int8 import int16
from narrowpass_xnn_cpu.lower.matmul import computations, computed, epilogue, stacked
from narrowpass_xnn_cpu.lower.matmul.computations import PackedConstantMatMul
from narrowpass_xnn_cpu.lower.movement import padding
from narrowpass_xnn_cpu.lower.numerics import Numerics
from narrowpass_xnn_cpu.lower.rules import RULES
from narrowpass_xnn_cpu.lowered.op import Computation, LoweredOp, PackedStep
from narrowpass_xnn_cpu.native import target
from narrowpass_xnn_cpu.native.own.recurrent import Activation, Cell
from narrowpass_xnn_cpu.native.packer import PACKER
from narrowpass_xnn_cpu.native.problems.convolution import ConvAttributes
from narrowpass_xnn_cpu.native.problems.epilogue import Epilogue
from narrowpass_xnn_cpu.native.problems.quantization import (
    AddS8,
    Quantization,
    Requantized,
    UnfitError,
)

_SHARED = steps, separable, transposed, computations, computed, epilogue, stacked
"""Modules of computations that the builder, or rules of other modules, emit."""


def _modules() -> Iterator[ModuleType]:
    yield from _SHARED
    yield from (sys.modules[rule.lower.__module__] for rule in RULES)


def _computations() -> Iterator[type[Computation]]:
    """Yield the computations that modules of rules define or import."""
    for module in _modules():
        for found in vars(module).values():
            if (
                isinstance(found, type)
                and issubclass(found, Computation)
                and "mnemonic" in vars(found)
            ):
                yield found


COMPUTATIONS: tuple[type[Computation], ...] = tuple(dict.fromkeys(_computations()))
"""All computations that rules emit, each once."""

_ATTRIBUTES = (
    Activation,
    Cell,
    Epilogue,
    ConvAttributes,
    Quantization,
    Quantized,
    Requantized,
    AddS8,
    conv2d.KernelWindow,
    padding.Pads,
    resize.TargetSize,
    int16.Int16Quantization,
    steps.Dim,
)
"""The dataclasses of their attributes."""

_CLASSES: Mapping[str, type[Any]] = {
    each.__name__: each for each in (*COMPUTATIONS, *_ATTRIBUTES, LoweredOp)
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
