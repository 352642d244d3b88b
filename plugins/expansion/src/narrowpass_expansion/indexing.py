"""Indices of slices."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from narrowpass_expansion.emitter import AlreadyExpanded, Emitter


def gather_nd(e: Emitter) -> Sequence[ir.Value]:
    """Emit GatherND as Gather where each index is of the first axis alone.

    Exporters write such for ``x[i]``: the rows of an embedding, or the weights of experts.
    """
    indices = e.required(1, "indices")
    dims = indices.shape
    if e.get("batch_dims", 0) or dims is None or not len(dims) or dims[-1] != 1:
        raise AlreadyExpanded
    flat = e.op("Squeeze", indices, e.const([len(dims) - 1]))
    return [e.op("Gather", e.required(0, "data"), flat, axis=0)]
