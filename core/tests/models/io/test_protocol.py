"""Tensors of this library where others take tensors: onnx-ir, numpy, copies, files."""

from __future__ import annotations

import copy
import io

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from narrowpass_ir.errors import ModelError
from narrowpass_ir.io import ConvertedTensor, MappedFile, MappedTensor, ViewedTensor
from narrowpass_ir.io.converted import CHUNK, elements
from narrowpass_ir.io.mapped import write_all

VALUES = np.array([[1.0, -2.5, 1e-9], [70000.0, np.inf, 0.1]], np.float32)


def source() -> ir.Tensor:
    return ir.Tensor(VALUES, name="w", doc_string="of a layer")


def converted() -> ConvertedTensor:
    return ConvertedTensor(source(), ir.DataType.FLOAT16)


def viewed() -> ViewedTensor:
    return ViewedTensor(source(), ir.DataType.UINT16, (3, 4))


def mapped(folder) -> MappedTensor:
    (folder / "w.bin").write_bytes(VALUES.tobytes())
    return MappedTensor(
        MappedFile(folder / "w.bin"),
        0,
        ir.DataType.FLOAT,
        [2, 3],
        "w",
        doc_string="of a layer",
        metadata_props={"from": "file"},
    )


with np.errstate(over="ignore"):
    HALVES = VALUES.astype(np.float16)


@pytest.mark.parametrize(
    ("create", "expected"),
    [(converted, HALVES), (viewed, VALUES.view(np.uint16).reshape(3, 4))],
    ids=["converted", "viewed"],
)
def test_what_onnx_and_numpy_see(create, expected):
    tensor = create()
    assert isinstance(tensor, ir.TensorProtocol)
    assert (tensor.name, tensor.doc_string) == ("w", "of a layer")
    assert tensor.raw is tensor.source
    assert (tensor.shape, tensor.size) == (ir.Shape(expected.shape), expected.size)
    assert tensor.nbytes == expected.nbytes
    tensor.metadata_props["key"] = "value"
    proto = ir.to_proto(tensor)
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(proto), expected)
    assert [(entry.key, entry.value) for entry in proto.metadata_props] == [("key", "value")]
    np.testing.assert_array_equal(np.asarray(tensor), expected)
    assert np.array(tensor, dtype=np.float64).dtype == np.float64
    with pytest.raises(BufferError, match=r"'w' has no memory and no DLPack form; use numpy\(\)"):
        np.from_dlpack(tensor)
    with pytest.raises(BufferError, match=r"use numpy\(\)"):
        tensor.__dlpack__()
    with pytest.raises(BufferError, match=r"use numpy\(\)"):
        tensor.__dlpack_device__()
    assert type(tensor).__name__ in repr(tensor)
    assert repr(tensor.source) in repr(tensor)


@pytest.mark.parametrize("other", [ir.DataType.INT8, ir.DataType.STRING])
def test_only_floats_are_converted(other):
    with pytest.raises(TypeError, match="not converted"):
        ConvertedTensor(source(), other)
    with pytest.raises(TypeError, match="not converted"):
        ConvertedTensor(ViewedTensor(source(), ir.DataType.INT8, (24,)), ir.DataType.FLOAT16)


def test_any_part_is_that_of_the_whole(tmp_path):
    whole = HALVES.astype("<f2").tobytes()
    for origin in (source(), mapped(tmp_path)):
        tensor = ConvertedTensor(origin, ir.DataType.FLOAT16, "other")
        assert tensor.name == "other"
        assert tensor.tobytes() == whole
        for start in range(13):
            for stop in range(start, 13):
                assert tensor.read(start, stop - start) == whole[start:stop]
        for offset, size in ((-1, 2), (0, -1), (11, 2)):
            with pytest.raises(ValueError, match="are not inside tensor 'other'"):
                tensor.read(offset, size)


def test_elements_of_a_conversion_of_a_conversion():
    twice = ConvertedTensor(converted(), ir.DataType.FLOAT)
    np.testing.assert_array_equal(elements(twice, 1, 5), HALVES.reshape(-1)[1:5])


class Slow(io.BytesIO):
    """A stream that takes 7 bytes at a time, as an unbuffered one may."""

    def write(self, data, /):
        return super().write(data[:7])


def test_a_conversion_is_written_in_pieces():
    array = np.linspace(-2, 2, CHUNK // 2 + 5, dtype=np.float32)
    tensor, stream = ConvertedTensor(ir.Tensor(array), ir.DataType.FLOAT16), io.BytesIO()
    tensor.tofile(stream)
    assert stream.getvalue() == array.astype("<f2").tobytes()
    stream = Slow()
    converted().tofile(stream)
    assert stream.getvalue() == HALVES.tobytes()


def test_a_stream_that_takes_nothing_is_an_error():
    class Full(io.BytesIO):
        def write(self, data, /):
            return 0

    with pytest.raises(OSError, match="took no bytes"):
        write_all(Full(), b"abc")


def test_a_view_is_written_where_its_source_has_no_file():
    class Plain(ir.TensorProtocol):
        """A tensor of somebody else, of what the protocol demands alone."""

        name, doc_string, dtype = "p", None, ir.DataType.FLOAT
        shape, nbytes = ir.Shape([2, 3]), VALUES.nbytes

        def tobytes(self):
            return VALUES.tobytes()

    stream = io.BytesIO()
    ViewedTensor(Plain(), ir.DataType.UINT8, (24,)).tofile(stream)
    assert stream.getvalue() == VALUES.tobytes()


def test_a_copy_reads_the_same_file(tmp_path):
    tensor = mapped(tmp_path)
    tensor.meta["list"] = [1]
    copied = copy.deepcopy(tensor)
    assert copied is not tensor
    assert copied.file is tensor.file
    assert copied.offset == tensor.offset == 0
    assert (copied.name, copied.doc_string) == ("w", "of a layer")
    assert copied.metadata_props == {"from": "file"}
    np.testing.assert_array_equal(copied.numpy(), VALUES)
    copied.meta["list"].append(2)
    copied.metadata_props["from"] = "copy"
    assert tensor.meta["list"] == [1]
    assert tensor.metadata_props == {"from": "file"}
    with pytest.raises(BufferError, match=r"use numpy\(\)"):
        copied.__dlpack__()
    with pytest.raises(BufferError, match=r"use numpy\(\)"):
        copied.__dlpack_device__()
    assert tensor.raw is tensor.file
    assert repr(tensor.file) == f"MappedFile({str(tmp_path / 'w.bin')!r}, size=24)"


def test_memory_that_was_dropped_is_read_again(tmp_path):
    array = np.arange(1 << 14, dtype=np.float32)
    (tmp_path / "w.bin").write_bytes(array.tobytes())
    tensor = MappedTensor(MappedFile(tmp_path / "w.bin"), 0, ir.DataType.FLOAT, [1 << 14], "w")
    tensor.drop()  # nothing is mapped yet
    seen = tensor.numpy()
    tensor.drop()
    np.testing.assert_array_equal(seen, array)
    tensor.file.drop(4, 8)  # less than a page
    np.testing.assert_array_equal(seen, array)


def test_a_disk_that_fails_is_named(tmp_path, monkeypatch):
    def fail(*arguments, **options):
        raise OSError(5, "Input/output error")

    file = mapped(tmp_path).file
    with monkeypatch.context() as patch:
        patch.setattr("os.pread", fail)
        with pytest.raises(ModelError, match=r"w\.bin: cannot be read: Input/output error"):
            file.read(0, 8)
        patch.setattr("os.preadv", fail)
        with pytest.raises(ModelError, match=r"w\.bin: cannot be read: Input/output error"):
            file.read_into(0, memoryview(bytearray(8)))
        patch.setattr("mmap.mmap", fail)
        with pytest.raises(ModelError, match=r"w\.bin: cannot be mapped into memory"):
            file.mapping  # noqa: B018  # a property that maps
    for offset, size in ((-1, 2), (0, -1), (20, 5)):
        with pytest.raises(ValueError, match="are not inside the file"):
            file.read(offset, size)
    (tmp_path / "w.bin").write_bytes(bytes(8))
    with pytest.raises(ModelError, match="was cut from 24 to 8 bytes"):
        file.read(4, 12)
    with pytest.raises(ModelError, match="was cut from 24 to 8 bytes"):
        file.read_into(4, memoryview(bytearray(12)))
