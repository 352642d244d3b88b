"""Sessions where onnxruntime is not installed: what works, and what says that it needs it."""

import subprocess
import sys

import numpy as np
import onnx
import pytest
from session_kit import ORIGINAL, perceptron

X = np.arange(6, dtype=np.float32).reshape(2, 3)

HIDE = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "onnxruntime":
            raise ModuleNotFoundError("hidden", name="onnxruntime")
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *a: None if name == "onnxruntime" else found(name, *a)
sys.meta_path.insert(0, Hidden())
import numpy as np, types
import narrowpass_onnxruntime
from narrowpass_onnxruntime.session import errors
"""


def run(code, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", HIDE + code, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def path(tmp_path):
    onnx.save(perceptron(), tmp_path / "model.onnx")
    return str(tmp_path / "model.onnx")


def test_runs_options_and_bindings(path, tmp_path):
    code = """
options = types.SimpleNamespace(intra_op_num_threads=2, enable_profiling=True,
                                profile_file_prefix=sys.argv[2])
session = narrowpass_onnxruntime.InferenceSession(sys.argv[1], options)
x = np.arange(6, dtype=np.float32).reshape(2, 3)
(y,) = session.run(["y"], {"x": x})
binding = session.io_binding()
binding.bind_cpu_input("x", x)
binding.bind_output("y")
session.run_with_iobinding(binding)
assert np.array_equal(binding.copy_outputs_to_cpu()[0], y)
assert session.get_inputs()[0].type == "tensor(float)"
assert session.get_session_options() is options
assert session.end_profiling()
assert "onnxruntime" not in sys.modules
print(y.tolist())
"""
    found = np.array(eval(run(code, path, str(tmp_path / "p"))))  # numbers
    (expected,) = ORIGINAL(path).run(["y"], {"x": X})
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()


def test_exceptions_are_of_classes_that_stand_in(path):
    code = """
session = narrowpass_onnxruntime.InferenceSession(sys.argv[1])
def name(call):
    try:
        call()
    except Exception as error:
        assert type(error) is getattr(errors, type(error).__name__, type(error))
        return type(error).__name__
x = np.zeros((2, 3), np.float32)
print(name(lambda: session.run(["q"], {"x": x})),
      name(lambda: session.run(None, {"x": x[0]})),
      name(lambda: session.run(None, {})),
      name(lambda: narrowpass_onnxruntime.InferenceSession("gone.onnx")),
      name(lambda: narrowpass_onnxruntime.InferenceSession(b"\\x08\\x03garbage")),
      name(lambda: session.set_ep_dynamic_options({})))
"""
    assert run(code, path).split() == [
        "InvalidArgument",
        "InvalidArgument",
        "ValueError",
        "NoSuchFile",
        "InvalidProtobuf",
        "NotImplemented",
    ]


def test_ort_values_need_it(path):
    code = """
session = narrowpass_onnxruntime.InferenceSession(sys.argv[1])
binding = session.io_binding()
binding.bind_cpu_input("x", np.zeros((2, 3), np.float32))
binding.bind_output("y")
session.run_with_iobinding(binding)
try:
    binding.get_outputs()
except errors.Fail as error:
    print(error)
"""
    assert "OrtValue is a class of onnxruntime, which is not installed" in run(code, path)
