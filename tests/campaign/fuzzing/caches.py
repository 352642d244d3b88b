"""Files of the cache of a backend: packed weights and stored methods."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

import narrowpass
from fuzzing.growth import grown_document
from fuzzing.structure import Change, changed_document
from fuzzing.target import Target
from narrowpass import Bundle, Program
from narrowpass.errors import NarrowpassError


class Packed(Target):
    """Files of packed weights; the input is their index, whose checksums are right."""

    name = "packed"
    share = 320
    grow = staticmethod(grown_document)

    def seeds(self) -> list[bytes]:
        from narrowpass_planning.weights.file import HEADER

        cache, bundle = self.folder / "cache", self.folder / "b.narrow"
        weight = np.random.default_rng(0).standard_normal((64, 48)).astype(np.float32)
        graph = helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], ["y"])],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 64])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 48])],
            [numpy_helper.from_array(weight, "w")],
        )
        matmul = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
        Bundle({"main": ir.from_proto(matmul)}).save(bundle)
        narrowpass.load(bundle, "xnn-cpu", threads=1, cache_dir=cache).close()
        (self.path,) = cache.rglob("*.weights")
        self.whole = self.path.read_bytes()
        self.start, size = struct.unpack_from("<QQ", self.whole, 16)
        self.header = HEADER
        return [self.whole[self.start : self.start + size]]

    def changes(self) -> Change:
        return changed_document

    def read(self, data: bytes) -> None:
        from narrowpass_planning.weights.file import PackedFile, UnusableError
        from narrowpass_xnn_cpu.native.packer import PACKER

        fields = bytearray(self.whole[:96])
        struct.pack_into("<Q", fields, 24, len(data))
        fields[32:64] = hashlib.sha256(data).digest()
        header = bytes(fields) + hashlib.sha256(fields).digest()
        self.path.unlink(missing_ok=True)
        self.path.write_bytes(header + self.whole[self.header : self.start] + data)
        try:
            file = PackedFile(self.path, PACKER)
            file.damaged()
            file.close()
        except UnusableError as error:
            raise NarrowpassError(str(error)) from error


class Methods(Target):
    """Stored methods; the input is the document, whose checksum is right.

    Other users' files are not read at all (`SECURITY.md`). A document that is refused is planned
    again, and the file replaced. What is restored is run where it is the whole document.
    """

    name = "method"
    share = 2
    grow = staticmethod(grown_document)

    def seeds(self) -> list[bytes]:
        from narrowpass_planning.stored import file

        self.cache, self.bundle = self.folder / "cache", self.folder / "b.narrow"
        self.weight = np.random.default_rng(0).standard_normal((64, 48)).astype(np.float32)
        graph = helper.make_graph(
            [
                helper.make_node("MatMul", ["x", "w"], ["h"]),
                helper.make_node("Shape", ["x"], ["s"]),
                helper.make_node("Expand", ["bias", "s"], ["e"]),
                helper.make_node("Relu", ["h"], ["r"]),
                helper.make_node("Reshape", ["r", "to"], ["y"]),
            ],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 64])],
            [
                helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 6, 8]),
                helper.make_tensor_value_info("e", TensorProto.FLOAT, ["N", 64]),
            ],
            [
                numpy_helper.from_array(self.weight, "w"),
                numpy_helper.from_array(np.ones(64, np.float32), "bias"),
                numpy_helper.from_array(np.array([-1, 6, 8]), "to"),
            ],
        )
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
        Bundle({"main": ir.from_proto(proto)}).save(self.bundle)
        write, keys = file.write, {}

        def noted(path: Path, key: str, document: Any) -> None:
            keys[path] = key
            write(path, key, document)

        with mock.patch.object(file, "write", noted):
            self._explained()
        (self.path,) = [path for path in keys if b'"units"' in path.read_bytes()]
        self.key = keys[self.path]
        self.whole = self.path.read_bytes()[file._FORMAT.size :]
        return [self.whole]

    def changes(self) -> Change:
        return changed_document

    def _explained(self) -> Program:
        program = narrowpass.load(self.bundle, "xnn-cpu", threads=1, cache_dir=self.cache)
        program.explain()  # all methods are restored, or planned again
        return program

    def read(self, data: bytes) -> None:
        from narrowpass_planning.stored import file

        fields = file.MAGIC, file.VERSION, 0, len(data), file._digest(self.key, data)
        written = file._FORMAT.pack(*fields) + data
        self.path.unlink(missing_ok=True)
        self.path.write_bytes(written)
        try:
            opened = self._explained()
        except NarrowpassError as error:
            raise AssertionError("a damaged file of the cache ended the load") from error
        with opened as program:
            if self.path.read_bytes() != written:
                raise NarrowpassError("it was planned again")
            if data == self.whole:
                x = np.ones((3, 64), np.float32)
                wanted = np.maximum(x @ self.weight, 0).reshape(3, 6, 8)
                np.testing.assert_allclose(program.run({"x": x})["y"], wanted, rtol=1e-5, atol=1e-5)
