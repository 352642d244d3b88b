"""Updates of a KV cache."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from narrowpass_expansion.emitter import Emitter, Unsupported


def tensor_scatter(e: Emitter) -> Sequence[ir.Value]:
    """Emit TensorScatter: positions of a cache overwritten from a start index for each batch."""
    past, update, starts = e.required(0, "past_cache"), e.required(1, "update"), e.input(2)
    rank = len(e.dims(past))
    axis = int(e.get("axis", -2)) % rank
    if axis == 0:
        raise Unsupported("its axis is that of batches")
    length = e.op("Squeeze", e.dim(update, axis), e.const([0]))
    positions = e.unsqueeze(e.op("Range", e.const(0), length, e.const(1)), 0)
    if starts is not None:
        positions = e.op("Add", e.unsqueeze(starts, 1), positions)
    if str(e.get("mode", "linear")) == "circular":
        positions = e.op("Mod", positions, e.dim(past, axis))
    others = [i for i in range(1, rank) if i != axis]
    positions = e.unsqueeze(positions, *others) if others else positions
    indices = e.op("Expand", positions, e.op("Shape", update))
    return [e.op("ScatterElements", past, indices, update, axis=axis)]
