"""The native CPU backend: models run on XNNPACK and kernels of our own.

This is the plugin's entry module. It imports neither onnx nor numpy, and loads no library; hooks
import what they need when they are called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from narrowpass import hookimpl

if TYPE_CHECKING:
    import click

    from narrowpass import Backend, Pass

__all__ = ["narrowpass_backends", "narrowpass_commands", "narrowpass_passes"]


@hookimpl
def narrowpass_backends() -> list[Backend]:
    """Register the backend ``xnn-cpu``."""
    from narrowpass_xnn_cpu.backend import XnnCpuBackend

    return [XnnCpuBackend()]


@hookimpl
def narrowpass_commands() -> list[click.Command]:
    """Register the command ``cache``."""
    from narrowpass_xnn_cpu.command import cache

    return [cache]


@hookimpl
def narrowpass_passes() -> list[type[Pass]]:
    """Register the pass ``store-weights``."""
    from narrowpass_xnn_cpu.store_weights import StoreWeights

    return [StoreWeights]
