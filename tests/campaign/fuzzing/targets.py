"""What reads bytes from strangers: a target writes an input to where it belongs, and reads it."""

from __future__ import annotations

import hashlib
import json
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

import narrowpass
from fuzzing.gguf_file import changed_file, small_file
from fuzzing.structure import Change, changed_document, changed_model, changed_tokens
from narrowpass import Bundle, Program
from narrowpass.bundle import verify
from narrowpass.errors import NarrowpassError
from narrowpass.framework.pipeline import Pipeline
from narrowpass.framework.plugins import load_plugins


def model() -> onnx.ModelProto:
    """Return a model with a branch, weights and attributes of several kinds."""
    rng = np.random.default_rng(0)
    body = helper.make_graph(
        [helper.make_node("Neg", ["h"], ["n"])],
        "b",
        [],
        [helper.make_tensor_value_info("n", TensorProto.FLOAT, None)],
    )
    other = helper.make_graph(
        [helper.make_node("Identity", ["h"], ["m"])],
        "c",
        [],
        [helper.make_tensor_value_info("m", TensorProto.FLOAT, None)],
    )
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["h"], transB=1, alpha=0.5),
        helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=other),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 6]),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])],
        [
            numpy_helper.from_array(rng.standard_normal((4, 6)).astype(np.float32), "w"),
            numpy_helper.from_array(np.arange(4, dtype=np.float32), "b"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


class Target(ABC):
    """Something that reads.

    Attributes:
        name: on the command line.
        share: of the inputs of all targets, by what one takes.
    """

    name: str
    share: int = 100

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def seeds(self) -> list[bytes]:
        """Return valid inputs."""

    def changes(self) -> Change | None:
        """Return what changes a valid input by what it says; None where there is no such thing.

        It raises an error for inputs that it cannot parse.
        """
        return None

    @abstractmethod
    def read(self, data: bytes) -> None:
        """Read an input.

        Raises:
            NarrowpassError: it is refused.
        """

    def accepts(self, data: bytes) -> bool:
        """Read an input; return whether it was not refused. All other errors are defects."""
        try:
            self.read(data)
        except NarrowpassError as error:
            if not str(error):
                raise AssertionError("an error without a message") from error
            return False
        return True


class Models(Target):
    """ONNX files."""

    name = "model"

    def seeds(self) -> list[bytes]:
        return [model().SerializeToString()]

    def changes(self) -> Change:
        return changed_model

    def read(self, data: bytes) -> None:
        path = self.folder / "m.onnx"
        path.write_bytes(data)
        loaded = narrowpass.load_model(path)
        for tensor in loaded.graph.initializers.values():
            if tensor.const_value is not None:
                tensor.const_value.numpy()


class External(Models):
    """ONNX files whose weights lie in a file beside them."""

    name = "external"

    def seeds(self) -> list[bytes]:
        (self.folder / "w.bin").write_bytes(np.arange(28, dtype="<f4").tobytes())
        (self.folder.parent / "secret.bin").write_bytes(b"s" * 200)
        found = model()
        for tensor, at in zip(found.graph.initializer, (0, 96), strict=True):
            size = len(tensor.raw_data)
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
            facts = {"location": "w.bin", "offset": str(at), "length": str(size)}
            for key, value in facts.items():
                tensor.external_data.add(key=key, value=value)
        return [found.SerializeToString()]

    def read(self, data: bytes) -> None:
        path = self.folder / "m.onnx"
        path.write_bytes(data)
        loaded = narrowpass.load_model(path)
        for value in loaded.graph.initializers.values():
            if value.const_value is not None and b"ssss" in value.const_value.tobytes():
                raise AssertionError("a file outside of the model's folder was read")


class Manifests(Target):
    """The manifest of a bundle."""

    name = "manifest"
    share = 150

    def seeds(self) -> list[bytes]:
        self.bundle = self.folder / "b.narrow"
        Bundle({"main": ir.from_proto(model())}).save(self.bundle)
        manifest = self.bundle / "manifest.json"
        self.whole = manifest.read_bytes()
        manifest.chmod(0o644)
        return [self.whole]

    def changes(self) -> Change:
        return changed_document

    def read(self, data: bytes) -> None:
        (self.bundle / "manifest.json").write_bytes(data)
        verify(self.bundle)
        Bundle.load(self.bundle)


class Headers(Manifests):
    """The header of a bundle's safetensors file, with the length and the hash that it has."""

    name = "safetensors"
    share = 60

    def seeds(self) -> list[bytes]:
        super().seeds()
        self.weights = self.bundle / "weights.safetensors"
        data = self.weights.read_bytes()
        self.weights.chmod(0o644)
        end = 8 + int.from_bytes(data[:8], "little")
        self.payload = data[end:]
        return [data[8:end]]

    def read(self, data: bytes) -> None:
        header = len(data).to_bytes(8, "little") + data
        self.weights.write_bytes(header + self.payload)
        facts = json.loads(self.whole)
        facts["weights"]["bytes"] = len(header) + len(self.payload)
        facts["weights"]["header_bytes"] = len(header)
        facts["weights"]["header_sha256"] = hashlib.sha256(header).hexdigest()
        (self.bundle / "manifest.json").write_text(json.dumps(facts))
        loaded = Bundle.load(self.bundle)
        for value in loaded.methods["main"].graph.initializers.values():
            if value.const_value is not None:
                value.const_value.numpy()


class Packed(Target):
    """Files of packed weights; the input is their index, whose checksums are right."""

    name = "packed"
    share = 320

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


class Texts(Target):
    """The text of a pipeline."""

    name = "pipeline"
    share = 260

    def seeds(self) -> list[bytes]:
        self.registry = load_plugins().registry
        return [
            name.encode()
            for name in (
                "fold,int8-sym{mode=dynamic}",
                "cse,dead-code",
                "expand-operators{keep=[op:Conv]}",
                "fp16{dtype=bfloat16,keep-io=true},fold",
            )
            if self._known(name)
        ] + [b""]

    def changes(self) -> Change:
        return changed_tokens([*self.registry.passes, "dtype", "mode", "keep", "op:Conv", "true"])

    def _known(self, text: str) -> bool:
        return all(part.split("{")[0] in self.registry.passes for part in text.split(","))

    def read(self, data: bytes) -> None:
        Pipeline.parse(data.decode("utf-8", "surrogateescape"), self.registry)


class Gguf(Target):
    """GGUF files."""

    name = "gguf"
    share = 8

    def seeds(self) -> list[bytes]:
        return [small_file()]

    def changes(self) -> Change:
        return changed_file

    def read(self, data: bytes) -> None:
        from narrowpass_gguf.importer import GgufImporter

        path = self.folder / "m.gguf"
        path.write_bytes(data)
        GgufImporter().load(str(path))


TARGETS = {t.name: t for t in (Models, External, Manifests, Headers, Packed, Methods, Texts, Gguf)}


def inputs(
    target: Target, seeds: Sequence[bytes], first: int, count: int
) -> Iterator[tuple[int, bytes]]:
    """Yield damaged inputs with their seeds, from the valid ones in `seeds`.

    What odd seeds draw says something else and is well-formed, where the target has such changes;
    the bytes of one of four of these are damaged, too.
    """
    import random

    from fuzzing.mutation import mutated

    change = target.changes()
    for seed in range(first, first + count):
        choice = random.Random(seed)
        if change is None or seed % 2 == 0:
            yield seed, mutated(choice, seeds)
            continue
        data = change(choice, choice.choice(seeds))
        yield seed, mutated(choice, [data]) if choice.randrange(4) == 0 else data
