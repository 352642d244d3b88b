"""Products with matrices of int8: packed as they are stored, with their scales."""

from __future__ import annotations

import ctypes
import gc
import itertools
import mmap
import multiprocessing

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from cache_kit import INPUT, compiled, load_in_child, result, saved, weights
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from xnn_kit import check, compile_model, fully_connected

from narrowpass import Bundle, CompileOptions
from narrowpass.reference import ReferenceBackend
from narrowpass_xnn_cpu.native.operators import FullyConnectedInt8, UnfitError, int8_choice
from narrowpass_xnn_cpu.native.operators.quantized import MOST_CHANNELS, takes_unsigned_rows
from narrowpass_xnn_cpu.native.pool import shared
from narrowpass_xnn_cpu.native.tape import Entry, Tape, aligned
from narrowpass_xnn_cpu.weights.session import WeightsCache
from narrowpass_xnn_cpu.weights.weight import Quantized, Weight

pytestmark = pytest.mark.once

RNG = np.random.default_rng(31)
WEIGHTS = "xnn fully connected in int8 (weights)"
ROWS = f"{'' if int8_choice.ours() else 'xnn '}fully connected in int8 (rows too)"


def product(
    inputs: int = 37,
    outputs: int = 19,
    *,
    per_channel: bool = True,
    way: str = "MatMul",
    bias: bool = False,
    after: str = "",
    seed: int = 0,
    alpha: float = 1.0,
    dynamic: bool = False,
    **constants: np.ndarray | None,
) -> onnx.ModelProto:
    """Make DequantizeLinear -> product [-> Add] [-> Relu or Clip] over x [N, inputs].

    `way` is MatMul, Gemm, Gemm with transB, or a MatMul whose matrix is transposed, before or
    after it is dequantized, or reshaped.
    """
    rng = np.random.default_rng(seed)
    turned = way in ("transB", "transpose", "integers")
    matrix = rng.integers(-127, 128, (inputs, outputs)).astype(np.int8)
    scale = (rng.random(outputs if per_channel else ()) * 0.02 + 1e-3).astype(np.float32)
    found = {"w": matrix.T.copy() if turned else matrix, "s": scale, **constants}
    axis = 0 if way in ("transB", "transpose") else 1
    nodes = []
    if way == "reshape":
        found["w"] = found["w"].reshape(1, inputs, 1, outputs)
        found["shape"] = np.array([inputs, outputs])
        axis = -1
    if way == "integers":
        nodes.append(helper.make_node("Transpose", ["w"], ["turned"], perm=[1, 0]))
    given_ = ["turned" if way == "integers" else "w", "s", *(["z"] if "z" in found else [])]
    nodes.append(helper.make_node("DequantizeLinear", given_, ["d"], axis=axis))
    last = "d"
    if way == "transpose":
        nodes.append(helper.make_node("Transpose", ["d"], ["t"], perm=[1, 0]))
        last = "t"
    if way == "reshape":
        nodes.append(helper.make_node("Reshape", ["d", "shape"], ["t"]))
        last = "t"
    gemm = way in ("Gemm", "transB")
    if bias and "b" not in found:
        found["b"] = rng.standard_normal(outputs).astype(np.float32)
    if gemm:
        operands = ["x", last, *(["b"] if bias else [])]
        options = {"transB": int(way == "transB"), "alpha": alpha}
        nodes.append(helper.make_node("Gemm", operands, ["h"], name="product", **options))
    else:
        nodes.append(helper.make_node("MatMul", ["x", last], ["h"], name="product"))
        if bias:
            nodes.append(helper.make_node("Add", ["h", "b"], ["a"]))
    if after == "Relu":
        nodes.append(helper.make_node("Relu", [nodes[-1].output[0]], ["c"]))
    if after == "Clip":
        found |= {"low": np.array(-0.5, np.float32), "high": np.array(0.75, np.float32)}
        nodes.append(helper.make_node("Clip", [nodes[-1].output[0], "low", "high"], ["c"]))
    nodes[-1].output[0] = "y"
    if dynamic:
        (node,) = [node for node in nodes if node.name == "product"]
        node.metadata_props.add(key="narrowpass.activations", value="dynamic")
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", inputs])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a, name) for name, a in found.items() if a is not None],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)])
    return onnx.shape_inference.infer_shapes(made)


def rows(count: int, inputs: int = 37) -> np.ndarray:
    return RNG.standard_normal((count, inputs)).astype(np.float32)


def kernel_of(program) -> str:
    (plan,) = [plan for plan in program.explain() if plan.node == "product"]
    return plan.kernel


WAYS = ["MatMul", "Gemm", "transB", "transpose", "integers", "reshape"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("per_channel", [False, True], ids=["per tensor", "per channel"])
@pytest.mark.parametrize("after", ["", "Relu", "Clip"])
def test_weights_of_int8(way, per_channel, after):
    model = product(per_channel=per_channel, way=way, bias=True, after=after)
    program = check(model, {"x": rows(5)})
    assert kernel_of(program) == WEIGHTS
    plans = [plan.kernel for plan in program.explain()]
    assert set(plans) == {WEIGHTS, "packed with the weights"}
    for count in (1, 8, 3, 0):
        check(model, {"x": rows(count)}, program=program)


SIZES = st.sampled_from([1, 2, 3, 5, 7, 8, 9, 13, 16, 17, 31, 32, 33, 61, 64, 97])


@settings(max_examples=60, deadline=None)
@given(
    inputs=SIZES,
    outputs=SIZES,
    count=st.sampled_from([1, 2, 3, 7, 11, 16]),
    way=st.sampled_from(WAYS),
    per_channel=st.booleans(),
    bias=st.booleans(),
    after=st.sampled_from(["", "Relu", "Clip"]),
    threads=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_shapes(inputs, outputs, count, way, per_channel, bias, after, threads, seed):
    model = product(
        inputs, outputs, per_channel=per_channel, way=way, bias=bias, after=after, seed=seed
    )
    x = np.random.default_rng(seed).standard_normal((count, inputs)).astype(np.float32)
    program = compile_model(model, threads=threads)
    assert kernel_of(program) == WEIGHTS
    check(model, {"x": x}, program=program, least=1.0)


def test_more_axes_of_rows_and_an_axis_from_the_end():
    model = product(16, 6, bias=True)
    del model.graph.value_info[:]
    kind = TensorProto.FLOAT
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", kind, ["A", "B", 16]))
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", kind, None))
    model.graph.node[0].attribute[0].i = -1
    x = RNG.standard_normal((2, 3, 16)).astype(np.float32)
    assert kernel_of(check(model, {"x": x})) == WEIGHTS


@pytest.mark.parametrize("alpha", [0.25, -2.0])
def test_a_gemm_that_is_scaled(alpha):
    """A factor goes into the scales, and they must stay positive."""
    program = check(product(way="transB", alpha=alpha, bias=True), {"x": rows(4)})
    assert (kernel_of(program) == WEIGHTS) == (alpha > 0)


def with_one(number: int, shape: tuple[int, ...] = (37, 19)) -> np.ndarray:
    array = RNG.integers(-127, 128, shape).astype(np.int8)
    array[3, 2] = number
    return array


PER_CHANNEL = np.linspace(1e-3, 2e-2, 19, dtype=np.float32)
ZEROS = np.zeros(19, np.int8)


def at(array: np.ndarray, index: int, number: float) -> np.ndarray:
    changed = array.copy()
    changed[index] = number
    return changed


@pytest.mark.parametrize(
    ("constants", "reason"),
    [
        ({"w": with_one(-128)}, "a weight is -128"),
        ({"z": at(ZEROS, 18, 1)}, "a zero point is not 0"),
        ({"s": at(PER_CHANNEL, 7, 1e-39)}, "a scale is not a positive, finite, normal number"),
        ({"s": at(PER_CHANNEL, 7, -0.5)}, "a scale is not a positive, finite, normal number"),
        ({"s": at(PER_CHANNEL, 7, 0)}, "a scale is not a positive, finite, normal number"),
        ({"s": at(PER_CHANNEL, 7, np.inf)}, "a scale is not a positive, finite, normal number"),
        ({"s": at(PER_CHANNEL, 7, np.nan)}, "a scale is not a positive, finite, normal number"),
        (
            {"s": at(PER_CHANNEL, 7, 2e-38), "b": np.full(19, 100, np.float32)},
            "a bias is too large for its scale",
        ),
        ({"w": RNG.integers(-9, 9, (19, 19)).astype(np.int8)}, "its scales are of its input"),
    ],
)
@pytest.mark.parametrize("cached", [False, "memory"])
def test_what_does_not_fit_is_computed_in_float32(constants, reason, cached):
    inputs = len(constants.get("w", with_one(0)))
    found = {"s": PER_CHANNEL, **constants}
    model = product(inputs, bias="b" in constants, **found)
    if "input" in reason:
        model.graph.node[0].attribute[0].i = 0
    program = compile_model(model, cache=cached)
    kernel = kernel_of(program)
    assert kernel.startswith(f"{fully_connected()} in float32: {reason}")
    feeds = {"x": rows(3, inputs)}
    with np.errstate(all="ignore"):
        check(model, feeds, program=program)


def test_zero_points_of_0_are_none():
    program = check(product(s=PER_CHANNEL, z=ZEROS), {"x": rows(2)})
    assert kernel_of(program) == WEIGHTS


def test_unsigned_weights_are_widened():
    array = RNG.integers(0, 256, (37, 19)).astype(np.uint8)
    program = check(product(w=array), {"x": rows(2)})
    assert kernel_of(program) == fully_connected()


def test_infinities_and_nan_in_rows():
    """They give what the formula gives, in their row."""
    model = product(w=np.abs(with_one(5)) | np.int8(1))
    x = rows(5)
    x[1, 4], x[2, 0], x[3, 36] = np.inf, np.nan, -np.inf
    with np.errstate(invalid="ignore"):
        assert kernel_of(check(model, {"x": x})) == WEIGHTS


def reference(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    bundle = Bundle({"main": ir.from_proto(model)})
    return ReferenceBackend().compile(bundle, CompileOptions()).run({"x": x})["y"]


# Rows that are quantized too


def check_rows(model: onnx.ModelProto, x: np.ndarray, program=None, **options) -> None:
    """Compare with the evaluator, as far as the steps of rows allow.

    A row is rounded to steps of (max - min) / 255, where 0 is one of the numbers: each element is
    off by half a step at most, and a result by that times the sum of its weights' magnitudes. To
    that come rounded sums and scales, as for floats. Clamping makes no difference larger.
    """
    program = program or compile_model(model, **options)
    assert kernel_of(program) == ROWS
    got, right = program.run({"x": x})["y"], reference(model, x)
    assert (got.dtype, got.shape) == (right.dtype, right.shape)
    magnitudes = magnitudes_of(model)
    steps = (np.maximum(x.max(1), 0) - np.minimum(x.min(1), 0)).astype(np.float64) / 255
    limit = np.outer(steps / 2, magnitudes)
    largest = np.abs(x).max(1, initial=0)[:, None] * magnitudes
    assert (np.abs(got.astype(np.float64) - right) <= 1.001 * limit + 1e-5 * (largest + 1)).all()


def magnitudes_of(model: onnx.ModelProto) -> np.ndarray:
    """Give the sum of the magnitudes of the weights of each output: of rows of ones."""
    plain = onnx.ModelProto()
    plain.CopyFrom(model)
    for node in plain.graph.node:
        if node.name == "product":
            del node.input[2:]
            node.output[0] = "y"
            last = list(plain.graph.node).index(node)
    del plain.graph.node[last + 1 :]
    for tensor in plain.graph.initializer:
        if tensor.name == "w":
            array = np.abs(numpy_helper.to_array(tensor))
            tensor.CopyFrom(numpy_helper.from_array(array, "w"))
    inputs = plain.graph.input[0].type.tensor_type.shape.dim[1].dim_value
    return np.abs(reference(plain, np.ones((1, inputs), np.float32))[0].astype(np.float64))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("per_channel", [False, True], ids=["per tensor", "per channel"])
@pytest.mark.parametrize("after", ["", "Relu", "Clip"])
def test_rows_of_int8(way, per_channel, after):
    model = product(per_channel=per_channel, way=way, bias=True, after=after, dynamic=True)
    program = compile_model(model)
    for count in (5, 1, 8, 3, 31):
        check_rows(model, rows(count), program)
    assert program.run({"x": rows(0)})["y"].shape == (0, 19)


@settings(max_examples=60, deadline=None)
@given(
    inputs=SIZES,
    outputs=SIZES,
    count=st.sampled_from([1, 2, 3, 7, 11, 16]),
    way=st.sampled_from(WAYS),
    bias=st.booleans(),
    after=st.sampled_from(["", "Relu", "Clip"]),
    shift=st.sampled_from([-30.0, -1.0, 0.0, 1.0, 30.0]),
    threads=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_shapes_of_rows(inputs, outputs, count, way, bias, after, shift, threads, seed):
    """Also of one sign, and with rows of very different ranges."""
    model = product(inputs, outputs, way=way, bias=bias, after=after, seed=seed, dynamic=True)
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((count, inputs)) + shift).astype(np.float32)
    x *= np.float32(10) ** rng.integers(-6, 6, (count, 1)).astype(np.float32)
    check_rows(model, x, threads=threads)


def test_many_rows_on_threads():
    model = product(640, 96, bias=True, dynamic=True)
    for threads in (1, 2, 3):
        check_rows(model, rows(300, 640), threads=threads)


def test_rows_that_are_exact():
    """Integers from -128 to 127 are steps of 1, and sums of them are exact."""
    matrix = RNG.integers(-127, 128, (300, 19)).astype(np.int8)
    model = product(300, w=matrix, s=np.float32(0.5), dynamic=True)
    x = RNG.integers(-128, 128, (7, 300)).astype(np.float32)
    x[:, 0], x[:, 1] = -128, 127
    program = compile_model(model)
    assert kernel_of(program) == ROWS
    exact = x.astype(np.int64) @ matrix.astype(np.int64) * 0.5
    np.testing.assert_array_equal(program.run({"x": x})["y"], exact.astype(np.float32))


def test_rows_of_nothing_and_next_to_nothing():
    model = product(bias=True, dynamic=True)
    x = rows(4)
    x[0], x[1], x[2] = 0, 1e-38, x[2] * np.float32(1e-37)
    x[3] = np.abs(x[3]) * np.float32(1e32)
    check_rows(model, x)


@pytest.mark.parametrize("dynamic", [False, True], ids=["weights", "rows too"])
def test_sums_that_overflow_before_they_are_scaled_are_not_finite(dynamic):
    """Infinite where products are added without rounding them; NaN where two infinities meet."""
    model = product(dynamic=dynamic)
    x = np.abs(rows(2))
    x[0] *= np.float32(1e37)
    got = compile_model(model).run({"x": x})["y"]
    assert not np.isfinite(got[0]).all()
    assert np.isfinite(got[1]).all()


def test_rows_with_infinities_and_nan_are_nan():
    """Their range says nothing: the whole row is NaN, whatever it is clamped to; others are not."""
    for after in ("", "Relu", "Clip"):
        model = product(bias=True, after=after, dynamic=True)
        program = compile_model(model)
        for odd in (np.nan, -np.nan, np.inf, -np.inf, 2e38, -3e38):
            for place in (0, 17, 36):
                x = rows(6)
                x[2, place] = x[5, place] = odd
                got = program.run({"x": x})["y"]
                assert np.isnan(got[[2, 5]]).all()
                fine = x[[0, 1, 3, 4]]
                np.testing.assert_array_equal(got[[0, 1, 3, 4]], program.run({"x": fine})["y"])
        assert np.isnan(program.run({"x": np.full((3, 37), np.nan, np.float32)})["y"]).all()


def test_sums_at_the_limit_of_32_bits():
    """With one channel more rows stay float."""
    for inputs in (MOST_CHANNELS, MOST_CHANNELS + 1):
        matrix = np.full((inputs, 2), 127, np.int8)
        matrix[:, 1] = -127
        model = product(inputs, 2, w=matrix, s=np.float32(1e-3), dynamic=True)
        x = np.stack([np.ones(inputs, np.float32), -np.ones(inputs, np.float32)])
        program = compile_model(model)
        if inputs == MOST_CHANNELS:
            assert kernel_of(program) == ROWS
        else:
            assert kernel_of(program) == f"{WEIGHTS}: sums over 66312 channels may not fit 32 bits"
        exact = 0.127 * inputs
        right = [[exact, -exact], [-exact, exact]]
        np.testing.assert_allclose(program.run({"x": x})["y"], right, rtol=1e-4)


def test_rows_with_what_does_not_fit():
    unfit = compile_model(product(w=with_one(-128), dynamic=True))
    assert kernel_of(unfit) == f"{fully_connected()} in float32: a weight is -128"
    floats = product(w=np.ones((37, 19), np.float32), dynamic=True)
    del floats.graph.node[0]
    floats.graph.node[0].input[1] = "w"
    kernel = kernel_of(check(floats, {"x": rows(2)}))
    assert kernel == f"{fully_connected()} in float32: its matrix is not int8"


# The operator alone


def quantized(matrix, scale, axis=0, zero=None, name="") -> Quantized:
    def weight(array, part):
        return Weight.of(np.asarray(array), f"{name}/{part}" if name else "")

    return Quantized(
        weight(matrix, "w"),
        weight(np.float32(scale), "s"),
        None if zero is None else weight(zero, "z"),
        axis,
    )


def run(operator, x: np.ndarray, outputs: int, threads: int = 1) -> np.ndarray:
    pool = shared(threads)
    params = operator.reshape(len(x), pool)
    tape = Tape([Entry(operator.call, (0,), 1, operator, params, True, "product")], 2)
    given_ = aligned(x.nbytes)[: x.nbytes].view(np.float32)
    given_[...] = x.reshape(-1)
    result = np.empty((len(x), outputs), np.float32)
    scratch = aligned(operator.workspace)
    tape.bind_workspace(scratch, 0)
    tape.bind(0, given_)
    tape.bind(1, result)
    tape.run(pool)
    return result


@pytest.mark.parametrize("inputs", [1, 7, 13, 31, 64])
def test_nothing_is_read_beyond_the_constants(inputs):
    """Matrix and bias end where memory that can be read ends."""
    outputs, page = 19, mmap.PAGESIZE
    libc = ctypes.CDLL(None, use_errno=True)
    x, held = rows(3, inputs), []

    def at_the_end(array: np.ndarray) -> np.ndarray:
        area = mmap.mmap(-1, 4 * page)
        start = ctypes.addressof(ctypes.c_char.from_buffer(area))
        assert libc.mprotect(ctypes.c_void_p(start + 3 * page), page, 0) == 0
        held.append((area, start))
        place = np.frombuffer(area, array.dtype, array.size, 3 * page - array.nbytes)
        place[...] = array.reshape(-1)
        return place.reshape(array.shape)

    for transposed, rows_too in itertools.product((False, True), repeat=2):
        shape = (inputs, outputs) if transposed else (outputs, inputs)
        matrix = at_the_end(RNG.integers(-127, 128, shape).astype(np.int8))
        scale = at_the_end(PER_CHANNEL)
        made = FullyConnectedInt8(
            quantized(matrix, scale, axis=int(transposed)),
            Weight.of(at_the_end(np.ones(outputs, np.float32))),
            transposed=transposed,
            rows_too=rows_too,
        )
        wide = matrix.astype(np.float64) * (scale if transposed else scale[:, None])
        exact = x @ (wide if transposed else wide.T) + 1
        tolerance = (2e-2 if rows_too else 1e-5) * np.abs(exact).max()
        np.testing.assert_allclose(run(made, x, outputs), exact, rtol=1e-5, atol=tolerance)
    for _, start in held:
        libc.mprotect(ctypes.c_void_p(start + 3 * page), page, 3)


@pytest.mark.parametrize("unsigned", [False, True])
def test_rows_of_either_sign(unsigned):
    """Which a program takes depends on the processor; blocks of one are not taken for the other."""
    if unsigned and not takes_unsigned_rows():
        pytest.skip("this processor has no instructions for unsigned rows")
    matrix, bias = with_one(-127, (19, 37)), Weight.of(np.ones(19, np.float32), "b")
    x = rows(23) - 1
    x[4, 4] = np.inf
    wide = matrix.astype(np.float64) * PER_CHANNEL[:, None]
    exact = x @ wide.T + 1
    steps = (np.maximum(x.max(1), 0) - np.minimum(x.min(1), 0)) / 255
    limit = np.outer(steps / 2, np.abs(wide).sum(1)) + 1e-5
    with WeightsCache().begin() as session:
        stored = quantized(matrix, PER_CHANNEL, name="a")
        options = {"rows_too": True, "session": session}
        made = FullyConnectedInt8(stored, bias, unsigned=unsigned, **options)
        other = FullyConnectedInt8(stored, bias, unsigned=False, **options)
    assert session.counts.packs == 1 + unsigned
    del other
    got = run(made, x, 19)
    assert np.isnan(got[4]).all()
    known = np.arange(23) != 4
    assert (np.abs(got - exact) <= 1.001 * limit)[known].all()
    single = run(made, x[:1], 19)
    np.testing.assert_array_equal(single, got[:1])


def test_what_the_operator_refuses():
    matrix = np.ones((4, 3), np.int8)
    with pytest.raises(UnfitError, match="2 scales for 4 outputs"):
        FullyConnectedInt8(quantized(matrix, [1, 1]), None)
    odd = Quantized(Weight.of(matrix), Weight.of(np.ones(4, np.float16)), None, 0)
    with pytest.raises(UnfitError, match="scales are float16"):
        FullyConnectedInt8(odd, None)
    with pytest.raises(Exception, match=r"a bias must be float32\[4\]"):
        FullyConnectedInt8(quantized(matrix, 1), Weight.of(np.ones(3, np.float32)))
    with pytest.raises(Exception, match="a kernel must be int8"):
        FullyConnectedInt8(quantized(matrix.astype(np.uint8), 1), None)


# The weights cache


@pytest.mark.parametrize("dynamic", [False, True], ids=["weights", "rows too"])
def test_the_same_integers_with_another_scale_or_bias_have_another_name(tmp_path, dynamic):
    """XNNPACK's key has no scales, nor the bias if rows are int8: our names tell these apart."""
    base = {"s": PER_CHANNEL, "b": np.linspace(-1, 1, 19, dtype=np.float32)}
    changes = [
        {},
        {"s": PER_CHANNEL[::-1].copy()},
        {"b": base["b"][::-1].copy()},
        {"s": PER_CHANNEL[:1].copy()},
        {"w": with_one(1)},
    ]
    methods = {
        f"m{i}": product(bias=True, dynamic=dynamic, **{**base, **change})
        for i, change in enumerate(changes)
    }
    bundle = saved(tmp_path / "b.narrow", **methods)
    x = rows(3)
    for packs in (len(changes), 0):
        program = compiled(bundle, tmp_path / "cache")
        found = weights(program)
        assert (found["packs"], found["hits"]) == (packs, len(changes) - packs)
        assert found["private"] == {}
        for name, model in methods.items():
            right = reference(model, x)
            got = program.run({"x": x}, name)["y"]
            tolerance = (2e-2 if dynamic else 1e-5) * np.abs(right).max()
            np.testing.assert_allclose(got, right, rtol=1e-5, atol=tolerance)
            (plan,) = [p for p in program.explain() if (p.method, p.node) == (name, "product")]
            assert plan.kernel == (ROWS if dynamic else WEIGHTS)
        program.close()
        del program
        gc.collect()


def test_both_forms_of_one_matrix_are_two_blocks(tmp_path):
    methods = {name: product(bias=True, dynamic=name == "rows") for name in ("weights", "rows")}
    bundle = saved(tmp_path / "b.narrow", **methods)
    x = rows(3)
    for packs in (2, 0):
        program = compiled(bundle, tmp_path / "cache")
        assert weights(program)["packs"] == packs
        for name, model in methods.items():
            right = reference(model, x)
            got = program.run({"x": x}, name)["y"]
            tolerance = 1e-5 if name == "weights" else 2e-2
            np.testing.assert_allclose(got, right, atol=tolerance * np.abs(right).max())
        program.close()
        del program
        gc.collect()


@pytest.mark.parametrize("dynamic", [False, True], ids=["weights", "rows too"])
def test_integers_are_packed_and_not_what_they_stand_for(tmp_path, dynamic):
    """The packed form has a byte for each weight, and comes from the file at the second load."""
    bundle = saved(tmp_path / "b.narrow", main=product(512, 256, bias=True, dynamic=dynamic))
    for packs, place in ((1, "heap_bytes"), (0, "mapped_bytes")):
        program = compiled(bundle, tmp_path / "cache")
        found = weights(program)
        assert found["packs"] == packs
        assert 512 * 256 <= found[place] < 1.1 * 512 * 256
        program.close()
        del program
        gc.collect()


@pytest.mark.parametrize("dynamic", [False, True], ids=["weights", "rows too"])
def test_a_process_that_was_not_forked_finds_them(tmp_path, dynamic):
    bundle = saved(tmp_path / "b.narrow", main=product(48, bias=True, dynamic=dynamic))
    here = compiled(bundle, tmp_path / "cache")
    assert weights(here)["packs"] == 1
    context = multiprocessing.get_context("spawn")
    ready, results = context.Event(), context.Queue()
    ready.set()
    arguments = str(tmp_path / "b.narrow"), str(tmp_path / "cache"), ready, results
    process = context.Process(target=load_in_child, args=arguments)
    process.start()
    assert results.get(timeout=60) == (0, result(here, INPUT).tobytes())
    process.join()


def test_what_does_not_fit_is_kept_too(tmp_path):
    """In float32; and integers that differ in their zero points only are not mixed up."""
    fit, unfit = {"s": PER_CHANNEL, "z": ZEROS}, {"s": PER_CHANNEL, "z": at(ZEROS, 4, 3)}
    methods = {"fit": product(**fit), "unfit": product(**unfit)}
    bundle = saved(tmp_path / "b.narrow", **methods)
    x = rows(3)
    for packs in (2, 0):
        program = compiled(bundle, tmp_path / "cache")
        assert weights(program)["packs"] == packs
        for name, model in methods.items():
            right = reference(model, x)
            got = program.run({"x": x}, name)["y"]
            np.testing.assert_allclose(got, right, rtol=1e-5, atol=1e-5 * np.abs(right).max())
        program.close()
        del program
        gc.collect()


@pytest.mark.parametrize("rows_too", [False, True], ids=["weights", "rows too"])
def test_a_hit_reads_nothing(rows_too):
    cache = WeightsCache()
    options = {"rows_too": rows_too}
    matrix, bias = with_one(7, (19, 37)), Weight.of(np.ones(19, np.float32), "b")
    with cache.begin() as first:
        fresh = quantized(matrix, PER_CHANNEL, name="a")
        one = FullyConnectedInt8(fresh, bias, session=first, **options)

    def unreadable():
        raise AssertionError("the weight was read")

    kept = Quantized(
        Weight((19, 37), np.dtype(np.int8), "a/w", unreadable),
        Weight((19,), np.dtype(np.float32), "a/s", unreadable),
        None,
        0,
    )
    with cache.begin() as second:
        hidden = Weight((19,), np.dtype(np.float32), "b", unreadable)
        two = FullyConnectedInt8(kept, hidden, session=second, **options)
    assert (first.counts.packs, second.counts.packs, second.counts.hits) == (1, 0, 1)
    x = rows(2)
    np.testing.assert_array_equal(run(one, x, 19), run(two, x, 19))
