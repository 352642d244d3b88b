"""Public functions say which argument is wrong, and nothing else comes out of them."""

from __future__ import annotations

import copy
import io
import os
import pickle
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from plugins_kit import REFERENCE

import narrowpass
from narrowpass import Bundle, Pipeline, Samples, build, load, load_model, load_plugins, save_model
from narrowpass.bundle import verify as verify_bundle
from narrowpass.errors import DataError, ModelError, NarrowpassError, UsageError, VerificationError
from narrowpass.runtime.backend import CompileOptions
from narrowpass_ir.io import MappedFile
from narrowpass_testing import model_from_text

TEXT = """g (float[N,4] x) => (float[N,4] y) <float[4] w = {1,2,3,4}> {
    [sum] a = Add(x, w)
    [act] y = Relu(a)
}"""
X = np.ones((2, 4), np.float32)
SUMMAND = np.array([1, 2, 3, 4], np.float32)


class Odd:
    def __repr__(self):
        return "odd"


def _kind(value):
    return type(value).__name__


class OddPath(os.PathLike):
    def __fspath__(self):
        return 3


NO_PATHS = [3, None, [], {}, b"model.onnx", "m\0x", Odd(), OddPath(), io.BytesIO(b"x"), 1.5, True]


def model():
    return model_from_text(TEXT)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    save_model(model(), folder / "m.onnx")
    build(folder / "m.onnx", "", folder / "m.narrow", plugins=load_plugins(entry_points=REFERENCE))
    return folder


@pytest.fixture(scope="module")
def plugins():
    return load_plugins(entry_points=REFERENCE)


@pytest.fixture(scope="module")
def program(plugins):
    return load(model(), plugins=plugins)


# Options of a program


@pytest.mark.parametrize(
    "threads",
    [1.5, 0, -1, True, "2", 10**9, 10**30, 1025, [1], float("nan"), np.float32(2)],
    ids=_kind,
)
def test_invalid_numbers_of_threads(threads):
    with pytest.raises(UsageError, match=r"^threads must be a whole number from 1 to 1024, not"):
        CompileOptions(threads=threads)


@pytest.mark.parametrize("threads", [1, np.int64(2), np.uint8(3)], ids=_kind)
def test_whole_numbers_of_numpy_are_threads(threads):
    assert type(CompileOptions(threads=threads).threads) is int


@pytest.mark.parametrize("option", ["require_native", "observe"])
@pytest.mark.parametrize("value", [None, "no", 3, [1], np.array([True]), Odd()], ids=_kind)
def test_flags_that_are_none(option, value):
    with pytest.raises(UsageError, match=f"`{option}`.* must be True or False"):
        CompileOptions(**{option: value})
    assert getattr(CompileOptions(**{option: np.True_}), option) is True


@pytest.mark.parametrize("value", [None, "no", 3, [1], Odd()], ids=_kind)
def test_caches_that_are_none(value):
    with pytest.raises(UsageError, match="cache must be True, False or 'memory', not"):
        CompileOptions(cache=value)
    assert CompileOptions(cache=np.False_).cache is False
    assert CompileOptions(cache="memory").cache == "memory"


@pytest.mark.parametrize("value", [3, ["x"], b"x", "a\0b", OddPath()], ids=_kind)
def test_cache_folders_that_are_no_paths(value):
    with pytest.raises(UsageError, match="`cache_dir`"):
        CompileOptions(cache_dir=value)


@pytest.mark.parametrize("value", ["y", b"y", 3, None, [3], [None]], ids=_kind)
def test_names_to_keep_that_are_none(value):
    with pytest.raises(UsageError, match="`keep` must be"):
        CompileOptions(keep=value)


# Functions


@pytest.mark.parametrize("value", NO_PATHS, ids=_kind)
@pytest.mark.parametrize(
    "function",
    [load_model, Bundle.load, verify_bundle, Samples.parse, lambda path: save_model(model(), path)],
    ids=["load_model", "Bundle.load", "verify", "Samples.parse", "save_model"],
)
def test_paths_that_are_none(function, value):
    with pytest.raises(UsageError):
        function(value)


@pytest.mark.parametrize("value", [v for v in NO_PATHS if v is not None], ids=_kind)
def test_outputs_that_are_no_paths(value, files, plugins):
    with pytest.raises(UsageError, match=r"path|text"):
        build(files / "m.onnx", "", value, plugins=plugins)
    with pytest.raises(UsageError):
        Bundle({"main": model()}).save(value)


@pytest.mark.parametrize(
    "value",
    [*NO_PATHS, {1: model()}, {"a/b": model()}, {"a": None}, onnx.GraphProto(), onnx.ModelProto()],
    ids=_kind,
)
def test_models_that_are_none(value, plugins):
    for function in (narrowpass.load, narrowpass.open_bundle):
        with pytest.raises((UsageError, ModelError)):
            function(value, plugins=plugins)
    with pytest.raises((UsageError, ModelError)):
        build(value, plugins=plugins)
    with pytest.raises(UsageError):
        Bundle(value)


@pytest.mark.parametrize(
    ("argument", "values"),
    [
        ("target", [3, b"reference", ["reference"], "nope", Odd()]),
        ("pipeline", [3, [3], b"x", {"fold"}, "x{", "\0", "a,,b", Odd()]),
        ("instruments", [3, None, "timing", [3], ["timing"]]),
        ("verify", [None, 3, "no"]),
        ("plugins", [3, "x", [], Odd()]),
        ("progress", [3, "x"]),
        ("calibration", [3, b"x", {"x": X}, "nowhere"]),
        ("out", ["x" * 300, "x" * 300 + ".onnx", "gone/m.narrow", "gone/m.onnx", "", "/", ".."]),
    ],
)
def test_arguments_of_build(argument, values, files, plugins):
    for value in values:
        arguments = {"plugins": plugins, argument: value}
        with pytest.raises(NarrowpassError):
            build(files / "m.onnx", **arguments)


@pytest.mark.parametrize("backend", [3, b"reference", ["reference"], Odd()], ids=_kind)
def test_a_backend_is_given_by_its_name(backend, plugins):
    with pytest.raises(UsageError, match="a backend is given by its name"):
        load(model(), backend, plugins=plugins)


@pytest.mark.parametrize("disabled", [3, None, "name", [3], Odd()], ids=_kind)
def test_plugins_to_leave_out_are_names(disabled):
    with pytest.raises(UsageError, match="`disabled` must be"):
        load_plugins(disabled)


@pytest.mark.parametrize("points", [3, [3], "x", [None]], ids=_kind)
def test_entry_points_that_are_none(points):
    with pytest.raises(UsageError, match="`entry_points` cannot"):
        load_plugins(entry_points=points)


@pytest.mark.parametrize("text", [3, None, b"fold", ["fold"]], ids=_kind)
def test_pipeline_text_is_text(text, plugins):
    with pytest.raises(UsageError, match="must be text"):
        Pipeline.parse(text, plugins.registry)
    with pytest.raises(UsageError, match="registry"):
        Pipeline.parse("fold", text)


@pytest.mark.parametrize("threads", [0, -1, "x", 1.5, True], ids=_kind)
def test_threads_that_read_and_write_bundles(threads, files, tmp_path):
    with pytest.raises(UsageError, match="`threads`"):
        verify_bundle(files / "m.narrow", threads=threads)
    with pytest.raises(UsageError, match="`threads`"):
        Bundle({"main": model()}).save(tmp_path / "m.narrow", threads=threads)


# Files that are not what they should be


def test_special_files(tmp_path, plugins):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "dangling").symlink_to(tmp_path / "gone")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    names = ["fifo", "dangling", "circle", "empty", "folder", "no\nfile", "x" * 300]
    for path in [*(tmp_path / name for name in names), Path("/dev/null"), Path("/dev/zero")]:
        for function in (
            load_model,
            Bundle.load,
            Samples.parse,
            lambda path: load(path, plugins=plugins),
            lambda path: build(path, "", plugins=plugins),
        ):
            with pytest.raises(NarrowpassError):
                list(function(str(path)))


def test_a_path_with_a_newline(tmp_path, plugins):
    save_model(model(), tmp_path / "a\nb.onnx")
    build(tmp_path / "a\nb.onnx", "", tmp_path / "a\nb.narrow", plugins=plugins)
    with load(tmp_path / "a\nb.narrow", plugins=plugins) as program:
        np.testing.assert_array_equal(program.run({"x": X})["y"], X + SUMMAND)


# Models that break a rule


def _ghost(graph):
    graph[1].replace_input_with(0, ir.Value(name="ghost"))


def _unnamed(graph):
    graph[1].replace_input_with(0, ir.Value())


def _output(graph):
    graph.outputs[0] = ir.Value(name="ghost")


def _no_data(graph):
    graph.initializers["w"].const_value = None


def _circle(graph):
    graph[0].replace_input_with(0, graph[1].outputs[0])


def _order(graph):
    node = graph[0]
    graph.remove(node)
    graph.append(node)


def _arity(graph):
    graph[0].resize_inputs(1)


@pytest.mark.parametrize("damage", [_ghost, _unnamed, _output, _no_data, _circle, _order, _arity])
def test_a_model_that_breaks_a_rule(damage, plugins):
    def broken():
        created = model()
        damage(created.graph)
        return created

    with pytest.raises(VerificationError, match="method 'main': the model 'g' is invalid"):
        load(Bundle({"main": broken()}), plugins=plugins)
    for pipeline in ("", None):
        with pytest.raises(VerificationError, match="the model that is built: the model 'g'"):
            build(broken(), pipeline, plugins=plugins)


# Runs


@pytest.mark.parametrize("outputs", [[1], 1, "y", b"y", [None], [["y"]], [b"y"]], ids=_kind)
def test_outputs_are_names(program, outputs):
    with pytest.raises(UsageError, match="`outputs` must be"):
        program.run({"x": X}, outputs=outputs)


@pytest.mark.parametrize("method", [None, 3, b"main", [], ["main"]], ids=_kind)
def test_a_method_is_a_name(program, method):
    with pytest.raises(UsageError, match="a method is given by its name"):
        program.run({"x": X}, method)


@pytest.mark.parametrize("out", [3, [X], "y", 0, []], ids=_kind)
def test_arrays_for_results_have_names(program, out):
    with pytest.raises(UsageError, match="`out` must be a dict"):
        program.run({"x": X}, out=out)


@pytest.mark.parametrize("runs", [0, -1, 1.5, "2", None, True], ids=_kind)
def test_runs_to_profile(program, runs):
    with pytest.raises(UsageError, match="`runs` must be at least 1"):
        program.profile({"x": X}, "main", runs)


@pytest.mark.parametrize("meters", [None, 3, {"y": 3}, {3: 3}, ["y"]], ids=_kind)
def test_meters(program, meters):
    with pytest.raises(UsageError, match="meter"):
        program.observe({"x": X}, meters)


WRONG = {
    "list": [[1.0] * 4],
    "none": None,
    "object": Odd(),
    "scalar": np.float32(1),
    "0-d": np.array(1, np.float32),
    "float64": X.astype(np.float64),
    "swapped": X.astype(">f4"),
    "objects": X.astype(object),
    "text": np.array([["a"] * 4]),
    "record": np.zeros((2, 4), [("a", "f4")]),
    "time": np.zeros((2, 4), "M8[s]"),
    "masked": np.ma.masked_array(X, mask=X > 0),
}


@pytest.mark.parametrize("value", WRONG.values(), ids=WRONG)
def test_feeds_of_a_wrong_type(program, value):
    with pytest.raises(DataError, match="input 'x'"):
        program.run({"x": value})


@pytest.mark.parametrize("feeds", [[("x", X)], None, 3, "x", {}, {1: X}, {None: X}], ids=_kind)
def test_feeds_are_a_mapping(program, feeds):
    with pytest.raises(DataError):
        program.run(feeds)


def _read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


def _unaligned(array):
    return np.frombuffer(b"\0" + array.tobytes(), np.uint8)[1:].view(array.dtype).reshape(2, 4)


LAYOUTS = {
    "transposed": np.asfortranarray,
    "reversed": lambda x: x[::-1, ::-1],
    "strided": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "read-only": _read_only,
    "unaligned": _unaligned,
    "matrix": lambda x: x.view(np.matrix),
    "unmasked": np.ma.masked_array,
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_feeds_of_any_layout(layout, plugins):
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    text = "g (float[2,4] x) => (float[2,4] y) { y = Mul(x, x) }"
    for backend in plugins.registry.backends:
        result = load(model_from_text(text), backend, plugins=plugins).run({"x": layout(x)})["y"]
        expected = x[::-1, ::-1] ** 2 if layout is LAYOUTS["reversed"] else x * x
        np.testing.assert_array_equal(result, expected)
        assert type(result) is np.ndarray


# Copies


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_program_has_one_owner(program, copied):
    with pytest.raises(UsageError, match=r"another process calls narrowpass\.load"):
        copied(program)
    np.testing.assert_array_equal(program.run({"x": X})["y"], X + SUMMAND)


@pytest.mark.parametrize("copied", [copy.deepcopy, pickle.dumps])
def test_a_bundle_is_loaded_again(files, copied):
    for bundle in (Bundle.load(files / "m.narrow"), Bundle({"main": model()})):
        with pytest.raises(UsageError, match=r"Bundle\.load with the path"):
            copied(bundle)


def test_a_shallow_copy_of_a_bundle_has_its_models(files):
    bundle = Bundle.load(files / "m.narrow")
    copied = copy.copy(bundle)
    assert copied.methods == bundle.methods
    assert copied.manifest is bundle.manifest
    assert list(copied.data) == list(bundle.data)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_mapped_file_has_one_owner(tmp_path, copied):
    (tmp_path / "data").write_bytes(b"1234")
    file = MappedFile(tmp_path / "data")
    with pytest.raises(UsageError, match="a MappedFile can be neither copied nor pickled"):
        copied(file)
    assert file.read(0, 4) == b"1234"


def test_a_deep_copy_of_a_mapped_model_reads_the_same_file(tmp_path, plugins):
    created = model_from_text(
        "g (float[N,4] x) => (float[N,4] y) <float[4] w = {1,2,3,4}> { y = Add(x,w) }"
    )
    save_model(created, tmp_path / "m.onnx")
    build(tmp_path / "m.onnx", "", tmp_path / "m.narrow", plugins=plugins)
    bundle = Bundle.load(tmp_path / "m.narrow")
    for data in bundle.data.values():
        copied = copy.deepcopy(data.tensor)
        assert copied is not data.tensor
        np.testing.assert_array_equal(copied.numpy(), data.tensor.numpy())
