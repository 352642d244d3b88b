"""What a model may be given as, and how it becomes one of the IR."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import onnx
import onnx_ir as ir

from narrowpass_ir.errors import UsageError
from narrowpass_ir.io import load_bytes, load_model, load_proto
from narrowpass_ir.torch_export import from_torch


class TorchModel(Protocol):
    """A ``torch.nn.Module`` or ``torch.export.ExportedProgram``, without an import of PyTorch."""

    @property
    def state_dict(self) -> Any:
        """A method of the one, the parameters of the other."""


ModelLike: TypeAlias = str | os.PathLike[str] | bytes | ir.Model | onnx.ModelProto | TorchModel
"""What a model may be given as: the path of an ONNX file, its bytes, a model of onnx-ir or onnx, a
module of PyTorch."""


def open_model(source: object, example_inputs: Sequence[Any] | None = None) -> ir.Model:
    """Return the IR of a model that is given in any of the ways of `ModelLike`.

    Args:
        source: the model; an `onnx_ir.Model` is returned as it is, and not verified.
        example_inputs: what a ``torch.nn.Module`` is exported with, see `from_torch`; its sizes
            are fixed by these. None for everything else.

    Raises:
        UsageError: something else; a module without example inputs, or these for something else.
        ModelError: it cannot be read or exported.
        VerificationError: its structure breaks a rule of ONNX.
    """
    torch = sys.modules.get("torch")  # whoever has a module has imported it
    if torch is not None and isinstance(source, torch.nn.Module):
        if example_inputs is None:
            raise UsageError(
                f"{type(source).__name__}, a torch.nn.Module, is exported with inputs that show "
                "types and sizes: pass `example_inputs`, such as (torch.zeros(1, 3, 224, 224),); "
                "or call narrowpass.from_torch, which takes dynamic sizes too"
            )
        return from_torch(source, example_inputs)
    if example_inputs is not None:
        raise UsageError("`example_inputs` are for a torch.nn.Module; leave them out")
    if torch is not None and isinstance(source, torch.export.ExportedProgram):
        return from_torch(source)
    if isinstance(source, str | os.PathLike):
        return load_model(source)
    if isinstance(source, bytes | bytearray | memoryview):
        return load_bytes(bytes(source))
    if isinstance(source, onnx.ModelProto):
        return load_proto(source)
    if not isinstance(source, ir.Model):
        raise UsageError(
            f"{type(source).__name__} is no model; pass the path of an .onnx file, its bytes, an "
            "onnx.ModelProto, an onnx_ir.Model, a torch.nn.Module, or a mapping of method names to "
            "these"
        )
    return source
