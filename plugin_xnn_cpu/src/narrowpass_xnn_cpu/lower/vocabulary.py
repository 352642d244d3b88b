"""Names in printed plans: all computations, and the dataclasses of their attributes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from narrowpass_planning.weights.weight import Quantized
from narrowpass_xnn_cpu.lower import steps
from narrowpass_xnn_cpu.lower.attention import cached
from narrowpass_xnn_cpu.lower.conv import conv2d, resize, separable, transposed
from narrowpass_xnn_cpu.lower.int8 import int16
from narrowpass_xnn_cpu.lower.matmul import computations, computed, epilogue, stacked
from narrowpass_xnn_cpu.lower.movement import padding
from narrowpass_xnn_cpu.lower.rules import RULES
from narrowpass_xnn_cpu.lowered.op import Computation
from narrowpass_xnn_cpu.native.own.recurrent import Activation, Cell
from narrowpass_xnn_cpu.native.problems.convolution import ConvAttributes
from narrowpass_xnn_cpu.native.problems.epilogue import Epilogue
from narrowpass_xnn_cpu.native.problems.quantization import AddS8, Quantization, Requantized

_SHARED = steps, cached, separable, transposed, computations, computed, epilogue, stacked
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

BY_MNEMONIC = {each.mnemonic: each for each in COMPUTATIONS}

CLASSES: dict[str, type[Any]] = {
    each.__name__: each
    for each in (
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
}
"""The dataclasses of attributes, by name."""
