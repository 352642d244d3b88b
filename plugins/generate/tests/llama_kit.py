"""Small decoders of the Llama kind, with random weights, in the forms that exporters write."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import narrowpass

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
FORMS = ("computed", "flags", "additive", "broadcast")
"""Where mask and positions are from: the graph itself; attention_mask of ones and position_ids;
an additive mask and positions; such a mask as [1, 1, S, T]."""


@dataclass(frozen=True)
class Shape:
    layers: int = 2
    width: int = 32
    heads: int = 4
    groups: int = 2
    hidden: int = 48
    vocabulary: int = 64
    positions: int = 128
    epsilon: float = 1e-5
    theta: float = 1e4

    @property
    def head(self) -> int:
        return self.width // self.heads


def weights_of(shape: Shape, seed: int = 0) -> dict[str, np.ndarray]:
    """Return weights by transformers' names, as [inputs, outputs]; logits are far apart."""
    rng = np.random.default_rng(seed)
    inner = shape.groups * shape.head
    found = {"embed": rng.standard_normal((shape.vocabulary, shape.width))}
    for layer in range(shape.layers):
        for name, rows, columns in (
            ("q_proj", shape.width, shape.width),
            ("k_proj", shape.width, inner),
            ("v_proj", shape.width, inner),
            ("o_proj", shape.width, shape.width),
            ("gate_proj", shape.width, shape.hidden),
            ("up_proj", shape.width, shape.hidden),
            ("down_proj", shape.hidden, shape.width),
        ):
            found[f"{layer}.{name}"] = 1.5 * rng.standard_normal((rows, columns)) * rows**-0.5
        for name in ("input_layernorm", "post_attention_layernorm"):
            found[f"{layer}.{name}"] = 1 + 0.1 * rng.standard_normal(shape.width)
    found["norm"] = 1 + 0.1 * rng.standard_normal(shape.width)
    found["lm_head"] = rng.standard_normal((shape.width, shape.vocabulary))
    return {name: value.astype(np.float32) for name, value in found.items()}


class Builder:
    """Builds one method; `rows` is the number of tokens that a run takes, or its name."""

    def __init__(self, shape, weights, form="computed", *, decode=True, rows="S", last=False):
        self.shape, self.form, self.decode, self.rows, self.last = shape, form, decode, rows, last
        self.nodes, self.constants, self.count = [], {}, 0
        self.weights = weights

    def op(self, kind, *inputs, outputs=1, **attributes):
        self.count += 1
        names = [f"v{self.count}_{index}" for index in range(outputs)]
        self.nodes.append(
            helper.make_node(kind, inputs, names, name=f"n{self.count}", **attributes)
        )
        return names[0] if outputs == 1 else names

    def const(self, name, value, dtype=np.int64):
        self.constants[name] = numpy_helper.from_array(np.array(value, dtype), name)
        return name

    def weight(self, name):
        return self.const(name, self.weights[name], np.float32)

    def norm(self, x, name):
        mean = self.op("ReduceMean", self.op("Mul", x, x), self.const("last", [-1]))
        root = self.op("Sqrt", self.op("Add", mean, self.const("eps", self.shape.epsilon, "f4")))
        return self.op("Mul", self.op("Div", x, root), self.weight(name))

    def heads(self, x, count):
        shape = self.const(f"heads{count}", [0, 0, count, self.shape.head])
        return self.op("Transpose", self.op("Reshape", x, shape), perm=[0, 2, 1, 3])

    def rotated(self, x):
        half = self.shape.head // 2
        first, second = self.op("Split", x, self.const("halves", [half, half]), axis=3, outputs=2)
        turned = self.op("Concat", self.op("Neg", second), first, axis=3)
        return self.op("Add", self.op("Mul", x, "cos"), self.op("Mul", turned, "sin"))

    def attention(self, x, layer):
        shape = self.shape
        q = self.rotated(
            self.heads(self.op("MatMul", x, self.weight(f"{layer}.q_proj")), shape.heads)
        )
        k = self.rotated(
            self.heads(self.op("MatMul", x, self.weight(f"{layer}.k_proj")), shape.groups)
        )
        v = self.heads(self.op("MatMul", x, self.weight(f"{layer}.v_proj")), shape.groups)
        if self.decode:
            k = self.op("Concat", f"past_key_values.{layer}.key", k, axis=2)
            v = self.op("Concat", f"past_key_values.{layer}.value", v, axis=2)
        for name, value in (("key", k), ("value", v)):
            self.nodes.append(helper.make_node("Identity", [value], [f"present.{layer}.{name}"]))
        each = shape.heads // shape.groups
        two = self.const("two", [2])
        q = self.op("Reshape", q, self.const("grouped", [0, shape.groups, each, -1, shape.head]))
        k, v = self.op("Unsqueeze", k, two), self.op("Unsqueeze", v, two)
        scores = self.op("MatMul", q, self.op("Transpose", k, perm=[0, 1, 2, 4, 3]))
        scores = self.op("Mul", scores, self.const("scale", shape.head**-0.5, "f4"))
        weights = self.op("Softmax", self.op("Add", scores, "causal"), axis=-1)
        found = self.op("MatMul", weights, v)
        found = self.op("Reshape", found, self.const("flat", [0, shape.heads, -1, shape.head]))
        found = self.op("Transpose", found, perm=[0, 2, 1, 3])
        found = self.op("Reshape", found, self.const("joined", [0, 0, shape.width]))
        return self.op("MatMul", found, self.weight(f"{layer}.o_proj"))

    def gated(self, x, layer):
        gate = self.op("MatMul", x, self.weight(f"{layer}.gate_proj"))
        up = self.op("MatMul", x, self.weight(f"{layer}.up_proj"))
        silu = self.op("Mul", gate, self.op("Sigmoid", gate))
        return self.op("MatMul", self.op("Mul", silu, up), self.weight(f"{layer}.down_proj"))

    def positions(self):
        """Emit the positions, int64[S], and the additive mask, float[S, T]."""
        zero, one = self.const("zero", 0), self.const("one", 1)
        rows = self.op("Squeeze", self.op("Shape", "input_ids", start=1), self.const("axis", [0]))
        past = zero
        if self.decode:
            shape = self.op("Shape", "past_key_values.0.key", start=2, end=3)
            past = self.op("Squeeze", shape, "axis")
        total = self.op("Add", past, rows)
        own = self.op("Range", past, total, one)
        keys = self.op("Range", zero, total, one)
        hidden = self.op("Greater", keys, self.op("Unsqueeze", own, self.const("behind", [1])))
        least = self.const("least", -1e9, "f4")
        causal = self.op("Mul", self.op("Cast", hidden, to=FLOAT), least)
        if self.form == "computed":
            return own, causal
        flags = self.op("Cast", "attention_mask", to=FLOAT)
        masked = self.op("Mul", self.op("Sub", self.const("whole", 1, "f4"), flags), least)
        return self.op("Squeeze", "position_ids", self.const("axis", [0])), self.op(
            "Add", causal, masked
        )

    def build(self) -> onnx.ModelProto:
        shape = self.shape
        positions, causal = ("positions", "mask")
        if self.form not in ("additive", "broadcast"):
            positions, causal = self.positions()
        self.nodes.append(helper.make_node("Identity", [causal], ["causal"]))
        angles = np.outer(
            np.arange(shape.positions), shape.theta ** (-np.arange(0, shape.head, 2) / shape.head)
        )
        wide = np.concatenate([angles, angles], 1)
        for name, values in (("cos", np.cos(wide)), ("sin", np.sin(wide))):
            table = self.const(f"{name}.table", values, "f4")
            self.nodes.append(helper.make_node("Gather", [table, positions], [name]))
        x = self.op("Gather", self.weight("embed"), "input_ids")
        for layer in range(shape.layers):
            x = self.op("Add", x, self.attention(self.norm(x, f"{layer}.input_layernorm"), layer))
            normed = self.norm(x, f"{layer}.post_attention_layernorm")
            x = self.op("Add", x, self.gated(normed, layer))
        x = self.norm(x, "norm")
        if self.last:
            x = self.op("Gather", x, self.const("end", [-1]), axis=1)
        self.nodes.append(helper.make_node("MatMul", [x, self.weight("lm_head")], ["logits"]))
        return self.model()

    def model(self) -> onnx.ModelProto:
        shape, rows = self.shape, self.rows
        total = "T" if self.decode else rows
        info = helper.make_tensor_value_info
        inputs = [info("input_ids", INT64, [1, rows])]
        if self.form == "flags":
            inputs.append(info("attention_mask", INT64, [1, total]))
            inputs.append(info("position_ids", INT64, [1, rows]))
        if self.form in ("additive", "broadcast"):
            ones = [1, 1] if self.form == "broadcast" else []
            inputs.append(info("mask", FLOAT, [*ones, rows, total]))
            inputs.append(info("positions", INT64, [rows]))
        outputs = [info("logits", FLOAT, [1, 1 if self.last else rows, shape.vocabulary])]
        for layer in range(shape.layers):
            for name in ("key", "value"):
                dims = [1, shape.groups, total, shape.head]
                outputs.append(info(f"present.{layer}.{name}", FLOAT, dims))
                if self.decode:
                    dims = [1, shape.groups, "P", shape.head]
                    inputs.append(info(f"past_key_values.{layer}.{name}", FLOAT, dims))
        graph = helper.make_graph(
            self.nodes, "decoder", inputs, outputs, list(self.constants.values())
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def models_of(shape=None, form="computed", *, rows="S", seed=0, prefill=True):
    """Return the methods of a decoder: prefill, with logits of the last token, and decode."""
    shape = shape or Shape()
    weights = weights_of(shape, seed)
    decode = Builder(shape, weights, form, rows=rows).build()
    if not prefill:
        return {"main": decode}
    return {
        "prefill": Builder(shape, weights, form, decode=False, last=True).build(),
        "decode": decode,
    }


def program_of(backend="xnn-cpu", shape=None, form="computed", **options):
    bundle = narrowpass.build(models_of(shape, form, **options), "")
    return narrowpass.load(bundle, backend, threads=1)


class Oracle:
    """The whole sequence in each run, on onnx's evaluator: no cache, no session."""

    def __init__(self, shape=None, seed=0):
        shape = shape or Shape()
        built = Builder(shape, weights_of(shape, seed), "computed", decode=False).build()
        self._evaluator = ReferenceEvaluator(built)

    def logits(self, ids) -> np.ndarray:
        """Return float32[S, V]."""
        return self._evaluator.run(["logits"], {"input_ids": np.array([ids])})[0][0]

    def greedy(self, ids, count: int) -> list[int]:
        ids = list(ids)
        for _ in range(count):
            ids.append(int(self.logits(ids)[-1].argmax()))
        return ids[-count:]
