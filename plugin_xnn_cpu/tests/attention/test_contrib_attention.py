"""The three forms of attention of com.microsoft, against onnxruntime's kernels.

The tolerance is 1e-5 of an output's largest element: fp32 accumulation in another order, and
an exponential of another polynomial.
"""

from __future__ import annotations

import numpy as np
import pytest
from contrib_kit import compare
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("onnxruntime")
QUICK = settings(max_examples=12, deadline=None)
RNG = np.random.default_rng(5)


def floats(*shape):
    return np.asarray(RNG.standard_normal(shape), np.float32)


def ends(batch, keys):
    return RNG.integers(1, keys + 1, batch).astype(np.int32)


def padding(kind, batch, rows, keys):
    """Build a mask; each row of it keeps a key.

    A row that keeps none has scores of about -10000, where a step of float32 is 1e-3.
    """
    if kind == "ends":
        return ends(batch, keys)
    if kind == "keys":
        return (np.arange(keys) < ends(batch, keys)[:, None]).astype(np.int32)
    if kind == "rows":
        kept = np.arange(rows)[:, None] % keys == np.arange(keys)
        return (RNG.integers(0, 2, (batch, rows, keys)) | kept).astype(np.int32)
    return None


masks = st.sampled_from([None, "ends", "keys", "rows"])


@QUICK
@given(
    batch=st.integers(1, 3),
    rows=st.integers(1, 6),
    heads=st.integers(1, 3),
    depth=st.integers(1, 9),
    mask=masks,
    bias=st.booleans(),
    added=st.booleans(),
    past=st.integers(0, 4),
    causal=st.booleans(),
    scale=st.sampled_from([None, 0.3]),
)
def test_packed_attention(batch, rows, heads, depth, mask, bias, added, past, causal, scale):
    width, keys = heads * depth, past + rows
    if mask == "ends" and past:
        mask = "keys"  # onnxruntime takes no ends where there is a past, nor a bias of scores
    added = added and not past
    inputs = {
        "x": floats(batch, rows, 7),
        "w": floats(7, 3 * width),
        "b": floats(3 * width) if bias else np.zeros(3 * width, np.float32),
        "mask": padding(mask, batch, rows, keys),
        "past": floats(2, batch, heads, past, depth) if past else None,
        "added": floats(1, heads, rows, keys) if added else None,
    }
    outputs = ("y", "present") if past else ("y",)
    named = {} if scale is None else {"scale": scale}
    compare(
        "Attention",
        inputs,
        outputs,
        constants=("w", "b"),
        num_heads=heads,
        unidirectional=int(causal),
        **named,
    )


def test_packed_attention_of_other_values():
    inputs = {"x": floats(2, 5, 6), "w": floats(6, 8 + 8 + 12), "b": floats(28)}
    compare("Attention", inputs, num_heads=2, qkv_hidden_sizes=[8, 8, 12])


def test_packed_attention_between_start_and_end():
    inputs = {"x": floats(2, 5, 6), "w": floats(6, 24), "b": floats(24)}
    inputs["mask"] = np.array([4, 5, 1, 2], np.int32)
    compare("Attention", inputs, num_heads=2)


def test_names_of_dimensions_select_the_kind_of_mask():
    inputs = {"x": floats(2, 5, 6), "w": floats(6, 24), "b": floats(24), "mask": ends(2, 5)}
    dims = {"x": ["batch", "rows", 6], "mask": ["batch"]}
    compare("Attention", inputs, constants=("w", "b"), dims=dims, num_heads=2)


def test_a_filler_of_masks():
    inputs = {"x": floats(2, 5, 6), "w": floats(6, 24), "b": floats(24)}
    inputs["mask"] = padding("keys", 2, 5, 5)
    compare("Attention", inputs, num_heads=2, mask_filter_value=-3.0)


@QUICK
@given(
    batch=st.integers(1, 3),
    rows=st.integers(1, 6),
    others=st.integers(1, 6),
    heads=st.integers(1, 3),
    depth=st.integers(1, 9),
    size=st.integers(1, 9),
    mask=masks,
    bias=st.booleans(),
    added=st.booleans(),
    whole=st.booleans(),
)
def test_multi_head_attention(batch, rows, others, heads, depth, size, mask, bias, added, whole):
    if whole:
        # Of keys that are heads already onnxruntime adds no bias, and wants values like them.
        bias, size = False, depth
    k = floats(batch, heads, others, depth) if whole else floats(batch, others, heads * depth)
    v = floats(batch, heads, others, size) if whole else floats(batch, others, heads * size)
    inputs = {
        "q": floats(batch, rows, heads * depth),
        "k": k,
        "v": v,
        "bias": floats(heads * (2 * depth + size)) if bias else None,
        "mask": padding(mask, batch, rows, others),
        "added": floats(1, heads, rows, others) if added else None,
    }
    compare("MultiHeadAttention", inputs, constants=("bias",), num_heads=heads)


@QUICK
@given(
    batch=st.integers(1, 2),
    rows=st.integers(1, 5),
    past=st.integers(0, 5),
    heads=st.integers(1, 3),
    mask=st.sampled_from([None, "keys"]),
    causal=st.booleans(),
)
def test_multi_head_attention_with_a_past(batch, rows, past, heads, mask, causal):
    inputs = {
        "q": floats(batch, rows, heads * 4),
        "k": floats(batch, rows, heads * 4),
        "v": floats(batch, rows, heads * 4),
        "bias": None,
        "mask": padding(mask, batch, rows, past + rows),
        "added": None,
        "past_k": floats(batch, heads, past, 4),
        "past_v": floats(batch, heads, past, 4),
    }
    compare(
        "MultiHeadAttention",
        inputs,
        ("y", "k2", "v2"),
        num_heads=heads,
        unidirectional=int(causal),
    )


@QUICK
@given(
    batch=st.integers(1, 3),
    rows=st.integers(1, 5),
    groups=st.integers(1, 2),
    each=st.integers(1, 3),
    shared=st.booleans(),
    packed=st.booleans(),
    rotary=st.sampled_from([None, "halves", "pairs", "partial"]),
    local_window=st.sampled_from([-1, 1, 3]),
    softcap=st.sampled_from([0.0, 2.0]),
    past=st.integers(0, 6),
)
def test_group_query_attention(
    batch, rows, groups, each, shared, packed, rotary, local_window, softcap, past
):
    """With a growing KV cache, and with a preallocated one; for the first step and later ones."""
    depth, heads = 32, groups * each
    if rows > 1 and past:
        batch = 1  # onnxruntime takes several rows after others for one batch only
    total = past + rows
    room = total + 3 if shared else past
    lengths = np.full(batch, total - 1, np.int32)
    if rows == 1 and past > 1 and shared:
        lengths = RNG.integers(1, total, batch).astype(np.int32)
        lengths[0] = total - 1
    cache = floats(batch, groups, room, depth), floats(batch, groups, room, depth)
    angles = floats(24, depth // 4 if rotary == "partial" else depth // 2)
    width = heads * depth
    inputs = {
        "q": floats(batch, rows, width + 2 * groups * depth if packed else width),
        "k": None if packed else floats(batch, rows, groups * depth),
        "v": None if packed else floats(batch, rows, groups * depth),
        "past_k": cache[0],
        "past_v": cache[1],
        "lengths": lengths,
        "total": np.array(total, np.int32),
        "cos": np.cos(angles) if rotary else None,
        "sin": np.sin(angles) if rotary else None,
    }
    compare(
        "GroupQueryAttention",
        inputs,
        ("y", "k2", "v2"),
        constants=("cos", "sin"),
        num_heads=heads,
        kv_num_heads=groups,
        do_rotary=int(rotary is not None),
        rotary_interleaved=int(rotary == "pairs"),
        local_window_size=local_window,
        softcap=softcap,
        rows_of={"k2": lengths + 1, "v2": lengths + 1},
    )
