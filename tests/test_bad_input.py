"""Wrong calls and broken files: each ends with a code and a sentence, and never a traceback.

The table is the test: what is called, the exit code (1: the model or the data is at fault, 2: the
call is), and what the sentence must name and advise.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import narrowpass
from narrowpass.cli import main


def _model(nodes, initializers=(), *, inputs=("x",), outputs=("y",), **options):
    def values(names):
        return [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", 3]) for n in names]

    graph = helper.make_graph(nodes, "g", values(inputs), values(outputs), list(initializers))
    settings = {"ir_version": 10, "opset_imports": [helper.make_opsetid("", 21)], **options}
    return helper.make_model(graph, **settings)


def _relu():
    return helper.make_node("Relu", ["x"], ["y"], name="relu")


def _external(location, **keys):
    weights = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[100, 3])
    weights.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **keys}.items():
        weights.external_data.add(key=key, value=str(value))
    return _model([helper.make_node("MatMul", ["x", "w"], ["y"], name="mm")], [weights])


def _write_models(folder):
    digits = (resources.files("narrowpass_demo") / "digits.onnx").read_bytes()
    files = {
        "digits.onnx": digits,
        "empty.onnx": b"",
        "cut.onnx": digits[: len(digits) // 2],
        "text.onnx": b"This is no model.\n" * 50,
        "lfs.onnx": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 123\n",
        "photo.onnx": b"\xff\xd8\xff\xe0\x00\x10JFIF\x00" + bytes(range(256)) * 8,
        "page.onnx": b"<!DOCTYPE html><html><body>Not found</body></html>",
        "zip.onnx": b"PK\x03\x04" + bytes(100),
        "short.bin": bytes(10),
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    relu = _relu()
    models = {
        "relu": _model([relu]),
        "two_inputs": _model([helper.make_node("Add", ["x", "z"], ["y"])], inputs=("x", "z")),
        "opset": _model([relu], opset_imports=[helper.make_opsetid("", 999)]),
        "ir_version": _model([relu], ir_version=99),
        "data_missing": _external("gone.bin"),
        "data_short": _external("short.bin"),
        "data_outside": _external("../secret.bin"),
        "data_absolute": _external("/etc/hostname"),
        "unknown_op": _model([helper.make_node("Relux", ["x"], ["y"], name="odd")]),
        "unknown_domain": _model(
            [helper.make_node("Magic", ["x"], ["y"], name="odd", domain="com.example")],
            opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("com.example", 1)],
        ),
        "cycle": _model(
            [
                helper.make_node("Add", ["x", "b"], ["a"], name="first"),
                helper.make_node("Relu", ["a"], ["b"], name="second"),
                helper.make_node("Relu", ["a"], ["y"], name="third"),
            ]
        ),
        "dangling": _model([helper.make_node("Add", ["x", "nowhere"], ["y"], name="add")]),
        "twice": _model([relu, helper.make_node("Abs", ["x"], ["y"], name="abs")]),
    }
    for name, model in models.items():
        (folder / f"{name}.onnx").write_bytes(model.SerializeToString())


def _write_bundles(folder):
    narrowpass.build(folder / "digits.onnx", "", folder / "good.narrow")
    two = {"encode": folder / "digits.onnx", "decode": folder / "relu.onnx"}
    narrowpass.build(two, "", folder / "two.narrow")

    def damaged(name):
        return shutil.copytree(folder / "good.narrow", folder / f"{name}.narrow")

    (damaged("no_manifest") / "manifest.json").unlink()
    (damaged("garbage") / "manifest.json").write_text("{]")
    manifest = damaged("version") / "manifest.json"
    content = json.loads(manifest.read_text("utf-8"))
    manifest.write_text(json.dumps({**content, "version": 99}))
    manifest = damaged("field") / "manifest.json"
    manifest.write_text(json.dumps({**content, "methods": "main"}))
    (damaged("no_weights") / "weights.safetensors").unlink()
    weights = damaged("cut_weights") / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    method = damaged("cut_method") / "main.onnx"
    method.write_bytes(method.read_bytes()[:-100])
    (damaged("no_method") / "main.onnx").unlink()
    weights = damaged("flipped") / "weights.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)


BAD_DATA = """
import numpy as np

def raises():
    raise ValueError("no data today")

def number():
    return 3

def lists():
    yield {"image": [[1.0, 2.0]]}

def late():
    yield {"image": np.zeros((1, 1, 8, 8), np.float32)}
    raise ValueError("no more")

def arrays():
    yield {"image": [np.zeros((1, 1, 8, 8), np.float32)]}
"""


def _write_data(folder):
    image = np.zeros((1, 1, 8, 8), np.float32)
    np.save(folder / "image.npy", image)
    np.save(folder / "double.npy", image.astype(np.float64))
    np.save(folder / "flat.npy", image.reshape(1, 64))
    np.save(folder / "objects.npy", np.array([{}, None], dtype=object), allow_pickle=True)
    np.savez(folder / "image.npz", image=image)
    np.savez(folder / "other.npz", picture=image)
    np.savez(folder / "objects.npz", image=np.array([{}], dtype=object))
    content = (folder / "image.npz").read_bytes()
    (folder / "cut.npz").write_bytes(content[: len(content) // 2])
    (folder / "empty.npy").write_bytes(b"")
    (folder / "bad_data.py").write_text(BAD_DATA)
    (folder / "no_samples").mkdir()
    (folder / "occupied").mkdir()
    (folder / "occupied" / "precious.txt").write_text("not yours")
    (folder / "taken").write_text("a file")
    (folder / "folder.onnx").mkdir()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Build the folder that of the calls."""
    folder = tmp_path_factory.mktemp("bad") / "here"
    folder.mkdir()
    (folder.parent / "secret.bin").write_bytes(bytes(4096))
    _write_models(folder)
    _write_bundles(folder)
    _write_data(folder)
    return folder


@dataclass(frozen=True)
class Case:
    """A wrong call: its arguments, the exit code, and what the sentence must contain."""

    call: str
    code: int
    said: tuple[str, ...]


def _case(call, code, *said):
    name = call.replace("narrowpass ", "").replace("/", "-")
    return pytest.param(Case(call, code, said), id=name[:90])


CASES = [
    # The call itself.
    _case("bild digits.onnx", 2, "'bild'", "did you mean 'build'?"),
    _case("--unknown plugins", 2, "--unknown", "narrowpass --help"),
    _case("build digits.onnx", 2, "--output", "narrowpass build --help"),
    _case("build -o out.narrow", 2, "MODEL.onnx", "narrowpass build --help"),
    _case("build digits.onnx -o out.narrow --fast", 2, "--fast", "narrowpass build --help"),
    _case("--disable-plugin nope passes", 2, "--disable-plugin nope", "installed:"),
    _case("completion tcsh", 2, "tcsh", "bash"),
    _case("bench good.narrow --runs 0", 2, "--runs", "x>=1"),
    _case("bench good.narrow --runs -3", 2, "--runs", "x>=1"),
    _case("bench good.narrow --runs many", 2, "--runs", "'many'"),
    _case("run good.narrow --threads 0", 2, "--threads", "x>=1"),
    _case("run good.narrow --threads -1", 2, "--threads", "x>=1"),
    _case("bench good.narrow --seed -1", 2, "--seed", "x>=0"),
    # Pipelines.
    _case(
        "build digits.onnx -o out.narrow -p nope", 2, "no pass 'nope'", "installed:", "nope\n  ^"
    ),
    _case("build digits.onnx -o out.narrow -p fold,,fold", 2, "expected", "fold,,fold\n       ^"),
    _case("build digits.onnx -o out.narrow -p fold{", 2, "option of 'fold'", "fold{\n       ^"),
    _case("build digits.onnx -o out.narrow -p fold{x=1}", 2, "no option 'x'", "max-growth", "^"),
    _case("build digits.onnx -o out.narrow -p fold{max-growth=x}", 2, "takes integer", "'x'", "^"),
    _case("build digits.onnx -o out.narrow -p fold{max-growth}", 2, "'='", "max-growth", "^"),
    _case("explain good.narrow -p fold", 2, "already built", "ONNX file"),
    _case("compare relu.onnx good.narrow -p fold", 2, "-p", "good.narrow", "pass the ONNX file"),
    # Names of backends, methods, inputs, instruments.
    _case("build digits.onnx -o out.narrow --target gpu", 2, "backend 'gpu'", "reference"),
    _case("run good.narrow --backend refrence", 2, "did you mean 'reference'?"),
    _case("run good.narrow --method encode", 2, "--method encode", "methods: main"),
    _case("run two.narrow --input image=image.npy", 2, "--method", "encode, decode"),
    _case("compare two.narrow good.narrow", 2, "methods differ", "encode, decode", "--method"),
    _case("compare two.narrow two.narrow --data image.npz", 2, "--data", "--method"),
    _case("build digits.onnx -o out.narrow --instrument tming", 2, "did you mean 'timing'?"),
    _case("build digits.onnx -o out.narrow --instrument dump{to=x}", 2, "no option 'to'", "dir"),
    # Which models.
    _case("build a=digits.onnx a=relu.onnx -o out.narrow", 2, "'a' is given twice"),
    _case("build digits.onnx relu.onnx -o out.narrow", 2, "digits.onnx", "NAME=MODEL.onnx"),
    _case("build main= -o out.narrow", 2, "main=", "NAME=MODEL.onnx"),
    _case("build .hidden=digits.onnx -o out.narrow", 2, "'.hidden'", "letters, digits"),
    _case("build a=digits.onnx b=relu.onnx -o out.onnx", 2, "out.onnx", "one method", "folder"),
    # Files that are not there, or no models.
    _case("build gone.onnx -o out.narrow", 2, "gone.onnx", "no such file"),
    _case("run gone.narrow", 2, "gone.narrow", "no such file"),
    _case("inspect gone.onnx", 2, "gone.onnx", "no such file"),
    _case("inspect gone.narrow", 2, "gone.narrow: no such file or bundle"),
    _case("compare digits.onnx gone.narrow", 2, "gone.narrow: no such file or bundle", "folder"),
    _case("explain gone.onnx", 2, "gone.onnx", "no such file"),
    _case("build folder.onnx -o out.narrow", 2, "folder.onnx", "is a folder"),
    _case("inspect occupied", 1, "occupied", "manifest.json"),
    _case("build empty.onnx -o out.narrow", 1, "empty.onnx", "is empty", "export it again"),
    _case("build cut.onnx -o out.narrow", 1, "cut.onnx", "cut short", "export it again"),
    _case("build text.onnx -o out.narrow", 1, "text.onnx", "no ONNX model"),
    _case("build lfs.onnx -o out.narrow", 1, "lfs.onnx", "git lfs pull"),
    _case("build photo.onnx -o out.narrow", 1, "photo.onnx", "no ONNX model"),
    _case("build page.onnx -o out.narrow", 1, "page.onnx", "web page"),
    _case("build zip.onnx -o out.narrow", 1, "zip.onnx", "zip archive", "export it to ONNX"),
    # Models that cannot be used.
    _case("build opset.onnx -o out.narrow", 1, "opset.onnx", "999"),
    _case("build ir_version.onnx -o out.narrow", 1, "ir_version.onnx", "99"),
    _case("build data_missing.onnx -o out.narrow", 1, "data_missing.onnx", "'w'", "gone.bin"),
    _case("build data_short.onnx -o out.narrow", 1, "data_short.onnx", "'w'", "1200"),
    _case("build data_outside.onnx -o out.narrow", 1, "data_outside.onnx", "../secret.bin"),
    _case("build data_absolute.onnx -o out.narrow", 1, "data_absolute.onnx", "/etc/hostname"),
    _case("build unknown_op.onnx -o out.narrow", 1, "unknown_op.onnx", "'odd'", "Relux"),
    _case("bench unknown_domain.onnx -p", 2, "-p"),
    _case("bench unknown_domain.onnx", 1, "com.example", "Magic"),
    _case("build cycle.onnx -o out.narrow", 1, "cycle.onnx", "'first'", "'b'"),
    _case("build dangling.onnx -o out.narrow", 1, "dangling.onnx", "'add'", "'nowhere'"),
    _case("build twice.onnx -o out.narrow", 1, "twice.onnx", "'y'"),
    # Damaged bundles.
    _case("run no_manifest.narrow", 1, "no_manifest.narrow", "manifest.json"),
    _case("run garbage.narrow", 1, "garbage.narrow", "manifest.json"),
    _case("inspect version.narrow", 1, "version.narrow", "99", "build the bundle again"),
    _case("inspect field.narrow", 1, "field.narrow", "methods"),
    _case("bench no_weights.narrow", 1, "no_weights.narrow", "weights.safetensors"),
    _case("explain cut_weights.narrow", 1, "cut_weights.narrow", "weights.safetensors"),
    _case("run cut_method.narrow", 1, "cut_method.narrow", "main"),
    _case("compare no_method.narrow good.narrow", 1, "no_method.narrow", "main.onnx"),
    _case("inspect flipped.narrow --verify", 1, "flipped.narrow", "damaged", "build it again"),
    # Outputs that must not be written.
    _case("build relu.onnx -o occupied", 2, "occupied", "not replaced", "choose another name"),
    _case("build relu.onnx -o taken", 2, "taken", "not a folder", "choose another"),
    _case("build relu.onnx -o taken/out.narrow", 2, "taken/out.narrow", "does not exist"),
    _case("build relu.onnx -o folder.onnx", 2, "folder.onnx", "folder"),
    _case("build relu.onnx -o gone/out.narrow", 2, "gone", "does not exist", "create it first"),
    _case("build relu.onnx -o gone/out.onnx", 2, "gone", "does not exist"),
    _case(
        "build relu.onnx -o out.narrow --report gone/r.html", 2, "gone/r.html", "create it first"
    ),
    _case("run good.narrow --input image=image.npy -o occupied", 2, "occupied", "is a folder"),
    _case("demo --keep taken", 2, "--keep taken", "another name"),
    _case("build relu.onnx -o relu.onnx", 2, "relu.onnx", "not overwritten", "choose another name"),
    _case("build a=relu.onnx -o ./relu.onnx", 2, "not overwritten", "choose another name"),
    # Inputs and data.
    _case("run two_inputs.onnx", 2, "x (float[batch, 3])", "z (float[batch, 3])", "--input"),
    _case("run good.narrow --input image.npy", 2, "--input image.npy", "NAME=FILE.npy"),
    _case("run good.narrow --input imag=image.npy", 1, "'imag'", "did you mean 'image'?"),
    _case("bench good.narrow --input imag=image.npy", 1, "'imag'", "did you mean 'image'?"),
    _case("bench good.narrow --input image=flat.npy", 1, "'image'", "[1, 64]"),
    _case("bench good.narrow --input image=image.npy --shape image=1x1x8x8", 2, "leave out"),
    _case("run good.narrow --input image=gone.npy", 2, "gone.npy", "no such file"),
    _case("run good.narrow --input image=no_samples", 2, "no_samples", "is a folder"),
    _case("run good.narrow --input picture=image.npy --input image=image.npy", 1, "'picture'"),
    _case("run good.narrow --input image=image.npy --input image.npz", 2, "'image' twice"),
    _case("run good.narrow --input image=double.npy", 1, "'image'", "float64", "np.float32"),
    _case("run good.narrow --input image=flat.npy", 1, "'image'", "[1, 64]", "[batch, 1, 8, 8]"),
    _case("run good.narrow --input image=empty.npy", 1, "empty.npy", "cannot be read"),
    _case("run good.narrow --input image=text.onnx", 1, "text.onnx", "numpy.save"),
    _case("run good.narrow --input image=objects.npy", 1, "objects.npy", "Python objects"),
    _case("run good.narrow --input objects.npz", 1, "objects.npz", "Python objects"),
    _case("run good.narrow --input cut.npz", 1, "cut.npz", "cannot be read"),
    _case("bench good.narrow --shape image=1x3xbig", 2, "--shape image=1x3xbig", "NAME=1x3"),
    _case("bench good.narrow --shape picture=1x1x8x8", 2, "'picture'", "image (float[batch"),
    _case("bench good.narrow --shape image=1x64", 2, "image=1x64", "4 dimensions, not 2"),
    _case("bench good.narrow --shape image=1x3x8x8", 2, "axis 1", "is 1, not 3"),
    _case("build digits.onnx -o out.narrow --calibration no_samples", 1, "no_samples", ".npz"),
    _case("build digits.onnx -o out.narrow --calibration gone", 2, "'gone'", "folder of .npz"),
    _case("build digits.onnx -o out.narrow --calibration nope:f", 2, "nope:f", "imported"),
    _case("compare good.narrow good.narrow --data bad_data:raises", 1, "bad_data:raises failed"),
    _case("compare good.narrow good.narrow --data bad_data:number", 1, "bad_data:number", "int"),
    _case("compare good.narrow good.narrow --data bad_data:lists", 1, "'image' is list", "asarray"),
    _case("compare good.narrow good.narrow --data bad_data:late", 1, "sample 2 of", "no more"),
    _case("compare good.narrow good.narrow --data bad_data:arrays", 1, "'image'", "numpy array"),
    _case("compare good.narrow good.narrow --data other.npz", 1, "'picture'", "image (float32"),
    _case("compare good.narrow good.narrow --data cut.npz", 1, "cut.npz", "cannot be read"),
    _case("compare good.narrow relu.onnx", 2, "only A has input image", "only B has input x"),
    _case("compare good.narrow good.narrow --tolerance rel:nan", 2, "--tolerance", "0 or more"),
    _case("compare good.narrow good.narrow --tolerance psnr:3", 2, "no metric 'psnr'", "rel"),
    _case("compare good.narrow good.narrow --tolerance 0.1", 2, "METRIC:LIMIT", "rel:1e-2"),
    _case("replay occupied", 2, "occupied", "not a reproducer folder", "--reproducer"),
]


def _call(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    captured = capsys.readouterr()
    return stopped.value.code, captured.out, captured.err


def _check(case, code, err):
    assert "Traceback" not in err
    assert "internal error" not in err
    assert "narrowpass: error: " in err
    sentence = err[err.index("narrowpass: error: ") :]
    for fragment in case.said:
        assert fragment in sentence, sentence
    assert code == case.code, sentence


def _snapshot(folder):
    return {
        path.relative_to(folder): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


@pytest.mark.parametrize("case", CASES)
def test_wrong_call(case, files, monkeypatch, capsys):
    monkeypatch.chdir(files)
    monkeypatch.delenv("NARROWPASS_TRACEBACK", raising=False)
    code, out, err = _call(case.call.split(), capsys)
    _check(case, code, err)
    assert out == "" or "--verify" in case.call  # problems that were asked for are the result


def test_nothing_was_written(files, monkeypatch, capsys):
    monkeypatch.chdir(files)
    before = _snapshot(files)
    for call in ("-o occupied", "-o taken", "-o folder.onnx", "-o out.narrow -p nope"):
        code, _, _ = _call(["build", "relu.onnx", *call.split()], capsys)
        assert code == 2
    assert _snapshot(files) == before


def test_there_are_enough():
    calls = [param.values[0].call for param in CASES]
    assert len(set(calls)) == len(calls)
    assert len(calls) >= 45


def test_control_characters_of_a_model_do_not_reach_the_terminal(files, monkeypatch, capsys):
    monkeypatch.chdir(files)
    model = _model([helper.make_node("Relux", ["x"], ["y"], name="a\x1b[31mred\nb")])
    onnx.save(model, "escape.onnx")
    code, _, err = _call(["build", "escape.onnx", "-o", "out.narrow"], capsys)
    Path("escape.onnx").unlink()
    assert code == 1
    assert "\x1b" not in err


@pytest.mark.parametrize(
    "call",
    [
        "build cut.onnx -o out.narrow",
        "run garbage.narrow",
        "build digits.onnx -o out.narrow -p nope",
        "bench good.narrow --runs 0",
    ],
)
def test_in_a_process_of_its_own(call, files):
    [case] = [param.values[0] for param in CASES if param.values[0].call == call]
    environment = {k: v for k, v in os.environ.items() if k != "NARROWPASS_TRACEBACK"}
    done = subprocess.run(
        [sys.executable, "-m", "narrowpass", *call.split()],
        cwd=files,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    _check(case, done.returncode, done.stderr)
    assert done.stdout == ""


def test_unwritable_folder(files, monkeypatch, capsys):
    folder = files / "locked"
    folder.mkdir(mode=0o500)
    if os.access(folder, os.W_OK):
        folder.rmdir()
        pytest.skip("this user may write everywhere")
    monkeypatch.chdir(files)
    for output in ("locked/out.narrow", "locked/out.onnx"):
        code, _, err = _call(["build", "relu.onnx", "-o", output], capsys)
        assert code == 1
        assert output in err
        assert "write" in err
    folder.rmdir()
