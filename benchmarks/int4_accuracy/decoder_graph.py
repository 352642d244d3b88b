"""The decoder as an ONNX model."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from gguf_model import Sizes
from onnx import TensorProto, helper, numpy_helper
from texts import CONTEXT

Array = np.ndarray[Any, Any]


class Decoder:
    """Builds the graph that computes the logits of all tokens, without a cache.

    Args:
        sizes: of the model.
        weights: by their names in GGUF.
    """

    def __init__(self, sizes: Sizes, weights: dict[str, Array]) -> None:
        self._sizes, self._weights = sizes, weights
        self._nodes: list[onnx.NodeProto] = []
        self._constants: dict[str, onnx.TensorProto] = {}
        self._scope = ""

    def _op(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        number = len(self._nodes)
        names = [f"v{number}_{index}" for index in range(outputs)]
        label = f"{self._scope}{kind}.{number}"
        self._nodes.append(helper.make_node(kind, inputs, names, name=label, **attributes))
        return names[0] if outputs == 1 else names

    def _constant(self, name: str, value: Any, dtype: Any = np.int64) -> str:
        if name not in self._constants:
            self._constants[name] = numpy_helper.from_array(np.array(value, dtype), name)
        return name

    def _linear(self, x: str, name: str) -> str:
        weight = self._weights[f"{name}.weight"]
        if name.endswith(("attn_q", "attn_k")):  # llama.cpp has the halves of rotation interleaved
            pairs = weight.reshape(-1, self._sizes.head // 2, 2, weight.shape[1])
            weight = pairs.swapaxes(1, 2).reshape(weight.shape)
        matrix = self._constant(name, np.ascontiguousarray(weight.T), np.float32)
        self._scope = f"{name}/"
        return self._op("MatMul", x, matrix)

    def _norm(self, x: str, name: str) -> str:
        mean = self._op("ReduceMean", self._op("Mul", x, x), self._constant("last", [-1]))
        epsilon = self._constant("epsilon", self._sizes.epsilon, "f4")
        root = self._op("Sqrt", self._op("Add", mean, epsilon))
        scale = self._constant(name, self._weights[f"{name}.weight"], "f4")
        return self._op("Mul", self._op("Div", x, root), scale)

    def _heads(self, x: str, count: int) -> str:
        shape = self._constant(f"heads{count}", [0, 0, count, self._sizes.head])
        return self._op("Transpose", self._op("Reshape", x, shape), perm=[0, 2, 1, 3])

    def _rotated(self, x: str) -> str:
        half = self._sizes.head // 2
        sizes = self._constant("halves", [half, half])
        first, second = self._op("Split", x, sizes, axis=3, outputs=2)
        swapped = self._op("Concat", self._op("Neg", second), first, axis=3)
        return self._op("Add", self._op("Mul", x, "cos"), self._op("Mul", swapped, "sin"))

    def _attention(self, x: str, block: str) -> str:
        sizes = self._sizes
        q = self._rotated(self._heads(self._linear(x, f"{block}.attn_q"), sizes.heads))
        k = self._rotated(self._heads(self._linear(x, f"{block}.attn_k"), sizes.groups))
        v = self._heads(self._linear(x, f"{block}.attn_v"), sizes.groups)
        each = sizes.heads // sizes.groups
        two = self._constant("two", [2])
        k, v = self._op("Unsqueeze", k, two), self._op("Unsqueeze", v, two)
        grouped = self._constant("grouped", [0, sizes.groups, each, -1, sizes.head])
        q = self._op("Reshape", q, grouped)
        scores = self._op("MatMul", q, self._op("Transpose", k, perm=[0, 1, 2, 4, 3]))
        scores = self._op("Mul", scores, self._constant("scale", sizes.head**-0.5, "f4"))
        found = self._op("MatMul", self._op("Softmax", self._op("Add", scores, "mask"), axis=-1), v)
        flat = self._constant("flat", [0, sizes.heads, -1, sizes.head])
        found = self._op("Transpose", self._op("Reshape", found, flat), perm=[0, 2, 1, 3])
        joined = self._op("Reshape", found, self._constant("joined", [0, 0, sizes.width]))
        return self._linear(joined, f"{block}.attn_output")

    def _gated(self, x: str, block: str) -> str:
        gate, up = self._linear(x, f"{block}.ffn_gate"), self._linear(x, f"{block}.ffn_up")
        silu = self._op("Mul", gate, self._op("Sigmoid", gate))
        return self._linear(self._op("Mul", silu, up), f"{block}.ffn_down")

    def build(self) -> onnx.ModelProto:
        """Return the model; its inputs are ids [1, 512], its output logits [1, 512, vocabulary]."""
        sizes = self._sizes
        table = self._constant("token_embd", self._weights["token_embd.weight"], "f4")
        angles = np.outer(
            np.arange(CONTEXT), sizes.base ** (-np.arange(0, sizes.head, 2) / sizes.head)
        )
        both = np.concatenate([angles, angles], 1)
        self._constant("cos", np.cos(both), "f4")
        self._constant("sin", np.sin(both), "f4")
        self._constant("mask", np.triu(np.full((CONTEXT, CONTEXT), -1e9), 1), "f4")
        x = self._op("Gather", table, "ids")
        for layer in range(sizes.layers):
            block = f"blk.{layer}"
            x = self._op("Add", x, self._attention(self._norm(x, f"{block}.attn_norm"), block))
            x = self._op("Add", x, self._gated(self._norm(x, f"{block}.ffn_norm"), block))
        x = self._norm(x, "output_norm")
        self._scope = "output/"
        matrix = self._op("Transpose", table, perm=[1, 0])
        self._nodes.append(helper.make_node("MatMul", [x, matrix], ["logits"], name="output"))
        ids = helper.make_tensor_value_info("ids", TensorProto.INT64, [1, CONTEXT])
        logits = helper.make_tensor_value_info(
            "logits", TensorProto.FLOAT, [1, CONTEXT, sizes.vocabulary]
        )
        constants = list(self._constants.values())
        graph = helper.make_graph(self._nodes, "smollm2", [ids], [logits], constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
        model.ir_version = 10
        return model
