"""Keys of whole models, by what their time depends on."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from narrowpass_auto.measure.trials import forms

if TYPE_CHECKING:
    import onnx_ir as ir


def model_key(model: ir.Model) -> str:
    """Return a hash of operators, attributes, types and shapes; weights do not count."""
    digest = hashlib.sha256()
    for value in model.graph.inputs:
        digest.update(f"{value.name} {value.dtype} {value.shape}\n".encode())
    for line in forms(list(model.graph.all_nodes())):
        digest.update(line.encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()[:32]
