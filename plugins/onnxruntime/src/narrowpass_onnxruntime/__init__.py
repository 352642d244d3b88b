"""onnxruntime as a backend of narrowpass.

This is the plugin's entry module. It imports neither onnx, numpy nor onnxruntime; what does the
work is imported when the hook is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from narrowpass import hookimpl

if TYPE_CHECKING:
    from narrowpass import Backend
    from narrowpass_onnxruntime.session.session import InferenceSession

__all__ = ["InferenceSession", "narrowpass_backends"]


def __getattr__(name: str) -> object:
    """Import the class when it is first read."""
    if name == "InferenceSession":
        from narrowpass_onnxruntime.session.session import InferenceSession

        return InferenceSession
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@hookimpl
def narrowpass_backends() -> list[Backend]:
    """Register the backend ``onnxruntime``."""
    from narrowpass_onnxruntime.backend import OnnxRuntimeBackend

    return [OnnxRuntimeBackend()]
