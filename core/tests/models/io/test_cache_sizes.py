"""Sizes of caches that onnxruntime-genai's model builder leaves open."""

from __future__ import annotations

import onnx
import pytest

from narrowpass_ir.io import load_proto

MODEL = """
<ir_version: 10, opset_import: ["": 22, "com.microsoft": 1]>
g (float[B, S, WIDTH] q, ROWS
   float[B, HEADS, P, HEAD_SIZE] past_k, float[B, HEADS, P, HEAD_SIZE] past_v,
   int32[B] seen, int32 total)
   => (float[B, S, 64] y,
       float[B, HEADS, T, HEAD_SIZE] present_k, float[B, HEADS, T, HEAD_SIZE] present_v) {
    y, present_k, present_v = com.microsoft.GroupQueryAttention <num_heads = 4, kv_num_heads = 2>
        (q, KEYS, past_k, past_v, seen, total)
}
"""
APART = {"WIDTH": "64", "ROWS": "float[B, S, 32] k, float[B, S, 32] v,", "KEYS": "k, v"}
TOGETHER = {"WIDTH": "128", "ROWS": "", "KEYS": "q, q"}


def shapes(parts: dict[str, str], **sizes: str) -> list[list[int | str]]:
    """Return the shapes of the caches, and of the caches with the new rows."""
    text = MODEL
    for name, part in (parts | {"HEADS": "heads", "HEAD_SIZE": "kv_cache_dim"} | sizes).items():
        text = text.replace(name, part)
    model = onnx.parser.parse_model(text)
    if parts["KEYS"] == "q, q":  # the parser knows no empty inputs
        model.graph.node[0].input[1:3] = ["", ""]
    graph = load_proto(model).graph
    found = {value.name: value.shape for value in (*graph.inputs, *graph.outputs)}
    return [
        [dim if isinstance(dim, int) else dim.value for dim in found[name]]
        for name in ("past_k", "past_v", "present_k", "present_v")
    ]


@pytest.mark.parametrize("parts", [APART, TOGETHER], ids=["apart", "together"])
def test_sizes_are_those_of_the_rows(parts):
    past, present = ["B", 2, "P", 16], ["B", 2, "T", 16]
    assert shapes(parts) == [past, past, present, present]


def test_stated_sizes_stay():
    past, present = ["B", 2, "P", 8], ["B", 2, "T", 8]
    assert shapes(APART, HEADS="2", HEAD_SIZE="8") == [past, past, present, present]


def test_rows_of_unknown_or_odd_width_say_nothing():
    for width in ("127", "width"):
        past, present = ["B", "heads", "P", "kv_cache_dim"], ["B", "heads", "T", "kv_cache_dim"]
        assert shapes(TOGETHER | {"WIDTH": width}) == [past, past, present, present]


def test_caches_of_unknown_rank_stay():
    found = MODEL
    for name, part in (APART | {"HEADS": "heads", "HEAD_SIZE": "size"}).items():
        found = found.replace(name, part)
    model = onnx.parser.parse_model(found)
    model.graph.input[3].type.tensor_type.ClearField("shape")
    graph = load_proto(model).graph
    assert graph.inputs[3].shape is None
    assert [*graph.inputs[4].shape] == ["B", 2, "P", 16]


def test_other_nodes_and_rows_without_heads_say_nothing():
    past, present = ["B", "heads", "P", "kv_cache_dim"], ["B", "heads", "T", "kv_cache_dim"]
    unknown = {"ROWS": "float k, float v,"}
    assert shapes(APART | unknown) == [past, past, present, present]
    text = MODEL.replace("kv_num_heads = 2", "kv_num_heads = 0")
    for name, part in (APART | {"HEADS": "heads", "HEAD_SIZE": "kv_cache_dim"}).items():
        text = text.replace(name, part)
    model = onnx.parser.parse_model(text)
    assert [*load_proto(model).graph.inputs[3].shape] == past
