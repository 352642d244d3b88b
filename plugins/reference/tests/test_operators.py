"""The operators that replace onnx's, against onnxruntime and the specification's words."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

F32 = np.float32

LOOP = """<ir_version: 8, opset_import: ["" : 17]>
main (int64 m, bool c, float[2,3] x) => (float[2,3] last, float[k] counts, float[k,2,3] rows) {
    last, counts, rows = Loop (m, c, x) <body = step (int64 i, bool g, float[2,3] s)
        => (bool g2, float[2,3] s2, float[] n, float[2,3] r) {
        g2 = Identity (g)
        s2 = Add (s, x)
        n = Cast <to = 1> (i)
        r = Neg (s)
    }>
}"""

SCAN = """<ir_version: 8, opset_import: ["" : 17]>
main (float[2] h, float[2,4] x, float[4,2] z) => (float[2] last, float[2,4] ys, float[4,2] zs) {
    last, ys, zs = Scan <num_scan_inputs = 2, scan_input_axes = [1, 0],
        scan_input_directions = [1, 0], scan_output_axes = [1, 0],
        scan_output_directions = [0, 1], body = step (float[2] s, float[2] a, float[2] b)
        => (float[2] s2, float[2] y, float[2] w) {
        s2 = Add (s, a)
        y = Mul (s2, b)
        w = Sub (s2, b)
    }> (h, x, z)
}"""

SOFTMAX = """<ir_version: 6, opset_import: ["" : 11]>
main (float[2,3,4] x) => (float[2,3,4] a, float[2,3,4] b, float[2,3,4] c, float[2,3,4] d) {
    a = Softmax (x)
    b = Softmax <axis = 2> (x)
    c = LogSoftmax <axis = 0> (x)
    d = Hardmax <axis = -2> (x)
}"""

NORMALIZED = """<ir_version: 6, opset_import: ["" : OPSET]>
main (float[2,3,4,5] x, float[3] s, float[3] b, float[3] m, float[3] v)
    => (float[2,3,4,5] n, float[2,3,4,5] r, float[2,3,4,5] d) {
    n = BatchNormalization <epsilon = 0.01> (x, s, b, m, v)
    r = LRN <size = 3, alpha = 0.5, beta = 0.6> (x)
    d = Dropout (n)
}"""

SHADOW = """<ir_version: 8, opset_import: ["" : 17]>
main (float[2] x, seq(float[2]) q) => (seq(float[2]) r) {
    r = SequenceMap (q) <body = each (float[2] e) => (float[2] f) { f = Add (e, x) }>
}"""

RANDOM = np.random.default_rng(7)
LOOP_FEEDS = {"c": np.array(True), "x": RANDOM.standard_normal((2, 3)).astype(F32)}
NORMALIZED_FEEDS = {
    "x": RANDOM.standard_normal((2, 3, 4, 5)).astype(F32),
    **{name: RANDOM.random(3, F32) for name in "sbmv"},
}
CASES = {
    **{
        f"normalization of opset {opset}": (
            NORMALIZED.replace("OPSET", str(opset)),
            NORMALIZED_FEEDS,
        )
        for opset in (7, 8, 9, 12, 13, 14, 15)
    },
    "loop": (LOOP, {**LOOP_FEEDS, "m": np.array(3)}),
    "loop, no condition": (LOOP, {**LOOP_FEEDS, "m": np.array(3), "c": np.array(False)}),
    "loop, no iteration": (LOOP, {**LOOP_FEEDS, "m": np.array(0)}),
    "scan": (
        SCAN,
        {
            "h": RANDOM.standard_normal(2).astype(F32),
            "x": RANDOM.standard_normal((2, 4)).astype(F32),
            "z": RANDOM.standard_normal((4, 2)).astype(F32),
        },
    ),
    "softmax before opset 13": (SOFTMAX, {"x": RANDOM.standard_normal((2, 3, 4)).astype(F32)}),
    "sequence map": (SHADOW, {"x": np.ones(2, F32), "q": [np.ones(2, F32), np.zeros(2, F32)]}),
}


@pytest.mark.parametrize("case", CASES)
def test_as_onnxruntime(compile_text, case):
    runtime = pytest.importorskip("onnxruntime")
    text, feeds = CASES[case]
    proto = onnx.parser.parse_model(text)
    expected = runtime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    ).run(None, feeds)
    for one, other in zip(compile_text(text).run(feeds).values(), expected, strict=True):
        for part, wanted in zip(_parts(one), _parts(other), strict=True):
            np.testing.assert_allclose(part, wanted, rtol=1e-5, atol=1e-6, strict=True)


def _parts(value):
    return value if isinstance(value, list) else [value]


def test_loop_stacks_its_scan_outputs(compile_text):
    x = LOOP_FEEDS["x"]
    given = compile_text(LOOP).run({**LOOP_FEEDS, "m": np.array(2)})
    np.testing.assert_array_equal(given["counts"], np.array([0, 1], F32), strict=True)
    np.testing.assert_array_equal(given["rows"], np.stack([-x, -(x + x)]), strict=True)


def test_loop_without_iterations_returns_empty_scan_outputs(compile_text):
    given = compile_text(LOOP).run({**LOOP_FEEDS, "m": np.array(0)})
    assert given["counts"].shape == (0,)
    assert given["rows"].shape == (0, 2, 3)
    assert given["rows"].dtype == F32


def test_scan_of_opset_8_with_lengths(compile_text):
    text = """<ir_version: 3, opset_import: ["" : 8]>
    main (int64[2] n, float[2,1] h, float[2,3,1] x) => (float[2,1] y, float[2,3,1] z) {
        y, z = Scan <num_scan_inputs = 1, body = step (float[1] s, float[1] a)
            => (float[1] t, float[1] o) { t = Add (s, a) o = Identity (t) }> (n, h, x)
    }"""
    x = np.arange(6, dtype=F32).reshape(2, 3, 1)
    feeds = {"n": np.array([3, 2]), "h": np.zeros((2, 1), F32), "x": x}
    given = compile_text(text).run(feeds)
    assert given["y"].ravel().tolist() == [3, 7]
    assert given["z"][0].ravel().tolist() == [0, 1, 3]
    assert given["z"][1, :2].ravel().tolist() == [3, 7]


def test_batch_normalization_infers_unless_it_has_outputs_for_statistics(compile_text):
    feeds = NORMALIZED_FEEDS
    row = (3, 1, 1)
    s, b, m, v = (feeds[name].reshape(row) for name in "sbmv")
    expected = s * (feeds["x"] - m) / np.sqrt(v + F32(0.01)) + b
    for opset in (7, 9, 14):
        given = compile_text(NORMALIZED.replace("OPSET", str(opset))).run(feeds)
        np.testing.assert_allclose(given["n"], expected, rtol=1e-5, atol=1e-6)


def test_dropout_before_opset_10_returns_a_mask_of_the_data_s_type(compile_text):
    text = """<ir_version: 6, opset_import: ["" : OPSET]>
    main (float[2] x) => (float[2] y, TYPE[2] mask) { y, mask = Dropout (x) }"""
    x = np.ones(2, F32)
    for opset, kind in ((7, "float"), (9, "float"), (10, "bool"), (13, "bool")):
        given = compile_text(text.replace("OPSET", str(opset)).replace("TYPE", kind)).run({"x": x})
        assert given["mask"].dtype == (F32 if kind == "float" else np.bool_)
        assert given["mask"].all()


@pytest.mark.parametrize("opset", [10, 13, 18])
def test_dequantize_before_opset_19(compile_text, opset):
    """onnx's evaluator begins at opset 19; most quantized models are older."""
    runtime = pytest.importorskip("onnxruntime")
    zero = "uint8 z = {7}" if opset < 13 else "uint8[3] z = {7, 0, 200}"
    scale = "float s = {0.5}" if opset < 13 else "float[3] s = {0.5, 0.25, 2}"
    text = f"""<ir_version: 7, opset_import: ["" : {opset}]>
    main (uint8[2,3] x) => (float[2,3] y) <{scale}, {zero}> {{ y = DequantizeLinear (x, s, z) }}"""
    x = np.array([[0, 7, 255], [1, 128, 200]], np.uint8)
    model = onnx.parser.parse_model(text)
    session = runtime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (expected,) = session.run(None, {"x": x})
    given = compile_text(text).run({"x": x})["y"]
    assert given.dtype == F32
    np.testing.assert_array_equal(given, expected)
