"""The embeddings of BERT in one operator."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from narrowpass.expansion.emitter import Emitter


def embed(e: Emitter) -> Sequence[ir.Value | None]:
    """Write look-ups of words, positions and segments, their sum, and its LayerNormalization.

    The second output is the number of elements of each row of the mask that are not 0, which ORT
    computes as the place of the first 0: those of rows that are padded at the end.
    """
    words = e.required(0, "input_ids")
    total = e.op("Gather", e.required(2, "word_embedding"), words, axis=0)
    total = e.op("Add", total, _positions(e, words))
    segments, table = e.input(1), e.input(4)
    if segments is not None and table is not None:
        total = e.op("Add", total, e.op("Gather", table, segments, axis=0))
    normal = e.op(
        "LayerNormalization",
        total,
        e.required(5, "gamma"),
        e.required(6, "beta"),
        axis=-1,
        epsilon=e.get("epsilon", 1e-12),
    )
    e.like(normal, *e.dims(words), e.dims(e.required(2, "word_embedding"))[-1])
    return [normal, _mask_index(e, words), total]


def _positions(e: Emitter, words: ir.Value) -> ir.Value:
    table, places = e.required(3, "position_embedding"), e.input(8)
    if places is not None:
        return e.op("Gather", table, places, axis=0)
    rows = e.op("Slice", table, e.const([0]), e.dim(words, 1), e.const([0]))
    return e.unsqueeze(rows, 0)


def _mask_index(e: Emitter, words: ir.Value) -> ir.Value | None:
    if not e.wants(1):
        return None
    mask = e.input(7)
    if mask is None:
        zero = ir.tensor([0], dtype=ir.DataType.INT32)
        return e.op("ConstantOfShape", e.dim(words, 0), value=zero)
    given = e.op("Cast", mask, to=int(ir.DataType.BOOL))
    ones = e.cast(given, ir.DataType.INT32)
    return e.op("ReduceSum", ones, e.const([1]), keepdims=0)
