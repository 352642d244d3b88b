"""Fused epilogues: residual and activation, applied to accumulators before they are stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.native import calls
from narrowpass_xnn_cpu.native.problems.bounds import UNBOUNDED, Range, checked_range, float32

FUNCTIONS = ("clamp", "gelu", "tanh-gelu", "silu", "hard-swish")
"""Activations: names of ``NP_EPILOGUE_*``."""

RESIDUALS = ("", "before", "after")
"""When a residual of the output's shape is added: names of ``NP_RESIDUAL_*``; empty for none."""


@dataclass(frozen=True)
class Epilogue:
    """``function(accumulator + residual)``, or ``function(accumulator) + residual``.

    Attributes:
        function: one of `FUNCTIONS`.
        limits: clipping range of ``clamp``; other functions have none.
        residual: whether a second input is added ``before`` or ``after`` the function; empty for
            none.

    Raises:
        BackendError: an unknown function or residual, or an empty clipping range.
    """

    function: str = "clamp"
    limits: Range = UNBOUNDED
    residual: str = ""

    def __post_init__(self) -> None:
        if self.function not in FUNCTIONS or self.residual not in RESIDUALS:
            raise BackendError(f"there is no epilogue {self.function!r} {self.residual!r}")
        if self.function != "clamp" and self.limits != UNBOUNDED:
            raise BackendError(f"the results of {self.function} cannot be clamped too")
        checked_range(self.limits)

    @property
    def is_clamp(self) -> bool:
        """Whether it is a clamp without residual, as XNNPACK's operators have."""
        return self.function == "clamp" and not self.residual

    def without_residual(self) -> Epilogue:
        """Return the part before the residual, where another step adds it: none for ``before``."""
        if self.residual == "after":
            return Epilogue(self.function, self.limits)
        return Epilogue()

    def params(self) -> dict[str, Any]:
        """Return the fields of ``struct np_epilogue``."""
        low, high = self.limits
        return {
            "function": calls.constant("NP_EPILOGUE", self.function),
            "residual": calls.constant("NP_RESIDUAL", self.residual or "none"),
            "low": float32(low),
            "high": float32(high),
        }


NO_EPILOGUE = Epilogue()
"""Nothing is done with accumulators."""
