"""Embeddings of few bits: rows gathered from what is packed, tied ones packed once."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from cache_kit import compiled, saved, weights
from few_bits_kit import BITS, KINDS, embedding, expected
from onnx import TensorProto, helper
from xnn_kit import compile_model

from narrowpass.errors import BackendError


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block", [0, 16, 32])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("half", [False, True])
def test_embeddings(kind, block, zeros, half):
    """Rows are gathered from what is packed: integers and scales, each rounded once."""
    model, table = embedding(kind, block, zeros, half)
    with compile_model(model) as program:
        (kernel,) = [p.kernel for p in program.explain() if p.op_type == "Gather"]
        assert kernel == f"gather int{BITS[kind]}"
        at = np.array([0, 69, 31, 32, -1, -70, 5, 5])
        (got,) = program.run({"i": at}).values()
        np.testing.assert_allclose(got, table[at], rtol=1e-6, atol=0)
        with pytest.raises(BackendError):
            program.run({"i": np.array([70])})
        assert program.run({"i": np.zeros(0, np.int64)})["y"].shape == (0, 64)


def test_a_tied_embedding_is_packed_once(tmp_path):
    """The LM head reads what rows are gathered from; so does another method, and a second load."""
    model, table = embedding("uint4", 32, True)
    nodes = model.graph.node
    nodes.append(helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0]))
    nodes.append(helper.make_node("MatMul", ["y", "t"], ["l"]))
    model.graph.output.append(helper.make_tensor_value_info("l", TensorProto.FLOAT, ["n", 70]))
    bundle = saved(tmp_path / "b.narrow", one=model, two=model)
    for packs in (1, 0):
        program = compiled(bundle, tmp_path / "cache")
        found = weights(program)
        assert (found["packs"], found["private"]) == (packs, {})
        for method in ("one", "two"):
            got = program.run({"i": np.arange(6)}, method)
            right, most = expected(got["y"], table.T, 0)
            np.testing.assert_allclose(got["l"], right, rtol=1e-5, atol=1e-5 * most)
        program.close()
        del program
        gc.collect()


@pytest.mark.parametrize("kind", ["int4", "uint4"])
@pytest.mark.parametrize("zeros", [False, True])
def test_gather_block_quantized(kind, zeros):
    """Of 4-bit integers, against onnxruntime: equal but for one rounding."""
    onnxruntime = pytest.importorskip("onnxruntime")
    model, table = embedding(kind, 16, zeros)
    names = ["q", "i", "s", *(["z"] if zeros else [])]
    node = helper.make_node(
        "GatherBlockQuantized",
        names,
        ["y"],
        domain="com.microsoft",
        gather_axis=0,
        quantize_axis=1,
        block_size=16,
    )
    del model.graph.node[:]
    model.graph.node.append(node)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    at = np.array([3, 69, 0])
    (right,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"i": at})
    with compile_model(model) as program:
        assert "gather int4" in [p.kernel for p in program.explain()]
        (got,) = program.run({"i": at}).values()
    np.testing.assert_allclose(got, right, rtol=1e-6, atol=0)
    np.testing.assert_allclose(got, table[at], rtol=1e-6, atol=0)
