"""`convert` writes methods that any runtime of ONNX takes, and the files that belong to them."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import onnx
import pytest

import narrowpass
from narrowpass import Bundle
from narrowpass_testing import model_from_text

TWO = {
    "double": "g (float[n, 4] x) => (float[n, 4] y) { y = Add(x, x) }",
    "square": "g (float[n, 4] x) => (float[n, 4] y) { y = Mul(x, x) }",
}
X = np.arange(8, dtype=np.float32).reshape(2, 4)


@pytest.fixture(scope="module")
def matmul():
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["": 21]>
        g (float[n, 64] x) => (float[n, 32] y) { y = MatMul(x, w) }
    """)
    w = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    return model


@pytest.fixture
def two(tmp_path):
    path = tmp_path / "two.narrow"
    assets = {"config.json": b"{}", "tokenizer.json": b'{"model": 1}'}
    methods = {name: model_from_text(text) for name, text in TWO.items()}
    Bundle(methods, assets=assets).save(path)
    return path


def convert(*arguments, code=0):
    command = [sys.executable, "-m", "narrowpass", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def run(path, feeds):
    """Run a file by a runtime that was not written here."""
    try:
        import onnxruntime
    except ImportError:
        return onnx.reference.ReferenceEvaluator(str(path)).run(None, feeds)[0]
    options = onnxruntime.SessionOptions()
    # Otherwise it fuses dequantized weights into matmuls that round their rows to int8.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(path, options).run(None, feeds)[0]


@pytest.mark.parametrize(
    ("pipeline", "backend"),
    [
        ("int4{format=nbits}", "xnn-cpu"),  # the evaluator of `reference` lacks its operator
        ("int4", "reference"),
        ("int8-sym{mode=dynamic}", "reference"),
        ("", "reference"),
    ],
)
def test_a_method_runs_elsewhere(matmul, tmp_path, pipeline, backend):
    bundle = narrowpass.build(matmul, pipeline, tmp_path / "m.narrow")
    x = np.random.default_rng(1).standard_normal((3, 64)).astype(np.float32)
    with narrowpass.load(bundle, backend) as program:
        wanted = program.run({"x": x})["y"]
    out = tmp_path / "m.onnx"
    convert("convert", tmp_path / "m.narrow", out)
    onnx.checker.check_model(out, full_check=True)
    assert {node.domain for node in onnx.load(out).graph.node} <= {"", "ai.onnx"}
    # 64 float32 terms are accumulated in another order.
    np.testing.assert_allclose(run(out, {"x": x}), wanted, rtol=1e-4, atol=1e-4)


def test_the_operators_were_others_before(matmul, tmp_path):
    bundle = narrowpass.build(matmul, "int4{format=nbits}", tmp_path / "m.narrow")
    assert "com.microsoft" in {node.domain for node in bundle.methods["main"].graph}
    said = convert(
        *("--disable-plugin", "constant-folding", "convert"),
        *(tmp_path / "m.narrow", tmp_path / "m.onnx"),
        code=1,
    )
    assert "com.microsoft.MatMulNBits (1)" in said
    assert "no pass 'expand-operators' is installed" in said
    assert not (tmp_path / "m.onnx").exists()


def test_a_folder_has_every_method_and_the_assets(two, tmp_path):
    out = tmp_path / "out"
    document = json.loads(convert("convert", two, out, "--json"))
    assert sorted(p.name for p in out.iterdir()) == [
        *("config.json", "double.onnx", "square.onnx", "tokenizer.json"),
    ]
    assert list(document["methods"]) == list(TWO)
    np.testing.assert_array_equal(run(out / "double.onnx", {"x": X}), X + X)
    np.testing.assert_array_equal(run(out / "square.onnx", {"x": X}), X * X)
    assert (out / "tokenizer.json").read_bytes() == b'{"model": 1}'


def test_one_of_several_methods(two, tmp_path):
    out = tmp_path / "x.onnx"
    assert "not 2 (double, square)" in convert("convert", two, out, code=2)
    assert "there is no such method" in convert("convert", two, out, "--method", "a", code=2)
    convert("convert", two, out, "--method", "square")
    np.testing.assert_array_equal(run(out, {"x": X}), X * X)


def test_what_cannot_be_converted(two, tmp_path):
    model = tmp_path / "m.onnx"
    narrowpass.save_model(model_from_text(TWO["double"]), model)
    assert "is no bundle; " in convert("convert", model, tmp_path / "x.onnx", code=2)
    assert "no such file" in convert("convert", tmp_path / "gone", tmp_path / "x.onnx", code=2)
    assert "exists, and is no empty folder" in convert("convert", two, two.parent, code=2)
    assert "is inside" in convert("convert", two, two / "x.onnx", code=2)
    assert "does not exist" in convert("convert", two, tmp_path / "no" / "x.onnx", code=2)


def test_an_operator_of_nobody_is_an_error(tmp_path):
    text = """<opset_import: ["": 21, "mine": 1]>
        g (float[n] x) => (float[n] y) { y = mine.Magic(x) }"""
    bundle = Bundle(
        {
            "main": narrowpass.open_bundle(
                onnx.parser.parse_model("<ir_version: 10, " + text[1:])
            ).methods["main"]
        }
    )
    bundle.save(tmp_path / "m.narrow")
    said = convert("convert", tmp_path / "m.narrow", tmp_path / "m.onnx", code=1)
    assert "mine.Magic (1)" in said
    assert "does not know" in said


@pytest.mark.parametrize("name", TWO)
def test_method_files_of_a_bundle_are_plain_onnx(two, name):
    """Viewers such as Netron open them: weights are where the format's external data says."""
    onnx.checker.check_model(str(two / f"{name}.onnx"), full_check=True)
    assert run(two / f"{name}.onnx", {"x": X}).shape == X.shape
    assert onnx.load(two / f"{name}.onnx").graph.output[0].name == "y"


def test_weights_of_method_files_are_external_data(matmul, tmp_path):
    narrowpass.build(matmul, "", tmp_path / "m.narrow")
    (tensor,) = onnx.load(tmp_path / "m.narrow" / "main.onnx").graph.initializer
    wanted = onnx.numpy_helper.to_array(matmul.graph.initializer[0])
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(tensor), wanted)
