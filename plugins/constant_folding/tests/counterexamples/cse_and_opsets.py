"""Counterexamples to naive rewrites: equal nodes, old sets."""

from __future__ import annotations

import numpy as np
from counterexample_kit import Counterexample, F, M, S, constant, i64, unary
from onnx import TensorProto, helper

EQUAL = {
    "attributes that differ": unary(
        "a = Elu <alpha = 0.5> (x) b = Elu <alpha = 0.25> (x) y = Sub(a, b)"
    ),
    "attributes of two zeros": unary(
        "a = LeakyRelu <alpha = 0.0> (x) b = LeakyRelu <alpha = -0.0> (x) c = Reciprocal(a)"
        " d = Reciprocal(b) y = Sub(c, d)"
    ),
    "attribute that is the default": Counterexample(
        """g (float[2, 3] x) => (float[?, ?] y) { a = Softmax(x) b = Softmax <axis = -1> (x)
        d = Softmax <axis = 0> (x) e = Add(a, b) y = Sub(e, d) }""",
        tolerance=1e-6,
    ),
    "operands in another order": unary(
        "a = Sub(x, k) b = Sub(k, x) c = Add(x, k) d = Add(k, x) e = Mul(a, b) h = Mul(c, d)"
        " y = Div(e, h)",
        constants={"k": F(3)},
    ),
    "initializers of two zeros": unary(
        "a = Add(x, k) b = Add(x, l) c = Reciprocal(a) d = Reciprocal(b) y = Max(c, d)",
        constants={"k": np.array([0.0], F), "l": np.array([-0.0], F)},
        feeds={"x": np.array([-0.0], F)},
    ),
    "initializers of the same bytes": Counterexample(
        """g (float[2] x) => (float[?] y) { a = Cast <to = 1> (k) b = Add(x, l) y = Add(a, b) }""",
        {"k": np.array([1, 2], np.int32), "l": np.array([1, 2], np.int32).view(F)},
    ),
    "initializers of other shapes": Counterexample(
        "g (float[2] x) => (float[?, ?] y) { a = Add(x, k) y = Add(a, l) }",
        {"k": np.array([1, 2], F), "l": np.array([[1], [2]], F)},
    ),
    "initializers that are inputs": Counterexample(
        "g (float[2] x, float[2] k) => (float[?] y) { a = Add(x, k) y = Mul(a, l) }",
        {"k": np.array([1, 2], F), "l": np.array([1, 2], F)},
        {"k": np.array([5, 6], F)},
    ),
    "an input with a default, IR version 3": Counterexample(
        "g (float[2] x, float[2] k) => (float[?] y) { a = Neg(k) y = Mul(a, x) }",
        {"k": np.array([1, 2], F)},
        opset=8,
        ir=3,
    ),
    "a condition with a default": Counterexample(
        """g (float[2] x, bool c) => (float[?] y) { y = If(c) <then_branch = a () => (float[?] p)
        { p = Neg(x) }, else_branch = b () => (float[?] q) { q = Abs(x) }> }""",
        {"c": np.array(True)},
        {"c": np.array(False)},
        left=("If",),
    ),
    "a shape with a default": Counterexample(
        "g (float[6] x, int64[2] k) => (float[?, ?] y) { y = Reshape(x, k) }",
        {"k": i64(2, 3)},
        {"k": i64(3, 2)},
    ),
    "outputs that are left out": Counterexample(
        "g (float[4] x) => (float[?] y, int64[?] z) { a, y2 = TopK(x, k) y, z = TopK(x, k) }",
        {"k": i64(2)},
    ),
    "inputs that are left out": unary(
        "a = Clip(x, k) b = Clip(x, , k) y = Sub(a, b)", constants={"k": F(1)}
    ),
    "bernoulli twice": Counterexample(
        """g (float[64] x) => (int64[?] y) { a = Bernoulli(k) b = Bernoulli(k) d = Shape(a)
        e = Shape(b) y = Sub(d, e) }""",
        {"k": np.full(64, 0.5, F)},
    ),
    "quantization of a constant": Counterexample(
        """g (float[2, 2] x) => (float[?, ?] y) { q = QuantizeLinear(w, s, z)
        d = DequantizeLinear(q, s, z) y = MatMul(x, d) }""",
        {"w": np.array([[0.3, 300], [-0.5, -1]], F), "s": F(0.25), "z": np.int8(3)},
        tolerance=1e-6,
    ),
    "quantization and back": Counterexample(
        """g (float[8] x) => (float[?] y) { q = QuantizeLinear(x, s, z)
        y = DequantizeLinear(q, s, z) }""",
        {"s": F(0.5), "z": np.uint8(128)},
        {"x": S[[0, 1, 3, 4, 5, 6, 7, 0]]},
    ),
    "dequantization of channels": Counterexample(
        """g (float[1] x) => (float[?, ?] y) { d = DequantizeLinear <axis = 0> (w, s, z)
        y = Mul(d, x) }""",
        {"w": np.int8([[1, 2], [3, 4]]), "s": np.array([0.5, 2], F), "z": np.int8([0, 1])},
    ),
    "dynamic quantization of a constant": Counterexample(
        """g (float[1] x) => (uint8[?, ?] y, float z, uint8 u) { y, z, u =
        DynamicQuantizeLinear(k) }""",
        {"k": M},
        tolerance=1e-6,
    ),
    "integer matmul": constant(
        "y = MatMulInteger(k, l, m)",
        "int32",
        rank=2,
        constants={"k": np.uint8([[200, 3]]), "l": np.int8([[1], [-2]]), "m": np.uint8(128)},
    ),
    "einsum": constant(
        'y = Einsum <equation = "ij,kj->ik"> (k, l)', rank=2, constants={"k": M, "l": M}
    ),
}

OLD = {
    "softmax 12": constant(
        "y = Softmax(k)",
        rank=3,
        constants={"k": np.arange(12, dtype=F).reshape(2, 2, 3)},
        opset=12,
        tolerance=1e-6,
    ),
    "softmax 13": constant(
        "y = Softmax(k)",
        rank=3,
        constants={"k": np.arange(12, dtype=F).reshape(2, 2, 3)},
        opset=13,
        tolerance=1e-6,
    ),
    "log softmax 11": constant(
        "y = LogSoftmax <axis = 1> (k)",
        rank=3,
        constants={"k": np.arange(12, dtype=F).reshape(2, 2, 3)},
        opset=11,
        tolerance=1e-5,
    ),
    "hardmax 11": constant(
        "y = Hardmax(k)", rank=3, constants={"k": np.arange(12, dtype=F).reshape(2, 2, 3)}, opset=11
    ),
    "squeeze 11": constant("y = Squeeze <axes = [0]> (k)", constants={"k": M[:1]}, opset=11),
    "unsqueeze 11": constant(
        "y = Unsqueeze <axes = [0, 2]> (k)", rank=3, constants={"k": S}, opset=11
    ),
    "clip 6": constant("y = Clip <min = -1.0, max = 1.0> (k)", constants={"k": S}, opset=10),
    "clip 6 without limits": constant("y = Clip(k)", constants={"k": S}, opset=10),
    "dropout 10": Counterexample(
        "g (float[4] x) => (float[?] y) { y = Dropout <ratio = 0.5> (x) }", opset=10
    ),
    "slice 9": constant(
        "y = Slice <starts = [-3], ends = [100], axes = [0]> (k)", constants={"k": S}, opset=9
    ),
    "pad 10": constant("y = Pad <pads = [1, -1], value = 3.0> (k)", constants={"k": S}, opset=10),
    "reduce sum 12": constant(
        "y = ReduceSum <axes = [1], keepdims = 0> (k)", constants={"k": M}, opset=12
    ),
    "reduce sum 13 of no axes": constant(
        "y = ReduceSum <noop_with_empty_axes = 1> (k)", rank=2, constants={"k": M}, opset=13
    ),
    "reduce max 18 of no axes": constant(
        "y = ReduceMax <noop_with_empty_axes = 1> (k)", rank=2, constants={"k": M}, opset=18
    ),
    "upsample 9": constant(
        'y = Upsample <mode = "nearest"> (k, l)',
        rank=2,
        constants={"k": M, "l": np.array([1, 2], F)},
        opset=9,
    ),
    "top k 10": Counterexample(
        "g (float[1] x) => (float[?] y, int64[?] z) { y, z = TopK(k, l) }",
        {"k": M[0], "l": i64(2)},
        opset=10,
    ),
    "batch normalization 9": Counterexample(
        "g (float[2, 3, 2] x) => (float[?, ?, ?] y) { y = BatchNormalization(x, s, b, m, v) }",
        {"s": M[0], "b": M[0], "m": M[0], "v": M[0]},
        opset=9,
        tolerance=1e-5,
    ),
    "scatter 10": constant(
        "y = Scatter(k, l, m)", constants={"k": S, "l": i64(1), "m": np.array([9], F)}, opset=10
    ),
    "reshape 13 with 0": Counterexample(
        "g (float[0, 3] x) => (float[?, ?] y) { y = Reshape(x, k) }", {"k": i64(0, 3)}, opset=13
    ),
    "gelu of constants": constant("y = Gelu(k)", constants={"k": M[0]}, opset=20, tolerance=1e-5),
    "split 12": Counterexample(
        "g (float[4] x) => (float[?] y, float[?] z) { y, z = Split <split = [1, 3]> (x) }", opset=12
    ),
    "cast 8": constant(
        "y = Cast <to = 6> (k)", "int32", constants={"k": np.array([1.9, -1.9], F)}, opset=8
    ),
    "average pool with padding": constant(
        "y = AveragePool <kernel_shape = [2], pads = [1, 1], count_include_pad = 1> (k)",
        rank=3,
        constants={"k": M.reshape(1, 2, 3)},
        tolerance=1e-6,
    ),
    "max pool of NaN": constant(
        "y = MaxPool <kernel_shape = [2]> (k)", rank=3, constants={"k": M.reshape(1, 2, 3)}
    ),
    "constants of several kinds": Counterexample(
        """g (float[1] x) => (int64[?] a, float b, float[?] d, string e, string[?] f, int64 h) {
        a = Constant <value_ints = [1, 2]> () b = Constant <value_float = -0.0> ()
        d = Constant <value_floats = [1.5]> () e = Constant <value_string = "ä"> ()
        f = Constant <value_strings = ["a", ""]> () h = Constant <value_int = -3> () }""",
    ),
    "text": constant(
        "y = Concat <axis = 0> (k, l)",
        "string",
        constants={
            "k": helper.make_tensor("k", TensorProto.STRING, [2], ["ä".encode(), b""]),
            "l": helper.make_tensor("l", TensorProto.STRING, [1], [b"x"]),
        },
    ),
    "equal texts": Counterexample(
        "g (string[1] x) => (bool[?] y) { y = Equal(x, k) }",
        {"k": helper.make_tensor("k", TensorProto.STRING, [1], ["ä".encode()])},
        {"x": np.array(["ä"], object)},
        opset=19,
        ir=9,
    ),
}

RESIZES = {}
_IMAGE = np.array([[[[1, 2, 3.5], [4, -5, 6]]]], F)
for _mode in ("nearest", "linear", "cubic"):
    for _coordinates in (
        "half_pixel",
        "pytorch_half_pixel",
        "align_corners",
        "asymmetric",
        "half_pixel_symmetric",
    ):
        for _scales in ((1, 1, 2, 2), (1, 1, 0.6, 0.7), (1, 1, 1.5, 1)):
            RESIZES[f"{_mode}, {_coordinates}, {_scales}"] = constant(
                f'y = Resize <mode = "{_mode}", coordinate_transformation_mode = "{_coordinates}">'
                " (k, , l)",
                rank=4,
                constants={"k": _IMAGE, "l": np.array(_scales, F)},
                opset=19,
                ir=9,
                tolerance=1e-5,
            )
for _rounding in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"):
    for _sizes in ((1, 1, 5, 7), (1, 1, 1, 2), (1, 1, 3, 1)):
        RESIZES[f"{_rounding}, {_sizes}"] = constant(
            f'y = Resize <mode = "nearest", nearest_mode = "{_rounding}"> (k, , , l)',
            rank=4,
            constants={"k": _IMAGE, "l": i64(*_sizes)},
        )
for _policy in ("not_larger", "not_smaller", "stretch"):
    RESIZES[_policy] = constant(
        f'y = Resize <mode = "linear", keep_aspect_ratio_policy = "{_policy}", axes = [2, 3]>'
        " (k, , , l)",
        rank=4,
        constants={"k": _IMAGE, "l": i64(5, 5)},
        opset=18,
        tolerance=1e-5,
    )
RESIZES["antialias"] = constant(
    'y = Resize <mode = "linear", antialias = 1> (k, , l)',
    rank=4,
    constants={"k": _IMAGE, "l": np.array([1, 1, 0.5, 0.6], F)},
    opset=18,
    tolerance=1e-5,
)
RESIZES["crop"] = constant(
    'y = Resize <mode = "linear", coordinate_transformation_mode = "tf_crop_and_resize",'
    " extrapolation_value = 9.0> (k, m, , l)",
    rank=4,
    constants={
        "k": _IMAGE,
        "m": np.array([0, 0, 0.2, -0.3, 1, 1, 0.8, 1.2], F),
        "l": i64(1, 1, 3, 4),
    },
    tolerance=1e-5,
)
RESIZES["exclude outside"] = constant(
    'y = Resize <mode = "cubic", exclude_outside = 1, cubic_coeff_a = -0.5> (k, , l)',
    rank=4,
    constants={"k": _IMAGE, "l": np.array([1, 1, 2, 1.5], F)},
    tolerance=1e-5,
)
RESIZES["opset 10"] = constant(
    'y = Resize <mode = "linear"> (k, l)',
    rank=4,
    constants={"k": _IMAGE, "l": np.array([1, 1, 2, 2], F)},
    opset=10,
    tolerance=1e-5,
)
