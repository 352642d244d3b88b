"""onnxruntime as a backend of narrowpass.

This is the plugin's entry module. It imports neither onnx, numpy nor onnxruntime; what does the
work is imported when the hook is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from narrowpass import hookimpl

if TYPE_CHECKING:
    from narrowpass import Backend

__all__ = ["narrowpass_backends"]


@hookimpl
def narrowpass_backends() -> list[Backend]:
    """Register the backend ``onnxruntime``."""
    from narrowpass_onnxruntime.backend import OnnxRuntimeBackend

    return [OnnxRuntimeBackend()]
