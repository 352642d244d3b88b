"""Results are those of onnxruntime's class.

Within 1e-5 of the largest where there is a matmul: both accumulate at most 64 elements in float32,
in other orders. Exact elsewhere.
"""

import subprocess
import sys
import tempfile
import threading
from collections import UserDict

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from session_kit import (
    FLOAT,
    ORIGINAL,
    OURS,
    STRING,
    both,
    classifier,
    external,
    feeds_of,
    identity,
    model,
    node,
    overridable,
    perceptron,
    value,
)

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def assert_close(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        assert np.abs(one - other).max(initial=0) <= 1e-5 * np.abs(other).max(initial=0)


@pytest.mark.parametrize("names", [None, [], ["y"], ["z", "y"], ("y",), ["y", "y"]])
@pytest.mark.parametrize("ir_version", [3, 10])
def test_outputs_that_are_asked_for(names, ir_version):
    original, ours = both(perceptron(ir_version=ir_version))
    for rows in (2, 2, 5, 0, 1):
        feeds = feeds_of(original, rows)
        assert_close(ours.run(names, feeds), original.run(names, feeds))


def test_a_path_with_external_data(tmp_path):
    path = external(tmp_path)
    for given in (path, str(path)):
        original, ours = both(given)
        feeds = feeds_of(original)
        assert_close(ours.run(None, feeds), original.run(None, feeds))


def test_bytes_with_external_data_in_a_named_folder(tmp_path):
    path = external(tmp_path)
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", str(tmp_path)
    )
    original, ours = both(path.read_bytes(), options)
    feeds = feeds_of(original)
    assert_close(ours.run(None, feeds), original.run(None, feeds))


def test_a_parsed_model_and_a_bundle(tmp_path):
    import narrowpass

    proto = perceptron()
    narrowpass.build(proto, "", tmp_path / "model.narrow")
    feeds = {"x": X}
    expected = ORIGINAL(proto.SerializeToString()).run(None, feeds)
    for given in (proto, tmp_path / "model.narrow"):
        ours = OURS(given)
        assert [(arg.name, arg.type, arg.shape) for arg in ours.get_inputs()] == [
            ("x", "tensor(float)", ["n", 3])
        ]
        assert_close(ours.run(None, feeds), expected)


FEEDS = {
    "list": [[1.0, 2.0, 3.0]],
    "list of whole numbers": [[1, 2, 3]],
    "rows that are apart": np.arange(12, dtype=np.float32).reshape(4, 3)[::2],
    "columns that are apart": np.arange(12, dtype=np.float32).reshape(2, 6)[:, ::2],
    "order of Fortran": np.asfortranarray(X),
    "subclass": X.view(type("Subclass", (np.ndarray,), {})),
    "OrtValue": onnxruntime.OrtValue.ortvalue_from_numpy(X),
    "no rows": X[:0],
}


@pytest.mark.parametrize("case", FEEDS)
def test_forms_of_feeds(case):
    original, ours = both(identity())
    feeds = {"x": FEEDS[case]}
    expected = original.run(None, feeds)[0]
    found = ours.run(None, feeds)[0]
    assert found.shape == expected.shape
    assert np.array_equal(found, expected)
    assert np.array_equal(ours.run(None, UserDict(feeds))[0], expected)


@pytest.mark.parametrize("kind", [9, 10, 6, 7])
def test_lists_become_arrays_of_the_inputs_type(kind):
    original, ours = both(identity(kind, (3,)))
    expected = original.run(None, {"x": [1, 0, 1]})[0]
    found = ours.run(None, {"x": [1, 0, 1]})[0]
    assert found.dtype == expected.dtype
    assert found.tolist() == expected.tolist()


TEXTS = {
    "objects": np.array(["a", "bé", ""], object),
    "numpy's strings": np.array(["a", "bé", ""]),
    "list": ["a", "bé", ""],
    "other objects": np.array([b"a", 3, None], object),
    "void": np.array([b"a\0b\0", b"b\0\0c"], np.void),
}


@pytest.mark.parametrize("case", TEXTS)
def test_forms_of_text(case):
    original, ours = both(identity(STRING, (None,)))
    (expected,), (found,) = (each.run(None, {"x": TEXTS[case]}) for each in (original, ours))
    assert found.dtype == expected.dtype == object
    assert found.tolist() == expected.tolist()


def test_bytes_as_text():
    """A form that onnxruntime is not asked about."""
    ours = OURS(identity(STRING, (None,)).SerializeToString())
    assert ours.run(None, {"x": np.array([b"ab", b"c"])})[0].tolist() == ["ab", "c"]


def test_types_that_onnxruntime_does_not_take_from_numpy():
    ours = OURS(identity(onnx.TensorProto.BFLOAT16).SerializeToString())
    x = X.astype(ml_dtypes.bfloat16)
    found = ours.run(None, {"x": x})[0]
    assert found.dtype == ml_dtypes.bfloat16
    assert np.array_equal(found, x)


def test_a_default_that_is_replaced():
    original, ours = both(overridable())
    for feeds in ({"x": X}, {"x": X, "w": np.full((1, 3), 5, np.float32)}, {"x": X}):
        assert np.array_equal(ours.run(None, feeds)[0], original.run(None, feeds)[0])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "classes", [{"classlabels_int64s": [3, 5]}, {"classlabels_strings": ["cat", "dog"]}]
)
def test_lists_of_maps(classes):
    """Softmax of two classes: within two units in the last place of float32."""
    original, ours = both(classifier(**classes))
    x = np.array([[1, 2], [0, 0]], np.float32)
    (expected,), (found,) = (each.run(None, {"x": x}) for each in (original, ours))
    assert [[*row] for row in found] == [[*row] for row in expected]
    for row, right in zip(found, expected, strict=True):
        assert [*row.values()] == pytest.approx([*right.values()], rel=3e-7)
        assert {type(key) for key in row} == {type(key) for key in right}


def test_sequences():
    listed = helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, ["n", 3]))
    nodes = [node("SequenceInsert", ["s", "x"], ["y"])]
    inputs = [helper.make_value_info("s", listed), value("x")]
    original, ours = both(model(nodes, inputs, [helper.make_value_info("y", listed)]))
    feeds = {"s": [X, X + 1], "x": X + 2}
    (expected,), (found,) = (each.run(None, feeds) for each in (original, ours))
    assert isinstance(found, list)
    assert [each.tolist() for each in found] == [each.tolist() for each in expected]


def test_optional_inputs():
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(FLOAT, [3]))
    nodes = [node("OptionalHasElement", ["x"], ["y"])]
    chosen = model(
        nodes, [helper.make_value_info("x", kind)], [value("y", (), onnx.TensorProto.BOOL)]
    )
    original, ours = both(chosen)
    for feeds in ({"x": np.ones(3, np.float32)}, {"x": None}):
        assert ours.run(None, feeds)[0] == original.run(None, feeds)[0]
    assert ours.run(None, {})[0].item() is False


@pytest.mark.parametrize("given", ["bytes", "path"])
def test_sizes_of_one_name_that_differ(tmp_path, caplog, given):
    """As in onnxruntime; the model is compiled again, once."""
    nodes = [node("Add", ["x", "w"], ["y"]), node("Relu", ["w"], ["z"])]
    proto = model(nodes, [value("x"), value("w")], [value("y"), value("z")])
    onnx.save(proto, tmp_path / "model.onnx")
    original, ours = both(proto if given == "bytes" else tmp_path / "model.onnx")
    for rows, others in ((2, 2), (2, 1), (1, 3), (3, 3), (1, 1)):
        feeds = {"x": np.resize(X, (rows, 3)), "w": np.resize(-X, (others, 3))}
        expected = original.run(None, feeds)
        for found, right in zip(ours.run(None, feeds), expected, strict=True):
            assert np.array_equal(found, right)
    assert caplog.text.count("dimension 'n' has two sizes") == 1
    assert ours.get_inputs()[0].shape == ["n", 3]


def test_sizes_of_one_name_in_a_bundle(tmp_path):
    """A bundle is what it is: it is not compiled again."""
    import narrowpass

    nodes = [node("Add", ["x", "w"], ["y"])]
    proto = model(nodes, [value("x"), value("w")], [value("y")])
    narrowpass.build(proto, "", tmp_path / "model.narrow")
    ours = OURS(tmp_path / "model.narrow")
    with pytest.raises(Exception, match="dimension 'n' is 1 at axis 0") as caught:
        ours.run(None, {"x": X, "w": X[:1]})
    assert type(caught.value).__name__ == "InvalidArgument"
    assert np.array_equal(ours.run(None, {"x": X, "w": X})[0], 2 * X)


def test_results_belong_to_the_caller():
    ours = OURS(perceptron().SerializeToString())
    (first,) = ours.run(["y"], {"x": X})
    copy = first.copy()
    ours.run(["y"], {"x": X + 1})
    assert np.array_equal(first, copy)


def test_ort_values():
    original, ours = both(perceptron())
    feeds = {"x": onnxruntime.OrtValue.ortvalue_from_numpy(X)}
    expected = original.run_with_ort_values(["z", "y"], feeds)
    found = ours.run_with_ort_values(["z", "y"], feeds)
    assert all(isinstance(each, onnxruntime.OrtValue) for each in found)
    assert_close([each.numpy() for each in found], [each.numpy() for each in expected])
    with pytest.raises(AttributeError):
        ours.run_with_ort_values(None, {"x": X})


def test_a_vector_of_ort_values():
    from onnxruntime.capi.onnxruntime_pybind11_state import OrtDevice, OrtValueVector

    original, ours = both(perceptron())
    device = OrtDevice(OrtDevice.cpu(), OrtDevice.default_memory(), 0)
    found = []
    for session in (original, ours):
        feeds, fetches = OrtValueVector(), OrtValueVector()
        feeds.push_back(onnxruntime.OrtValue.ortvalue_from_numpy(X)._get_c_value())
        session.run_with_ortvaluevector(
            onnxruntime.RunOptions(), ["x"], feeds, ["y"], fetches, [device]
        )
        found.append([value.numpy() for value in fetches])
    assert_close(*found)


def test_an_array_on_an_ort_value_keeps_its_memory():
    import gc

    from narrowpass_onnxruntime.session.values import view_of

    view = view_of(onnxruntime.OrtValue.ortvalue_from_numpy(np.arange(1000, dtype=np.int64)))
    gc.collect()
    np.zeros(1000, np.int64)
    assert view.tolist() == [*range(1000)]


def test_a_run_in_another_thread():
    ours = OURS(perceptron().SerializeToString())
    expected = ours.run(None, {"x": X})
    done = threading.Event()
    given = []

    def callback(results, user_data, message):
        given.append((results, user_data, message, threading.get_ident()))
        done.set()

    ours.run_async(["y", "z"], {"x": X}, callback, "mine")
    assert done.wait(60)
    results, user_data, message, thread = given[0]
    assert (user_data, message) == ("mine", "")
    assert thread != threading.get_ident()
    assert_close(results, expected)
    done.clear()
    ours.run_async(None, {"x": X[:, :2]}, callback, None)
    assert done.wait(60)
    results, user_data, message, _ = given[1]
    assert (results, user_data) == ([], None)
    assert "index 1: got 2, expected 3" in message
    with pytest.raises(ValueError, match="Required inputs"):
        ours.run_async(None, {}, callback, None)


def test_a_run_in_another_thread_of_a_forked_child():
    code = """
import os, sys, threading
import numpy as np
import narrowpass_onnxruntime
session = narrowpass_onnxruntime.InferenceSession(sys.argv[1])
def run():
    done = threading.Event()
    feeds = {"x": np.ones((2, 3), np.float32)}
    session.run_async(None, feeds, lambda results, data, message: done.set(), None)
    return done.wait(60)
assert run()
child = os.fork()
if child == 0:
    os._exit(0 if run() else 1)
sys.exit(os.waitpid(child, 0)[1])
"""
    with tempfile.TemporaryDirectory() as folder:
        onnx.save(perceptron(), f"{folder}/model.onnx")
        command = [sys.executable, "-W", "ignore", "-c", code, f"{folder}/model.onnx"]
        assert subprocess.run(command, check=False).returncode == 0


def test_several_threads():
    ours = OURS(perceptron(16).SerializeToString())
    inputs = [np.full((rows, 16), rows, np.float32) for rows in range(1, 9)]
    expected = [ours.run(["y"], {"x": x})[0] for x in inputs]
    wrong = []

    def work():
        for _ in range(20):
            for x, right in zip(inputs, expected, strict=True):
                if not np.array_equal(ours.run(["y"], {"x": x})[0], right):
                    wrong.append(len(x))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
