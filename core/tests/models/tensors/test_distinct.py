"""Deduplication: right by content, and cheap where nothing is shared."""

from __future__ import annotations

import threading

import numpy as np
import onnx_ir as ir
import pytest

from narrowpass_ir.io import MappedFile, MappedTensor
from narrowpass_ir.tensors.distinct import first_equal
from narrowpass_ir.tensors.streaming import SAMPLED


class Counting(MappedTensor):
    """A tensor in a file that counts the bytes read of it."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.taken = 0
        self.lock = threading.Lock()

    def read(self, offset, size):
        with self.lock:
            self.taken += size
        return super().read(offset, size)


def in_file(tmp_path, arrays):
    tensors = []
    for number, array in enumerate(arrays):
        path = tmp_path / str(number)
        path.write_bytes(array.tobytes())
        dtype = ir.DataType.from_numpy(array.dtype)
        tensors.append(Counting(MappedFile(path), 0, dtype, array.shape, f"t{number}"))
    return tensors


def test_unique_tensors_are_only_sampled(tmp_path):
    rng = np.random.default_rng(0)
    tensors = in_file(tmp_path, [rng.standard_normal(100_000) for _ in range(5)])
    assert first_equal(tensors, 4) == [0, 1, 2, 3, 4]
    assert all(tensor.taken <= SAMPLED for tensor in tensors)


def test_a_tensor_alone_in_its_type_is_not_read_at_all(tmp_path):
    tensors = in_file(tmp_path, [np.zeros(1000 + i) for i in range(5)])
    assert first_equal(tensors, 4) == [0, 1, 2, 3, 4]
    assert all(tensor.taken == 0 for tensor in tensors)


@pytest.mark.parametrize("threads", [1, 4])
def test_equal_bytes_are_found_wherever_they_are(tmp_path, threads):
    rng = np.random.default_rng(0)
    one, two = rng.standard_normal((2, 50_000))
    close = one.copy()
    close[77] += 1  # between the sampled places
    tensors = [
        *in_file(tmp_path, [one, two, one, close]),
        ir.tensor(one.copy()),
        ir.tensor(close.copy()),
        ir.LazyTensor(lambda: ir.tensor(two), dtype=ir.DataType.DOUBLE, shape=ir.Shape([50_000])),
        ir.LazyTensor(lambda: ir.tensor(-two), dtype=ir.DataType.DOUBLE, shape=ir.Shape([50_000])),
    ]
    assert first_equal(tensors, threads) == [0, 1, 0, 3, 0, 3, 1, 7]


def test_type_and_shape_and_the_sign_of_zero_matter():
    tensors = [
        ir.tensor(np.zeros((10, 100), np.float32)),
        ir.tensor(np.zeros((100, 10), np.float32)),
        ir.tensor(np.zeros((10, 100), np.int32)),
        ir.tensor(-np.zeros((10, 100), np.float32)),
        ir.tensor(np.zeros((10, 100), np.float32)),
    ]
    assert first_equal(tensors, 2) == [0, 1, 2, 3, 0]


def test_the_same_place_of_a_file_is_not_read(tmp_path):
    (tmp_path / "f").write_bytes(bytes(8000))
    file = MappedFile(tmp_path / "f")
    tensors = [Counting(file, 0, ir.DataType.FLOAT, [500], name) for name in "abc"]
    assert first_equal(tensors, 1) == [0, 0, 0]
    assert sum(tensor.taken for tensor in tensors) == 0


@pytest.mark.parametrize("size", [1, 255, SAMPLED - 1, SAMPLED, SAMPLED + 1, SAMPLED + 257, 9999])
def test_one_changed_byte_anywhere_is_another_tensor(size):
    base = np.zeros(size, np.uint8)
    for place in {0, size // 2, size - 1, size // 3}:
        other = base.copy()
        other[place] = 1
        given = [ir.tensor(base), ir.tensor(other), ir.tensor(base.copy())]
        lazy = [
            ir.LazyTensor(
                lambda tensor=tensor: tensor, dtype=ir.DataType.UINT8, shape=ir.Shape([size])
            )
            for tensor in given
        ]
        assert first_equal(given, 2) == [0, 1, 0]
        assert first_equal([given[0], lazy[1], lazy[2]], 2) == [0, 1, 0]
