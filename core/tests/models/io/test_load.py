"""What load_model reads, and from where."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from narrowpass_ir.errors import ModelError
from narrowpass_ir.io import MappedTensor, load_model

NEWEST = onnx.defs.onnx_opset_version()
OPSETS = [helper.make_opsetid("", NEWEST), helper.make_opsetid("mine", 1)]
DTYPES = [
    value
    for name, value in TensorProto.DataType.items()
    if name not in ("UNDEFINED", "STRING") and value in set(ir.DataType)
]


def tensor_of(dtype: int, name: str, count: int = 5) -> onnx.TensorProto:
    """A tensor with raw data, of numbers that the type can hold."""
    kind = ir.DataType(dtype).numpy()
    array = (np.arange(count) % 2).astype(kind)
    return ir.to_proto(ir.Tensor(array, dtype=ir.DataType(dtype), name=name))


def identity_model(tensors: list[onnx.TensorProto]) -> onnx.ModelProto:
    nodes = []
    outputs = []
    for tensor in tensors:
        name = f"out_{tensor.name}"
        if TensorProto.DataType.Name(tensor.data_type).startswith("FLOAT6"):
            continue  # Identity does not take it
        nodes.append(helper.make_node("Identity", [tensor.name], [name]))
        shape = list(tensor.dims)
        outputs.append(helper.make_tensor_value_info(name, tensor.data_type, shape))
    graph = helper.make_graph(nodes, "g", [], outputs, tensors)
    return helper.make_model(graph, ir_version=onnx.IR_VERSION, opset_imports=OPSETS)


def move_out(tensor: onnx.TensorProto, data: bytearray, location: str = "m.data") -> None:
    data.extend(bytes(-len(data) % 64))
    raw = tensor.raw_data
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", len(data)), ("length", len(raw))):
        tensor.external_data.add(key=key, value=str(value))
    data.extend(raw)


def save(folder: Path, model: onnx.ModelProto, data: bytes | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    if data is not None:
        (folder / "m.data").write_bytes(data)
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    return folder / "m.onnx"


def const(model: ir.Model, name: str) -> ir.TensorProtocol:
    tensor = model.graph.initializers[name].const_value
    assert tensor is not None
    return tensor


@pytest.mark.parametrize("dtype", DTYPES, ids=TensorProto.DataType.Name)
def test_every_type_inside_and_outside(dtype: int, tmp_path: Path) -> None:
    inside, outside = tensor_of(dtype, "inside"), tensor_of(dtype, "outside")
    raw = inside.raw_data
    data = bytearray(b"padding")
    move_out(outside, data)
    model = load_model(save(tmp_path, identity_model([inside, outside]), data))
    assert isinstance(const(model, "outside"), MappedTensor)
    for name in ("inside", "outside"):
        tensor = const(model, name)
        assert tensor.dtype == dtype
        assert tensor.tobytes() == raw
        assert tensor.numpy().dtype == ir.DataType(dtype).numpy()
        expected = (np.arange(5) % 2).astype(tensor.numpy().dtype)
        assert tensor.numpy().tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", DTYPES, ids=TensorProto.DataType.Name)
def test_every_type_in_typed_fields(dtype: int, tmp_path: Path) -> None:
    # No zero: one of the types has none.
    values = [1, 1, 2, 1, 1, 2] if dtype == 24 else [0, 1, 0, 1, 1, 0]
    tensor = helper.make_tensor("w", dtype, [6], values, raw=False)
    assert not tensor.HasField("raw_data")
    model = load_model(save(tmp_path, identity_model([tensor])))
    read = const(model, "w")
    assert read.tobytes() == ir.TensorProtoTensor(tensor).tobytes()
    assert read.numpy().astype(np.float64 if dtype not in (14, 15) else complex).tolist() == values


def test_strings_and_zero_sizes(tmp_path: Path) -> None:
    strings = helper.make_tensor("s", TensorProto.STRING, [2, 1], [b"a", b"\xff"])
    empty = numpy_helper.from_array(np.zeros((0, 3), np.float32), "e")
    typed = onnx.TensorProto(name="t", dims=[2, 0], data_type=TensorProto.INT64)
    none = helper.make_tensor("n", TensorProto.STRING, [0], [])
    model = load_model(save(tmp_path, identity_model([strings, empty, typed, none])))
    assert const(model, "s").numpy().tolist() == [[b"a"], [b"\xff"]]
    assert const(model, "e").numpy().shape == (0, 3)
    assert const(model, "t").numpy().shape == (2, 0)
    assert const(model, "n").numpy().shape == (0,)


def test_zero_size_outside(tmp_path: Path) -> None:
    tensor = numpy_helper.from_array(np.zeros((0, 3), np.float32), "e")
    data = bytearray()
    move_out(tensor, data)
    model = load_model(save(tmp_path, identity_model([tensor]), data))
    assert const(model, "e").numpy().shape == (0, 3)


def test_length_and_offset_may_be_left_out(tmp_path: Path) -> None:
    tensor = numpy_helper.from_array(np.arange(6, dtype=np.float32), "w")
    data = bytearray()
    move_out(tensor, data)
    del tensor.external_data[1:]
    tensor.external_data.add(key="checksum", value="unused")
    tensor.external_data.add(key="unknown", value="key")
    model = load_model(save(tmp_path, identity_model([tensor]), data))
    assert const(model, "w").numpy().tolist() == list(range(6))


def test_outside_everywhere(tmp_path: Path) -> None:
    """In subgraphs of subgraphs, in node attributes, inside functions, in their defaults."""
    data = bytearray()

    def weight(value: float, name: str = "") -> onnx.TensorProto:
        tensor = numpy_helper.from_array(np.full(4, value, np.float32), name)
        move_out(tensor, data)
        return tensor

    def info(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [4])

    add = helper.make_node("Add", ["x", "v"], ["deep"])
    deep = helper.make_graph([add], "deep", [], [info("deep")], [weight(1, "v")])
    inner = helper.make_node("If", ["c"], ["t"], then_branch=deep, else_branch=deep)
    then = helper.make_graph([inner], "then", [], [info("t")])
    constant = helper.make_node("Constant", [], ["u"], value=weight(2))
    other = helper.make_graph([constant], "other", [], [info("u")])
    node = helper.make_node("If", ["c"], ["z"], then_branch=then, else_branch=other)
    call = helper.make_node("f", ["z"], ["y"], domain="mine")
    body = [
        helper.make_node("Constant", [], ["k"], value=weight(3)),
        helper.make_node("Constant", [], ["d"]),
        helper.make_node("Sum", ["a", "k", "d"], ["b"]),
    ]
    reference = body[1].attribute.add(name="value", ref_attr_name="p", type=4)
    assert reference.type == onnx.AttributeProto.TENSOR
    default = helper.make_attribute("p", weight(4))
    function = helper.make_function(
        "mine", "f", ["a"], ["b"], body, OPSETS, attribute_protos=[default]
    )
    condition = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    graph = helper.make_graph([node, call], "g", [info("x"), condition], [info("y")])
    proto = helper.make_model(graph, ir_version=10, opset_imports=OPSETS, functions=[function])

    model = load_model(save(tmp_path, proto, data))
    found: list[MappedTensor] = []
    containers: list[Any] = [model.graph, *model.functions.values()]
    for container in containers:
        for item in ir.traversal.RecursiveGraphIterator(container):
            for attribute in item.attributes.values():
                if attribute.is_ref():
                    continue
                if attribute.type == ir.AttributeType.TENSOR:
                    found.append(attribute.as_tensor())
                if attribute.type == ir.AttributeType.GRAPH:
                    values = attribute.as_graph().initializers.values()
                    found.extend(value.const_value for value in values)
    found.append(next(iter(model.functions.values())).attributes["p"].as_tensor())
    assert all(isinstance(tensor, MappedTensor) for tensor in found)
    assert sorted(float(tensor.numpy()[0]) for tensor in found) == [1, 1, 2, 3, 4]
    assert len({id(tensor.file) for tensor in found}) == 1


def hub(folder: Path, model: Path) -> Path:
    """The layout of a model hub's cache: names that link to blobs, which are named by hash."""
    blobs, snapshot = folder / "blobs", folder / "snapshots" / "abc" / "onnx"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for name, blob in (("m.onnx", "aaa"), ("m.data", "bbb")):
        (model.parent / name).rename(blobs / blob)
        (snapshot / name).symlink_to(f"../../../blobs/{blob}")
    return snapshot / "m.onnx"


def link_inside(folder: Path, model: Path) -> Path:
    (model.parent / "real").mkdir()
    (model.parent / "m.data").rename(model.parent / "real" / "x")
    (model.parent / "m.data").symlink_to("real/x")
    return model


def linked_folder(folder: Path, model: Path) -> Path:
    (folder / "shortcut").symlink_to(model.parent.name)
    return folder / "shortcut" / "m.onnx"


def linked_model(folder: Path, model: Path) -> Path:
    (model.parent / "alias.onnx").symlink_to("m.onnx")
    return model.parent / "alias.onnx"


@pytest.mark.parametrize(
    "arrange", [hub, link_inside, linked_folder, linked_model], ids=lambda f: f.__name__
)
def test_links(
    arrange: Callable[[Path, Path], Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = bytearray()
    tensor = numpy_helper.from_array(np.arange(6, dtype=np.float32), "w")
    move_out(tensor, data)
    path = arrange(tmp_path, save(tmp_path / "model", identity_model([tensor]), data))
    assert const(load_model(path), "w").numpy().tolist() == list(range(6))
    assert not caplog.records


@pytest.mark.parametrize("value", [None, "", "0", "1"])
@pytest.mark.parametrize("name", ["other/m.data", "model/second"])
def test_hard_links(
    name: str, value: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the other name is; backups and package managers create such links."""
    data = bytearray()
    tensor = numpy_helper.from_array(np.arange(6, dtype=np.float32), "w")
    move_out(tensor, data)
    path = save(tmp_path / "model", identity_model([tensor]), data)
    (tmp_path / "other").mkdir()
    os.link(path.parent / "m.data", tmp_path / name)
    monkeypatch.delenv("NARROWPASS_ALLOW_HARD_LINKS", raising=False)
    if value is not None:
        monkeypatch.setenv("NARROWPASS_ALLOW_HARD_LINKS", value)
    if value != "1":
        with pytest.raises(ModelError, match=r"'w'.*m\.data has 2 names.*NARROWPASS_ALLOW_HARD"):
            load_model(path)
        (path.parent / "copy").write_bytes(data)
        (path.parent / "copy").replace(path.parent / "m.data")
    assert const(load_model(path), "w").numpy().tolist() == list(range(6))


def test_a_data_file_that_becomes_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at a path and the opening of it."""
    data = bytearray()
    tensor = numpy_helper.from_array(np.arange(6, dtype=np.float32), "w")
    move_out(tensor, data)
    path = save(tmp_path / "model", identity_model([tensor]), data)
    place, real = path.parent / "m.data", os.open
    (tmp_path / "secret").write_bytes(bytes(len(data)))

    def swapped(name: str | os.PathLike[str], *args: Any, **more: Any) -> int:
        if Path(name) == place:
            place.unlink()
            place.symlink_to(tmp_path / "secret")
        return real(name, *args, **more)

    monkeypatch.setattr(os, "open", swapped)
    with pytest.raises(ModelError, match=r"'w'.*m\.data cannot be opened"):
        load_model(path)


def test_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytearray()
    tensor = numpy_helper.from_array(np.arange(6, dtype=np.float32), "w")
    move_out(tensor, data, "sub/m.data")
    path = save(tmp_path, identity_model([tensor]))
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "m.data").write_bytes(data)
    monkeypatch.chdir(tmp_path)
    model = load_model(path.name)
    monkeypatch.chdir("/")
    assert const(model, "w").numpy().tolist() == list(range(6))


def test_one_descriptor_for_a_file(tmp_path: Path) -> None:
    data = bytearray()
    tensors = [tensor_of(TensorProto.FLOAT, f"w{i}") for i in range(50)]
    for tensor in tensors:
        move_out(tensor, data)
    path = save(tmp_path, identity_model(tensors), data)
    gc.collect()
    before = len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").is_dir() else 0
    model = load_model(path)
    files = {id(const(model, f"w{i}").raw) for i in range(50)}
    assert len(files) == 1
    if before:
        assert len(list(Path("/proc/self/fd").iterdir())) == before + 1


def test_checker_warns_once_and_does_not_stop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # onnx.checker wants a shape for every output; nothing here needs one.
    proto = identity_model([tensor_of(TensorProto.FLOAT, "w")])
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    with caplog.at_level(logging.WARNING):
        load_model(save(tmp_path, proto))
    (record,) = caplog.records
    assert record.name == "narrowpass"
    assert "m.onnx: onnx.checker says: Field 'shape'" in record.getMessage()


def test_inputs_with_a_default_stay_inputs(tmp_path: Path) -> None:
    proto = identity_model([tensor_of(TensorProto.FLOAT, "w")])
    proto.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [5]))
    proto.ir_version = 3
    proto.opset_import[0].version = 13
    model = load_model(save(tmp_path, proto))
    assert [value.name for value in model.graph.inputs] == ["w"]
    assert const(model, "w").numpy().tolist() == [0, 1, 0, 1, 0]


def test_long_name_of_the_default_domain(tmp_path: Path) -> None:
    proto = identity_model([tensor_of(TensorProto.FLOAT, "w")])
    proto.opset_import[0].domain = "ai.onnx"
    proto.graph.node[0].domain = "ai.onnx"
    assert load_model(save(tmp_path, proto)).opset_imports[""] == NEWEST


def test_the_file_is_not_kept_alive(tmp_path: Path) -> None:
    path = save(tmp_path, identity_model([tensor_of(TensorProto.FLOAT, "alone", 1000)]))
    model = load_model(path)
    gc.collect()
    protos = [o for o in gc.get_objects() if isinstance(o, onnx.TensorProto) and o.name == "alone"]
    assert not protos
    assert const(model, "alone").numpy().sum() == 500


@pytest.mark.parametrize("dim", [-1, "?", "-1"])
def test_dimensions_that_exporters_did_not_know(dim: int | str, tmp_path: Path) -> None:
    """What stands for any size is no name: two such dimensions need not be equal."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [dim, 3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [dim, 3])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=OPSETS[:1]), path)
    model = load_model(path)
    for value in (model.graph.inputs[0], model.graph.outputs[0]):
        assert value.shape is not None
        assert [dim if isinstance(dim, int) else dim.value for dim in value.shape] == [None, 3]
