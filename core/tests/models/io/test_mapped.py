"""Tensors in files: views, streams, bounds, and files that change under them."""

from __future__ import annotations

import errno
import gc
import hashlib
import io
import math
import os
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from narrowpass_ir.errors import ModelError, UsageError
from narrowpass_ir.io import MappedFile, MappedTensor, ViewedTensor
from narrowpass_ir.io.mapped import CHUNK, write_all

DTYPES = [d for d in ir.DataType if d not in (ir.DataType.UNDEFINED, ir.DataType.STRING)]


def packed(dtype: ir.DataType, count: int) -> bytes:
    """Bytes of `count` elements of any bit pattern, with zeros after the last."""
    bits = count * dtype.bitwidth
    data = bytearray(i * 37 % 251 for i in range((bits + 7) // 8))
    if dtype == ir.DataType.BOOL:
        data = bytearray(i % 2 for i in range(count))
    if bits % 8:
        data[-1] &= (1 << bits % 8) - 1
    return bytes(data)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (2, 2, 4), (0, 4)], ids=str)
@pytest.mark.parametrize("offset", [0, 3, 64])
def test_every_type(
    dtype: ir.DataType, shape: tuple[int, ...], offset: int, tmp_path: Path
) -> None:
    data = packed(dtype, int(np.prod(shape)))
    (tmp_path / "f").write_bytes(b"\xff" * offset + data + b"\xff" * 9)
    tensor = MappedTensor(MappedFile(tmp_path / "f"), offset, dtype, shape, "t")
    proto = onnx.TensorProto(name="t", data_type=dtype.value, dims=shape, raw_data=data)
    expected = numpy_helper.to_array(proto)
    array = tensor.numpy()
    assert array.dtype == dtype.numpy()
    assert array.shape == shape
    assert not array.flags.writeable
    assert array.tobytes() == expected.astype(array.dtype).tobytes()
    assert tensor.nbytes == len(data)
    assert tensor.tobytes() == data
    assert tensor.size == expected.size
    assert ir.to_proto(tensor).raw_data == data


def test_numpy_is_a_view(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(64))
    tensor = MappedTensor(MappedFile(tmp_path / "f"), 16, ir.DataType.FLOAT, [4])
    with (tmp_path / "f").open("r+b") as file:
        file.seek(16)
        file.write(np.float32(7).tobytes())
    assert tensor.numpy()[0] == 7
    assert np.shares_memory(tensor.numpy(), tensor.numpy())
    with pytest.raises(ValueError, match="read-only"):
        tensor.numpy()[0] = 1


def test_protocol(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(range(16)))
    tensor = MappedTensor(
        MappedFile(tmp_path / "f"),
        0,
        ir.DataType.UINT8,
        ir.Shape([4, 4]),
        "t",
        doc_string="what",
        metadata_props={"a": "b"},
    )
    assert isinstance(tensor, ir.TensorProtocol)
    tensor.name = "other"
    tensor.metadata_props["c"] = "d"
    tensor.meta["mine"] = 1
    proto = ir.to_proto(tensor)
    assert (proto.name, proto.doc_string) == ("other", "what")
    assert [(p.key, p.value) for p in proto.metadata_props] == [("a", "b"), ("c", "d")]
    assert np.array(tensor, dtype=np.int64).dtype == np.int64
    assert np.asarray(tensor).sum() == sum(range(16))
    assert "other" in repr(tensor)
    with pytest.raises(BufferError, match="use numpy"):
        np.from_dlpack(tensor)


def test_zero_size_needs_no_mapping(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"")
    tensor = MappedTensor(MappedFile(tmp_path / "f"), 0, ir.DataType.FLOAT, [3, 0])
    assert tensor.numpy().shape == (3, 0)
    assert tensor.tobytes() == b""


@pytest.mark.parametrize(
    ("offset", "dtype", "shape", "message"),
    [
        (61, ir.DataType.FLOAT, [1], "needs 4 bytes at offset 61, but the file has 64"),
        (-4, ir.DataType.FLOAT, [1], "needs 4 bytes at offset -4"),
        (65, ir.DataType.FLOAT, [0], "needs 0 bytes at offset 65"),
        (0, ir.DataType.FLOAT, [2**40, 2**40], "but the file has 64"),
        (0, ir.DataType.INT4, [129], "needs 65 bytes"),
        (0, ir.DataType.FLOAT, [-1], "negative dimension"),
        (0, ir.DataType.STRING, [1], "cannot be stored outside"),
        (0, ir.DataType.UNDEFINED, [1], "cannot be stored outside"),
    ],
)
def test_bounds(
    offset: int, dtype: ir.DataType, shape: list[int], message: str, tmp_path: Path
) -> None:
    (tmp_path / "f.bin").write_bytes(bytes(64))
    with pytest.raises(ModelError, match=rf"f\.bin: tensor 'w' .*{message}"):
        MappedTensor(MappedFile(tmp_path / "f.bin"), offset, dtype, shape, "w")


def test_six_bits_with_a_wrong_end(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"\xff" * 8)
    dtype = getattr(ir.DataType, "FLOAT6E2M3", None)
    if dtype is None:
        pytest.skip("this onnx-ir has no such type")
    with pytest.raises(ModelError, match=r"f: tensor 'w'.*damaged"):
        MappedTensor(MappedFile(tmp_path / "f"), 0, dtype, [1], "w").numpy()


class Pieces:
    """A file that takes at most 1000 bytes a call, as an unbuffered one may."""

    def __init__(self) -> None:
        self.hash = hashlib.sha256()
        self.largest = 0

    def write(self, data: bytes) -> int:
        self.largest = max(self.largest, len(data))
        self.hash.update(data[:1000])
        return min(1000, len(data))


def test_stream(tmp_path: Path) -> None:
    data = os.urandom(3 * CHUNK + 17)
    (tmp_path / "f").write_bytes(b"abc" + data)
    tensor = MappedTensor(MappedFile(tmp_path / "f"), 3, ir.DataType.INT8, [len(data)])
    sink = Pieces()
    tensor.tofile(sink)
    assert sink.hash.digest() == hashlib.sha256(data).digest()
    assert sink.largest == CHUNK
    buffer = io.BytesIO()
    tensor.tofile(buffer)
    assert buffer.getvalue() == data
    assert tensor.read(CHUNK - 1, 5) == data[CHUNK - 1 : CHUNK + 4]
    with pytest.raises(ValueError, match="not inside"):
        tensor.read(len(data) - 1, 2)


def test_a_file_that_takes_nothing() -> None:
    class Full:
        def write(self, data: bytes) -> int:
            return 0

    with pytest.raises(OSError, match="no bytes"):
        write_all(Full(), b"abc")


def test_a_replaced_file_is_not_seen(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"old!")
    tensor = MappedTensor(MappedFile(path), 0, ir.DataType.UINT8, [4])
    (tmp_path / "new").write_bytes(b"new!")
    (tmp_path / "new").replace(path)
    assert tensor.tobytes() == b"old!"
    assert tensor.numpy().tobytes() == b"old!"


def test_a_cut_file_is_an_error_and_no_crash(tmp_path: Path) -> None:
    path = tmp_path / "f.bin"
    path.write_bytes(bytes(1 << 20))
    tensor = MappedTensor(MappedFile(path), 0, ir.DataType.FLOAT, [1 << 18], "w")
    os.truncate(path, 4096)
    with pytest.raises(ModelError, match=r"f\.bin: was cut from 1048576 to 4096 bytes"):
        tensor.numpy()
    with pytest.raises(ModelError, match=r"f\.bin: was cut"):
        tensor.tobytes()
    with pytest.raises(ModelError, match=r"f\.bin: was cut"):
        tensor.tofile(io.BytesIO())
    assert tensor.read(0, 4096) == bytes(4096)


def test_cut_after_it_was_mapped(tmp_path: Path) -> None:
    path = tmp_path / "f.bin"
    path.write_bytes(bytes(1 << 20))
    file = MappedFile(path)
    first = MappedTensor(file, 0, ir.DataType.FLOAT, [16])
    assert first.numpy().sum() == 0
    os.truncate(path, 4096)
    with pytest.raises(ModelError, match="was cut"):
        MappedTensor(file, 1 << 19, ir.DataType.FLOAT, [16]).numpy()


def test_from_a_descriptor(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abcd")
    fd = os.open(tmp_path / "f", os.O_RDONLY)
    file = MappedFile(fd, "weights")
    assert file.read(1, 2) == b"bc"
    file.close()
    file.close()
    with pytest.raises(ModelError, match="weights: already closed"):
        file.read(0, 1)
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(fd)


def test_descriptor_goes_with_the_last_user(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(range(8)))
    file = MappedFile(tmp_path / "f")
    fd = file._fd
    tensor = MappedTensor(file, 0, ir.DataType.UINT8, [8])
    array = tensor.numpy()
    del file
    os.fstat(fd)
    del tensor
    gc.collect()
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(fd)
    assert array.sum() == 28


def test_not_a_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(ModelError, match="not a regular file"):
            MappedFile(path)
    with pytest.raises(ModelError, match="cannot be opened: No such file"):
        MappedFile(tmp_path / "none")
    fd = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(ModelError, match="not a regular file"):
        MappedFile(fd)
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(fd)


def test_tensors_are_checked_where_they_were_read_to(tmp_path):
    data = np.arange(6, dtype=np.float32)
    (tmp_path / "f").write_bytes(data.tobytes())
    file = MappedFile(tmp_path / "f")
    digest = hashlib.sha256(data.tobytes()).hexdigest()
    good = MappedTensor(file, 0, ir.DataType.FLOAT, [2, 3], "t", sha256=digest)
    np.testing.assert_array_equal(good.checked(), data.reshape(2, 3))
    assert not good.checked().flags.writeable
    part = MappedTensor(file, 0, ir.DataType.FLOAT, [5], "t", sha256=digest)
    with pytest.raises(ModelError, match=r"f: tensor 't' was changed"):
        part.checked()
    part.mismatch = lambda tensor: UsageError(f"{tensor.name} of {tensor.file.size} bytes")
    with pytest.raises(UsageError, match="t of 24 bytes"):
        part.check("another")
    odd = MappedTensor(file, 4, ir.DataType.UINT4, [3], "n")
    np.testing.assert_array_equal(odd.checked(), odd.numpy())


def test_a_file_that_shrank_is_no_tensor_to_check(tmp_path):
    (tmp_path / "f").write_bytes(bytes(64))
    tensor = MappedTensor(MappedFile(tmp_path / "f"), 0, ir.DataType.FLOAT, [16], "t")
    os.truncate(tmp_path / "f", 8)
    with pytest.raises(ModelError, match="was cut from 64 to 8"):
        tensor.checked()


def test_reading_into_memory(tmp_path):
    (tmp_path / "f").write_bytes(bytes(range(64)))
    file = MappedFile(tmp_path / "f")
    target = bytearray(5)
    file.read_into(7, memoryview(target))
    assert bytes(target) == bytes(range(7, 12))
    for offset in (-1, 60):
        with pytest.raises(ValueError, match="not inside"):
            file.read_into(offset, memoryview(target))
    assert file.status().st_size == 64


@pytest.mark.parametrize(
    ("dtype", "shape"), [("UINT4", (3, 8)), ("UINT8", (12,)), ("FLOAT", (3,)), ("INT2", (48,))]
)
def test_bytes_as_elements_of_another_type(dtype, shape):
    raw = np.arange(12, dtype=np.uint8).reshape(3, 4) * 21
    kind = ir.DataType[dtype]
    viewed = ViewedTensor(ir.Tensor(raw), kind, shape, "v")
    assert (viewed.name, viewed.dtype, viewed.nbytes, viewed.size) == (
        "v",
        kind,
        12,
        math.prod(shape),
    )
    assert tuple(viewed.shape.numpy()) == shape
    assert viewed.tobytes() == raw.tobytes()
    proto = onnx.helper.make_tensor("v", int(kind), shape, raw.tobytes(), raw=True)
    np.testing.assert_array_equal(viewed.numpy(), onnx.numpy_helper.to_array(proto))
    np.testing.assert_array_equal(np.asarray(viewed), viewed.numpy())
    stream = io.BytesIO()
    viewed.tofile(stream)
    assert stream.getvalue() == raw.tobytes()
    with pytest.raises(ValueError, match="12 bytes are not"):
        ViewedTensor(ir.Tensor(raw), kind, (5, 5))


def refuse(*_args: object) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_file_that_cannot_be_looked_at(tmp_path, monkeypatch):
    """As on a disk that fails between opening and reading: the descriptor is closed."""
    path = tmp_path / "data"
    path.write_bytes(b"0123")
    with monkeypatch.context() as patched:
        patched.setattr(os, "fstat", refuse)
        fd = os.open(path, os.O_RDONLY)
        with pytest.raises(ModelError, match="cannot be read: Input/output error"):
            MappedFile(fd, "data")
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(fd)
    file = MappedFile(path)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fstat", refuse)
        with pytest.raises(ModelError, match="cannot be read: Input/output error"):
            file.check_size()


@pytest.mark.parametrize("dims", [[9] * 300_000, [1 << 40, 1 << 40], [3, 1 << 62]])
def test_a_count_that_no_memory_holds_is_not_exact(tmp_path, dims):
    """The exact number of a million dimensions would take minutes, and be a megabyte long."""
    path = tmp_path / "data"
    path.write_bytes(b"12345678")
    with pytest.raises(ModelError, match=r"needs [0-9]{19,30} bytes"):
        MappedTensor(MappedFile(path), 0, ir.DataType.FLOAT, dims)
    assert MappedTensor(MappedFile(path), 0, ir.DataType.FLOAT, [*dims, 0]).nbytes == 0
