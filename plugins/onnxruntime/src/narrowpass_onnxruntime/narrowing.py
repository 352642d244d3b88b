"""The pass ``auto`` behind the options ``max_error`` and ``objective``, and what it depends on."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from narrowpass.errors import UsageError
from narrowpass.narrowing import choosing_pass
from narrowpass.runtime.processors import usable_processors
from narrowpass_onnxruntime.files import status_of

if TYPE_CHECKING:
    from narrowpass import Backend
    from narrowpass.framework.plugins import Registry


def with_auto(
    pipeline: str, max_error: str | None, objective: str | None, registry: Registry
) -> str:
    """Return a pipeline's text, with ``auto`` at its end where an error is allowed.

    Args:
        pipeline: text of the passes before it; empty for none.
        max_error: as ``rel:1e-2``; None for no ``auto``.
        objective: what it minimizes; None for its default.
        registry: of the installed passes.

    Raises:
        UsageError: an objective is named without an error.
        PluginError: no pass that chooses types is installed.
    """
    if max_error is None:
        if objective is not None:
            raise UsageError("objective: needs max_error, such as rel:1e-2; pass both or neither")
        return pipeline
    return f"{pipeline},{choosing_pass(max_error, None, objective, registry)}".strip(",")


def is_repeatable(calibration: str | None) -> bool:
    """Return whether a later process can see that samples are the same: not of a function."""
    return calibration is None or Path(calibration).exists()


def sample_status(calibration: str | None) -> Sequence[str]:
    """Return what changes when samples in files do; see `status_of`."""
    if calibration is None:
        return []
    path = Path(calibration)
    return [status_of(each) for each in (path, *sorted(path.glob("*.npz")))]


def processor(backend: Backend) -> str:
    """Return what times of kernels depend on: the processor, its instruction sets, their number."""
    details = " ".join(f"{name}={text}" for name, text in sorted(backend.details().items()))
    return f"{_model_name()} {details} {usable_processors()}"


def _model_name() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    for line in text.splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
