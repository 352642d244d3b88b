"""BERT's embeddings in one operator (Devlin et al., arXiv:1810.04805)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from narrowpass_expansion.emitter import Emitter
from narrowpass_expansion.quantized.qlinear import emit_dequantize


def embed_layer_norm(e: Emitter) -> Sequence[ir.Value | None]:
    """Emit the embeddings of words, positions and segments, their sum, and LayerNormalization.

    The second output is the number of elements of each row of the mask that are not 0, which
    onnxruntime computes as the index of the first 0: equal for rows that are padded at the end.
    """
    normal, total = _embed_and_normalize(e, lambda index, rows: rows, e.input(8))
    return [normal, _mask_index(e), total]


_PARAMETER_INDEX = {2: 0, 3: 1, 4: 2, 5: 3, 6: 4}
"""The index of each table's scale and zero point among those of QEmbedLayerNormalization."""


def q_embed_layer_norm(e: Emitter) -> Sequence[ir.Value | None]:
    """Emit QEmbedLayerNormalization: int8 rows are gathered, then dequantized."""

    def real(index: int, rows: ir.Value) -> ir.Value:
        index_of_table = _PARAMETER_INDEX[index]
        scale = e.required(8 + index_of_table, "scale")
        return emit_dequantize(e, rows, scale, e.input(13 + index_of_table))

    normal, _ = _embed_and_normalize(e, real, None)
    return [normal, _mask_index(e)]


def _embed_and_normalize(
    e: Emitter, real: Callable[[int, ir.Value], ir.Value], positions: ir.Value | None
) -> tuple[ir.Value, ir.Value]:
    """Emit the normalized sum and the sum; `real` dequantizes the rows of an input."""
    words = e.required(0, "input_ids")
    total = real(2, e.op("Gather", e.required(2, "word_embedding"), words, axis=0))
    total = e.op("Add", total, real(3, _positions(e, words, positions)))
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
    e.with_dims(normal, *e.dims(words), e.dims(e.required(2, "word_embedding"))[-1])
    return normal, total


def _positions(e: Emitter, words: ir.Value, positions: ir.Value | None) -> ir.Value:
    table = e.required(3, "position_embedding")
    if positions is not None:
        return e.op("Gather", table, positions, axis=0)
    rows = e.op("Slice", table, e.const([0]), e.dim(words, 1), e.const([0]))
    return e.unsqueeze(rows, 0)


def _mask_index(e: Emitter) -> ir.Value | None:
    if not e.is_used(1):
        return None
    words = e.required(0, "input_ids")
    mask = e.input(7)
    if mask is None:
        zero = ir.tensor([0], dtype=ir.DataType.INT32)
        return e.op("ConstantOfShape", e.dim(words, 0), value=zero)
    given = e.op("Cast", mask, to=int(ir.DataType.BOOL))
    ones = e.cast(given, ir.DataType.INT32)
    return e.op("ReduceSum", ones, e.const([1]), keepdims=0)
