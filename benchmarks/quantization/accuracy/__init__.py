"""Tasks that a quantized model is judged by, and the tools that quantize it."""

from __future__ import annotations

from accuracy.quantizers import QUANTIZERS, Quantized, UnavailableError
from accuracy.tasks import TASKS, Task

__all__ = ["QUANTIZERS", "TASKS", "Quantized", "Task", "UnavailableError"]
