"""The same bad call to onnxruntime's class and to ours: exceptions of one class."""

import numpy as np
import onnx
import onnxruntime
import pytest
from session_kit import (
    ORIGINAL,
    OURS,
    STRING,
    both,
    external,
    identity,
    model,
    node,
    overridable,
    perceptron,
    value,
)

X = np.ones((2, 3), np.float32)
VERSION = tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])
TERMINATED = onnxruntime.RunOptions()
TERMINATED.terminate = True

BAD_RUNS = {
    "unknown output": (["q"], {"x": X}),
    "unknown output among others": (["y", "q"], {"x": X}),
    "outputs as text": ("y", {"x": X}),
    "outputs as numbers": ([1], {"x": X}),
    "nothing fed": (None, {}),
    "unknown input": (None, {"x": X, "q": X}),
    "unknown input alone": (None, {"q": X}),
    "float64": (None, {"x": X.astype(np.float64)}),
    "int64": (None, {"x": X.astype(np.int64)}),
    "bool": (None, {"x": X > 0}),
    "text": (None, {"x": X.astype(str)}),
    "rank 1": (None, {"x": X[0]}),
    "rank 3": (None, {"x": X[None]}),
    "wrong size": (None, {"x": X[:, :2]}),
    "tuple": (None, {"x": ((1.0, 2.0, 3.0),)}),
    "number": (None, {"x": 1.0}),
    "scalar of numpy": (None, {"x": np.float32(1)}),
    "feeds as a list": (None, [X]),
    "no feeds": (None, None),
    "run options of another type": (None, {"x": X}, 3),
    "ended by its options": (None, {"x": X}, TERMINATED),
}


def raised(function, *arguments):
    with pytest.raises(Exception) as caught:  # noqa: PT011  # which one is compared
        function(*arguments)
    return caught.value


@pytest.fixture(scope="module")
def sessions():
    return both(perceptron())


@pytest.mark.parametrize("case", BAD_RUNS)
def test_a_run_that_onnxruntime_refuses(sessions, case):
    original, ours = (raised(session.run, *BAD_RUNS[case]) for session in sessions)
    assert type(ours) is type(original)
    assert str(ours)


def test_messages_name_what_is_wrong_and_what_there_is(sessions):
    _, ours = sessions
    assert "'q'; the model's outputs: y, z" in str(raised(ours.run, ["q"], {"x": X}))
    assert "'q'; the model's inputs: x" in str(raised(ours.run, None, {"x": X, "q": X}))
    assert "float64; convert it" in str(raised(ours.run, None, {"x": X.astype(np.float64)}))
    assert "index 1: got 2, expected 3" in str(raised(ours.run, None, {"x": X[:, :2]}))
    # Programs look for this text of onnxruntime's.
    assert "Required inputs (['x']) are missing from input feed ([])" in str(
        raised(ours.run, None, {})
    )


def test_a_feed_that_replaces_a_default_is_checked():
    for session in both(overridable()):
        with pytest.raises(type(raised(both(identity())[0].run, None, {"x": X[0]}))):
            session.run(None, {"x": X, "w": np.ones((2, 3), np.float32)})


BAD_MODELS = {
    "unknown operator": lambda: model([node("Foo", ["x"], ["y"])], [value("x")], [value("y")]),
    "operator of an unknown domain": lambda: model(
        [node("Foo", ["x"], ["y"], domain="mine")],
        [value("x")],
        [value("y")],
        domains=[onnx.helper.make_opsetid("mine", 1)],
    ),
    "type that an operator does not take": lambda: model(
        [node("Relu", ["x"], ["y"])],
        [value("x", kind=STRING)],
        [value("y", kind=STRING)],
    ),
    "operator set of the future": lambda: model(
        [node("Relu", ["x"], ["y"])], [value("x")], [value("y")], opset=99
    ),
    "format of the future": lambda: model(
        [node("Relu", ["x"], ["y"])], [value("x")], [value("y")], ir_version=99
    ),
}


@pytest.mark.parametrize("case", BAD_MODELS)
def test_a_model_that_onnxruntime_refuses(case):
    data = BAD_MODELS[case]().SerializeToString()
    original = raised(lambda: ORIGINAL(data, enable_fallback=0))
    ours = raised(OURS, data)
    assert type(ours) is type(original)


BAD_FILES = {
    "damaged": b"\x08\x03garbage",
    "empty": b"",
    "no graph": b"\x08\x08",
    "a web page": b"<html>404</html>",
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bytes_that_are_no_model(case, tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(BAD_FILES[case])
    for given in (path, str(path), BAD_FILES[case]):
        original = raised(lambda given=given: ORIGINAL(given, enable_fallback=0))
        ours = raised(OURS, given)
        if case in ("empty", "no graph") and VERSION < (1, 32):
            # Of a path it is a Fail in these versions.
            assert type(original).__name__ in ("Fail", "InvalidArgument")
            assert type(ours).__name__ == "InvalidArgument"
        else:
            assert type(ours) is type(original)


def test_paths_that_lead_nowhere(tmp_path):
    link = tmp_path / "link.onnx"
    link.symlink_to(tmp_path / "gone.onnx")
    for path in (tmp_path / "gone.onnx", tmp_path, link):
        original = raised(lambda path=path: ORIGINAL(path, enable_fallback=0))
        assert type(raised(OURS, path)) is type(original)


def test_external_data_that_is_gone(tmp_path):
    path = external(tmp_path)
    (tmp_path / "weights.bin").unlink()
    original = raised(lambda: ORIGINAL(path, enable_fallback=0))
    ours = raised(OURS, path)
    assert type(ours) is type(original)
    assert "weights.bin" in str(ours)


@pytest.mark.parametrize("given", [None, 3, bytearray(b"x"), [b"x"]])
def test_what_is_neither_path_nor_bytes(given):
    assert type(raised(OURS, given)) is type(raised(ORIGINAL, given)) is TypeError


BAD_PROVIDERS = {
    "a set": ({"CPUExecutionProvider"}, None),
    "a number among names": ([3], None),
    "a tuple of three": ([("CPUExecutionProvider", {}, 1)], None),
    "options that are no dicts": (["CPUExecutionProvider"], [3]),
    "too few options": (["CPUExecutionProvider"], []),
    "options twice": ([("CPUExecutionProvider", {})], [{}]),
}


@pytest.mark.parametrize("case", BAD_PROVIDERS)
def test_providers_of_another_form(case):
    data = identity().SerializeToString()
    providers, options = BAD_PROVIDERS[case]
    original = raised(lambda: ORIGINAL(data, None, providers, options, enable_fallback=0))
    assert type(raised(OURS, data, None, providers, options)) is type(original) is ValueError


def test_a_provider_that_is_not_there():
    data = identity().SerializeToString()
    with pytest.warns(UserWarning, match="TensorrtExecutionProvider: not available"):
        session = OURS(data, providers=["TensorrtExecutionProvider", "CPUExecutionProvider"])
    assert session.run(None, {"x": X})[0].tolist() == X.tolist()
    with pytest.raises(RuntimeError, match="Unknown Provider Type: Nobodys"):
        session.set_providers(["Nobodys"])
