"""Fused epilogues: what our kernels do with finished accumulators while these lie in cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.native import calls
from narrowpass_xnn_cpu.native.problems.bounds import UNBOUNDED, Range, checked_range, float32

FUNCTIONS = ("clamp", "gelu", "tanh-gelu", "silu", "hard-swish")
"""What is applied: names of ``NP_EPILOGUE_*``."""

RESIDUALS = ("", "before", "after")
"""When a second input of the output's shape is added, as ``NP_RESIDUAL_*`` names it."""


@dataclass(frozen=True)
class Epilogue:
    """``function(accumulator + residual)``, or ``function(accumulator) + residual``.

    Attributes:
        function: one of `FUNCTIONS`.
        limits: of ``clamp``; other functions have none.
        residual: whether there is a second input, added ``before`` or ``after`` the function;
            empty where there is none.

    Raises:
        BackendError: a function that there is not, or limits that are not in order.
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
        """Whether bounds are all that there is, which XNNPACK's operators have too."""
        return self.function == "clamp" and not self.residual

    def without_residual(self) -> Epilogue:
        """Return what remains where the residual is added later: nothing if that comes first."""
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
