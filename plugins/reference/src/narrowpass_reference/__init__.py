"""The backend `reference`: onnx's evaluator as the oracle, and as every backend's fallback.

The names below are the public interface. They are imported on first use: this is the plugin's
entry module, which must stay cheap to import.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from narrowpass import hookimpl

if TYPE_CHECKING:
    from narrowpass import Backend
    from narrowpass_reference.backend import ReferenceBackend
    from narrowpass_reference.nodes import NodeEvaluator
    from narrowpass_reference.operators.recurrent import Recurrent
    from narrowpass_reference.operators.replacing import replacement
    from narrowpass_reference.program import ReferenceProgram
    from narrowpass_reference.threads import blas_threads

__all__ = [
    "NodeEvaluator",
    "Recurrent",
    "ReferenceBackend",
    "ReferenceProgram",
    "blas_threads",
    "narrowpass_backends",
    "replacement",
]

_MODULE_OF = {
    "NodeEvaluator": "nodes",
    "Recurrent": "operators.recurrent",
    "ReferenceBackend": "backend",
    "ReferenceProgram": "program",
    "blas_threads": "threads",
    "replacement": "operators.replacing",
}


def __getattr__(name: str) -> object:
    """Import a public name."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


@hookimpl
def narrowpass_backends() -> list[Backend]:
    """Register the backend."""
    from narrowpass_reference.backend import ReferenceBackend

    return [ReferenceBackend()]
