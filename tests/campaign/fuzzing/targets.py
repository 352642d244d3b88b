"""What reads bytes from strangers: a target writes an input to where it belongs, and reads it."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

import narrowpass
from fuzzing.caches import Methods, Packed
from fuzzing.compiling import Compiled
from fuzzing.growth import grown_document, grown_model
from fuzzing.importers import Folders, Gguf, Tokenizers
from fuzzing.records import Calibrations, Exported, Notes, Times
from fuzzing.structure import Change, changed_document, changed_model, changed_tokens
from fuzzing.target import Target
from narrowpass import Bundle
from narrowpass.bundle import verify
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


class Models(Target):
    """ONNX files. A function of 3 bytes becomes an object of onnx-ir of 3 KB."""

    name = "model"
    multiple = 1536
    grow = staticmethod(grown_model)

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
    grow = staticmethod(grown_document)

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


_ALL: tuple[type[Target], ...] = (
    *(Models, External, Manifests, Headers, Texts, Compiled),
    *(Packed, Methods, Calibrations, Times, Exported, Notes),
    *(Gguf, Folders, Tokenizers),
)
TARGETS = {target.name: target for target in _ALL}
