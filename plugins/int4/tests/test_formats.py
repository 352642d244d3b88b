"""What each format stores, by hand and on onnxruntime, for each operator and layout."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from int4_kit import (
    build,
    constants,
    decisions,
    decoded,
    decoded_nbits,
    floats,
    kinds,
    matmul,
    model,
    rewritten,
    run,
)
from onnx import TensorProto, helper, numpy_helper

BLOCKS = ["16", "32", "128", "channel"]
INT4 = "head=int4,embeddings=int4"


def close(got, right, share=2e-6):
    scale = np.abs(right).max()
    assert got.shape == right.shape
    assert np.abs(got - right).max() <= share * scale * np.sqrt(right.shape[-1] + 64)


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("symmetric", ["true", "false"])
@pytest.mark.parametrize("method", ["rtn", "mse", "hqq"])
def test_qdq_of_a_matmul(block, symmetric, method):
    proto = matmul(72, 33)
    text = f"int4{{block={block},symmetric={symmetric},method={method},{INT4}}}"
    after = rewritten(proto, text)
    assert kinds(after) == ["DequantizeLinear", "MatMul"]
    found = constants(after)
    kind = TensorProto.INT4 if symmetric == "true" else TensorProto.UINT4
    stored = {t.name: t for t in after.graph.initializer}
    assert stored["w.int4"].data_type == kind
    assert ("w.zero_point" in found) == (symmetric == "false")
    size = 72 if block == "channel" else int(block)
    weight = constants(proto)["w"]
    if size >= 72:
        assert found["w.scale"].shape == (33,)
        zero = found.get("w.zero_point", np.zeros(33, np.int8)).astype(float)
        values = (found["w.int4"].astype(float) - zero) * found["w.scale"]
        steps = np.abs(found["w.scale"])[None]
    else:
        assert found["w.scale"].shape == (-(-72 // size), 33)
        values = decoded(after, "w", 0, size)
        steps = np.repeat(np.abs(found["w.scale"]), size, 0)[:72]
    if method == "rtn":
        # Half a step, and of a symmetric grid a whole one at the end that has no -8; 15 steps of a
        # scale that is rounded to float16.
        limit = 15 * 2**-11 + (0.5 if symmetric == "false" else 1)
        assert (np.abs(values - weight) <= limit * steps).all()
    assert np.corrcoef(values.ravel(), weight.ravel())[0, 1] > 0.98
    x = floats(5, 72)
    close(run(after, {"x": x}), (x.astype(float) @ values))


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("symmetric", ["true", "false"])
@pytest.mark.parametrize("method", ["rtn", "mse", "hqq"])
def test_nbits_of_a_matmul(block, symmetric, method):
    proto = matmul(72, 33)
    text = f"int4{{block={block},symmetric={symmetric},method={method},format=nbits,{INT4}}}"
    after = rewritten(proto, text)
    assert kinds(after) == ["MatMulNBits"]
    values = decoded_nbits(after)
    weight = constants(proto)["w"]
    assert np.corrcoef(values.ravel(), weight.T.ravel())[0, 1] > 0.98
    x = floats(5, 72)
    close(run(after, {"x": x}), (x.astype(float) @ values.T))
    if method == "rtn":  # the same integers, scales and zero points, whatever the format
        same = rewritten(proto, text.replace("nbits", "qdq"))
        size = 72 if block == "channel" else int(block)
        if size < 72:
            np.testing.assert_allclose(decoded(same, "w", 0, size), values.T, rtol=1e-6)


@pytest.mark.parametrize("form", ["qdq", "nbits"])
def test_optimized_by_onnxruntime(form):
    """Its optimizer turns DequantizeLinear and MatMul into MatMulNBits, whose rows are int8."""
    proto = matmul(64, 32)
    after = rewritten(proto, f"int4{{format={form},head=int4}}")
    x = floats(5, 64)
    plain, optimized = run(after, {"x": x}), run(after, {"x": x}, optimize=True)
    close(optimized, plain, 2e-3)


@pytest.mark.parametrize("rows", [0, 1])
@pytest.mark.parametrize("form", ["qdq", "nbits"])
@pytest.mark.parametrize("case", ["plain", "alpha", "transA", "matrix", "none"])
def test_gemm(rows, form, case):
    attributes = {"transB": rows}
    if case == "alpha":
        attributes |= {"alpha": 0.5, "beta": 2.0}
    if case == "transA":
        attributes["transA"] = 1
    bias = floats(4, 48) if case == "matrix" else floats(48)
    inputs = ["x", "w"] if case == "none" else ["x", "w", "b"]
    node = helper.make_node("Gemm", inputs, ["y"], **attributes)
    weight = floats(48, 64) if rows else floats(64, 48)
    held = {"w": weight} | ({} if case == "none" else {"b": bias})
    shape = [64, 4] if case == "transA" else [4, 64]
    proto = model([node], {"x": shape}, {"y": [4, 48]}, held)
    after = rewritten(proto, f"int4{{format={form},head=int4,symmetric=false}}")
    plain = form == "nbits" and case in ("plain", "none")
    assert kinds(after) == (["MatMulNBits"] if plain else ["DequantizeLinear", "Gemm"])
    x = floats(*shape)
    wide = decoded_nbits(after).T if plain else decoded(after, "w", rows, 32)
    matrix = wide if plain or not rows else wide.T
    right = (x.T if case == "transA" else x).astype(float) @ matrix
    right = right * attributes.get("alpha", 1.0)
    right = right + (0 if case == "none" else bias * attributes.get("beta", 1.0))
    close(run(after, {"x": x}), right)
    if form == "nbits" and not plain:
        (item,) = decisions(build(proto, "int4{format=nbits,head=int4}")).values()
        assert "and no MatMulNBits: its" in item["reason"]


@pytest.mark.parametrize("shape", [(24, 48, 1, 1), (25, 47, 1, 1), (24, 48, 1)])
@pytest.mark.parametrize("block", ["16", "channel"])
@pytest.mark.parametrize("symmetric", ["true", "false"])
def test_convolution_of_one_by_one(shape, block, symmetric):
    sizes = [1, shape[1], *[5] * (len(shape) - 2)]
    node = helper.make_node("Conv", ["x", "w"], ["y"])
    proto = model([node], {"x": sizes}, {"y": [1, shape[0], *sizes[2:]]}, {"w": floats(*shape)})
    text = f"int4{{block={block},symmetric={symmetric},head=int4}}"
    after = rewritten(proto, text)
    assert kinds(after) == ["DequantizeLinear", "Conv"]
    if block == "channel":
        found = constants(after)
        zero = found.get("w.zero_point", np.zeros(shape[0], np.int8)).astype(float)
        wide = (found["w.int4"].reshape(shape[0], -1) - zero[:, None]) * found["w.scale"][:, None]
    else:
        wide = decoded(after, "w", 1, 16)
    x = floats(*sizes)
    right = np.einsum("nk,bk...->bn...", wide.reshape(shape[:2]), x.astype(float))
    close(run(after, {"x": x}), right)


def test_other_convolutions_stay():
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["h"], pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["h", "v"], ["y"], group=4),
    ]
    held = {"w": floats(32, 32, 3, 3), "v": floats(32, 8, 1, 1)}
    proto = model(nodes, {"x": [1, 32, 5, 5]}, {"y": [1, 32, 5, 5]}, held)
    bundle = build(proto, "int4{head=int4,green=[*]}")
    assert [d["reason"] for d in decisions(bundle).values()] == [
        "its kernel is 3 x 3, and not 1 x 1",
        "it has 4 groups",
    ]


@pytest.mark.parametrize("block", ["16", "channel"])
@pytest.mark.parametrize("shape", [(3, 48, 25), (2, 2, 33, 17)])
def test_several_matrices_in_one_constant(block, shape):
    """What experts of a mixture multiply with."""
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    sizes = [*shape[:-2], 4, shape[-2]]
    proto = model([node], {"x": sizes}, {"y": [*shape[:-2], 4, shape[-1]]}, {"w": floats(*shape)})
    after = rewritten(proto, f"int4{{block={block},head=int4,symmetric=false}}")
    assert kinds(after) == ["DequantizeLinear", "MatMul"]
    wide = decoded(after, "w", len(shape) - 2, shape[-2] if block == "channel" else 16)
    x = floats(*sizes)
    close(run(after, {"x": x}), x.astype(float) @ wide)


def test_experts():
    """A mixture of experts whose weights are stacked: com.microsoft's MoE."""
    inputs = ["x", "router", "w1", "", "w2"]
    node = helper.make_node(
        "MoE", inputs, ["y"], domain="com.microsoft", k=1, activation_type="relu"
    )
    held = {"w1": floats(2, 32, 64, scale=0.1), "w2": floats(2, 64, 32, scale=0.1)}
    proto = model([node], {"x": [3, 64], "router": [3, 2]}, {"y": [3, 64]}, held)
    after = ir.to_proto(build(proto, "int4{block=16,method=rtn}").methods["main"])
    assert kinds(after) == ["DequantizeLinear", "DequantizeLinear", "MoE"]
    for name in ("w1", "w2"):
        wide = decoded(after, name, 2, 16)
        assert np.abs(wide - held[name]).max() <= np.abs(held[name]).max() / 7


@pytest.mark.parametrize("form", ["qdq", "nbits"])
@pytest.mark.parametrize("kind", ["int4", "int8"])
def test_embedding(form, kind):
    nodes = [
        helper.make_node("Gather", ["t", "ids"], ["e"]),
        helper.make_node("MatMul", ["e", "w"], ["y"]),
    ]
    held = {"t": floats(50, 64), "w": floats(64, 8)}
    proto = model(nodes, {"ids": ["b", "s"]}, {"y": ["b", "s", 8]}, held, integers=["ids"])
    after = rewritten(proto, f"int4{{embeddings={kind},format={form},red=[op:MatMul]}}")
    ids = np.array([[0, 49, 3], [7, 7, 1]])
    if form == "nbits":
        assert kinds(after) == ["GatherBlockQuantized", "MatMul"]
    elif kind == "int4":
        assert kinds(after) == ["DequantizeLinear", "Gather", "MatMul"]
        close(run(after, {"ids": ids}), decoded(after, "t", 1, 32)[ids] @ held["w"].astype(float))
    else:
        assert kinds(after) == ["Gather", "Gather", "Cast", "Mul", "MatMul"]
        stored = constants(after)["t.int8"].astype(float) * constants(after)["t.scale"]
        close(run(after, {"ids": ids}), stored[ids] @ held["w"].astype(float))
    right = held["t"][ids] @ held["w"]
    noise = np.linalg.norm(run(after, {"ids": ids}) - right) / np.linalg.norm(right)
    assert noise < (0.12 if kind == "int4" else 0.01)


@pytest.mark.parametrize("form", ["qdq", "nbits"])
@pytest.mark.parametrize("kinds_", ["int4,embeddings=int4", "int8,embeddings=int4", "int8"])
@pytest.mark.parametrize("transposed", [True, False])
def test_tied_embedding_is_stored_once(form, kinds_, transposed):
    head = (
        [
            helper.make_node("Transpose", ["t"], ["tt"], perm=[1, 0]),
            helper.make_node("MatMul", ["h", "tt"], ["y"]),
        ]
        if transposed
        else [helper.make_node("Gemm", ["h", "t"], ["y"], transB=1)]
    )
    nodes = [
        helper.make_node("Gather", ["t", "ids"], ["e"]),
        helper.make_node("Relu", ["e"], ["h"]),
        *head,
    ]
    held = {"t": floats(96, 64)}
    proto = model(nodes, {"ids": ["s"]}, {"y": ["s", 96]}, held, integers=["ids"])
    bundle = build(proto, f"int4{{head={kinds_},format={form}}}")
    after = rewritten(proto, f"int4{{head={kinds_},format={form}}}")
    sizes = {t.name: len(t.raw_data) or t.ByteSize() for t in after.graph.initializer}
    bits = 4 if kinds_.startswith("int4") else 8
    # The bytes lie in one buffer, whatever shapes the operators ask for.
    files = {
        id(getattr(value.const_value, "raw", value.const_value))
        for value in bundle.methods["main"].graph.initializers.values()
        if value.const_value is not None and value.const_value.size >= 96 * 64 * bits // 8
    }
    assert len(files) == 1 or sum(s for s in sizes.values()) <= 2 * 96 * 64 + 4096
    assert not any(
        array.dtype == np.float32 and array.size == 96 * 64 for array in constants(after).values()
    )
    ids = np.arange(0, 96, 7)
    right = np.maximum(held["t"][ids], 0) @ held["t"].T
    got = run(after, {"ids": ids})
    assert np.linalg.norm(got - right) / np.linalg.norm(right) < (0.2 if bits == 4 else 0.02)


def test_two_readers_share_one_transpose():
    nodes = [
        helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "t"], ["a"]),
        helper.make_node("MatMul", ["a", "t"], ["y"]),
    ]
    proto = model(nodes, {"x": ["m", 64]}, {"y": ["m", 64]}, {"w": floats(64, 64)})
    after = rewritten(proto, "int4{format=qdq,head=int4}")
    kinds = [node.op_type for node in after.graph.node]
    assert kinds.count("Transpose") == kinds.count("DequantizeLinear") == 1


@pytest.mark.parametrize("form", ["qdq", "nbits"])
def test_float16(form):
    weight = floats(64, 32).astype(np.float16)
    proto = matmul(64, 32, weight, dtype=TensorProto.FLOAT16)
    after = rewritten(proto, f"int4{{format={form},head=int4}}")
    scales = [a for a in constants(after).values() if a.dtype == np.float16]
    assert len(scales) == 1
    x = floats(3, 64).astype(np.float16)
    wide = decoded(after, "w", 0, 32) if form == "qdq" else decoded_nbits(after).T
    if form == "qdq":
        close(run(after, {"x": x}).astype(float), x.astype(float) @ wide, 1e-3)
    assert np.corrcoef(wide.ravel(), weight.ravel())[0, 1] > 0.99


def test_old_operator_set_is_upgraded():
    proto = matmul(64, 32, opset=13)
    after = rewritten(proto, "int4{head=int4}")
    assert [(o.domain, o.version) for o in after.opset_import] == [("", 21)]
    assert after.ir_version >= 10
    x = floats(3, 64)
    close(run(after, {"x": x}), x.astype(float) @ decoded(after, "w", 0, 32))


@pytest.mark.parametrize("form", ["qdq", "nbits"])
@pytest.mark.parametrize(
    ("factor", "stored"),
    [(1.0, np.float16), (1e-7, np.float32), (1e30, np.float32)],
    ids=["in-range", "small", "large"],
)
def test_scales_are_float16_where_it_has_their_range(form, factor, stored):
    """Also where it has not: the weights that a scale stands for are as exact."""
    rng = np.random.default_rng(3)
    weight = (rng.standard_normal((64, 33)) * factor).astype(np.float32)
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    proto = model([node], {"x": ["m", 64]}, {"y": ["m", 33]}, {"w": weight})
    after = rewritten(proto, f"int4{{method=rtn,format={form},{INT4}}}")
    scale = next(t for t in after.graph.initializer if t.name.startswith("w.scale"))
    assert numpy_helper.to_array(scale).dtype == stored
    values = decoded(after, "w", 0, 32) if form == "qdq" else decoded_nbits(after).T
    assert np.abs(values - weight).max() < 0.3 * np.abs(weight).max()
    x = floats(5, 64)
    close(run(after, {"x": x}), x.astype(float) @ values)


@pytest.mark.parametrize("form", ["qdq", "nbits"])
def test_scales_of_the_dtype_of_the_weight(form):
    after = rewritten(matmul(64, 33), f"int4{{scales=weight,format={form},{INT4}}}")
    assert not any(node.op_type == "Cast" for node in after.graph.node)
    scale = next(t for t in after.graph.initializer if t.name.startswith("w.scale"))
    assert scale.data_type == TensorProto.FLOAT


def stored_before(rng):
    """Return matmuls whose weights are integers, in each form that importers write."""
    integers = rng.integers(-8, 8, (32, 64)).astype(np.int8)
    scales = rng.random((32, 2), np.float32) + 0.5
    packed = rng.integers(0, 256, (32, 2, 16)).astype(np.uint8)
    nbits = {"domain": "com.microsoft", "K": 64, "N": 32, "bits": 4, "block_size": 32}
    steps = {"x_scale": np.float32(0.1), "x_zero": np.uint8(128)}
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["d"], axis=1, block_size=32),
        helper.make_node("Transpose", ["d"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "t"], ["a"], name="turned"),
        helper.make_node("MatMulNBits", ["x", "p", "s"], ["b"], name="nbits", **nbits),
        helper.make_node(
            "MatMulNBits", ["x", "p", "s"], ["c"], name="f32", accuracy_level=1, **nbits
        ),
        helper.make_node("QuantizeLinear", ["x", "x_scale", "x_zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "x_scale", "x_zero"], ["r"]),
        helper.make_node("MatMul", ["r", "t"], ["e"], name="static"),
        helper.make_node("Sum", ["a", "b", "c", "e"], ["y"]),
    ]
    constants = {"w": integers, "s": scales, "p": packed, **steps}
    return model(nodes, {"x": ["m", 64]}, {"y": ["m", 32]}, constants)


def test_dynamic_activations_are_requested_of_integers_that_were_there():
    """Rows of a MatMulNBits that asks for float32, and quantized rows, stay as they are."""
    proto = stored_before(np.random.default_rng(5))
    after = rewritten(proto, "int4{activations=dynamic}")
    requests = {
        node.name: [p.value for p in node.metadata_props]
        + [a.i for a in node.attribute if a.name == "accuracy_level"]
        for node in after.graph.node
    }
    assert requests["turned"] == ["dynamic"]
    assert requests["nbits"] == [4]
    assert requests["f32"] == [1]
    assert requests["static"] == []
    for text in ("int4", "int4{activations=dynamic,red=[turned,nbits]}"):
        plain = rewritten(proto, text)
        assert not any(node.metadata_props for node in plain.graph.node)
        assert [
            a.i for n in plain.graph.node for a in n.attribute if a.name == "accuracy_level"
        ] == [1]


def test_dynamic_activations_are_requested_of_integers_in_a_branch():
    proto = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["": 21, "com.microsoft": 1]>
        g (float[m, 64] x, bool c) => (float[m, 32] y) {
            y = If (c) <
                then_branch = t () => (float[m, 32] a) {
                    a = com.microsoft.MatMulNBits <K = 64, N = 32, bits = 4, block_size = 32>
                        (x, w, s)
                },
                else_branch = e () => (float[m, 32] b) {
                    b = com.microsoft.MatMulNBits <K = 64, N = 32, bits = 4, block_size = 32>
                        (x, w, s)
                }>
        }""")
    rng = np.random.default_rng(5)
    arrays = {
        "w": rng.integers(0, 256, (32, 2, 16)).astype(np.uint8),
        "s": rng.random((32, 2)).astype(np.float32),
    }
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(v, n) for n, v in arrays.items())
    (branching,) = rewritten(proto, "int4{activations=dynamic}").graph.node
    levels = [
        attribute.i
        for branch in branching.attribute
        for node in branch.g.node
        for attribute in node.attribute
        if attribute.name == "accuracy_level"
    ]
    assert levels == [4, 4]


def test_what_was_requested_of_integers_is_reported():
    bundle = build(stored_before(np.random.default_rng(5)), "int4{activations=dynamic}")
    report = bundle.reports[-1].methods["main"]
    assert report.counters["rows"] == 2
    found = {
        each["node"]: each["reason"] for each in report.decisions if "rows" in each["decision"]
    }
    assert found == {
        "turned": "its weight is stored as int8",
        "nbits": "its weight is stored as uint4",
    }


@pytest.mark.parametrize("op_type", ["MatMul", "Gemm"])
def test_dynamic_activations_are_requested_of_each_matmul(op_type):
    """As metadata, or as the accuracy level of MatMulNBits; what is multiplied stays the same."""
    node = helper.make_node(op_type, ["x", "w"], ["y"])
    proto = model([node], {"x": ["m", 64]}, {"y": ["m", 33]}, {"w": floats(64, 33)})
    qdq = rewritten(proto, f"int4{{activations=dynamic,{INT4}}}")
    (found,) = [node for node in qdq.graph.node if node.op_type == op_type]
    assert [(p.key, p.value) for p in found.metadata_props] == [
        ("narrowpass.activations", "dynamic")
    ]
    nbits = rewritten(proto, f"int4{{activations=dynamic,format=nbits,{INT4}}}")
    (found,) = [node for node in nbits.graph.node if node.op_type == "MatMulNBits"]
    assert {a.name: a.i for a in found.attribute}["accuracy_level"] == 4
    plain = rewritten(proto, f"int4{{{INT4}}}")
    assert not any(node.metadata_props for node in plain.graph.node)
    np.testing.assert_array_equal(decoded(plain, "w", 0, 32), decoded(qdq, "w", 0, 32))


def attending() -> onnx.ModelProto:
    """Return attention behind a matmul with a weight, and attention in a branch."""
    proto = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["": 23, "com.microsoft": 1]>
        g (float[m, 64] x, bool c) => (float[m, 64] y, float[1, 1, m, 64] z, float[m, 64] u) {
            q = MatMul(x, w)
            t = Transpose<perm = [1, 0]>(x)
            s = MatMul(q, t)
            p = Softmax<axis = -1>(s)
            y = MatMul(p, x)
            one = Constant<value_ints = [0, 1]>()
            x4 = Unsqueeze(x, one)
            z = Attention(x4, x4, x4)
            u = If (c) <
                then_branch = f () => (float[m, 64] a) { r = MatMul(s, x) a = MatMul(r, w) },
                else_branch = e () => (float[m, 64] b) { b = Identity(x) }>
        }""")
    for node, name in zip(proto.graph.node, ["w", "", "qk", "", "pv", "", "", "op"], strict=False):
        node.name = name
    proto.graph.initializer.append(onnx.numpy_helper.from_array(floats(64, 64), "w"))
    return proto


def requests_of(graph: onnx.GraphProto) -> dict[str, str]:
    """Return the requests of nodes by their first outputs, those of branches too."""
    found = {n.output[0]: p.value for n in graph.node for p in n.metadata_props}
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                found |= requests_of(attribute.g)
    return found


def test_dynamic_activations_let_attention_be_rounded():
    """Of matmuls without weights, and of attention as one operator; not of other options."""
    after = rewritten(attending(), "int4{activations=dynamic,head=int4}")
    weights = {"q": "dynamic", "a": "dynamic"}
    rounded = dict.fromkeys(["s", "y", "z", "r"], "bfloat16")
    assert requests_of(after.graph) == weights | rounded
    assert requests_of(rewritten(after, "int4{activations=dynamic,head=int4}").graph) == (
        weights | rounded
    )
    assert not requests_of(rewritten(attending(), "int4{head=int4}").graph)
    red = requests_of(rewritten(attending(), "int4{activations=dynamic,head=int4,red=[qk]}").graph)
    assert red == weights | dict.fromkeys(("y", "z", "r"), "bfloat16")
    bundle = build(attending(), "int4{activations=dynamic,head=int4}")
    assert bundle.reports[-1].methods["main"].counters["rounded"] == 4


def test_attention_of_models_without_weights_of_few_bits_is_left():
    text = "int4{activations=dynamic,red=[op:MatMul]}"
    assert not requests_of(rewritten(attending(), text).graph)


@pytest.mark.parametrize("shape", [(1, 24, 8), (1, 1, 24, 8), (1, 24, 1)], ids=str)
@pytest.mark.parametrize("block", BLOCKS)
def test_a_stack_of_one_matrix_has_scales_by_column(shape, block):
    weight = floats(*shape)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    proto = model(nodes, {"x": [5, 24]}, {"y": [None] * len(shape)}, {"w": weight})
    after = rewritten(proto, f"int4{{block={block},green=[*],{INT4}}}")
    x = floats(5, 24)
    expected = x @ weight
    found = run(after, {"x": x})
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= 0.3 * np.abs(expected).max()
