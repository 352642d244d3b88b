"""What the pass refuses, what it leaves wide and why, and what it promises of any model."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from int4_kit import build, constants, decisions, floats, kinds, matmul, model, rewritten, run
from onnx import helper

import narrowpass
from narrowpass import Context
from narrowpass.errors import DataError, NarrowpassError, UsageError
from narrowpass_int4.int4 import Int4
from narrowpass_int4.storage import pieces, spool
from narrowpass_testing import assert_idempotent, assert_signature_unchanged, run_pass
from narrowpass_testing.strategies import models


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_weight_that_is_not_finite(bad):
    weight = floats(64, 32)
    weight[5, 7] = bad
    with pytest.raises(DataError, match="weight 'w' has an element that is infinite or NaN"):
        build(matmul(64, 32, weight), "int4{head=int4}")


@pytest.mark.parametrize(
    "text",
    [
        "int4{block=48}",
        "int4{method=magic}",
        "int4{format=gguf}",
        "int4{bits=3}",
        "int4{symmetric=maybe}",
        "int4{head=int2}",
        "int4{tolerance=much}",
        "int4{tolerance=-1}",
    ],
)
def test_unknown_options(text):
    with pytest.raises((NarrowpassError, UsageError)):
        build(matmul(64, 32), text)


def test_text_form():
    chosen = Int4(block="64", method="hqq", red=("a*",), tolerance=0.1)
    assert str(chosen) == "int4{block=64,method=hqq,red=[a*],tolerance=0.1}"


def reasons(proto, text="int4{head=int4}"):
    return {name: (d["decision"], d["reason"]) for name, d in decisions(build(proto, text)).items()}


def test_weight_with_another_reader():
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Add", ["h", "w"], ["y"], name="add"),
    ]
    proto = model(nodes, {"x": [64, 64]}, {"y": [64, 64]}, {"w": floats(64, 64)})
    assert reasons(proto)["n0"] == ("wide", "Add 'add' reads 'w' too, and needs it as it is")


def test_weight_that_is_an_output_or_fed():
    proto = matmul(64, 32)
    proto.graph.output.append(helper.make_tensor_value_info("w", 1, [64, 32]))
    assert reasons(proto)["n0"] == ("wide", "its weight 'w' is an output")
    proto = matmul(64, 32)
    proto.graph.input.append(helper.make_tensor_value_info("w", 1, [64, 32]))
    assert "may be fed" in reasons(proto)["n0"][1]


def test_one_matrix_along_two_axes():
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Gemm", ["h", "w"], ["y"], transB=1),
    ]
    proto = model(nodes, {"x": [4, 64]}, {"y": [4, 64]}, {"w": floats(64, 64)})
    assert reasons(proto)["n1"] == ("wide", "nodes read 'w' along different axes")


def test_weights_that_stay_by_rule_or_option():
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="small"),
        helper.make_node("MatMul", ["a", "v"], ["b"], name="large"),
        helper.make_node("MatMul", ["b", "u"], ["y"], name="head"),
    ]
    held = {"w": floats(16, 32), "v": floats(32, 64), "u": floats(64, 64)}
    proto = model(nodes, {"x": [4, 16]}, {"y": [4, 64]}, held)
    found = reasons(proto, "int4{head=keep}")
    assert found["small"] == ("wide", "its weight 'w' has only 512 elements")
    assert found["head"] == ("wide", "it is to stay wide")
    assert found["large"][0] == "int4"
    found = reasons(proto, "int4{head=keep,green=[small],red=[large]}")
    assert found["small"][0] == "int4"
    assert found["large"] == ("wide", "it is to stay wide")
    assert reasons(proto, "int4")["head"][0] == "int8"


def test_rotary_tables_stay():
    nodes = [
        helper.make_node("Gather", ["cos", "p"], ["c"], name="cosines"),
        helper.make_node("MatMul", ["x", "w"], ["h"], name="w"),
        helper.make_node("Mul", ["h", "c"], ["y"]),
    ]
    held = {"cos": floats(100, 64), "w": floats(64, 64)}
    proto = model(nodes, {"x": [4, 64], "p": [4]}, {"y": [4, 64]}, held, integers=["p"])
    assert reasons(proto)["cosines"] == ("wide", "rows of 'cos' are factors of other values")
    assert reasons(proto, "int4{green=[cosines]}")["cosines"][0] == "int8"


def test_nothing_to_do():
    node = helper.make_node("Relu", ["x"], ["y"])
    proto = model([node], {"x": [4]}, {"y": [4]}, {}, opset=13)
    result = run_pass("int4", ir.from_proto(proto))
    assert not result.modified
    assert result.model.opset_imports[""] == 13
    summary = Int4().run(ir.from_proto(proto), Context()).summary
    assert "no node has a constant matrix" in summary


@pytest.mark.parametrize("limit", [1e-6, 10.0])
def test_tolerance_of_weights(limit):
    proto = matmul(64, 32)
    (found,) = decisions(build(proto, f"int4{{head=int4,tolerance={limit}}}")).values()
    assert found["decision"] == ("wide" if limit < 1 else "int4")
    if limit < 1:
        assert "its weights would lose" in found["reason"]
        assert kinds(rewritten(proto, f"int4{{head=int4,tolerance={limit}}}")) == ["MatMul"]
    after = rewritten(proto, "int4{head=int4,tolerance=1e-6,green=[n0]}")
    assert kinds(after) == ["DequantizeLinear", "MatMul"]


def test_reported_loss_by_hand():
    proto = matmul(64, 32)
    after = rewritten(proto, "int4{head=int4,block=16,method=rtn}")
    found, weight = constants(after), constants(proto)["w"].astype(np.float64)
    lost = found["w.int4"] * np.repeat(found["w.scale"], 16, 0).astype(np.float64) - weight
    (item,) = decisions(build(proto, "int4{head=int4,block=16,method=rtn}")).values()
    ratio = (lost**2).sum() / (weight**2).sum()
    assert item["measured"] == pytest.approx(np.sqrt(ratio), rel=1e-4)
    assert item["sqnr"] == pytest.approx(-10 * np.log10(ratio), abs=1e-3)
    histogram = item["histogram"]
    assert sum(histogram["counts"]) + histogram["zeros"] == weight.size
    assert histogram["low"] == weight.min()
    assert item["reason"].startswith("5.00 bits a weight")


@pytest.mark.parametrize("form", ["qdq", "nbits"])
@pytest.mark.parametrize("symmetric", ["true", "false"])
def test_pieces_and_files_change_nothing(form, symmetric, monkeypatch):
    """Whatever fits into memory at a time, the bytes are the same."""
    nodes = [
        helper.make_node("Gather", ["t", "ids"], ["e"]),
        helper.make_node("MatMul", ["e", "w"], ["h"]),
        helper.make_node("Gemm", ["h", "v"], ["y"], transB=1),
    ]
    held = {"t": floats(70, 96), "w": floats(96, 77), "v": floats(51, 77)}
    proto = model(nodes, {"ids": ["n"]}, {"y": ["n", 51]}, held, integers=["ids"])
    for block in ("16", "channel"):
        text = f"int4{{block={block},format={form},symmetric={symmetric},head=int4}}"
        whole = rewritten(proto, text)
        with monkeypatch.context() as patch:
            patch.setattr(pieces, "PIECE", 200)
            patch.setattr(spool, "SMALL", 16)
            assert rewritten(proto, text).SerializeToString() == whole.SerializeToString()


@settings(max_examples=25, deadline=None)
@given(proto=models(max_nodes=8))
@pytest.mark.parametrize("form", ["qdq", "nbits"])
def test_random_models(form, proto):
    text = f"int4{{format={form},green=[*],head=int4,embeddings=int4,block=16}}"
    try:
        after = assert_idempotent(text, proto)
    except DataError:  # some weights are not finite
        return
    assert_signature_unchanged(proto, after)


def test_saved_and_loaded(tmp_path):
    proto = matmul(512, 512)
    bundle = build(proto, "int4{head=int4,symmetric=false}")
    narrowpass.save_model(bundle.methods["main"], tmp_path / "m.onnx")
    import onnx

    x = floats(3, 512)
    again = onnx.load(tmp_path / "m.onnx")
    right = run(ir.to_proto(bundle.methods["main"]), {"x": x})
    np.testing.assert_array_equal(run(again, {"x": x}), right)
