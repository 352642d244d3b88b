"""Builds decoders of language models with random weights, as prefill and decode with a cache.

    python benchmarks/decoder.py FOLDER --size 100m|135m|1b [--untied]

Writes ``prefill.onnx`` and ``decode.onnx`` with the shared weights beside them, of the shape of a
GPT of 100 M parameters, of SmolLM2-135M, or of Llama 3.2 1B (4.94 GB in float32, tied; 5.99 GB with
an output matrix of its own). Root-mean-square norms, rotary positions, grouped attention, gated
linear units.
"""

from __future__ import annotations

import argparse
import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
WEIGHTS = "weights.bin"


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder."""

    layers: int
    width: int
    heads: int
    groups: int
    hidden: int
    vocabulary: int
    positions: int = 2048

    @property
    def head(self) -> int:
        """The width of a head."""
        return self.width // self.heads


SIZES = {
    "tiny": Shape(2, 64, 4, 2, 128, 500, 256),
    "100m": Shape(12, 768, 12, 12, 2048, 19_456),
    "135m": Shape(30, 576, 9, 3, 1536, 49_152),
    "1b": Shape(16, 2048, 32, 8, 8192, 128_256),
}


class Weights:
    """Writes random weights into one file, and refers to them."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / WEIGHTS).open("wb")
        self._rng = np.random.default_rng(0)
        self._known: dict[str, onnx.TensorProto] = {}

    def __call__(self, name: str, *shape: int, scale: float | None = None) -> onnx.TensorProto:
        """Return a weight: normal numbers over the square root of the inputs, or times `scale`."""
        if name not in self._known:
            start = -(-self._file.tell() // 4096) * 4096
            self._file.seek(start)
            factor = np.float32(shape[0] ** -0.5 if scale is None else scale)
            rows = max(1, (1 << 24) // max(1, int(np.prod(shape[1:]))))
            for row in range(0, shape[0], rows):
                piece = min(rows, shape[0] - row), *shape[1:]
                (self._rng.standard_normal(piece, np.float32) * factor).tofile(self._file)
            length = self._file.tell() - start
            tensor = TensorProto(name=name, data_type=FLOAT, dims=shape)
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (("location", WEIGHTS), ("offset", start), ("length", length)):
                tensor.external_data.add(key=key, value=str(value))
            self._known[name] = tensor
        return self._known[name]

    def close(self) -> None:
        """Write what is not written yet."""
        self._file.close()


class Decoder:
    """Builds the graph of one phase."""

    def __init__(self, shape: Shape, weights: Weights, *, tied: bool, decode: bool) -> None:
        self.shape, self._weights, self._tied, self._decode = shape, weights, tied, decode
        self._nodes: list[onnx.NodeProto] = []
        self._constants: dict[str, onnx.TensorProto] = {}
        self._count = 0

    def _op(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        self._count += 1
        names = [f"v{self._count}_{index}" for index in range(outputs)]
        self._nodes.append(
            helper.make_node(kind, inputs, names, name=f"n{self._count}", **attributes)
        )
        return names[0] if outputs == 1 else names

    def _weight(self, name: str, *shape: int, scale: float | None = None) -> str:
        self._constants[name] = self._weights(name, *shape, scale=scale)
        return name

    def _constant(self, name: str, value: Any, dtype: Any = np.int64) -> str:
        self._constants[name] = numpy_helper.from_array(np.array(value, dtype), name)
        return name

    def _linear(self, x: str, name: str, inputs: int, outputs: int) -> str:
        return self._op("MatMul", x, self._weight(name, inputs, outputs))

    def _norm(self, x: str, name: str) -> str:
        mean = self._op("ReduceMean", self._op("Mul", x, x), self._constant("last", [-1]))
        root = self._op("Sqrt", self._op("Add", mean, self._constant("epsilon", 1e-5, "f4")))
        scale = self._weight(name, self.shape.width, scale=1.0)
        return self._op("Mul", self._op("Div", x, root), scale)

    def _heads(self, x: str, count: int) -> str:
        shape = self._constant(f"heads{count}", [0, 0, count, self.shape.head])
        return self._op("Transpose", self._op("Reshape", x, shape), perm=[0, 2, 1, 3])

    def _rotated(self, x: str) -> str:
        half = self.shape.head // 2
        sizes = self._constant("halves", [half, half])
        first, second = self._op("Split", x, sizes, axis=3, outputs=2)
        turned = self._op("Concat", self._op("Neg", second), first, axis=3)
        return self._op("Add", self._op("Mul", x, "cos"), self._op("Mul", turned, "sin"))

    def _attention(self, x: str, layer: int) -> str:
        shape = self.shape
        inner = shape.groups * shape.head
        q = self._rotated(
            self._heads(self._linear(x, f"{layer}.q", shape.width, shape.width), shape.heads)
        )
        k = self._rotated(
            self._heads(self._linear(x, f"{layer}.k", shape.width, inner), shape.groups)
        )
        v = self._heads(self._linear(x, f"{layer}.v", shape.width, inner), shape.groups)
        if self._decode:
            k = self._op("Concat", f"past.{layer}.k", k, axis=2)
            v = self._op("Concat", f"past.{layer}.v", v, axis=2)
        for name, value in (("k", k), ("v", v)):
            self._nodes.append(helper.make_node("Identity", [value], [f"{layer}.{name}.out"]))
        each = shape.heads // shape.groups
        if each > 1:
            k, v = (
                self._op("Unsqueeze", k, self._constant("two", [2])),
                self._op("Unsqueeze", v, "two"),
            )
            grouped = self._constant("grouped", [0, shape.groups, each, -1, shape.head])
            q = self._op("Reshape", q, grouped)
        swapped = [0, 1, 3, 2] if each == 1 else [0, 1, 2, 4, 3]
        scores = self._op("MatMul", q, self._op("Transpose", k, perm=swapped))
        scores = self._op("Mul", scores, self._constant("scale", shape.head**-0.5, "f4"))
        found = self._op("MatMul", self._op("Softmax", self._op("Add", scores, "mask"), axis=-1), v)
        if each > 1:
            found = self._op(
                "Reshape", found, self._constant("flat", [0, shape.heads, -1, shape.head])
            )
        found = self._op("Transpose", found, perm=[0, 2, 1, 3])
        found = self._op("Reshape", found, self._constant("joined", [0, 0, shape.width]))
        return self._linear(found, f"{layer}.o", shape.width, shape.width)

    def _gated(self, x: str, layer: int) -> str:
        shape = self.shape
        gate = self._linear(x, f"{layer}.gate", shape.width, shape.hidden)
        up = self._linear(x, f"{layer}.up", shape.width, shape.hidden)
        silu = self._op("Mul", gate, self._op("Sigmoid", gate))
        return self._linear(self._op("Mul", silu, up), f"{layer}.down", shape.hidden, shape.width)

    def build(self) -> onnx.ModelProto:
        """Return the model."""
        shape = self.shape
        table = self._weight("embedding", shape.vocabulary, shape.width, scale=0.05)
        x = self._op("Gather", table, "ids")
        angles = np.outer(
            np.arange(shape.positions), 1e4 ** (-np.arange(0, shape.head, 2) / shape.head)
        )
        wide = np.concatenate([angles, angles], 1)
        for name, values in (("cos", np.cos(wide)), ("sin", np.sin(wide))):
            rows = self._constant(f"{name}.table", values, "f4")
            self._nodes.append(helper.make_node("Gather", [rows, "positions"], [name]))
        for layer in range(shape.layers):
            x = self._op("Add", x, self._attention(self._norm(x, f"{layer}.norm1"), layer))
            x = self._op("Add", x, self._gated(self._norm(x, f"{layer}.norm2"), layer))
        x = self._norm(x, "norm")
        # Only the last token's logits are wanted.
        x = self._op("Gather", x, self._constant("end", -1), axis=1)
        if self._tied:
            matrix = self._op("Transpose", table, perm=[1, 0])
            self._nodes.append(helper.make_node("MatMul", [x, matrix], ["logits"]))
        else:
            output = self._weight("output", shape.width, shape.vocabulary)
            self._nodes.append(helper.make_node("MatMul", [x, output], ["logits"]))
        return self._model()

    def _model(self) -> onnx.ModelProto:
        shape = self.shape
        length = 1 if self._decode else "sequence"
        inputs = [
            helper.make_tensor_value_info("ids", INT64, [1, length]),
            helper.make_tensor_value_info("positions", INT64, [length]),
            helper.make_tensor_value_info(
                "mask", FLOAT, [length, "total" if self._decode else length]
            ),
        ]
        outputs = [helper.make_tensor_value_info("logits", FLOAT, [1, shape.vocabulary])]
        for layer in range(shape.layers):
            for name in ("k", "v"):
                dims = [1, shape.groups, "total" if self._decode else length, shape.head]
                outputs.append(helper.make_tensor_value_info(f"{layer}.{name}.out", FLOAT, dims))
                if self._decode:
                    dims = [1, shape.groups, "past", shape.head]
                    inputs.append(
                        helper.make_tensor_value_info(f"past.{layer}.{name}", FLOAT, dims)
                    )
        graph = helper.make_graph(
            self._nodes, "decoder", inputs, outputs, list(self._constants.values())
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
        model.ir_version = 9
        return model


def build(
    folder: Path, size: str, *, tied: bool, positions: int | None = None
) -> tuple[Path, Path]:
    """Write both phases, if they are not there; return their paths.

    `positions` are those of the rotary tables, where they are not those of the size; such a decoder
    has a folder of its own.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = folder / "prefill.onnx", folder / "decode.onnx"
    if not all(path.exists() for path in paths):
        weights = Weights(folder)
        shape = dataclasses.replace(SIZES[size], positions=positions or SIZES[size].positions)
        for path, decode in zip(paths, (False, True), strict=True):
            model = Decoder(shape, weights, tied=tied, decode=decode).build()
            path.write_bytes(model.SerializeToString())
        weights.close()
    return paths


def feeds(
    size: str, length: int, past: int | None = None, seed: int = 1
) -> dict[str, np.ndarray[Any, Any]]:
    """Return feeds of a prefill of `length` tokens, or of a decode after `past` ones."""
    shape, rng = SIZES[size], np.random.default_rng(seed)
    if past is None:
        mask = np.triu(np.full((length, length), -1e9, np.float32), 1)
        ids = rng.integers(0, shape.vocabulary, (1, length))
        return {"ids": ids, "positions": np.arange(length), "mask": mask}
    found: dict[str, np.ndarray[Any, Any]] = {
        "ids": rng.integers(0, shape.vocabulary, (1, 1)),
        "positions": np.array([past]),
        "mask": np.zeros((1, past + 1), np.float32),
    }
    for layer in range(shape.layers):
        for name in ("k", "v"):
            found[f"past.{layer}.{name}"] = rng.standard_normal(
                (1, shape.groups, past, shape.head), np.float32
            )
    return found


def main() -> None:
    """Write a decoder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", choices=SIZES, default="100m")
    parser.add_argument("--untied", action="store_true")
    arguments = parser.parse_args()
    for path in build(arguments.folder, arguments.size, tied=not arguments.untied):
        print(path)


if __name__ == "__main__":
    main()
