"""Arrays of other libraries are read where they lie."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from narrowpass_ir.data.arrays import is_fed, plain_array
from narrowpass_ir.errors import DataError

NARROW = ["bfloat16", "float8_e4m3fn", "float8_e5m2"]
"""Types of PyTorch that numpy has through ml_dtypes alone."""


class Exporter:
    """An array that DLPack alone hands over."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


class Column:
    """An array that ``__array__`` alone hands over."""

    def __init__(self, array):
        self._array = array

    def __array__(self, dtype=None, copy=None):
        return self._array


class AnyName:
    """An object that answers to every name, as proxies do."""

    def __getattr__(self, name):
        return self


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.mark.parametrize("kind", [Exporter, Column])
@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.float16, np.bool_])
def test_an_array_of_another_library_is_viewed(kind, dtype):
    array = np.arange(6).reshape(2, 3).astype(dtype)[:, ::2]
    found = plain_array(kind(array), "x")
    assert type(found) is np.ndarray
    assert np.shares_memory(found, array)
    assert (found.dtype, found.shape, found.strides) == (array.dtype, array.shape, array.strides)
    np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "uint8", "bool", *NARROW])
def test_a_tensor_of_pytorch_is_viewed(torch, dtype):
    tensor = torch.arange(8).reshape(2, 4).to(getattr(torch, dtype))
    found = plain_array(tensor, "x")
    assert type(found) is np.ndarray
    assert found.ctypes.data == tensor.data_ptr()
    wanted = np.dtype(getattr(ml_dtypes, dtype) if dtype in NARROW else dtype)
    assert found.dtype == wanted
    # PyTorch's own conversion to float is exact for these types.
    np.testing.assert_array_equal(found.astype(np.float32), tensor.float().numpy())


def test_a_transposed_tensor_keeps_its_strides(torch):
    tensor = torch.arange(6, dtype=torch.float32).reshape(2, 3).to(torch.bfloat16).T
    found = plain_array(tensor, "x")
    assert found.ctypes.data == tensor.data_ptr()
    np.testing.assert_array_equal(found.astype(np.float32), tensor.float().numpy())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.requires_grad_(), "detach"),
        (lambda t: t.to("meta"), "Tensor.cpu"),
        (lambda t: t.to_sparse(), "to_dense"),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_pytorch_does_not_hand_over_has_its_reason(torch, change, words, dtype):
    tensor = change(torch.ones(2, dtype=getattr(torch, dtype)))
    with pytest.raises(DataError, match=f"input 'x' is a torch.Tensor that cannot .*{words}"):
        plain_array(tensor, "input 'x'")


def test_a_failing_export_is_named():
    class Broken:
        def __dlpack__(self, **options):
            raise BufferError("lies on another device")

        def __dlpack_device__(self):
            return (2, 0)

    with pytest.raises(DataError, match=r"Broken that cannot .*lies on another device"):
        plain_array(Broken(), "x")


def test_subclasses_become_plain_arrays_of_the_same_memory():
    matrix = np.asarray([[1.0, 2.0]]).view(np.matrix)
    found = plain_array(matrix, "x")
    assert type(found) is np.ndarray
    assert np.shares_memory(found, matrix)
    whole = np.ma.masked_array([1.0, 2.0], mask=[False, False])
    assert type(plain_array(whole, "x")) is np.ndarray
    with pytest.raises(DataError, match=r"x is a masked array.*value.filled"):
        plain_array(np.ma.masked_array([1.0, 2.0], mask=[False, True]), "x")


def test_elements_of_sequences_are_converted_and_named():
    array = np.ones(2)
    (first, second) = plain_array((array, Exporter(array)), "x")
    assert first is array
    assert np.shares_memory(second, array)
    with pytest.raises(DataError, match="x, element 1, is a masked array"):
        plain_array([array, np.ma.masked_array([1.0], mask=[True])], "x")


@pytest.mark.parametrize("value", [None, 1.0, "text", b"bytes", np.float32(1), AnyName()])
def test_what_is_no_array_stays_as_it_is(value):
    assert plain_array(value, "x") is value
    assert is_fed(value) == (value is None)
