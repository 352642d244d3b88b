"""Files and calls that load_model refuses, each with a sentence that says which part and why."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from narrowpass_ir.errors import ModelError, NarrowpassError, UsageError
from narrowpass_ir.io import load_model

X = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
Y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])
WEIGHT = numpy_helper.from_array(np.arange(6, dtype=np.float32).reshape(2, 3), "w")


def base(**changes: object) -> onnx.ModelProto:
    nodes = [helper.make_node("Add", ["x", "w"], ["y"], name="add")]
    graph = helper.make_graph(nodes, "g", [X], [Y], [WEIGHT])
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    for key, value in changes.items():
        setattr(model, key, value)
    return model


def external(
    location: str | None = "w.bin",
    offset: str | None = "0",
    length: str | None = "24",
    dtype: int = TensorProto.FLOAT,
) -> onnx.ModelProto:
    model = base()
    refer(model.graph.initializer[0], location, offset, length)
    model.graph.initializer[0].data_type = dtype
    return model


def refer(
    tensor: onnx.TensorProto, location: str | None, offset: str | None, length: str | None
) -> None:
    for field in ("raw_data", "float_data"):
        tensor.ClearField(field)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        if value is not None:
            tensor.external_data.add(key=key, value=value)


def write(folder: Path, model: onnx.ModelProto | bytes, data: int | None = 24) -> Path:
    path = folder / "m.onnx"
    path.write_bytes(model if isinstance(model, bytes) else model.SerializeToString())
    if data is not None:
        (folder / "w.bin").write_bytes(bytes(data))
    return path


def changed(change: Callable[[onnx.ModelProto], object]) -> onnx.ModelProto:
    model = base()
    change(model)
    return model


def add_sparse_attribute(model: onnx.ModelProto) -> None:
    values = numpy_helper.from_array(np.ones(1, np.float32), "thin")
    indices = numpy_helper.from_array(np.zeros(1, np.int64), "at")
    sparse = helper.make_sparse_tensor(values, indices, [4])
    node = helper.make_node("Thin", [], ["c"], name="c", domain="other", other=sparse)
    model.graph.node.append(node)


def in_branch(change: Callable[[onnx.GraphProto], object]) -> onnx.ModelProto:
    out = helper.make_tensor_value_info("t", TensorProto.FLOAT, [2, 3])
    copied = onnx.TensorProto()
    copied.CopyFrom(WEIGHT)
    copied.name = "v"
    node = helper.make_node("Add", ["x", "v"], ["t"])
    branch = helper.make_graph([node], "branch", [], [out], [copied])
    change(branch)
    cond = helper.make_tensor_value_info("cond", TensorProto.BOOL, [])
    node = helper.make_node("If", ["cond"], ["y"], then_branch=branch, else_branch=branch)
    graph = helper.make_graph([node], "g", [X, cond], [Y])
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


def referring(type_: onnx.AttributeProto.AttributeType) -> onnx.ModelProto:
    model = in_branch(lambda graph: None)
    model.graph.node[0].attribute[1].Clear()
    given = {"name": "then_branch", "ref_attr_name": "branch", "type": type_}
    model.graph.node[0].attribute[1].MergeFrom(onnx.AttributeProto(**given))
    return model


def in_constant(change: Callable[[onnx.TensorProto], object]) -> onnx.ModelProto:
    model = base()
    del model.graph.initializer[:]
    model.graph.node.insert(0, helper.make_node("Constant", [], ["w"], name="c", value=WEIGHT))
    change(model.graph.node[0].attribute[0].t)
    return model


def in_function(change: Callable[[onnx.TensorProto], object]) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Constant", [], ["w"], name="c", value=WEIGHT),
        helper.make_node("Add", ["a", "w"], ["b"]),
    ]
    change(nodes[0].attribute[0].t)
    opsets = [helper.make_opsetid("", 17)]
    function = helper.make_function("mine", "f", ["a"], ["b"], nodes, opsets)
    graph = helper.make_graph([helper.make_node("f", ["x"], ["y"], domain="mine")], "g", [X], [Y])
    return helper.make_model(
        graph,
        ir_version=9,
        functions=[function],
        opset_imports=[*opsets, helper.make_opsetid("mine", 1)],
    )


def with_type(fill: Callable[[onnx.TypeProto], object]) -> onnx.ModelProto:
    model = base()
    info = model.graph.input.add(name="other")
    fill(info.type)
    return model


def ml_model(version: int) -> onnx.ModelProto:
    model = base()
    model.graph.node.insert(
        0, helper.make_node("Scaler", ["x"], ["z"], name="sc", domain="ai.onnx.ml")
    )
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", version))
    return model


def opset(*versions: tuple[str, int]) -> onnx.ModelProto:
    model = base()
    del model.opset_import[:]
    model.opset_import.extend(helper.make_opsetid(*entry) for entry in versions)
    return model


def function_opset(version: int) -> onnx.ModelProto:
    model = in_function(lambda tensor: None)
    model.functions[0].opset_import[0].version = version
    return model


WHOLE = base().SerializeToString()
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n"
NEWEST = onnx.defs.onnx_opset_version()

FILES: dict[str, tuple[onnx.ModelProto | bytes, str]] = {
    "empty": (b"", "is empty"),
    "cut": (WHOLE[: len(WHOLE) // 2], "cut short"),
    "cut by one byte": (WHOLE[:-1], "cut short"),
    "text": (b"hello world, this is no model", "cut short|no graph"),
    "lfs pointer": (LFS, "git lfs pull"),
    "zip": (b"PK\x03\x04 and more", "zip archive"),
    "gzip": (b"\x1f\x8b\x08\x00", "gzip"),
    "html": (b"<!DOCTYPE html><html>404", "web page"),
    "json": (b'{"irVersion": 8}', "JSON"),
    "no graph": (changed(lambda m: m.ClearField("graph")), "no graph"),
    "no ir_version": (changed(lambda m: m.ClearField("ir_version")), "no ir_version"),
    "no opset import": (opset(), "no opset_import"),
    "old ir": (base(ir_version=2), "IR version 2 is too old"),
    "new ir": (base(ir_version=999), "IR version 999 is newer.*upgrade"),
    "negative ir": (base(ir_version=-5), "IR version -5"),
    "new opset": (opset(("", NEWEST + 1)), f"opset {NEWEST + 1} of ai.onnx.* up to {NEWEST}"),
    "new opset, long name": (opset(("ai.onnx", 999)), "opset 999 of ai.onnx"),
    "opset 0": (opset(("", 0)), "version 0 of operator set ai.onnx"),
    "opset -1": (opset(("", -1)), "version -1"),
    "opset twice": (opset(("", 17), ("ai.onnx", 13)), "ai.onnx twice, as version 17 and 13"),
    "no ai.onnx": (opset(("ai.onnx.ml", 1)), "'add' .*ai.onnx, which the model does not import"),
    "new opset in function": (function_opset(999), "function 'mine::f' uses opset 999"),
    "new ml opset, used": (ml_model(999), "'sc' .*version 999 of operator set ai.onnx.ml"),
    "sparse attribute": (changed(add_sparse_attribute), "'other' of node 'c'.*sparse"),
    "unnamed initializer": (
        changed(lambda m: m.graph.initializer.add(dims=[1], data_type=1, float_data=[1])),
        "initializer 1 of the graph has no name",
    ),
    "two of a name": (
        changed(lambda m: m.graph.initializer.append(WEIGHT)),
        "two initializers named 'w'",
    ),
    "two of a name in a subgraph": (
        in_branch(lambda g: g.initializer.append(g.initializer[0])),
        "subgraph 'branch' has two initializers named 'v'",
    ),
    "a graph of the caller": (
        referring(onnx.AttributeProto.GRAPH),
        "'then_branch' of the If node .* is a graph that a function is called with",
    ),
    "graphs of the caller": (
        referring(onnx.AttributeProto.GRAPHS),
        "'then_branch' of the If node .* is a graph that a function is called with",
    ),
    "sparse in a subgraph, of no type": (
        in_branch(lambda g: g.sparse_initializer.add()),
        "sparse initializer '': its element type is 0",
    ),
    "initializer is an output too": (
        changed(lambda m: m.graph.node.append(helper.make_node("Neg", ["x"], ["w"], name="n"))),
        "'w' is both an initializer.*output of node 'n'",
    ),
    "output twice": (
        changed(lambda m: m.graph.node.append(helper.make_node("Neg", ["x"], ["y"], name="n"))),
        "'y' is redeclared",
    ),
    "unproduced output": (
        changed(lambda m: m.graph.output.add(name="nobody")),
        "output 'nobody' of the graph is not computed",
    ),
    "unnamed output": (changed(lambda m: m.graph.output.add()), "output '' of the graph"),
    "outer value as output of a subgraph": (
        in_branch(lambda g: setattr(g.output[0], "name", "x")),
        "output 'x' of subgraph 'branch' is not computed.*Identity",
    ),
    "unproduced output of a function": (
        changed(
            lambda m: m.functions.add(
                domain="mine",
                name="f",
                input=["a"],
                output=["zz"],
                opset_import=[helper.make_opsetid("", 17)],
            )
        ),
        "output 'zz' of function 'mine::f'",
    ),
    "undefined input": (
        changed(lambda m: m.graph.node[0].input.__setitem__(1, "nobody")),
        "'nobody'",
    ),
    "nodes out of order": (
        changed(
            lambda m: (
                m.graph.node.append(helper.make_node("Neg", ["x"], ["late"], name="n")),
                m.graph.node[0].input.__setitem__(1, "late"),
            )
        ),
        "'late'",
    ),
    "raw data too short": (
        changed(lambda m: setattr(m.graph.initializer[0], "raw_data", bytes(20))),
        r"initializer 'w': holds 20 bytes, but float\[2, 3\] takes 24",
    ),
    "raw data too long": (
        changed(lambda m: setattr(m.graph.initializer[0], "raw_data", bytes(25))),
        "holds 25 bytes",
    ),
    "no data": (
        changed(lambda m: m.graph.initializer[0].ClearField("raw_data")),
        "holds 0 elements",
    ),
    "too few typed elements": (
        changed(
            lambda m: (
                m.graph.initializer[0].ClearField("raw_data"),
                m.graph.initializer[0].float_data.extend([1.0] * 5),
            )
        ),
        r"holds 5 elements, but float\[2, 3\] takes 6",
    ),
    "data in the wrong field": (
        changed(
            lambda m: (
                m.graph.initializer[0].ClearField("raw_data"),
                m.graph.initializer[0].int32_data.extend([1] * 6),
            )
        ),
        "holds 0 elements",
    ),
    "too few strings": (
        changed(
            lambda m: m.graph.initializer.add(
                name="s", dims=[2], data_type=TensorProto.STRING, string_data=[b"a"]
            )
        ),
        "'s': holds 1 elements",
    ),
    "huge dimensions": (
        changed(lambda m: m.graph.initializer[0].dims.extend([2**62, 2**62])),
        "holds 24 bytes",
    ),
    "negative dimension": (
        changed(lambda m: m.graph.initializer[0].dims.__setitem__(0, -2)),
        "none may be negative",
    ),
    "unknown element type": (
        changed(lambda m: setattr(m.graph.initializer[0], "data_type", 99)),
        "element type is 99",
    ),
    "undefined element type": (
        changed(lambda m: setattr(m.graph.initializer[0], "data_type", 0)),
        "element type is 0",
    ),
    "short constant": (
        in_constant(lambda t: setattr(t, "raw_data", bytes(4))),
        "'c'.*holds 4 bytes",
    ),
    "short constant in a function": (
        in_function(lambda t: setattr(t, "raw_data", bytes(4))),
        "'c'.*holds 4 bytes",
    ),
    "short initializer of a subgraph": (
        in_branch(lambda g: setattr(g.initializer[0], "raw_data", bytes(4))),
        "'v': holds 4 bytes",
    ),
    "map type": (
        with_type(lambda t: t.map_type.value_type.tensor_type.SetInParent()),
        "'other' is a map.*ZipMap",
    ),
    "sequence of maps": (
        with_type(lambda t: t.sequence_type.elem_type.map_type.SetInParent()),
        "'other' is a map",
    ),
    "unknown type of a value": (
        with_type(lambda t: setattr(t.tensor_type, "elem_type", 77)),
        "'other' has element type 77",
    ),
    "missing file": (external("gone.bin"), "initializer 'w'.*gone.bin does not exist"),
    "offset past the end": (external(offset="8"), "needs bytes 8 to 32.*that file has 24"),
    "negative offset": (external(offset="-1"), "offset of its external data is '-1'"),
    "offset is no number": (external(offset="0x10"), "offset of its external data is '0x10'"),
    "offset overflows": (external(offset=str(2**64)), "offset of its external data"),
    "offset nearly overflows": (external(offset=str(2**63 - 1)), "that file has 24"),
    "negative length": (external(length="-24"), "length of its external data is '-24'"),
    "length too short": (external(length="20"), r"is 20 bytes, but float\[2, 3\] takes 24"),
    "length too long": (external(length="25"), "is 25 bytes"),
    "length overflows": (external(length="9" * 400), "length of its external data"),
    "no location": (external(location=None), "names no file"),
    "empty location": (external(location=""), "names no file"),
    "absolute location": (
        external(location="/etc/hostname"),
        "only files in the model's own folder",
    ),
    "location above": (external(location="../w.bin"), "only files in the model's own folder"),
    "location up and down": (external(location="a/../w.bin"), "model's own folder"),
    "location is the folder": (external(location="."), "not a regular file"),
    "location has a NUL": (external(location="w\0.bin"), "no file name"),
    "external strings": (external(dtype=TensorProto.STRING), "strings cannot be stored outside"),
    "external of unknown type": (external(dtype=99), "element type is 99"),
    "external constant": (
        in_constant(lambda t: refer(t, "gone.bin", "0", "24")),
        "attribute 'value' of node 'c'.*gone.bin does not exist",
    ),
    "external constant of a function": (
        in_function(lambda t: refer(t, "../w.bin", "0", "24")),
        "attribute 'value' of node 'c'.*own folder",
    ),
    "external in a subgraph": (
        in_branch(lambda g: refer(g.initializer[0], "w.bin", "8", "24")),
        "initializer 'v'.*needs bytes 8 to 32",
    ),
}


@pytest.mark.parametrize(("content", "message"), FILES.values(), ids=FILES.keys())
def test_refused_file(content: onnx.ModelProto | bytes, message: str, tmp_path: Path) -> None:
    path = write(tmp_path, content)
    with pytest.raises(ModelError, match=message) as caught:
        load_model(path)
    assert caught.value.exit_code == 1
    assert "\n" not in str(caught.value) or "problems" in vars(caught.value)


def missing(folder: Path) -> Path:
    return folder / "none.onnx"


def dangling(folder: Path) -> Path:
    (folder / "link.onnx").symlink_to("gone.onnx")
    return folder / "link.onnx"


def fifo(folder: Path) -> Path:
    os.mkfifo(folder / "pipe.onnx")
    return folder / "pipe.onnx"


def below_a_file(folder: Path) -> Path:
    return write(folder, base()) / "m.onnx"


@pytest.mark.parametrize(
    ("create", "message"),
    [
        (missing, "none.onnx: no such file"),
        (dangling, "link to a file that is gone"),
        (lambda folder: folder, "is a folder"),
        (fifo, "not a regular file"),
        (below_a_file, "cannot be read: Not a directory"),
        (lambda folder: Path("/dev/null"), "not a regular file"),
        (lambda folder: Path("a\0b"), "no file name"),
        (lambda folder: folder / ("n" * 300), "cannot be read: File name too long"),
    ],
    ids=["missing", "dangling", "folder", "fifo", "below a file", "device", "NUL", "long"],
)
def test_refused_path(create: Callable[[Path], Path], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        load_model(create(tmp_path))
    assert caught.value.exit_code == 2


def test_unreadable_file(tmp_path: Path) -> None:
    path = write(tmp_path, base())
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("the superuser reads everything")
    with pytest.raises(UsageError, match="cannot be read: Permission denied"):
        load_model(path)


def create_fifo(path: Path) -> None:
    os.mkfifo(path)


def create_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(path))


def create_lfs(path: Path) -> None:
    path.write_bytes(LFS)


@pytest.mark.parametrize(
    ("create", "message"),
    [
        (create_fifo, "not a regular file"),
        (Path.mkdir, "not a regular file"),
        (create_socket, "not a regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "leaves the model's folder"),
        (lambda path: path.symlink_to(path.name), "cannot be read"),
        (lambda path: path.symlink_to("gone"), "does not exist"),
        (create_lfs, "git lfs pull"),
    ],
    ids=["fifo", "folder", "socket", "link to a device", "link to itself", "dangling", "lfs"],
)
def test_refused_data_file(
    create: Callable[[Path], None], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path, external(), data=None)
    create(tmp_path / "w.bin")
    with pytest.raises(ModelError, match=message):
        load_model(path)


def test_link_that_leaves_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(bytes(24))
    path = write(folder, external(), data=None)
    (folder / "w.bin").symlink_to("../secret")
    with pytest.raises(ModelError, match="link that leaves the model's folder"):
        load_model(path)


def test_linked_folder_that_leaves(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "w.bin").write_bytes(bytes(24))
    (folder / "sub").symlink_to("../other")
    path = write(folder, external("sub/w.bin"), data=None)
    with pytest.raises(ModelError, match="link that leaves the model's folder"):
        load_model(path)


def test_broken_files_never_raise_anything_else(tmp_path: Path) -> None:
    whole = base().SerializeToString()
    generator = np.random.default_rng(0)
    for _ in range(400):
        damaged = bytearray(whole)
        for _ in range(generator.integers(1, 4)):
            damaged[generator.integers(len(damaged))] = generator.integers(256)
        path = write(tmp_path, bytes(damaged))
        try:
            load_model(path)
        except NarrowpassError as error:
            assert str(error)  # noqa: PT017  # most damage is found; some leaves a valid model


@pytest.mark.parametrize("text", ["a1", "a->b->c", "é"])
def test_an_equation_that_is_none(text: str, tmp_path: Path) -> None:
    """Whatever the domain: of this one onnx has no operators, and reads nothing."""
    model = base()
    model.opset_import.add(domain="mine", version=1)
    node = helper.make_node("Einsum", ["x"], ["y"], domain="mine", equation=text)
    model.graph.node[0].CopyFrom(node)
    with pytest.raises(ModelError, match="it can have letters, commas, spaces"):
        load_model(write(tmp_path, model))


@pytest.mark.parametrize("text", ["ab", " a b -> ba ", "...a->...", "aB->"])
def test_an_equation_that_is_one(text: str, tmp_path: Path) -> None:
    model = base()
    model.graph.node[0].CopyFrom(helper.make_node("Einsum", ["x"], ["y"], equation=text))
    model.graph.output[0].type.tensor_type.ClearField("shape")
    assert load_model(write(tmp_path, model)).graph[0].op_type == "Einsum"


def test_new_set_that_no_node_uses_is_harmless(tmp_path: Path) -> None:
    model = opset(("", 17), ("ai.onnx.training", 999), ("ai.onnx.ml", 999), ("mine", 5))
    assert load_model(write(tmp_path, model)).opset_imports["ai.onnx.training"] == 999
