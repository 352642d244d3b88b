"""Key/value caches that are written into."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from narrowpass.expansion.emitter import Emitter, Unsupported


def tensor_scatter(e: Emitter) -> Sequence[ir.Value]:
    """Write ONNX's TensorScatter: rows of a cache replaced from a place on, one for each batch."""
    past, update = e.required(0, "past_cache"), e.required(1, "update")
    rank = len(e.dims(past))
    axis = int(e.get("axis", -2)) % rank
    if axis == 0 or rank < 2:
        raise Unsupported("its axis is that of batches")
    circular = str(e.get("mode", "linear")) == "circular"
    return [write_rows(e, past, update, e.input(2), rank, axis, circular=circular)]


def write_rows(
    e: Emitter,
    past: ir.Value,
    update: ir.Value,
    starts: ir.Value | None,
    rank: int,
    axis: int,
    *,
    circular: bool = False,
) -> ir.Value:
    """Write the replacement of rows of `past` along `axis` by those of `update`.

    Args:
        e: writes.
        past: the cache.
        update: as the cache, but shorter along the axis.
        starts: [batch], where the first row of each batch goes; None for 0.
        rank: of the cache.
        axis: not 0.
        circular: whether rows beyond the end go to the beginning.
    """
    length = e.op("Squeeze", e.dim(update, axis), e.const([0]))
    places = e.op("Range", e.const(0), length, e.const(1))
    if starts is not None:
        places = e.op("Add", e.unsqueeze(starts, 1), e.unsqueeze(places, 0))
    else:
        places = e.unsqueeze(places, 0)
    if circular:
        places = e.op("Mod", places, e.dim(past, axis))
    others = [i for i in range(1, rank) if i != axis]
    places = e.unsqueeze(places, *others) if others else places
    shape = e.op("Shape", update)
    return e.op("ScatterElements", past, e.op("Expand", places, shape), update, axis=axis)
