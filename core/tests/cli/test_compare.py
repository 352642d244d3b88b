"""compare and bench."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from narrowpass_analysis.bench import bench
from narrowpass_analysis.compare import compare


@pytest.fixture
def shifted(save, model):
    """The model with another bias: every output before the Relu is larger by 0.5."""
    proto = onnx.load(model)
    [bias] = [t for t in proto.graph.initializer if t.name == "b"]
    bias.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(bias) + np.float32(0.5), "b"))
    return save("shifted.onnx", proto=proto)


@pytest.fixture
def data(tmp_path):
    rng = np.random.default_rng(5)
    (tmp_path / "data").mkdir()
    samples = [rng.standard_normal((3, 4)).astype(np.float32) for _ in range(4)]
    for index, x in enumerate(samples):
        np.savez(tmp_path / "data" / f"{index}.npz", x=x)
    return samples


def _outputs(path, samples):
    evaluator = onnx.reference.ReferenceEvaluator(onnx.load(path))
    return [evaluator.run(None, {"x": x})[0].astype(np.float64) for x in samples]


def test_metrics_are_the_worst_over_the_data(call, model, shifted, data):
    document = call("compare", model, shifted, "--data", "data", "--json").json
    found = document["methods"]["main"]["outputs"]["y"]
    pairs = list(zip(_outputs(shifted, data), _outputs(model, data), strict=True))
    assert found["max_abs"] == pytest.approx(max(np.abs(b - a).max() for b, a in pairs))
    assert found["relative"] == pytest.approx(
        max(np.abs(b - a).max() / np.abs(a).max() for b, a in pairs)
    )
    assert found["sqnr"] == pytest.approx(
        min(10 * math.log10((a**2).sum() / ((b - a) ** 2).sum()) for b, a in pairs)
    )
    assert found["cosine"] == pytest.approx(
        min((a * b).sum() / math.sqrt((a * a).sum() * (b * b).sum()) for b, a in pairs)
    )
    assert found["top1"] == pytest.approx(
        np.mean([np.mean(a.argmax(1) == b.argmax(1)) for b, a in pairs])
    )
    assert document["samples"] == 4
    assert document["met"] is None
    shown = compare.help
    for key in (*document.keys() - {"version"}, *found):
        assert key in shown


def test_equal_models(call, model, tmp_path):
    call("build", model, "-o", "m.narrow")
    result = call("compare", model, "m.narrow", "--tolerance", "rel:0")
    assert "100.00%" in result.out
    document = call("compare", model, "m.narrow", "--json").json
    assert document["methods"]["main"]["outputs"]["y"]["equal"] is True
    assert document["a"]["bytes"] == (tmp_path / model).stat().st_size
    assert document["methods"]["main"]["a"]["runs"] == 5


@pytest.mark.parametrize("tolerance", ["rel:1e-3", "sqnr:100", "cosine:0.999999", "top1:1"])
def test_tolerance_not_met(call, model, shifted, data, tolerance):
    result = call("compare", model, shifted, "--data", "data", "--tolerance", tolerance, code=1)
    assert f"method 'main', output 'y': {tolerance.partition(':')[0]} is" in result.err
    assert "B against A" in result.out
    document = call(
        "compare", model, shifted, "--data", "data", "--tolerance", tolerance, "--json", code=1
    ).json
    assert document["met"] is False


def test_pipeline_is_for_b(call, passes, model):
    document = call("compare", model, model, "-p", "negate{times=1}", "--json").json
    found = document["methods"]["main"]["outputs"]["y"]
    assert found["relative"] == pytest.approx(2)
    assert found["cosine"] == pytest.approx(-1)


def test_narrow_inputs_are_converted(call, save, model, data):
    narrow = save("narrow.onnx", dtype=TensorProto.FLOAT16)
    document = call("compare", model, narrow, "--data", "data", "--json").json
    relative = document["methods"]["main"]["outputs"]["y"]["relative"]
    assert 0 < relative < 2e-3


def test_several_methods(call, model, shifted):
    call("build", f"a={model}", f"b={shifted}", "-o", "two.narrow")
    methods = call("compare", "two.narrow", "two.narrow", "--json").json["methods"]
    assert list(methods) == ["a", "b"]
    assert list(
        call("compare", "two.narrow", "two.narrow", "--method", "b", "--json").json["methods"]
    ) == ["b"]
    error = call("compare", "two.narrow", model, "--method", "b", code=2).err
    assert "not in both" in error
    call("build", f"other={model}", "-o", "one.narrow")
    assert list(call("compare", model, "one.narrow", "--json").json["methods"]) == ["main"]


def test_outputs_of_other_shapes(call, save):
    def resized(name, size):
        nodes = [
            helper.make_node("Constant", [], ["n"], value_ints=[size]),
            helper.make_node("Expand", ["x", "n"], ["y"]),
        ]
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])
        return save(name, nodes, [x], [y])

    error = call("compare", resized("a.onnx", 2), resized("b.onnx", 3), code=1).err
    assert "output 'y'" in error
    assert "shapes [3] and [2]" in error


def test_signatures_that_differ_are_all_reported(call, model, save):
    x = [helper.make_tensor_value_info(name, TensorProto.INT64, [1, 4]) for name in ("x", "k")]
    y = [helper.make_tensor_value_info("z", TensorProto.INT64, [1, 4])]
    other = save("other.onnx", [helper.make_node("Add", ["x", "k"], ["z"])], x, y)
    error = call("compare", model, other, code=2).err
    for said in ("input x (float[batch, 4]) of A", "x (int64[1, 4]) in B", "B has input k", "z"):
        assert said in error


# bench


def test_bench(call, model):
    result = call("bench", model, "--runs", "3", "--shape", "x=2x4")
    assert "runs/s" in result.out
    assert "taken as 1" not in result.err
    document = call("bench", model, "--runs", "3", "--profile", "--json").json
    assert document["inputs"] == {"x": [1, 4]}
    latency = document["latency"]
    assert latency["runs"] == 3
    assert latency["min"] <= latency["p10"] <= latency["median"] <= latency["p90"]
    assert {row["node"] for row in document["profile"]} == {"matmul", "add", "relu"}
    seconds = [row["seconds"] for row in document["profile"]]
    assert seconds == sorted(seconds, reverse=True)
    shown = bench.help
    for key in (*document.keys() - {"version"}, *latency):
        assert key in shown


def test_bench_names_the_dimensions_that_it_guesses(call, model, save):
    assert (
        "dimension 'batch' of input 'x' is taken as 1; --shape"
        in call("bench", model, "--runs", "1").err
    )
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n"]) for n in ("x", "y")]
    nodes = [
        helper.make_node("Constant", [], ["s"], value_ints=[2, -1]),
        helper.make_node("Reshape", ["x", "s"], ["r"], name="half"),
        helper.make_node("Constant", [], ["t"], value_ints=[-1]),
        helper.make_node("Reshape", ["r", "t"], ["y"]),
    ]
    even = save("even.onnx", nodes, values[:1], values[1:])
    error = call("bench", even, "--runs", "1", code=1).err
    assert "half" in error
    assert "'n' of input 'x' is taken as 1" in error.partition("error:")[2]
    call("bench", even, "--runs", "1", "--shape", "x=4")


def test_shapes_share_symbolic_dimensions(call, save):
    def value(name, *dims):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)

    values = [value("x", "n", "d"), value("k", "n", 1), value("m", None, "d")]
    nodes = [helper.make_node("Sum", ["x", "k", "m"], ["y"])]
    model = save("m.onnx", nodes, values, [value("y", "n", "d")])
    document = call("bench", model, "--runs", "1", "--shape", "x=3x5", "--json").json
    assert document["inputs"] == {"x": [3, 5], "k": [3, 1], "m": [1, 5]}
    error = call("bench", model, "--shape", "x=3x5", "--shape", "k=4x1", code=2).err
    assert "'n' is 4 here and 3 elsewhere" in error


@pytest.mark.parametrize(
    "dtype",
    ["FLOAT16", "BFLOAT16", "DOUBLE", "INT64", "INT32", "UINT8", "INT8", "BOOL", "STRING",
     "FLOAT8E5M2", "FLOAT8E8M0", "INT4", "UINT4", "COMPLEX64"],
)  # fmt: skip
def test_random_inputs_of_each_type(dtype):
    import onnx_ir as ir

    from narrowpass_analysis.inputs import random_inputs

    kind = ir.TensorType(ir.DataType[dtype])
    value = ir.Value(name="x", type=kind, shape=ir.Shape([50]))
    graph = ir.Graph([value], [], nodes=[], opset_imports={"": 21})
    feeds, notes = random_inputs(graph, {}, 0)
    assert notes == []
    x = feeds["x"]
    assert x.shape == (50,)
    if dtype == "STRING":
        assert x[0] == "text"
        return
    assert x.dtype == ir.DataType[dtype].numpy()
    assert not np.isnan(x.astype(np.complex128)).any()
    if dtype in ("INT64", "INT32", "BOOL", "INT4", "UINT4"):
        assert set(x.astype(int).tolist()) == {0, 1}
    again, _ = random_inputs(graph, {}, 0)
    np.testing.assert_array_equal(x, again["x"])


def test_nan_in_both_is_reported(call, model, tmp_path):
    x = np.zeros((4, 4), np.float32)
    x[0] = np.nan
    np.savez(tmp_path / "nan.npz", x=x)
    document = call("compare", model, model, "--data", "nan.npz", "--json").json
    found = document["methods"]["main"]["outputs"]["y"]
    assert found["equal"]
    assert (found["nan_a"], found["nan_b"]) == (0.25, 0.25)
    shown = call("compare", model, model, "--data", "nan.npz").out
    assert "method main, output y: 25.00% of A and 25.00% of B is NaN" in shown
    assert "NaN" not in call("compare", model, model).out


def test_bench_with_inputs(call, save, tmp_path):
    nodes = [helper.make_node("Add", ["x", "z"], ["y"], name="add")]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 4]) for n in "xzy"]
    save("add.onnx", nodes, values[:2], values[2:])
    np.save(tmp_path / "x.npy", np.zeros((3, 4), np.float32))
    np.save(tmp_path / "z.npy", np.zeros((2, 4), np.float32))
    result = call("bench", "add.onnx", "--input", "x=x.npy", "--runs", "2", "--json")
    assert result.json["inputs"] == {"x": [3, 4], "z": [3, 4]}  # n is 3, as in the file
    assert "taken as 1" not in result.err
    for given, code, said in (
        (["--input", "xx=x.npy"], 1, "did you mean 'x'?"),
        (["--input", "x=x.npy", "--input", "z=z.npy"], 1, "dimension 'n' is 2"),
        (["--input", "x=x.npy", "--shape", "x=3x4"], 2, "leave out --shape"),
        (["--input", "x=x.npy", "--shape", "z=2x4"], 2, "'n' is 2 here and 3 elsewhere"),
        (["--input", "x=gone.npy"], 2, "no such file"),
    ):
        assert said in call("bench", "add.onnx", *given, code=code).err
