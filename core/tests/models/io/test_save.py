"""What save_model writes, and what it leaves alone."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from narrowpass_ir.errors import ModelError, OutputError, UsageError
from narrowpass_ir.io import load_model, save_model, serialize
from narrowpass_ir.io import save as save_module
from narrowpass_ir.verify import fingerprint

DTYPES = [d for d in ir.DataType if d not in (ir.DataType.UNDEFINED, ir.DataType.STRING)]


def model_of(seed: int = 0, size: int = 4096) -> ir.Model:
    """x + w + w2 + k with two weights of `size` floats and a shape of 256 bytes or more."""
    generator = np.random.default_rng(seed)
    text = f"""<ir_version: 10, opset_import: ["" : 21], producer_name: "somebody">
        g(float[{size}] x) => (float[{size}] y)
        <float[{size}] w, float[{size}] w2, int64[1] shape = {{-1}}, float k = {{3}}>
        {{ a = Add(x, w)  b = Add(a, w2)  c = Reshape(b, shape)  y = Add(c, k) }}"""
    weights = [
        ir.Tensor(generator.standard_normal(size).astype(np.float32), name=name)
        for name in ("w", "w2")
    ]
    return ir.from_onnx_text(text, initializers=weights)


def listing(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def outputs(model: Path | onnx.ModelProto) -> Any:
    feeds = {"x": np.linspace(-1, 1, 4096, dtype=np.float32)}
    source: Any = str(model) if isinstance(model, Path) else model
    results: Any = ReferenceEvaluator(source).run(None, feeds)
    return results[0]


def bytes_of(model: ir.Model) -> bytes:
    return serialize(model, lambda scope, value: None).SerializeToString(deterministic=True)


def test_one_file_and_the_model_stays_as_it_was(tmp_path: Path) -> None:
    model = model_of()
    shared = model.graph.initializers["w"].const_value
    assert shared is not None
    shared.name = "a name of its own"
    before = fingerprint(model)
    save_model(model, tmp_path / "m.onnx")
    assert fingerprint(model) == before
    assert shared.name == "a name of its own"
    assert list(listing(tmp_path)) == ["m.onnx"]
    proto = onnx.load(tmp_path / "m.onnx")
    onnx.checker.check_model(proto, full_check=True)
    assert proto.producer_name == "somebody"
    expected = ReferenceEvaluator(ir.to_proto(model)).run(
        None, {"x": np.linspace(-1, 1, 4096, dtype=np.float32)}
    )[0]
    assert outputs(tmp_path / "m.onnx").tobytes() == expected.tobytes()


def test_data_beside(tmp_path: Path) -> None:
    model = model_of()
    before = fingerprint(model)
    save_model(model, tmp_path / "inline.onnx")
    save_model(model, tmp_path / "m.onnx", inline_limit=8192)
    assert fingerprint(model) == before
    (data,) = tmp_path.glob("m.onnx.*.data")
    assert len(list(tmp_path.iterdir())) == 3
    onnx.checker.check_model(str(tmp_path / "m.onnx"), full_check=True)
    proto = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    entries = {t.name: {e.key: e.value for e in t.external_data} for t in proto.graph.initializer}
    assert entries["shape"] == {}
    assert entries["k"] == {}
    assert entries["w"] == {"location": data.name, "offset": "0", "length": "16384"}
    assert int(entries["w2"]["offset"]) % 64 == 0
    same = outputs(tmp_path / "inline.onnx")
    assert outputs(tmp_path / "m.onnx").tobytes() == same.tobytes()
    # Back into one file: the data beside is not needed any more, and goes.
    save_model(load_model(tmp_path / "m.onnx"), tmp_path / "m.onnx")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["inline.onnx", "m.onnx"]
    assert (tmp_path / "m.onnx").read_bytes() == (tmp_path / "inline.onnx").read_bytes()


def test_onnxruntime_opens_the_data_beside(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    save_model(model_of(), tmp_path / "m.onnx", inline_limit=8192)
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    feeds = {"x": np.linspace(-1, 1, 4096, dtype=np.float32)}
    np.testing.assert_allclose(
        session.run(None, feeds)[0], outputs(tmp_path / "m.onnx"), rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("limit", [1 << 30, 8192])
def test_same_input_same_bytes(limit: int, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        save_model(model_of(), tmp_path / name / "m.onnx", inline_limit=limit)
    first = listing(tmp_path / "a")
    assert first == listing(tmp_path / "b")
    save_model(load_model(tmp_path / "a" / "m.onnx"), tmp_path / "b" / "m.onnx", inline_limit=limit)
    assert first == listing(tmp_path / "b")


def test_tied_weights_are_written_once(tmp_path: Path) -> None:
    model = model_of()
    tied = model.graph.initializers["w"].const_value
    model.graph.initializers["w2"].const_value = tied
    save_model(model, tmp_path / "m.onnx", inline_limit=8192)
    (data,) = tmp_path.glob("*.data")
    assert data.stat().st_size == 16384
    assert tied is not None
    assert tied.name == "w"
    again = load_model(tmp_path / "m.onnx")
    arrays = [again.graph.initializers[name].const_value for name in ("w", "w2")]
    assert arrays[0].numpy().tobytes() == arrays[1].numpy().tobytes()


def test_every_type_round_trips(tmp_path: Path) -> None:
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 25}, name="g")
    expected = {}
    for dtype in DTYPES:
        for count in (5, 5000):
            array = (np.arange(count) % 2).astype(dtype.numpy())
            name = f"{dtype.name}_{count}"
            tensor = ir.Tensor(array, dtype=dtype, name=name)
            value = ir.Value(
                name=name,
                type=ir.TensorType(dtype),
                shape=ir.Shape([count]),
                const_value=tensor,
            )
            graph.initializers[name] = value
            expected[name] = (dtype, array.tobytes())
            if dtype.bitwidth == 6:
                continue  # Identity does not take it
            node = ir.Node("", "Identity", [value], name=f"n_{name}")
            node.outputs[0].name = f"y_{name}"
            node.outputs[0].type = ir.TensorType(dtype)
            node.outputs[0].shape = ir.Shape([count])
            graph.append(node)
            graph.outputs.append(node.outputs[0])
    text = ir.StringTensor([b"a", b"b"], shape=ir.Shape([2]), name="text")
    graph.initializers["text"] = ir.Value(
        name="text", type=ir.TensorType(text.dtype), shape=ir.Shape([2]), const_value=text
    )
    model = ir.Model(graph, ir_version=13)
    for limit in (1 << 30, 8192):
        save_model(model, tmp_path / "m.onnx", inline_limit=limit)
        assert bool(list(tmp_path.glob("*.data"))) == (limit == 8192)
        again = load_model(tmp_path / "m.onnx")
        for name, (dtype, data) in expected.items():
            tensor = again.graph.initializers[name].const_value
            assert tensor is not None
            assert (name, tensor.dtype, tensor.numpy().tobytes()) == (name, dtype, data)
        assert again.graph.initializers["text"].const_value.numpy().tolist() == [b"a", b"b"]


def test_subgraph_initializers_go_beside_too(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]>
        g(float[2000] x, bool c) => (float[2000] y) {
          y = If (c) <
            then_branch = a () => (float[2000] t) <float[2000] v> { t = Add(x, v) },
            else_branch = b () => (float[2000] u) <float[2000] v> { u = Mul(x, v) }>
        }"""
    model = ir.from_onnx_text(text)
    (node,) = model.graph
    for number, branch in enumerate(("then_branch", "else_branch")):
        graph = node.attributes[branch].as_graph()
        value = next(n for n in graph).inputs[1]
        assert value is not None
        value.const_value = ir.Tensor(np.full(2000, number + 1, np.float32), name="v")
        graph.register_initializer(value)
    scopes = []
    serialize(model, lambda scope, value: scopes.append((scope, value.name)))
    assert scopes == [("y.then_branch/", "v"), ("y.else_branch/", "v")]
    save_model(model, tmp_path / "m.onnx", inline_limit=4096)
    (data,) = tmp_path.glob("*.data")
    assert data.stat().st_size == 16000
    for condition, expected in ((True, 3), (False, 4)):
        feeds = {"x": np.full(2000, 2, np.float32), "c": np.array(condition)}
        assert ReferenceEvaluator(str(tmp_path / "m.onnx")).run(None, feeds)[0][0] == expected


def test_metadata_is_not_repeated(tmp_path: Path) -> None:
    model = model_of()
    proto = ir.to_proto(model)
    proto.graph.initializer[0].metadata_props.add(key="b", value="1")
    proto.graph.initializer[0].metadata_props.add(key="a", value="2")
    for source in (ir.from_proto(proto), model):
        save_model(source, tmp_path / "m.onnx")
    save_model(ir.from_proto(proto), tmp_path / "m.onnx")
    for _ in range(2):
        save_model(load_model(tmp_path / "m.onnx"), tmp_path / "m.onnx")
        props = onnx.load(tmp_path / "m.onnx").graph.initializer[0].metadata_props
        assert [(entry.key, entry.value) for entry in props] == [("a", "2"), ("b", "1")]


def test_a_tensor_that_onnx_ir_reads_lazily_goes_inside(tmp_path: Path) -> None:
    save_model(model_of(), tmp_path / "m.onnx", inline_limit=8192)
    foreign = ir.load(tmp_path / "m.onnx")
    (tmp_path / "other").mkdir()
    save_model(foreign, tmp_path / "other" / "n.onnx")
    assert list(listing(tmp_path / "other")) == ["n.onnx"]
    assert isinstance(foreign.graph.initializers["w"].const_value, ir.ExternalTensor)
    expected = outputs(tmp_path / "m.onnx")
    assert outputs(tmp_path / "other" / "n.onnx").tobytes() == expected.tobytes()


def test_replaces_a_link_and_keeps_its_target(tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"kept")
    (tmp_path / "m.onnx").symlink_to("precious")
    save_model(model_of(), tmp_path / "m.onnx")
    assert (tmp_path / "precious").read_bytes() == b"kept"
    assert not (tmp_path / "m.onnx").is_symlink()


def test_permissions_follow_the_umask(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    save_model(model_of(), tmp_path / "m.onnx", inline_limit=8192)
    assert {path.stat().st_mode for path in tmp_path.iterdir()} == {
        (tmp_path / "plain").stat().st_mode
    }


def test_other_files_beside_stay(tmp_path: Path) -> None:
    names = ["n.onnx.01234567.data", "m.onnx.data", "m.onnx.0123.data", "m.onnx.bak"]
    for name in names:
        (tmp_path / name).touch()
    (tmp_path / "m.onnx.01234567.data").touch()
    save_model(model_of(), tmp_path / "m.onnx")
    assert sorted(listing(tmp_path)) == sorted([*names, "m.onnx"])


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (".", "is a folder"),
        ("/dev/null", "not a regular file"),
        ("a\0b", "no file name"),
    ],
)
def test_wrong_targets(target: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        save_model(model_of(), tmp_path / target)
    assert not list(tmp_path.iterdir())


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"none/m\.onnx: cannot be written: No such file"):
        save_model(model_of(), tmp_path / "none" / "m.onnx")


@pytest.mark.parametrize("limit", [1 << 30, 8192])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EIO])
@pytest.mark.parametrize("step", ["open", "write", "fsync", "rename"])
def test_a_failing_disk_leaves_the_old_file(
    step: str, number: int, limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(model_of(0), tmp_path / "m.onnx", inline_limit=8192)
    before = listing(tmp_path)

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise OSError(number, os.strerror(number))

    if step == "open":
        original = os.open

        def opens(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
            return fail() if flags & os.O_CREAT else original(path, flags, *args, **kwargs)

        monkeypatch.setattr(os, "open", opens)
    elif step == "write":
        monkeypatch.setattr(save_module, "sync", fail)
    elif step == "fsync":
        monkeypatch.setattr(os, "fsync", fail)
    else:
        monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OutputError, match=r"m\.onnx: cannot be written") as caught:
        save_model(model_of(1), tmp_path / "m.onnx", inline_limit=limit)
    assert os.strerror(number) in str(caught.value)
    monkeypatch.undo()
    assert listing(tmp_path) == before


@pytest.mark.parametrize("limit", [1 << 30, 8192])
def test_the_last_rename_fails(limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_model(model_of(0), tmp_path / "m.onnx", inline_limit=8192)
    before = listing(tmp_path)
    original = Path.replace

    def replace(self: Path, target: Path) -> Path:
        if target.name == "m.onnx":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return original(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(OutputError):
        save_model(model_of(1), tmp_path / "m.onnx", inline_limit=limit)
    monkeypatch.undo()
    assert listing(tmp_path) == before


SCRIPT = """
import resource, sys
sys.path[:0] = {path!r}
from narrowpass_ir.errors import OutputError
from narrowpass_ir.io import load_model, save_model
model = load_model({source!r})
resource.setrlimit(resource.RLIMIT_FSIZE, ({most}, {most}))
try:
    save_model(model, {target!r}, inline_limit={limit})
except OutputError as error:
    print(error)
    sys.exit(3)
"""


@pytest.mark.parametrize("limit", [1 << 30, 8192])
def test_no_room_for_the_file(limit: int, tmp_path: Path) -> None:
    """The kernel stops the writing at 20,000 bytes, in the middle of the weights."""
    save_model(model_of(1), tmp_path / "source.onnx")
    out = tmp_path / "out"
    out.mkdir()
    save_model(model_of(0), out / "m.onnx", inline_limit=8192)
    before = listing(out)
    script = SCRIPT.format(
        path=sys.path,
        source=str(tmp_path / "source.onnx"),
        target=str(out / "m.onnx"),
        limit=limit,
        most=20_000,
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (3, "")
    assert "m.onnx: cannot be written: File too large" in done.stdout
    assert listing(out) == before


def test_read_only_folder(tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir()
    folder.chmod(0o500)
    if os.access(folder, os.W_OK):
        pytest.skip("the superuser writes everywhere")
    with pytest.raises(OutputError, match="Permission denied"):
        save_model(model_of(), folder / "m.onnx")


def test_interrupt_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_model(model_of(0), tmp_path / "m.onnx", inline_limit=8192)
    before = listing(tmp_path)

    def interrupt(path: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(save_module, "check_file", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save_model(model_of(1), tmp_path / "m.onnx", inline_limit=8192)
    assert listing(tmp_path) == before


def test_source_cut_while_saving(tmp_path: Path) -> None:
    save_model(model_of(0), tmp_path / "m.onnx", inline_limit=8192)
    model = load_model(tmp_path / "m.onnx")
    (data,) = tmp_path.glob("*.data")
    os.truncate(data, 100)
    (tmp_path / "out").mkdir()
    for limit in (1 << 30, 8192):
        with pytest.raises(ModelError, match=r"\.data: was cut from 32768 to 100 bytes"):
            save_model(model, tmp_path / "out" / "m.onnx", inline_limit=limit)
        assert not list((tmp_path / "out").iterdir())


def shapeless() -> ir.Model:
    model = model_of()
    model.graph.outputs[0].shape = None
    return model


def test_checker_refuses_what_we_wrote(tmp_path: Path) -> None:
    save_model(model_of(), tmp_path / "m.onnx")
    before = listing(tmp_path)
    model = model_of()
    model.graph[0].attributes["odd"] = ir.AttrInt64("odd", 1)
    with pytest.raises(ModelError, match=r"m\.onnx: onnx.checker refuses.*please report"):
        save_model(model, tmp_path / "m.onnx")
    assert listing(tmp_path) == before


def test_checker_refused_it_before_we_did_anything(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "in.onnx").write_bytes(ir.to_proto(shapeless()).SerializeToString())
    with caplog.at_level(logging.WARNING):
        model = load_model(tmp_path / "in.onnx")
        save_model(model.clone(), tmp_path / "out.onnx")
    ours = [record.getMessage() for record in caplog.records if record.name == "narrowpass"]
    assert [message.split(":")[0][-6:] for message in ours] == ["n.onnx", "t.onnx"]
    load_model(tmp_path / "out.onnx")


def test_initializer_without_data() -> None:
    model = model_of()
    model.graph.initializers["w"].const_value = None
    with pytest.raises(ModelError, match="initializer 'w' has no data"):
        bytes_of(model)


def test_what_protobuf_cannot_say(tmp_path: Path) -> None:
    model = model_of()
    model.graph.doc_string = "\ud800"
    before = fingerprint(model)
    with pytest.raises(ModelError, match="cannot be turned into protobuf"):
        save_model(model, tmp_path / "m.onnx")
    assert fingerprint(model) == before
    assert not list(tmp_path.iterdir())


def test_replace_that_raises_leaves_the_model(tmp_path: Path) -> None:
    model = model_of()
    tensors = [value.const_value for value in model.graph.initializers.values()]

    def replace(scope: str, value: ir.Value) -> ir.TensorProtocol | None:
        if value.name == "w2":
            raise OutputError("enough")
        return ir.Tensor(np.zeros(1, np.float32))

    with pytest.raises(OutputError, match="enough"):
        serialize(model, replace)
    assert [value.const_value for value in model.graph.initializers.values()] == tensors


def test_initializers_are_declared_once(tmp_path):
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { t = Add(x, w)  y = Neg(t) }"""
    )
    del proto.graph.value_info[:]
    path = tmp_path / "m.onnx"
    save_model(ir.from_proto(proto), path)
    assert not onnx.load(path).graph.value_info
    proto.graph.value_info.append(onnx.helper.make_tensor_value_info("w", 1, [2]))
    proto.graph.value_info[0].doc_string = "kept for its text"
    proto.graph.value_info.append(onnx.helper.make_tensor_value_info("t", 1, [2]))
    save_model(ir.from_proto(proto), path)
    assert [info.name for info in onnx.load(path).graph.value_info] == ["w", "t"]


def test_a_disk_that_fails_while_the_checker_looks(tmp_path, monkeypatch):
    """The checker is C++: it raises a RuntimeError where ``std::filesystem`` has an error."""

    def refuse(_name: str) -> None:
        raise RuntimeError("filesystem error: status: Input/output error [m.onnx]")

    monkeypatch.setattr(onnx.checker, "check_model", refuse)
    with pytest.raises(OutputError, match=r"status: Input/output error"):
        save_model(model_of(), tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []
