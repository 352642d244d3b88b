"""What the weights of a bundle are called: by their content, as its manifest names it."""

from __future__ import annotations

import hashlib
import uuid
from typing import TYPE_CHECKING

import onnx_ir as ir

from narrowpass_xnn_cpu.weights.weight import digest

if TYPE_CHECKING:
    from narrowpass.bundle import Bundle


def key_of(bundle: Bundle) -> str | None:
    """Name the set of weights that a bundle on disk has; None for one that is only in memory.

    Bundles that were built otherwise from the same weights have the same name.
    """
    if bundle.manifest is None or not bundle.manifest.tensors:
        return None
    return digest("weights", *sorted({info.sha256 for info in bundle.manifest.tensors.values()}))


def identities(bundle: Bundle) -> dict[str, dict[str, str]]:
    """Name the initializers of each method by their content; see `Weight.identity`.

    In a bundle on disk, that is the hash in the manifest, and nothing is read. In one that is only
    in memory tensors get names that no other bundle has; those that are the same data in several
    methods have one name.
    """
    here = uuid.uuid4().hex
    found: dict[str, dict[str, str]] = {}
    for method, model in bundle.methods.items():
        names = found[method] = {}
        for name, value in model.graph.initializers.items():
            tensor = value.const_value
            if tensor is None or tensor.dtype in (ir.DataType.STRING, ir.DataType.UNDEFINED):
                continue
            content = _content(bundle, method, value, tensor, here)
            names[name] = digest("tensor", content, tensor.dtype, list(tensor.shape.numpy()))
    return found


def _content(
    bundle: Bundle, method: str, value: ir.Value, tensor: ir.TensorProtocol, here: str
) -> str:
    """Name the bytes of an initializer."""
    if bundle.manifest is None and len(bundle.methods) == 1:
        return f"{here}/{value.name}"  # without looking for equal ones: that reads them
    try:
        key = bundle.key(method, value)
    except KeyError:  # a small one, which stays in the model's file
        return hashlib.sha256(tensor.tobytes()).hexdigest()
    known = bundle.data[key].sha256
    return f"{here}/{key}" if known is None else known
