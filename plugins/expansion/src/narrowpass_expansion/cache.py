"""Key/value caches that are written into."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from narrowpass_expansion.emitter import Emitter, Unsupported


def tensor_scatter(e: Emitter) -> Sequence[ir.Value]:
    """Write ONNX's TensorScatter: rows of a cache replaced from a place on, one for each batch."""
    past, update, starts = e.required(0, "past_cache"), e.required(1, "update"), e.input(2)
    rank = len(e.dims(past))
    axis = int(e.get("axis", -2)) % rank
    if axis == 0:
        raise Unsupported("its axis is that of batches")
    length = e.op("Squeeze", e.dim(update, axis), e.const([0]))
    places = e.unsqueeze(e.op("Range", e.const(0), length, e.const(1)), 0)
    if starts is not None:
        places = e.op("Add", e.unsqueeze(starts, 1), places)
    if str(e.get("mode", "linear")) == "circular":
        places = e.op("Mod", places, e.dim(past, axis))
    others = [i for i in range(1, rank) if i != axis]
    places = e.unsqueeze(places, *others) if others else places
    everywhere = e.op("Expand", places, e.op("Shape", update))
    return [e.op("ScatterElements", past, everywhere, update, axis=axis)]
