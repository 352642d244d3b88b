"""narrowpass as an execution provider of onnxruntime, and onnxruntime as a backend of narrowpass.

This is the plugin's entry module. It imports neither onnx, numpy nor onnxruntime; what does the
work is imported when a hook or `register` is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from narrowpass import hookimpl

if TYPE_CHECKING:
    import click

    from narrowpass import Backend
    from narrowpass_onnxruntime.session.session import InferenceSession

__all__ = ["InferenceSession", "narrowpass_backends", "narrowpass_commands", "register"]


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


@hookimpl
def narrowpass_commands() -> list[click.Command]:
    """Register the command ``onnxruntime``."""
    from narrowpass_onnxruntime.command import onnxruntime

    return [onnxruntime]


def register() -> None:
    """Register ``NarrowpassExecutionProvider`` with onnxruntime; a second call does nothing.

    Then `onnxruntime.InferenceSession` takes it by name, before the provider that runs what it
    leaves::

        providers = ["NarrowpassExecutionProvider", "CPUExecutionProvider"]
        session = onnxruntime.InferenceSession("model.onnx", providers=providers)

    Raises:
        BackendError: this version of onnxruntime does not fit, or the library cannot be loaded.
    """
    from narrowpass_onnxruntime.provider.registration import register

    register()
