"""Models that few exporters write: lists of graphs and tensors, odd names, files that go away."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from narrowpass_ir.errors import ModelError, UsageError
from narrowpass_ir.io import MappedTensor, load_bytes, load_model, load_proto, save_model, serialize
from narrowpass_ir.io import load as load_module
from narrowpass_ir.io import save as save_module
from narrowpass_ir.io._checker import check_but_for_shapes, check_file
from narrowpass_ir.io._walk import containers, initializers
from narrowpass_ir.io.steps import refuse, replace_tensors

OPSETS = [helper.make_opsetid("", 21), helper.make_opsetid("acme", 1)]
FLOATS = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])


def parsed(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {text}')


def branch(name: str) -> onnx.GraphProto:
    weight = numpy_helper.from_array(np.full(4, len(name), np.float32), f"{name}_w")
    node = helper.make_node("Add", ["x", weight.name], [f"{name}_y"])
    output = helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, [4])
    return helper.make_graph([node], name, [], [output], [weight])


def with_lists() -> onnx.ModelProto:
    """A node of another domain with a list of graphs and a list of tensors."""
    tables = [numpy_helper.from_array(np.arange(n + 1, dtype=np.int64), f"t{n}") for n in range(2)]
    node = helper.make_node("Op", ["x"], ["y"], name="op", domain="acme")
    node.attribute.append(helper.make_attribute("branches", [branch("a"), branch("bb")]))
    node.attribute.append(helper.make_attribute("tables", tables))
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])
    graph = helper.make_graph([node], "g", [FLOATS], [output])
    return helper.make_model(graph, ir_version=10, opset_imports=OPSETS)


def move_tensors_out(proto: onnx.ModelProto, folder: Path) -> None:
    data = bytearray()
    attributes = {each.name: each for each in proto.graph.node[0].attribute}
    graphs = attributes["branches"].graphs
    for tensor in (*attributes["tables"].tensors, *(g.initializer[0] for g in graphs)):
        entries = {"location": "w.bin", "offset": len(data), "length": len(tensor.raw_data)}
        data += tensor.raw_data
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in entries.items():
            tensor.external_data.add(key=key, value=str(value))
    (folder / "w.bin").write_bytes(data)


def test_lists_of_graphs_and_tensors_are_read_and_written(tmp_path):
    moved = with_lists()
    move_tensors_out(moved, tmp_path)
    (tmp_path / "m.onnx").write_bytes(moved.SerializeToString())
    model = load_model(tmp_path / "m.onnx")
    assert [scope for scope, _ in containers(model)] == ["", "y.branches[0]/", "y.branches[1]/"]
    weights = {value.name: value.const_value for _, value in initializers(model)}
    assert {name: tensor.numpy().tolist() for name, tensor in weights.items()} == {
        "a_w": [1.0] * 4,
        "bb_w": [2.0] * 4,
    }
    tables = model.graph[0].attributes["tables"].as_tensors()
    assert all(isinstance(tensor, MappedTensor) for tensor in (*tables, *weights.values()))
    assert [tensor.numpy().tolist() for tensor in tables] == [[0], [0, 1]]
    save_model(model, tmp_path / "out.onnx")
    (node,) = onnx.load(tmp_path / "out.onnx").graph.node
    (other,) = with_lists().graph.node
    assert helper.printable_node(node) == helper.printable_node(other)
    assert [numpy_helper.to_array(tensor).tolist() for tensor in node.attribute[1].tensors] == [
        [0],
        [0, 1],
    ]


def test_a_graph_that_a_function_is_given_is_no_place_of_the_model():
    model = ir.from_proto(with_lists())
    reference = ir.RefAttr("branches", "of_the_caller", ir.AttributeType.GRAPHS)
    model.graph[0].attributes["branches"] = reference
    assert [scope for scope, _ in containers(model)] == [""]


def test_a_list_of_tensors_in_no_file(tmp_path):
    proto = with_lists()
    move_tensors_out(proto, tmp_path)
    with pytest.raises(ModelError, match=r"'tables' of node 'op' .*lies in another file"):
        load_proto(proto)


@pytest.mark.parametrize("name", ["m\udcff.onnx", "mü.onnx"])
def test_names_that_are_no_utf8_are_checked_too(name, tmp_path):
    """onnx.checker takes a path as UTF-8 text alone."""
    good, bad = with_lists(), with_lists()
    bad.graph.node[0].output[0] = "nobody"
    path = tmp_path / name
    path.write_bytes(good.SerializeToString())
    assert check_file(path) is None
    path.write_bytes(bad.SerializeToString())
    complaint = check_file(path)
    assert complaint is not None
    assert "\n" not in complaint
    proto = onnx.load_model_from_string(path.read_bytes())
    with pytest.raises(onnx.checker.ValidationError):
        onnx.checker.check_model(proto)


def test_values_without_a_shape_are_no_reason_to_refuse(tmp_path):
    """A sequence has none, and the types of others stay."""
    proto = parsed("g (float[2] x, seq(float[2]) s) => (float[2] y) { y = Neg(x) }")
    proto.graph.output[0].type.Clear()
    onnx.save(proto, tmp_path / "m.onnx")
    assert check_file(tmp_path / "m.onnx") is not None
    assert check_but_for_shapes(tmp_path / "m.onnx") is None
    proto.graph.node[0].op_type = "Nope"
    onnx.save(proto, tmp_path / "m.onnx")
    assert "Nope" in str(check_but_for_shapes(tmp_path / "m.onnx"))


def external(folder: Path) -> Path:
    proto = parsed("g (float[4] x) => (float[4] y) <float[4] w = {1,2,3,4}> { y = Add(x, w) }")
    tensor = proto.graph.initializer[0]
    (folder / "w.bin").write_bytes(numpy_helper.to_array(tensor).tobytes())
    tensor.ClearField("float_data")
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="w.bin")
    (folder / "m.onnx").write_bytes(proto.SerializeToString())
    return folder / "m.onnx"


def test_a_location_that_is_no_text(tmp_path):
    path = external(tmp_path)
    # protobuf itself refuses to write what is not UTF-8.
    path.write_bytes(path.read_bytes().replace(b"w.bin", b"\xff.bin"))
    with pytest.raises(ModelError, match=r"initializer 'w'.*not UTF-8 text"):
        load_model(path)


def test_a_data_file_that_goes_away_between_two_looks(tmp_path, monkeypatch):
    path, stat = external(tmp_path), Path.stat

    def gone(self, **options):
        if self.name == "w.bin":
            raise FileNotFoundError(2, "No such file or directory")
        return stat(self, **options)

    monkeypatch.setattr(Path, "stat", gone)
    with pytest.raises(ModelError, match=r"'w'.*w\.bin cannot be read: No such file"):
        load_model(path)


def test_a_file_larger_than_protobuf_is_not_read(tmp_path):
    with (tmp_path / "m.onnx").open("wb") as file:
        os.truncate(file.fileno(), 2**31)
    with pytest.raises(ModelError, match="has 2147483648 bytes, more than a protobuf file"):
        load_model(tmp_path / "m.onnx")


def test_a_name_that_the_system_does_not_take():
    with pytest.raises(UsageError, match="no file name"):
        load_module._read("a\0b")


def test_an_element_that_its_type_cannot_hold():
    """Six bits, in the field of whole numbers and packed."""
    tensor = onnx.TensorProto(name="w", data_type=int(ir.DataType.FLOAT6E2M3), dims=[1])
    proto = parsed("g (float[1] x) => (float[1] y) { y = Neg(x) }")
    for field, value in (("int32_data", [99]), ("raw_data", b"\xff")):
        changed = onnx.TensorProto()
        changed.CopyFrom(tensor)
        if field == "raw_data":
            changed.raw_data = value
        else:
            changed.int32_data.extend(value)
        del proto.graph.initializer[:]
        proto.graph.initializer.append(changed)
        with pytest.raises(ModelError, match=r"'w': its elements are not valid: .*export it again"):
            load_proto(proto)


def test_an_operator_set_that_only_training_has():
    proto = parsed("g (float[1] x) => (float[1] y) { y = Neg(x) }")
    proto.opset_import.append(helper.make_opsetid("ai.onnx.preview.training", 999))
    proto.graph.node.append(
        helper.make_node("Adam", ["x"], ["z"], name="a", domain="ai.onnx.preview.training")
    )
    known = onnx.defs.get_schema("Adam", "ai.onnx.preview.training").since_version
    with pytest.raises(ModelError, match=f"'a' .*version 999 of .*knows up to {known};"):
        load_proto(proto)


def test_sparse_initializers_are_refused_where_the_caller_left_them():
    proto = parsed("g (float[4] x) => (float[4] y) { y = Neg(x) }")
    values = numpy_helper.from_array(np.ones(1, np.float32), "thin")
    indices = numpy_helper.from_array(np.zeros(1, np.int64), "at")
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4]))
    with pytest.raises(ModelError, match=r"the graph has sparse initializers \('thin'\)"):
        refuse(proto, "m")
    assert load_proto(proto).graph.initializers["thin"].const_value.numpy().tolist() == [1, 0, 0, 0]


def test_opaque_types_are_refused():
    proto = parsed("g (float[4] x) => (float[4] y) { y = Neg(x) }")
    # protobuf of this onnx has the field for readers of ONNX-ML only: number 7 of a TypeProto.
    extra = proto.graph.input.add(name="o")
    extra.type.MergeFromString(b"\x3a\x00")
    if extra.type.WhichOneof("value") is None:
        pytest.skip("this onnx reads no opaque types")
    with pytest.raises(ModelError, match=r"'o' has a type \(opaque_type\)"):
        refuse(proto, "m")


def test_functions_are_sorted_as_the_graph_is(caplog):
    """A subgraph of a function that reads what a later node computes."""
    text = """<ir_version: 10, opset_import: ["" : 21, "l" : 1]>
        g (float[2] x, bool c) => (float[2] y) { y = l.f (x, c) }
        <domain: "l", opset_import: ["" : 21]>
        f (a, c) => (b) {
            [if] b = If(c) <then_branch = t () => (float[2] p) { p = Neg(late) },
                            else_branch = e () => (float[2] q) { q = Abs(late) }>
            [exp] late = Exp(a) }"""
    with caplog.at_level(logging.CRITICAL):
        model = load_proto(onnx.parser.parse_model(text))
    assert [node.name for node in model.functions["l", "f", ""]] == ["exp", "if"]
    onnx.checker.check_model(ir.to_proto(model))


def test_a_tensor_whose_file_is_gone(tmp_path):
    model = ir.load(external(tmp_path))
    (tmp_path / "w.bin").unlink()
    with pytest.raises(ModelError, match="tensor 'w': "):
        serialize(model, lambda scope, value: None)


def test_an_attribute_in_a_file_of_onnx_ir(tmp_path):
    model = ir.from_proto(parsed("g (float[4] x) => (float[4] y) { y = Neg(x) }"))
    (tmp_path / "w.bin").write_bytes(bytes(16))
    outside = ir.ExternalTensor(
        "w.bin", 0, 16, ir.DataType.FLOAT, shape=ir.Shape([4]), name="k", base_dir=tmp_path
    )
    model.graph[0].name = "n"
    model.graph[0].attributes.add(ir.AttrTensor("value", outside))
    with pytest.raises(ModelError, match="'value' of node 'n' is in a file beside the model"):
        serialize(model, lambda scope, value: None)


def large() -> ir.Model:
    weight = np.arange(1024, dtype=np.float32)
    return ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["" : 21]>
        g (float[1024] x) => (float[1024] y) <float[1024] w, float k = {2}>
        { a = Add(x, w)  y = Mul(a, k) }""",
        initializers=[ir.Tensor(weight, name="w")],
    )


def test_weights_that_cannot_stream_are_written_beside(tmp_path, plain_tensor):
    model = large()
    value = model.graph.initializers["w"]
    value.const_value = plain_tensor(value.const_value.numpy(), "w")
    save_model(model, tmp_path / "m.onnx", inline_limit=1000)
    assert len(list(tmp_path.glob("m.onnx.*.data"))) == 1
    feeds = {"x": np.ones(1024, np.float32)}
    (got,) = ReferenceEvaluator(str(tmp_path / "m.onnx")).run(None, feeds)
    np.testing.assert_array_equal(got, (np.arange(1024, dtype=np.float32) + 1) * 2)


def test_the_limit_of_a_file_is_that_of_its_bytes(tmp_path):
    """Just above the size all is inside; just below it, the weights are not."""
    save_model(large(), tmp_path / "m.onnx")
    size = (tmp_path / "m.onnx").stat().st_size
    for limit, files in ((size + 100, 1), (size - 1, 2)):
        folder = tmp_path / str(files)
        folder.mkdir()
        save_model(large(), folder / "m.onnx", inline_limit=limit)
        assert len(list(folder.iterdir())) == files
        np.testing.assert_array_equal(
            load_model(folder / "m.onnx").graph.initializers["w"].const_value.numpy(),
            np.arange(1024, dtype=np.float32),
        )


def test_without_large_weights_there_is_one_file_at_any_limit(tmp_path):
    proto = parsed("g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }")
    save_model(ir.from_proto(proto), tmp_path / "m.onnx", inline_limit=0)
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]
    onnx.checker.check_model(onnx.load(tmp_path / "m.onnx"))


def test_a_model_that_no_protobuf_holds(tmp_path, monkeypatch):
    model = large()
    constant = ir.Node(
        "",
        "Constant",
        [],
        [ir.AttrTensor("value", ir.Tensor(np.zeros(9000, np.float32)))],
        name="c",
    )
    constant.outputs[0].name = "constant"
    model.graph.insert_before(model.graph[0], constant)
    monkeypatch.setattr(save_module, "_PROTOBUF_LIMIT", 20_000)
    with pytest.raises(ModelError, match=r"takes \d+ bytes without its initializers, more than"):
        save_model(model, tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


def test_no_file_has_a_nul_in_its_name(tmp_path):
    with pytest.raises(UsageError, match="is no file name: it has a NUL"):
        save_module._refuse_target(tmp_path / "a\0b")


def test_an_if_that_lacks_a_branch_decides_no_shapes(tmp_path):
    """Of another version, say: what it has is followed."""
    text = """<ir_version: 10, opset_import: ["" : 21]>
        g (float[8] x, bool c) => (float[?] y) <int64[200] s> {
            [if] t = If(c) <then_branch = a () => (int64[200] p) { p = Identity(s) },
                            else_branch = b () => (int64[200] q) { q = Identity(s) }>
            y = Reshape(x, t) }"""
    model = ir.from_onnx_text(text, initializers=[ir.Tensor(np.ones(200, np.int64), name="s")])
    assert {value.name for value in save_module.shape_operands(model)} == {"s"}
    del model.graph[0].attributes["else_branch"]
    assert {value.name for value in save_module.shape_operands(model)} == {"s"}
    del model.graph[0].attributes["then_branch"]
    assert save_module.shape_operands(model) == set()


def test_what_has_memory_of_its_own_or_none_stays():
    model = large()
    (weight, k) = model.graph.initializers["w"], model.graph.initializers["k"]
    kept, k.const_value = weight.const_value, None
    replace_tensors(model, {}, "m")
    assert weight.const_value is kept
    assert k.const_value is None


def test_bytes_that_are_none():
    with pytest.raises(ModelError, match="there are none"):
        load_bytes(b"")
