"""The embeddings of BERT in one operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from narrowpass_expansion.emitter import Emitter
from narrowpass_expansion.qlinear import dequantized


def embed(e: Emitter) -> Sequence[ir.Value | None]:
    """Write look-ups of words, positions and segments, their sum, and its LayerNormalization.

    The second output is the number of elements of each row of the mask that are not 0, which ORT
    computes as the place of the first 0: those of rows that are padded at the end.
    """
    normal, total = _normalized(e, lambda index, rows: rows, e.input(8))
    return [normal, _mask_index(e), total]


_TABLES = {2: 0, 3: 1, 4: 2, 5: 3, 6: 4}
"""The place of each input's scale and zero point among those of QEmbedLayerNormalization."""


def embed_quantized(e: Emitter) -> Sequence[ir.Value | None]:
    """Write QEmbedLayerNormalization: rows are looked up as bytes, and dequantized then."""

    def real(index: int, rows: ir.Value) -> ir.Value:
        place = _TABLES[index]
        scale = e.required(8 + place, "scale")
        return dequantized(e, rows, scale, e.input(13 + place))

    normal, _ = _normalized(e, real, None)
    return [normal, _mask_index(e)]


def _normalized(
    e: Emitter, real: Callable[[int, ir.Value], ir.Value], places: ir.Value | None
) -> tuple[ir.Value, ir.Value]:
    """Write the normalized sum and the sum; `real` gives the numbers of an input's rows."""
    words = e.required(0, "input_ids")
    total = real(2, e.op("Gather", e.required(2, "word_embedding"), words, axis=0))
    total = e.op("Add", total, real(3, _positions(e, words, places)))
    segments, table = e.input(1), e.input(4)
    if segments is not None and table is not None:
        total = e.op("Add", total, real(4, e.op("Gather", table, segments, axis=0)))
    normal = e.op(
        "LayerNormalization",
        total,
        real(5, e.required(5, "gamma")),
        real(6, e.required(6, "beta")),
        axis=-1,
        epsilon=e.get("epsilon", 1e-12),
    )
    e.like(normal, *e.dims(words), e.dims(e.required(2, "word_embedding"))[-1])
    return normal, total


def _positions(e: Emitter, words: ir.Value, places: ir.Value | None) -> ir.Value:
    table = e.required(3, "position_embedding")
    if places is not None:
        return e.op("Gather", table, places, axis=0)
    rows = e.op("Slice", table, e.const([0]), e.dim(words, 1), e.const([0]))
    return e.unsqueeze(rows, 0)


def _mask_index(e: Emitter) -> ir.Value | None:
    if not e.wants(1):
        return None
    words = e.required(0, "input_ids")
    mask = e.input(7)
    if mask is None:
        zero = ir.tensor([0], dtype=ir.DataType.INT32)
        return e.op("ConstantOfShape", e.dim(words, 0), value=zero)
    given = e.op("Cast", mask, to=int(ir.DataType.BOOL))
    ones = e.cast(given, ir.DataType.INT32)
    return e.op("ReduceSum", ones, e.const([1]), keepdims=0)
