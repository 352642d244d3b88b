"""Saving and loading: values, keys, what stays inside, and the same bytes each time."""

from __future__ import annotations

import json

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from bundle_models import (
    TYPES,
    branches,
    create,
    float_tensor,
    initializer_bytes,
    linear,
    random_raw,
    raw_tensor,
    read,
    tensor_bytes,
    tree,
    typed,
    value,
)
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from narrowpass.bundle import Bundle, MethodReport, Report, is_bundle, verify
from narrowpass.errors import BundleError, ModelError, NarrowpassError, UsageError
from narrowpass_ir.io import MappedTensor, load_model


def save(path, methods, **kwargs):
    Bundle({name: read(proto) for name, proto in methods.items()}, **kwargs).save(path)
    assert verify(path) == []
    return path


def external_names(path):
    """Return the names of the initializers that an ONNX file has outside, in any graph."""
    found = []

    def look(graph):
        external = onnx.TensorProto.EXTERNAL
        found.extend(t.name for t in graph.initializer if t.data_location == external)
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.type == onnx.AttributeProto.GRAPH:
                    look(attribute.g)

    look(onnx.load(path, load_external_data=False).graph)
    return found


def identity(tensors, **kwargs):
    """Return a model with one output for each initializer."""
    nodes = [helper.make_node("Identity", [t.name], [f"y{i}"]) for i, t in enumerate(tensors)]
    kinds = [onnx.TensorProto.DataType.Name(tensor.data_type) for tensor in tensors]
    outputs = [value(f"y{i}", kind, list(tensors[i].dims)) for i, kind in enumerate(kinds)]
    return create(nodes, [], outputs, tensors, **kwargs)


@pytest.mark.parametrize("type_name", TYPES)
@pytest.mark.parametrize("methods", [1, 2])
def test_every_type_keeps_its_bytes(tmp_path, type_name, methods):
    protos = {f"m{i}": typed(type_name, seed=i) for i in range(methods)}
    path = save(tmp_path / "b", protos)
    loaded = Bundle.load(path)
    assert len(loaded.data) == methods
    for index, name in enumerate(protos):
        raw = random_raw(type_name, seed=index)
        assert external_names(path / f"{name}.onnx") == ["w"]
        assert initializer_bytes(path / f"{name}.onnx") == {"w": raw}
        weight = loaded.methods[name].graph.initializers["w"]
        assert isinstance(weight.const_value, MappedTensor)
        assert weight.const_value.tobytes() == raw
        expected = numpy_helper.to_array(protos[name].graph.initializer[0])
        assert weight.const_value.numpy().tobytes() == expected.tobytes()
        named = loaded.data[loaded.key(name, weight)]
        assert (named.dtype, named.shape, named.nbytes) == (
            ir.DataType[type_name],
            (29, 37),
            len(raw),
        )


def test_a_tensor_shared_by_methods_is_stored_once(tmp_path):
    other = create(
        [helper.make_node("Add", ["x", "v"], ["y"])],
        [value("x", shape=[32, 32])],
        [value("y", shape=[32, 32])],
        [float_tensor("v", (32, 32), 0)],
    )
    path = save(tmp_path / "b", {"main": linear(0), "other": other})
    bundle = Bundle.load(path)
    assert list(bundle.data) == ["w"]
    assert bundle.key("other", bundle.methods["other"].graph.initializers["v"]) == "w"
    assert path.joinpath("weights.safetensors").stat().st_size < 2 * 4096


def keys(path):
    """Return the data key of each (method, scope, name), as the manifest says."""
    manifest = Bundle.load(path).manifest
    assert manifest is not None
    return {
        (method.name, info.scope, info.name): info.key
        for method in manifest.methods
        for info in method.initializers
    }


def test_different_tensors_of_the_same_name_get_the_method_in_the_key(tmp_path):
    path = save(tmp_path / "b", {"main": linear(0), "two": linear(1), "three": linear(2)})
    assert keys(path) == {
        ("main", "", "w"): "w",
        ("two", "", "w"): "w@two",
        ("three", "", "w"): "w@three",
    }


def test_a_generated_key_never_takes_a_real_name(tmp_path):
    names = ["w", "w@two", "__metadata__", "__pad.0", "__pad.0@main", "__pad.x", ""]
    one = identity([float_tensor(name, (9, 9), i) for i, name in enumerate(names[:-1])])
    two = identity([float_tensor("w", (9, 9), 10), float_tensor("w@two.2", (9, 9), 11)])
    path = save(tmp_path / "b", {"main": one, "two": two})
    assert keys(path) == {
        ("main", "", "w"): "w",
        ("main", "", "w@two"): "w@two",
        ("main", "", "__metadata__"): "__metadata__@main",
        ("main", "", "__pad.0"): "__pad.0@main.2",
        ("main", "", "__pad.0@main"): "__pad.0@main",
        ("main", "", "__pad.x"): "__pad.x",
        ("two", "", "w"): "w@two.3",
        ("two", "", "w@two.2"): "w@two.2",
    }
    for name, proto in {"main": one, "two": two}.items():
        expected = {tensor.name: tensor_bytes(tensor) for tensor in proto.graph.initializer}
        assert initializer_bytes(path / f"{name}.onnx") == expected


def test_names_in_any_script_and_with_quotes(tmp_path):
    names = ['a"b', "a\\b", "重み", "w w", "w/\n", "é", "e\u0301", "\U0001f600"]
    proto = identity([float_tensor(name, (9, 9), i) for i, name in enumerate(names)])
    path = save(tmp_path / "b", {"main": proto})
    assert set(Bundle.load(path).data) == set(names)


@pytest.mark.parametrize(("first", "second", "stored"), [(1, 2, 2), (1, 1, 1)])
def test_branches_may_use_a_name_again(tmp_path, first, second, stored):
    proto = branches(first, second)
    path = save(tmp_path / "b", {"main": proto})
    bundle = Bundle.load(path)
    assert len(bundle.data) == stored
    assert len(keys(path)) == 2
    assert external_names(path / "main.onnx") == ["w", "w"]
    x = np.ones((16, 16), np.float32)
    for condition in (True, False):
        feeds = {"c": np.array(condition), "x": x}
        expected = ReferenceEvaluator(proto).run(None, feeds)
        model = onnx.load(path / "main.onnx")
        assert np.array_equal(ReferenceEvaluator(model).run(None, feeds), expected)
        again = ir.to_proto(bundle.methods["main"])
        assert np.array_equal(ReferenceEvaluator(again).run(None, feeds), expected)


def function_model():
    inner = branches()
    body = helper.make_function(
        "my", "F", ["c", "x"], ["y"], [inner.graph.node[0]], [helper.make_opsetid("", 21)]
    )
    return create(
        [helper.make_node("F", ["c", "x"], ["z"], domain="my")],
        list(inner.graph.input),
        [value("z", shape=[16, 16])],
        functions=[body],
        extra=[helper.make_opsetid("my", 1)],
    )


def test_initializers_in_the_body_of_a_function_stay_inside(tmp_path):
    proto = function_model()
    path = save(tmp_path / "b", {"main": proto})
    assert len(Bundle.load(path).data) == 0
    feeds = {"c": np.array(True), "x": np.ones((16, 16), np.float32)}
    expected = ReferenceEvaluator(proto).run(None, feeds)
    assert np.array_equal(
        ReferenceEvaluator(onnx.load(path / "main.onnx")).run(None, feeds), expected
    )


def test_initializers_that_are_inputs_stay_both(tmp_path):
    old = linear()
    inputs = [*old.graph.input, value("w", shape=[32, 32]), value("b", shape=[32])]
    proto = create(
        old.graph.node, inputs, old.graph.output, old.graph.initializer, opset=8, ir_version=3
    )
    path = save(tmp_path / "b", {"main": proto})
    assert external_names(path / "main.onnx") == ["w"]
    model = Bundle.load(path).methods["main"]
    assert [value.name for value in model.graph.inputs] == ["x", "w", "b"]
    assert model.ir_version == 3
    assert initializer_bytes(path / "main.onnx") == {
        tensor.name: tensor_bytes(tensor) for tensor in proto.graph.initializer
    }


def test_what_stays_inside(tmp_path):
    strings = helper.make_tensor("s", onnx.TensorProto.STRING, [100], [b"abcdefgh"] * 100)
    proto = identity(
        [
            raw_tensor("small", "UINT8", bytes(255), [255]),
            raw_tensor("large", "UINT8", bytes(256), [256]),
            raw_tensor("empty", "FLOAT", b"", [0, 1000]),
            raw_tensor("int4", "INT4", random_raw("INT4", 510), [510]),
            raw_tensor("int4l", "INT4", random_raw("INT4", 511), [511]),
            strings,
        ]
    )
    path = save(tmp_path / "b", {"main": proto})
    assert external_names(path / "main.onnx") == ["large", "int4l"]
    assert initializer_bytes(path / "main.onnx") == {
        tensor.name: tensor_bytes(tensor) for tensor in proto.graph.initializer
    }


def test_operands_that_decide_shapes_stay_inside(tmp_path):
    sizes = numpy_helper.from_array(np.full(40, 1), "sizes")
    proto = create(
        [helper.make_node("Split", ["x", "sizes"], [f"y{i}" for i in range(40)], axis=0)],
        [value("x", shape=[40, 3])],
        [value(f"y{i}", shape=[1, 3]) for i in range(40)],
        [sizes],
    )
    path = save(tmp_path / "b", {"main": proto})
    assert external_names(path / "main.onnx") == []
    onnx.checker.check_model(str(path / "main.onnx"), full_check=True)


@pytest.mark.parametrize("threads", [1, 3, 8])
def test_the_same_input_is_written_as_the_same_bytes(tmp_path, threads):
    def build(path, threads):
        methods = {"main": linear(0, 64), "two": branches(), "three": typed("INT4")}
        bundle = Bundle(
            {name: read(proto) for name, proto in methods.items()},
            pipeline="fold",
            plugins={"b": "1", "a": "2"},
            reports=[Report("fold{x=1}", {"main": MethodReport([{"node": "n"}], {"folded": 3})})],
        )
        bundle.save(path, threads=threads)

    build(tmp_path / "one", 1)
    build(tmp_path / "two", threads)
    assert tree(tmp_path / "one") == tree(tmp_path / "two")


def test_saving_what_was_loaded_writes_the_same_bytes(tmp_path):
    path = save(
        tmp_path / "one",
        {"main": linear(0), "two": linear(1), "three": branches(), "four": typed("FLOAT6E2M3")},
        pipeline="fold",
        plugins={"narrowpass-constant-folding": "0.1.0"},
        reports=[
            Report("fold", {"main": MethodReport([{"node": "n", "measured": 0.5}], {"folded": 3})}),
            Report("x{a=[b]}"),
        ],
    )
    Bundle.load(path).save(tmp_path / "two")
    assert tree(path) == tree(tmp_path / "two")


def test_a_bundle_can_replace_the_one_that_it_was_loaded_from(tmp_path):
    path = save(tmp_path / "b", {"main": linear(0), "two": linear(1)})
    before = tree(path)
    loaded = Bundle.load(path)
    loaded.save(path)
    assert tree(path) == before
    assert loaded.data["w"].tensor.tobytes() == initializer_bytes(path / "main.onnx")["w"]


def test_saving_changes_no_model(tmp_path):
    model = read(linear())
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    tensors = {name: value.const_value for name, value in model.graph.initializers.items()}
    Bundle({"main": model}).save(tmp_path / "b")
    assert {name: value.const_value for name, value in model.graph.initializers.items()} == tensors
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


def test_pipeline_plugins_and_reports_come_back(tmp_path):
    reports = (
        Report("fold{x=1}", {"main": MethodReport(({"node": "n", "limit": 2},), {"folded": 3})}),
        Report("fold"),
    )
    path = save(
        tmp_path / "b",
        {"main": linear()},
        pipeline="fold,fold",
        plugins={"a": "1"},
        reports=reports,
    )
    loaded = Bundle.load(path)
    assert (loaded.pipeline, dict(loaded.plugins)) == ("fold,fold", {"a": "1"})
    assert loaded.reports == reports
    names = sorted(file.name for file in (path / "reports").iterdir())
    assert names == ["00-fold.json", "01-fold.json"]
    assert json.loads((path / "reports/00-fold.json").read_text())["pass"] == "fold{x=1}"


def test_the_order_of_methods_is_kept(tmp_path):
    path = save(tmp_path / "b", {name: linear(i) for i, name in enumerate("zaxb")})
    assert list(Bundle.load(path).methods) == ["z", "a", "x", "b"]


def test_loaded_data_has_hashes_and_data_in_memory_has_none(tmp_path):
    bundle = Bundle({"main": read(linear())})
    assert {key: data.sha256 for key, data in bundle.data.items()} == {"w": None}
    bundle.save(tmp_path / "b")
    assert len(Bundle.load(tmp_path / "b").data["w"].sha256) == 64


def test_an_initializer_inside_has_no_key(tmp_path):
    bundle = Bundle({"main": read(linear())})
    with pytest.raises(KeyError):
        bundle.key("main", bundle.methods["main"].graph.initializers["b"])


def test_signatures_in_the_manifest(tmp_path):
    sequence = helper.make_tensor_sequence_value_info("s", onnx.TensorProto.FLOAT, [None])
    proto = create(
        [helper.make_node("SequenceAt", ["s", "i"], ["y"])],
        [sequence, value("i", "INT64", [])],
        [value("y", shape=["N", None])],
    )
    manifest = Bundle.load(save(tmp_path / "b", {"main": proto})).manifest
    (method,) = manifest.methods
    assert [(v.name, v.dtype) for v in method.inputs] == [("s", "sequence(float)"), ("i", "int64")]
    assert [(v.name, v.dtype, v.shape) for v in method.outputs] == [("y", "float", ("N", None))]


@pytest.mark.parametrize(
    "names",
    [
        [],
        [""],
        ["a/b"],
        ["."],
        [".."],
        [".a"],
        ["-a"],
        ["a."],
        ["a b"],
        ["ä"],
        ["a\n"],
        ["a" * 201],
        ["A", "a"],
    ],
)
def test_method_names_that_are_no_file_names_are_refused(names):
    with pytest.raises(UsageError):
        Bundle({name: read(linear()) for name in names})


def test_what_the_checker_refused_before_is_no_bug_of_ours(tmp_path):
    proto = linear()
    proto.graph.node[0].attribute.append(helper.make_attribute("odd", 1))
    with pytest.raises(NarrowpassError, match="bug"):
        Bundle({"main": read(proto)}).save(tmp_path / "b")
    assert list(tmp_path.iterdir()) == []


def test_a_model_in_memory_that_cannot_be_read_is_named(tmp_path):
    model = read(linear())

    def fail():
        raise OSError(5, "Input/output error")

    model.graph.initializers["w"].const_value = ir.LazyTensor(
        fail, dtype=ir.DataType.FLOAT, shape=ir.Shape([32, 32]), name="w"
    )
    with pytest.raises(ModelError, match="'w' cannot be read"):
        Bundle({"main": model}).save(tmp_path / "b")
    assert list(tmp_path.iterdir()) == []


def test_weights_beside_a_model_are_read_from_their_file(tmp_path):
    proto = linear(0, 64)
    onnx.save(
        proto, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0
    )
    model = load_model(tmp_path / "m.onnx")
    Bundle({"main": model, "two": load_model(tmp_path / "m.onnx")}).save(tmp_path / "b")
    assert verify(tmp_path / "b") == []
    assert list(Bundle.load(tmp_path / "b").data) == ["w", "b"]
    assert initializer_bytes(tmp_path / "b/two.onnx")["w"] == tensor_bytes(
        linear(0, 64).graph.initializer[0]
    )


def test_is_bundle(tmp_path):
    path = save(tmp_path / "b", {"main": linear()})
    (tmp_path / "link").symlink_to(path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other/manifest.json").write_text("{}")
    assert is_bundle(path)
    assert is_bundle(tmp_path / "link")
    for name in ("empty", "other", "absent", "b/main.onnx", "a\0b"):
        assert not is_bundle(tmp_path / name)


@pytest.mark.parametrize("name", ["absent", "file"])
def test_a_path_without_a_folder_is_the_callers_fault(tmp_path, name):
    (tmp_path / "file").write_text("x")
    for function in (Bundle.load, verify):
        with pytest.raises(UsageError, match=name):
            function(tmp_path / name)


def test_a_folder_without_a_manifest_is_no_bundle(tmp_path):
    with pytest.raises(BundleError, match=r"has no manifest\.json"):
        Bundle.load(tmp_path)
