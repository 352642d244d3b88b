"""What passes ask, and the program."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import ClassVar

import onnx_ir as ir

from narrowpass import (
    Accept,
    Backend,
    Bundle,
    CompileOptions,
    OpClassifier,
    OpDtypes,
    Program,
    Reject,
)
from narrowpass.runtime.quantization import PerTokenQuantization, QuantizationSpec
from narrowpass_ir.movement import DATA_MOVEMENT
from narrowpass_planning.plan import OneThread
from narrowpass_planning.program import PlannedProgram, supports
from numpy_backend.lowering import NumpyClassifier, NumpyLowering
from numpy_backend.packed import CACHE, NumpyPacker


class NumpyBackend(Backend):
    """Runs ten operators on float32 with numpy; weights may be int8."""

    name: ClassVar[str] = "numpy"
    priority: ClassVar[int] = -1  # never the default: `reference` has 0

    def default_pipeline(self, passes: Collection[str]) -> str:
        """Return ``fold`` where it is installed."""
        return "fold" if "fold" in passes else ""

    def supports(self, node: ir.Node) -> Accept | Reject:
        """Accept what a kernel, or numpy beside it, takes."""
        return supports(NumpyLowering(), node)

    @property
    def classifier(self) -> OpClassifier:  # type: ignore[override]  # created when it is asked for
        """What has no kernel stays wide."""
        return NumpyClassifier()

    def quantization_spec(self) -> QuantizationSpec:
        """Return that only matrices may be int8, of symmetric scales."""
        return QuantizationSpec(others=None, per_token=PerTokenQuantization(frozenset({"MatMul"})))

    def gain(self, node: ir.Node, dtypes: OpDtypes) -> float:
        """Return the seconds that a narrow type costs: its elements are upcast and rounded."""
        dims = [dim for dim in node.outputs[0].shape or () if isinstance(dim, int)]
        moved = node.op_type in DATA_MOVEMENT
        return 0.0 if moved else -2e-9 * math.prod(dims)

    def compile(self, bundle: Bundle, options: CompileOptions) -> Program:
        """Compile all methods of a bundle."""
        return PlannedProgram(
            bundle,
            options,
            lowering=NumpyLowering(),
            cache=CACHE.get(),
            packer=NumpyPacker(),
            pool=OneThread(),
        )
