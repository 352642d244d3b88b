"""run: inputs from files, outputs to files."""

from __future__ import annotations

import click
import ml_dtypes
import numpy as np
import onnx
import onnx.reference
import pytest
from onnx import TensorProto, helper

from narrowpass.cli._app import app


def _info(name, dtype, shape):
    return helper.make_tensor_value_info(name, dtype, shape)


@pytest.fixture
def x(tmp_path):
    array = np.random.default_rng(1).standard_normal((2, 4)).astype(np.float32)
    np.save(tmp_path / "x.npy", array)
    np.savez(tmp_path / "x.npz", x=array)
    return array


@pytest.mark.parametrize("given", ["x=x.npy", "x.npz"])
def test_outputs(call, model, x, tmp_path, given):
    result = call("run", model, "--input", given, "-o", "y.npz")
    expected = onnx.reference.ReferenceEvaluator(onnx.load(model)).run(None, {"x": x})[0]
    with np.load(tmp_path / "y.npz") as archive:
        assert archive.files == ["y"]
        np.testing.assert_array_equal(archive["y"], expected)
    assert "wrote y.npz" in result.out
    assert "[2, 3]" in result.out
    assert f"{expected.max():.6g}" in result.out
    assert "backend: reference" in result.err


def test_same_outputs_are_written_as_the_same_bytes(call, model, x, tmp_path):
    call("run", model, "--input", "x.npz", "-o", "one.npz")
    call("run", model, "--input", "x.npz", "-o", "two.npz")
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "two.npz").read_bytes()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_json(call, model, x):
    document = call("run", model, "--input", "x.npz", "--json").json
    [row] = document["outputs"]
    assert (row["name"], row["dtype"], row["shape"]) == ("y", "float32", [2, 3])
    for key in (*document.keys() - {"version"}, *row):
        assert key in app.get_command(click.Context(app), "run").help


def test_nan_and_infinities_are_counted(call, model, tmp_path):
    x = np.float32([[np.nan, 0, 0, 0], [3e38, 3e38, 3e38, 3e38], [0, 0, 0, 0]])
    np.save(tmp_path / "bad.npy", x)
    with np.errstate(all="ignore"):
        y = onnx.reference.ReferenceEvaluator(onnx.load(model)).run(None, {"x": x})[0]
    [row] = call("run", model, "--input", "x=bad.npy", "--json").json["outputs"]
    assert (row["nan"], row["inf"]) == (np.isnan(y).sum(), np.isinf(y).sum())
    assert row["nan"] >= 3
    assert row["inf"] >= 1
    assert "NaN" in call("run", model, "--input", "x=bad.npy").out


def test_no_nan_no_column(call, model, x):
    assert "NaN" not in call("run", model, "--input", "x.npz").out


def test_a_wrong_name_is_said_before_what_is_missing(call, model, x):
    error = call("run", model, "--input", "xx=x.npy", code=1).err
    assert "has no input 'xx' (did you mean 'x'?)" in error


def test_failed_write_leaves_the_old_file(call, model, x, tmp_path, monkeypatch):
    (tmp_path / "y.npz").write_text("old")

    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np.lib.format, "write_array", full)
    error = call("run", model, "--input", "x.npz", "-o", "y.npz", code=1).err
    assert "y.npz: cannot be written: No space left on device" in error
    assert (tmp_path / "y.npz").read_text() == "old"
    assert {path.name for path in tmp_path.iterdir()} == {"model.onnx", "x.npy", "x.npz", "y.npz"}


@pytest.mark.parametrize(
    ("dtype", "stored", "narrow"),
    [
        (TensorProto.BFLOAT16, np.float32, ml_dtypes.bfloat16),
        (TensorProto.FLOAT8E4M3FN, np.float32, ml_dtypes.float8_e4m3fn),
        (TensorProto.FLOAT16, np.float16, np.float16),
        (TensorProto.DOUBLE, np.float64, np.float64),
    ],
)
def test_narrow_floats_are_stored_wide(call, save, tmp_path, dtype, stored, narrow):
    save("m.onnx", dtype=dtype)
    x = np.float32([[1.5, -2, 0.25, 3], [-1.5, 2, -0.25, -3]])
    np.save(tmp_path / "x.npy", x.astype(stored))
    call("run", "m.onnx", "--input", "x=x.npy", "-o", "y.npz")
    with np.load(tmp_path / "y.npz") as archive:
        y = archive["y"]
    assert y.dtype == stored
    np.testing.assert_array_equal(y, y.astype(narrow).astype(stored))
    assert np.abs(y).max() > 0


def test_int4_is_stored_as_int8(call, save, tmp_path):
    nodes = [helper.make_node("Reshape", ["x", "s"], ["y"])]
    inputs = [_info("x", TensorProto.INT4, [4]), _info("s", TensorProto.INT64, [2])]
    save("m.onnx", nodes, inputs, [_info("y", TensorProto.INT4, [2, 2])])
    np.savez(tmp_path / "in.npz", x=np.int8([-8, 7, 0, 1]), s=np.int64([2, 2]))
    call("run", "m.onnx", "--input", "in.npz", "-o", "y.npz")
    with np.load(tmp_path / "y.npz") as archive:
        np.testing.assert_array_equal(archive["y"], np.int8([[-8, 7], [0, 1]]))
    np.savez(tmp_path / "in.npz", x=np.int8([-9, 7, 0, 1]), s=np.int64([2, 2]))
    assert "'x': int8 values that int4" in call("run", "m.onnx", "--input", "in.npz", code=1).err


def test_strings_and_sequences(call, save, tmp_path):
    nodes = [
        helper.make_node("Identity", ["t"], ["u"]),
        helper.make_node("SequenceConstruct", ["x", "x"], ["s"]),
    ]
    inputs = [_info("t", TensorProto.STRING, [2]), _info("x", TensorProto.FLOAT, [1])]
    outputs = [
        _info("u", TensorProto.STRING, [2]),
        helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, [1]),
    ]
    save("m.onnx", nodes, inputs, outputs)
    np.savez(tmp_path / "in.npz", t=np.array(["a", "ß"]), x=np.float32([3]))
    result = call("run", "m.onnx", "--input", "in.npz", "-o", "out.npz")
    assert "string" in result.out
    with np.load(tmp_path / "out.npz", allow_pickle=False) as archive:
        assert archive.files == ["u", "s[0]", "s[1]"]
        assert archive["u"].tolist() == ["a", "ß"]
        assert archive["s[1]"].tolist() == [3.0]


def test_special_values_in_json(call, save, tmp_path):
    values = [_info(name, TensorProto.FLOAT, [2]) for name in ("x", "y")]
    save("m.onnx", [helper.make_node("Abs", ["x"], ["y"])], values[:1], values[1:])
    np.save(tmp_path / "x.npy", np.float32([np.nan, -np.inf]))
    [row] = call("run", "m.onnx", "--input", "x=x.npy", "--json").json["outputs"]
    assert (row["min"], row["max"], row["mean"]) == (None, None, None)
    np.save(tmp_path / "x.npy", np.float32([1, -np.inf]))
    [row] = call("run", "m.onnx", "--input", "x=x.npy", "--json").json["outputs"]
    assert row["max"] == np.finfo(np.float64).max
