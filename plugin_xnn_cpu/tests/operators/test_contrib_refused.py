"""Clear errors for what operators of com.microsoft may ask for, and for operands that are wrong."""

from __future__ import annotations

import numpy as np
import pytest
from contrib_kit import model_of, reason_of
from xnn_kit import compile_model

from narrowpass.errors import NarrowpassError


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


GROUPED = {
    "q": zeros(1, 2, 32),
    "k": zeros(1, 2, 16),
    "v": zeros(1, 2, 16),
    "past_k": zeros(1, 1, 4, 16),
    "past_v": zeros(1, 1, 4, 16),
    "lengths": np.array([5], np.int32),
    "total": np.array(6, np.int32),
}
HEADS = {"num_heads": 2, "kv_num_heads": 1}
NBITS = {
    "a": zeros(2, 32),
    "b": zeros(4, 2, 8, dtype=np.uint8),
    "scales": zeros(4, 2),
    "zeros": None,
}
SIZES = {"K": 32, "N": 4, "bits": 4, "block_size": 16}
MULTI = {"q": zeros(1, 2, 8), "k": zeros(1, 2, 8), "v": zeros(1, 2, 8)}

REFUSED = {
    "smooth_softmax": ("GroupQueryAttention", GROUPED, {**HEADS, "smooth_softmax": 1}),
    "cannot share": ("GroupQueryAttention", GROUPED, {"num_heads": 2, "kv_num_heads": 3}),
    "past_key and past_value": (
        "GroupQueryAttention",
        {**GROUPED, "past_v": None},
        HEADS,
    ),
    "cos_cache is left out": ("GroupQueryAttention", GROUPED, {**HEADS, "do_rotary": 1}),
    "block_size is 24": ("MatMulNBits", NBITS, {**SIZES, "block_size": 24}),
    "5 bits": ("MatMulNBits", NBITS, {**SIZES, "bits": 5}),
    "B is": ("MatMulNBits", NBITS, {**SIZES, "N": 5}),
    "num_heads": ("MultiHeadAttention", MULTI, {}),
    "value is left out": ("MultiHeadAttention", {**MULTI, "v": None}, {"num_heads": 2}),
    "do_rotary": (
        "Attention",
        {"x": zeros(1, 2, 4), "w": zeros(4, 12)},
        {"num_heads": 2, "do_rotary": 1},
    ),
    "three times": ("Attention", {"x": zeros(1, 2, 4), "w": zeros(4, 13)}, {"num_heads": 2}),
    "activation Mish": (
        "FusedConv",
        {"x": zeros(1, 1, 4, 4), "w": zeros(1, 1, 3, 3)},
        {"activation": "Mish"},
    ),
    "is_packed_batching": (
        "RotaryEmbedding",
        {
            "x": zeros(1, 2, 8),
            "at": np.array([0]),
            "cos": zeros(4, 4),
            "sin": zeros(4, 4),
        },
        {"is_packed_batching": 1},
    ),
}


@pytest.mark.parametrize("words", REFUSED)
def test_a_refusal_names_the_node_and_the_reason(words):
    op_type, inputs, attributes = REFUSED[words]
    text = reason_of(op_type, inputs, constants=("b", "scales"), **attributes)
    assert words in text
    assert "'node'" in text


def test_a_matrix_that_is_no_constant():
    assert "not constant" in reason_of("MatMulNBits", NBITS, constants=("scales",), **SIZES)


@pytest.mark.parametrize("length", [-7, 40])
def test_lengths_out_of_range(length):
    """Rows that would lie outside of the cache, and positions outside of the caches of angles."""
    model = model_of("GroupQueryAttention", GROUPED, ["y", "k2", "v2"], **HEADS)
    feeds = {**GROUPED, "lengths": np.array([length], np.int32)}
    with compile_model(model) as program:
        with pytest.raises(NarrowpassError):
            program.run(feeds)
        good = program.run(GROUPED)  # as if it had not been
    assert good["y"].shape == (1, 2, 32)


def test_rows_that_do_not_fit():
    dims = {"q": ["batch", "rows", 8], "k": ["batch", "keys", 8], "v": ["batch", "others", 8]}
    model = model_of("MultiHeadAttention", MULTI, ["y"], dims=dims, num_heads=2)
    with compile_model(model) as program, pytest.raises(NarrowpassError):
        program.run({**MULTI, "v": zeros(1, 3, 8)})
