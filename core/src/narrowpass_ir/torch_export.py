"""Models from PyTorch, through its own exporter; PyTorch is imported where it is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from narrowpass_ir.arguments import instance_of
from narrowpass_ir.errors import ModelError, UsageError


def from_torch(
    module: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    opset: int | None = None,
) -> ir.Model:
    """Export a PyTorch module as a model, with `torch.onnx.export` and TorchDynamo.

    Args:
        module: a `torch.nn.Module`, which should be in evaluation mode, or a
            `torch.export.ExportedProgram`.
        args: example inputs, a tuple; of an `ExportedProgram`, nothing.
        kwargs: example inputs by name.
        dynamic_shapes: which axes may have other sizes, as `torch.export.export` takes it.
        input_names: names of the inputs; None for those of the arguments.
        output_names: names of the outputs.
        opset: the operator set; None for PyTorch's default.

    Returns:
        The model. Its weights are the module's own, and are not copied.

    Raises:
        UsageError: PyTorch or onnxscript is not installed, or an argument is of another type.
        ModelError: PyTorch cannot export the module; the message has its reason.
    """
    for name in ("torch", "onnxscript"):
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise UsageError(
                f"from_torch needs {name}, which cannot be imported ({error}); run: pip install "
                "torch onnxscript"
            ) from error
    import torch

    kinds = torch.nn.Module, torch.export.ExportedProgram
    if not isinstance(module, kinds):
        raise UsageError(
            f"from_torch takes a torch.nn.Module or an ExportedProgram, not {type(module).__name__}"
        )
    given = tuple(instance_of(args, Sequence, "`args`", "a tuple of example inputs"))
    try:
        exported = torch.onnx.export(
            module,
            given,
            kwargs=None if kwargs is None else dict(kwargs),
            dynamic_shapes=dynamic_shapes,
            input_names=input_names,
            output_names=output_names,
            opset_version=opset,
            dynamo=True,
            verbose=False,
        )
    # Whatever of a module's own code, or of the exporter's, cannot be traced.
    except Exception as error:
        reason = " ".join(str(error).split())[:500]
        raise ModelError(f"PyTorch cannot export {type(module).__name__}: {reason}") from error
    if exported is None:
        raise ModelError(f"PyTorch exported nothing of {type(module).__name__}")
    model: ir.Model = exported.model
    return model
