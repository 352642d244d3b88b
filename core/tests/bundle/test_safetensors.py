"""The weights file: aligned, readable by the safetensors library, the same for any threads."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import threading

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from bundle_models import TYPES, random_raw
from safetensors import safe_open

from narrowpass.errors import ModelError
from narrowpass_ir.tensors import safetensors


def array(name, shape, seed=0):
    return ir.tensor(
        np.random.default_rng(seed).standard_normal(shape).astype(np.float32), name=name
    )


def write(path, tensors, **kwargs):
    layout = safetensors.Layout.of(tensors)
    with path.open("wb") as file:
        return layout, safetensors.write(file.fileno(), layout, tensors, **kwargs)


@pytest.fixture
def tensors():
    return {f"t{i}": array(f"t{i}", (i + 1, 7 * i + 3), i) for i in range(20)}


def test_the_library_reads_what_was_written(tmp_path, tensors):
    path = tmp_path / "w"
    _, hashes = write(path, tensors)
    with safe_open(path, framework="np") as opened:
        names = set(opened.keys())
        for key, tensor in tensors.items():
            assert np.array_equal(opened.get_tensor(key), tensor.numpy())
            assert hashes[key] == hashlib.sha256(tensor.tobytes()).hexdigest()
    assert {name for name in names if not name.startswith("__pad.")} == set(tensors)


def test_every_tensor_starts_at_a_multiple_of_64_and_padding_is_zero(tmp_path, tensors):
    path = tmp_path / "w"
    write(path, tensors)
    data = path.read_bytes()
    length = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:length])
    assert length % 64 == 0
    pads = 0
    for name, entry in header.items():
        start, stop = (length + offset for offset in entry["data_offsets"])
        if name.startswith("__pad."):
            assert entry["dtype"] == "U8"
            assert not any(data[start:stop])
            pads += 1
        else:
            assert start % 64 == 0
    assert pads > 0
    assert len(data) == stop


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_the_number_of_threads_changes_no_byte(tmp_path, tensors, threads):
    write(tmp_path / "one", tensors, threads=1)
    write(tmp_path / "many", tensors, threads=threads)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "many").read_bytes()


@pytest.mark.parametrize("type_name", [name for name in TYPES if ir.DataType[name].bitwidth < 8])
def test_packed_types_are_stored_as_bytes(tmp_path, type_name):
    raw = random_raw(type_name)
    dtype = ir.DataType[type_name]
    packed = ir.PackedTensor(np.frombuffer(raw, np.uint8), dtype, shape=ir.Shape([29, 37]))
    unpacked = ir.Tensor(packed.numpy(), dtype=dtype)
    for number, tensor in enumerate([packed, unpacked]):
        path = tmp_path / str(number)
        write(path, {"w": tensor})
        with safe_open(path, framework="np") as opened:
            stored = opened.get_tensor("w")
        assert stored.dtype == np.uint8
        assert stored.tobytes() == raw


@pytest.mark.parametrize(
    "tensor",
    [
        ir.tensor(np.asfortranarray(np.arange(12000.0).reshape(300, 40))),
        ir.tensor(np.arange(2000.0)[::3]),
        ir.tensor(np.array(7.5)),
        ir.Tensor(np.arange(700, dtype=np.uint16).view(ml_dtypes.bfloat16)),
        ir.Tensor(np.arange(600000).reshape(600, 1000).T % 16, dtype=ir.DataType.INT64),
        ir.LazyTensor(
            lambda: ir.tensor(np.arange(5.0)), dtype=ir.DataType.DOUBLE, shape=ir.Shape([5])
        ),
    ],
    ids=["fortran", "strided", "scalar", "bfloat16", "transposed", "lazy"],
)
def test_any_tensor_streams_its_serialized_bytes(tmp_path, tensor):
    layout, hashes = write(tmp_path / "w", {"w": tensor})
    entry = layout.entries["w"]
    data = (tmp_path / "w").read_bytes()[entry.offset :][: entry.nbytes]
    assert data == tensor.tobytes()
    assert hashes["w"] == hashlib.sha256(data).hexdigest()


class Wrong(ir.LazyTensor):
    """A tensor whose data is not as its shape says."""

    def __init__(self, given):
        super().__init__(lambda: None, dtype=ir.DataType.FLOAT, shape=ir.Shape([100]), name="w")
        self.given = given

    def tofile(self, file):
        file.write(bytes(self.given))


@pytest.mark.parametrize("given", [0, 399, 401, 5000])
def test_a_tensor_of_a_wrong_length_is_refused(tmp_path, tensors, given):
    with pytest.raises(ModelError, match=r"'wrong' has .* bytes where .* need 400"):
        write(tmp_path / "w", {**tensors, "wrong": Wrong(given)})


def test_a_source_that_cannot_be_read_is_not_taken_for_a_full_disk(tmp_path):
    class Broken(Wrong):
        def tofile(self, file):
            raise OSError(5, "Input/output error")

    with pytest.raises(ModelError, match="cannot be read"):
        write(tmp_path / "w", {"w": Broken(0)})


def test_a_sync_that_fails_meanwhile_is_not_lost(tmp_path, monkeypatch):
    failed = threading.Event()

    def fail(fd):
        failed.set()
        raise OSError(errno.ENOSPC, "No space left on device")

    class Slow(Wrong):
        def tofile(self, file):
            assert failed.wait(60)
            file.write(bytes(400))

    monkeypatch.setattr(os, "fdatasync", fail, raising=False)
    with pytest.raises(OSError, match="No space"):
        write(tmp_path / "w", {"w": Slow(400)})


def test_progress_ends_at_the_total(tmp_path, tensors):
    calls = []
    write(tmp_path / "w", tensors, progress=lambda done, total: calls.append((done, total)))
    total = sum(tensor.nbytes for tensor in tensors.values())
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    assert calls[-1] == (total, total)


def test_memory_does_not_grow_with_the_tensor(tmp_path):
    class Stream(ir.LazyTensor):
        def tofile(self, file):
            for _ in range(self.nbytes >> 16):
                file.write(bytes(1 << 16))

    import tracemalloc

    peaks = []
    for megabytes in (8, 64):
        tensor = Stream(
            lambda: None, dtype=ir.DataType.UINT8, shape=ir.Shape([megabytes << 20]), name="w"
        )
        tracemalloc.start()
        write(tmp_path / "w", {"w": tensor})
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + (1 << 20)


@pytest.mark.parametrize(
    ("header", "size"),
    [
        (b"", 4096),
        (b"{", 4096),
        (b"[]", 4096),
        (b'{"a":1}', 4096),
        (b'{"a":{"dtype":"U8","shape":[4]}}', 4096),
        (b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[1,5]}}', 4096),
        (b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,"4"]}}', 4096),
        (b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,-4]}}', 4096),
        (b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}', 4096),
    ],
)
def test_a_damaged_header_is_refused(header, size):
    with pytest.raises(ModelError):
        safetensors.parse_header(len(header).to_bytes(8, "little") + header, size)


@pytest.mark.parametrize("start", [b"", b"1234567", b"\xff" * 8, (2**62).to_bytes(8, "little")])
def test_a_header_longer_than_the_file_is_refused(start):
    with pytest.raises(ModelError, match="longer than the file"):
        safetensors.header_size(start, 100)


def test_no_tensors_are_a_file_that_the_library_reads(tmp_path):
    write(tmp_path / "w", {})
    with safe_open(tmp_path / "w", framework="np") as opened:
        assert list(opened.keys()) == []
