"""Narrow floats: stored as such, computed with in float32, converted to nearest even."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper
from oracle_kit import expected_outputs
from xnn_kit import compile_model

from narrowpass_xnn_cpu.native import isa, target
from narrowpass_xnn_cpu.native.table.matmul import bf16_reject_reason
from narrowpass_xnn_cpu.native.target import has_float16_gemm

RNG = np.random.default_rng(9)
NARROW = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
KINDS = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}
# Half a unit in the last place of each, times a few roundings that one of both does not do.
TOLERANCES = {"float16": 4e-3, "bfloat16": 3e-2}


def cast(source: int, target: int) -> onnx.ModelProto:
    given = helper.make_tensor_value_info("x", source, ["N"])
    result = helper.make_tensor_value_info("y", target, ["N"])
    node = helper.make_node("Cast", ["x"], ["y"], to=target)
    return helper.make_model(helper.make_graph([node], "g", [given], [result]))


@pytest.mark.parametrize("name", NARROW)
def test_every_narrow_number_is_upcast_exactly(name):
    given = np.arange(65536, dtype=np.uint16).view(NARROW[name])
    program = compile_model(cast(KINDS[name], TensorProto.FLOAT))
    assert not any(plan.reason for plan in program.explain())
    got, right = program.run({"x": given})["y"], given.astype(np.float32)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(right))
    known = ~np.isnan(right)
    np.testing.assert_array_equal(got[known].view(np.uint32), right[known].view(np.uint32))


@np.errstate(all="ignore")
def floats() -> np.ndarray:
    """Return all narrow numbers, the midpoints between them, their neighbours, and random bits."""
    parts = [RNG.integers(0, 2**32, 1_000_000, dtype=np.uint32).view(np.float32)]
    for dtype in NARROW.values():
        every = np.arange(65536, dtype=np.uint16).view(dtype)
        every = np.unique(every[np.isfinite(every)].astype(np.float64))
        middles = ((every[1:] + every[:-1]) / 2).astype(np.float32)
        exact = every.astype(np.float32)
        for part in (exact, middles):
            parts += [part, np.nextafter(part, np.inf, dtype=np.float32)]
            parts += [np.nextafter(part, -np.inf, dtype=np.float32)]
    parts.append(
        np.float32([np.inf, -np.inf, np.nan, 65504, 65519.99, 65520, -65520, 1e38, 0, -0.0])
    )
    return np.concatenate(parts)


@pytest.mark.parametrize("name", NARROW)
def test_casts_round_to_nearest_even(name):
    given = floats()
    program = compile_model(cast(TensorProto.FLOAT, KINDS[name]))
    got = program.run({"x": given})["y"]
    with np.errstate(over="ignore", invalid="ignore"):
        right = given.astype(NARROW[name])
    assert got.dtype == NARROW[name]
    number = ~np.isnan(given)
    np.testing.assert_array_equal(got[number].view(np.uint16), right[number].view(np.uint16))
    assert np.isnan(got[~number].astype(np.float32)).all()


def network(name: str) -> ir.Model:
    """Build a small network with an embedding, all of it of one narrow type."""
    kind = KINDS[name]

    def tensor(key, *shape):
        array = (RNG.standard_normal(shape) * 0.3).astype(NARROW[name])
        return onnx.numpy_helper.from_array(array, key)

    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["a"]),
        helper.make_node("Relu", ["a"], ["d"]),
        helper.make_node("Mul", ["d", "half"], ["e"]),
        helper.make_node("AveragePool", ["e"], ["p"], kernel_shape=[3, 3]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("MatMul", ["f", "m"], ["h"]),
        helper.make_node("Add", ["h", "c"], ["k"]),
        helper.make_node("Softmax", ["k"], ["y"]),
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("x", kind, ["N", 3, 8, 8]),
            helper.make_tensor_value_info("ids", TensorProto.INT64, [2]),
        ],
        [helper.make_tensor_value_info(n, kind, None) for n in ("y", "rows")],
        [
            tensor("w", 4, 3, 3, 3),
            tensor("b", 4),
            tensor("half"),
            tensor("m", 64, 5),
            tensor("c", 5),
            tensor("table", 7, 4),
        ],
    )
    return ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)]))


@pytest.mark.parametrize("name", NARROW)
def test_a_narrow_network(name):
    model = network(name)
    program = compile_model(model)
    assert all(p.reason == "" for p in program.explain())
    assert {p.partition for p in program.explain()} == {0}
    convolution = program.explain()[0]
    assert convolution.dtype == name
    narrow = name == "bfloat16" and target.current().has_bf16_dot
    expected = f"convolution in {name if narrow else 'float32'}"
    assert convolution.kernel.removeprefix("xnn ") == expected
    proto = ir.to_proto(model)
    for batch in (1, 3):
        x = RNG.standard_normal((batch, 3, 8, 8)).astype(NARROW[name])
        feeds = {"x": x, "ids": np.array([6, 0])}
        got = program.run(feeds)
        expected_arrays = expected_outputs(proto, feeds)
        for key, right in expected_arrays.items():
            assert got[key].dtype == right.dtype == NARROW[name]
            one, other = got[key].astype(np.float32), right.astype(np.float32)
            limit = TOLERANCES[name] * np.abs(other).max()
            np.testing.assert_allclose(one, other, rtol=0, atol=limit)
        np.testing.assert_array_equal(got["rows"], expected_arrays["rows"])


@pytest.mark.parametrize("name", NARROW)
def test_kept_and_given_arrays(name):
    model = network(name)
    program = compile_model(model, keep=("a",))
    feeds = {"x": np.ones((1, 3, 8, 8), NARROW[name]), "ids": np.array([1, 1])}
    out = {"y": np.zeros((1, 5), NARROW[name])}
    results = program.run(feeds, outputs=["a", "y"], out=out)
    assert results["a"].dtype == NARROW[name]
    assert results["y"] is out["y"]
    np.testing.assert_array_equal(results["y"], program.run(feeds)["y"])


def matmul(name: str, rows: int | str, inputs: int, outputs: int) -> onnx.ModelProto:
    """Build a matmul with a narrow matrix, with a bias and a Relu."""
    kind = KINDS[name]
    matrix = (RNG.standard_normal((inputs, outputs)) / np.sqrt(inputs)).astype(NARROW[name])
    bias = RNG.standard_normal(outputs).astype(NARROW[name])
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"], name="matmul"),
            helper.make_node("Add", ["h", "b"], ["a"]),
            helper.make_node("Relu", ["a"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", kind, [rows, inputs])],
        [helper.make_tensor_value_info("y", kind, None)],
        [onnx.numpy_helper.from_array(a, n) for a, n in ((matrix, "w"), (bias, "b"))],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)])


def kernel_of_matmul(program) -> str:
    (plan,) = [plan for plan in program.explain() if plan.node == "matmul"]
    return plan.kernel


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("rows", [1, 3, 8, 9, 40])
@pytest.mark.parametrize("size", [(1024, 513), (37, 19)])
def test_matmuls_run_in_the_faster_type(name, rows, size):
    model = matmul(name, rows, *size)
    program = compile_model(model)
    kernel = kernel_of_matmul(program)
    if name == "float16":
        fast = rows <= 8 and size[0] * size[1] >= 1 << 19 and has_float16_gemm()
        assert kernel.endswith(f" in {'float16' if fast else 'float32'}")
    elif not bf16_reject_reason(rows, target.current()):
        assert kernel == "fully connected in bfloat16"
    else:
        # In float32 only where the processor cannot multiply bfloat16.
        assert kernel.endswith((" in bfloat16", " in float32"))
    x = RNG.standard_normal((rows, size[0])).astype(NARROW[name])
    got = program.run({"x": x})["y"].astype(np.float64)
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    exact = x.astype(np.float64) @ weights["w"].astype(np.float64) + weights["b"].astype(np.float64)
    # Rows and matrix are exact in their type: accumulators and results are rounded.
    unit = 2.0**-11 if name == "float16" else 2.0**-8
    allowed = 4 * unit * (1 + np.abs(exact))
    if kernel.endswith(" in float16") and not isa.accumulates_float16_in_float32():
        # Each accumulator is rounded to float16.
        sizes = np.abs(x).astype(np.float64) @ np.abs(weights["w"]).astype(np.float64)
        allowed += size[0] * unit * sizes
    assert (np.abs(got - np.maximum(exact, 0)) <= allowed).all()


def test_a_float16_matmul_of_changing_rows():
    model = matmul("float16", "rows", 1024, 513)
    program = compile_model(model)
    expected = "in float16 up to 8 rows, else float32" if has_float16_gemm() else "in float32"
    assert kernel_of_matmul(program).endswith(expected)
    for rows in (1, 20, 8, 1, 9, 0):
        feeds = {"x": RNG.standard_normal((rows, 1024)).astype(np.float16)}
        got, right = program.run(feeds)["y"], expected_outputs(model, feeds)["y"]
        limit = TOLERANCES["float16"] * max(1.0, float(np.abs(right).max(initial=0)))
        if 0 < rows <= 8 and has_float16_gemm() and not isa.accumulates_float16_in_float32():
            # Each of 1024 accumulations is rounded to float16: a random walk of as many steps.
            limit *= 1024**0.5
        np.testing.assert_allclose(got.astype("f4"), right.astype("f4"), rtol=0, atol=limit)


def test_a_large_float16_matmul_overflows_as_the_operator_does():
    model = matmul("float16", 2, 1024, 513)
    x = np.full((2, 1024), 60000, np.float16)
    got = compile_model(model).run({"x": x})["y"]
    wide = x.astype("f4") @ onnx.numpy_helper.to_array(model.graph.initializer[0]).astype("f4")
    assert np.isinf(got[wide > 70000]).all()
    assert (got[wide < -1] == 0).all()
    assert not np.isnan(got).any()
