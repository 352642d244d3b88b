"""Inputs and outputs that are bound: results and exceptions are those of onnxruntime's class."""

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from session_kit import FLOAT, OURS, both, identity, perceptron

X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def sessions():
    return both(perceptron())


def run(session, bind):
    binding = session.io_binding()
    bind(binding)
    session.run_with_iobinding(binding)
    return binding


def assert_close(found, expected):
    """Within 1e-5 of the largest: 3 elements accumulated in float32 in another order."""
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()


def test_outputs_that_are_allocated(sessions):
    def bind(binding):
        binding.bind_cpu_input("x", X)
        binding.bind_output("z")
        binding.bind_output("y")

    original, ours = (run(session, bind) for session in sessions)
    values = [value.numpy() for value in ours.get_outputs()]
    for found, copied, expected in zip(
        values, ours.copy_outputs_to_cpu(), original.copy_outputs_to_cpu(), strict=True
    ):
        assert_close(found, expected)
        assert np.array_equal(copied, found)
        assert not np.shares_memory(copied, found)
    assert len(ours.get_outputs_as_ortvaluevector()) == 2


@pytest.mark.parametrize("rows", [2, 20_000])
def test_memory_by_its_address(sessions, rows):
    """Few rows are copied, many are computed where they go."""
    x = np.resize(X, (rows, 3))
    results = []
    for session in sessions:
        y, z = np.full((2, rows, 3), 7, np.float32)

        def bind(binding, y=y, z=z):
            binding.bind_input("x", "cpu", 0, np.float32, x.shape, x.ctypes.data)
            binding.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
            binding.bind_output("z", "cpu", 0, FLOAT, z.shape, z.ctypes.data)

        run(session, bind)
        results.append((y, z))
    for found, expected in zip(results[1], results[0], strict=True):
        assert_close(found, expected)


def test_ort_values(sessions):
    results = []
    for session in sessions:
        y = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros((2, 3), np.float32))

        def bind(binding, y=y):
            binding.bind_ortvalue_input("x", onnxruntime.OrtValue.ortvalue_from_numpy(X))
            binding.bind_ortvalue_output("y", y)

        binding = run(session, bind)
        results.append(y.numpy())
        assert binding.get_outputs()[0].data_ptr() == y.data_ptr()
    assert_close(results[1], results[0])


def test_inputs_are_read_in_each_run():
    session = OURS(identity().SerializeToString())
    x = X.copy()
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output("y")
    for number in range(3):
        x[:] = number
        session.run_with_iobinding(binding)
        assert binding.copy_outputs_to_cpu()[0].tolist() == x.tolist()


@pytest.mark.parametrize("kind", [onnx.TensorProto.BFLOAT16, onnx.TensorProto.FLOAT8E4M3FN])
def test_types_that_numpy_lacks(kind):
    dtype = {16: ml_dtypes.bfloat16, 17: ml_dtypes.float8_e4m3fn}[kind]
    session = OURS(identity(kind).SerializeToString())
    x, y = X.astype(dtype), np.zeros((2, 3), dtype)
    binding = session.io_binding()
    binding.bind_input("x", "cpu", 0, kind, x.shape, x.ctypes.data)
    binding.bind_output("y", "cpu", 0, kind, y.shape, y.ctypes.data)
    session.run_with_iobinding(binding)
    assert np.array_equal(y, x)
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    assert binding.get_outputs()[0].element_type() == kind


def test_an_output_over_its_input():
    """The result is complete before the input is overwritten."""
    session = OURS(perceptron().SerializeToString())
    x = X.copy()
    (expected,) = session.run(["y"], {"x": X})
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output("y", "cpu", 0, np.float32, x.shape, x.ctypes.data)
    session.run_with_iobinding(binding)
    assert np.array_equal(x, expected)


def nothing(_):
    pass


def memory_of(array, name="y"):
    def bind(binding):
        binding.bind_cpu_input("x", X)
        shape, address = array.shape, array.ctypes.data
        binding.bind_output(name, "cpu", 0, array.dtype.type, shape, address)

    return bind


def only_input(binding):
    binding.bind_cpu_input("x", X)


def only_output(binding):
    binding.bind_output("y")


def wrong_type(binding):
    binding.bind_cpu_input("x", X.astype(np.float64))
    binding.bind_output("y")


def unknown_output(binding):
    binding.bind_cpu_input("x", X)
    binding.bind_output("q")


BAD = {
    "nothing bound": nothing,
    "no output": only_input,
    "no input": only_output,
    "an input of another type": wrong_type,
    "an unknown input": lambda binding: binding.bind_cpu_input("q", X),
    "no array": lambda binding: binding.bind_cpu_input("x", [[1.0, 2.0, 3.0]]),
    "an unknown output": unknown_output,
    "memory of another shape": memory_of(np.zeros((3, 3), np.float32)),
    "memory of another type": memory_of(np.zeros((2, 3))),
    "memory of another shape, much of it": memory_of(np.zeros((30_000, 3), np.float32)),
}


@pytest.mark.parametrize("case", BAD)
def test_a_binding_that_onnxruntime_refuses(sessions, case):
    for session in sessions:
        with pytest.raises(RuntimeError):
            run(session, BAD[case])


def test_other_refusals(sessions):
    for session in sessions:
        with pytest.raises(ValueError, match="element_type"):
            session.io_binding().bind_output("y", buffer_ptr=X.ctypes.data)
        with pytest.raises(ValueError, match="session"):
            session.run_with_iobinding(
                both(identity())[1 if session is sessions[1] else 0].io_binding()
            )
    with pytest.raises(Exception, match="memory of the device 'cuda' is not supported"):
        sessions[1].io_binding().bind_input("x", "cuda", 0, np.float32, (2, 3), 0)


def test_bindings_that_are_cleared(sessions):
    for session in sessions:
        binding = session.io_binding()
        binding.bind_cpu_input("x", X)
        binding.bind_output("y")
        session.run_with_iobinding(binding)
        binding.synchronize_inputs()
        binding.synchronize_outputs()
        binding.clear_binding_outputs()
        with pytest.raises(RuntimeError):
            session.run_with_iobinding(binding)
        binding.bind_output("y")
        binding.clear_binding_inputs()
        with pytest.raises(RuntimeError):
            session.run_with_iobinding(binding)
