"""Quantizes models with onnxruntime's tools, and compares both runtimes on the same files.

Usage: ``python benchmarks/quantization/quantizers.py [--threads 1] [--rounds 15] [--pipeline P]
[PATTERN]``

Needs PyTorch, transformers and onnxscript (``pip install --group models``). Models have real
widths and random weights: a BiLSTM, a GRU, a BERT of two layers, before and after the fusions of
onnxruntime's transformers optimizer, and a CNN with depthwise convolutions. Each is quantized at
run time (``quantize_dynamic``), and some on data (``quantize_static``), with all types of bytes.
Both runtimes take turns. Shown for each file: the medians of both in milliseconds, onnxruntime's
over narrowpass's (above 1: narrowpass is faster), the error of both against the float model on
onnxruntime, relative to its largest element, the difference between both, and the nodes that are
not native.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process
from torch import nn

import narrowpass

Feeds = dict[str, np.ndarray]
DATA = 8


class Recurrent(nn.Module):
    """Two layers of a recurrent net and a matmul."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU], both: bool) -> None:
        super().__init__()
        self.net = kind(128, 256, num_layers=2, bidirectional=both, batch_first=True)
        self.last = nn.Linear(512 if both else 256, 128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the matmul of all steps."""
        return self.last(self.net(x)[0])


class Residual(nn.Module):
    """An inverted residual block."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        wide = 4 * channels
        self.body = nn.Sequential(
            nn.Conv2d(channels, wide, 1),
            nn.ReLU(),
            nn.Conv2d(wide, wide, 3, padding=1, groups=wide),
            nn.ReLU(),
            nn.Conv2d(wide, channels, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add the block to its input."""
        return x + self.body(x)


def cnn() -> nn.Module:
    """Return a CNN of plain and depthwise convolutions."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        Residual(32),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.ReLU(),
        Residual(64),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 128, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, 100),
    )


class Encoder(nn.Module):
    """BERT without what is not a tensor."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import BertConfig, BertModel

        config = BertConfig(num_hidden_layers=2, vocab_size=2000, attn_implementation="eager")
        self.model = BertModel(config)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Return the states of all tokens."""
        return self.model(input_ids, attention_mask=attention_mask).last_hidden_state


def floats(folder: Path) -> Iterator[tuple[str, Path, Callable[[], Feeds]]]:
    """Export the float models; return each with a function that draws an input."""
    random = np.random.default_rng(3)

    def steps() -> Feeds:
        return {"x": random.standard_normal((1, 64, 128)).astype(np.float32)}

    def image() -> Feeds:
        return {"x": random.standard_normal((1, 3, 96, 96)).astype(np.float32)}

    def tokens() -> Feeds:
        return {
            "input_ids": random.integers(0, 2000, (1, 64)),
            "attention_mask": np.ones((1, 64), np.int64),
        }

    torch.manual_seed(1)
    modules = {
        "bilstm": (Recurrent(nn.LSTM, True), steps),
        "gru": (Recurrent(nn.GRU, False), steps),
        "cnn": (cnn(), image),
        "bert": (Encoder(), tokens),
    }
    for name, (module, feeds) in modules.items():
        path, given = folder / f"{name}.onnx", feeds()
        tensors = tuple(torch.from_numpy(array) for array in given.values())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                module.eval(),
                tensors,
                str(path),
                input_names=list(given),
                output_names=["y"],
                opset_version=17,
                dynamo=False,
            )
        yield name, path, feeds
    yield "bert-fused", fused(folder), tokens


def fused(folder: Path) -> Path:
    """Fuse the layers of BERT as onnxruntime's optimizer does."""
    from onnxruntime.transformers import optimizer

    built = optimizer.optimize_model(
        str(folder / "bert.onnx"), model_type="bert", num_heads=12, hidden_size=768
    )
    path = folder / "bert-fused.onnx"
    built.save_model_to_file(str(path))
    return path


class Reader(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime has no types
    """Returns some inputs, then None."""

    def __init__(self, feeds: Callable[[], Feeds]) -> None:
        self._left = [feeds() for _ in range(DATA)]

    def get_next(self) -> Feeds | None:
        """Return the next one."""
        return self._left.pop() if self._left else None


def forms(name: str, path: Path, feeds: Callable[[], Feeds]) -> Iterator[Path]:
    """Quantize a model in all ways that apply to it."""
    signed, unsigned = QuantType.QInt8, QuantType.QUInt8

    def to(form: str) -> Path:
        return path.with_name(f"{name}.{form}.onnx")

    for label, weight, channels, narrow in (
        ("dynamic-s8", signed, False, False),
        ("dynamic-u8", unsigned, False, False),
        ("dynamic-s8-channels", signed, True, True),
        ("dynamic-u8-channels", unsigned, True, False),
    ):
        quantize_dynamic(
            path,
            to(label),
            weight_type=weight,
            per_channel=channels,
            reduce_range=narrow,
            extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
        )
        yield to(label)
    if name not in ("cnn", "bert"):
        return
    ready = path.with_name(f"{name}.ready.onnx")
    quant_pre_process(str(path), str(ready), skip_symbolic_shape=True)
    for label, form, given, weight, channels in (
        ("qdq-u8s8", QuantFormat.QDQ, unsigned, signed, False),
        ("qdq-u8u8", QuantFormat.QDQ, unsigned, unsigned, False),
        ("qdq-s8s8-channels", QuantFormat.QDQ, signed, signed, True),
        ("qop-u8s8", QuantFormat.QOperator, unsigned, signed, False),
        ("qop-u8u8-channels", QuantFormat.QOperator, unsigned, unsigned, True),
    ):
        if name == "bert" and form == QuantFormat.QOperator:
            continue  # onnxruntime refuses its own file: LayerNormalization with a bias of bytes
        quantize_static(
            ready,
            to(label),
            Reader(feeds),
            quant_format=form,
            activation_type=given,
            weight_type=weight,
            per_channel=channels,
        )
        yield to(label)


def session(path: Path, threads: int) -> onnxruntime.InferenceSession:
    """Open a model with all optimizations of onnxruntime."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def compared(path: Path, given: Feeds, right: np.ndarray, options: argparse.Namespace) -> str:
    """Run both on one file, in turns; return the row of the table."""
    theirs = session(path, options.threads)
    model = onnx.load(path)
    bundle = narrowpass.build({"main": model}, options.pipeline)
    with narrowpass.load(bundle, "xnn-cpu", threads=options.threads) as ours:
        left = [
            plan.op_type
            for plan in ours.explain()
            if plan.kernel.startswith(("onnx.reference", "onnxruntime", "numpy"))
            and plan.op_type != "Constant"
        ]
        times: dict[str, list[float]] = {"theirs": [], "ours": []}
        found: dict[str, Any] = {}
        for _ in range(options.rounds):
            start = time.perf_counter()
            found["theirs"] = theirs.run(None, given)[0]
            middle = time.perf_counter()
            found["ours"] = next(iter(ours.run(given).values()))
            end = time.perf_counter()
            times["theirs"].append(middle - start)
            times["ours"].append(end - middle)
    largest = np.abs(right).max()
    errors = [np.abs(found[key] - right).max() / largest for key in ("theirs", "ours")]
    apart = np.abs(found["theirs"] - found["ours"]).max() / largest
    medians = [1e3 * statistics.median(times[key]) for key in ("theirs", "ours")]
    numbers = f"{medians[0]:9.3f}{medians[1]:9.3f}{medians[0] / medians[1]:7.2f}"
    accuracy = f"{errors[0]:10.1e}{errors[1]:9.1e}{apart:9.1e}"
    counted = {kind: left.count(kind) for kind in sorted(set(left))}
    shown = " ".join(f"{kind}:{count}" for kind, count in counted.items())
    return f"{path.stem:32}{numbers}{accuracy}  {shown}"


def main() -> None:
    """Print a row for each file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pattern", nargs="?", default="")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--pipeline", default="fold")
    parser.add_argument("--folder", type=Path, help="where files are kept; none by default")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(exist_ok=True)
        print(
            f"{'file':32}{'ort ms':>9}{'ours ms':>9}{'ratio':>7}{'ort':>10}{'ours':>9}{'apart':>9}"
        )
        for name, path, feeds in floats(folder):
            if options.pattern not in name:
                continue
            given = feeds()
            right = session(path, options.threads).run(None, given)[0]
            for form in forms(name, path, feeds):
                try:
                    print(compared(form, given, right, options), flush=True)
                except narrowpass.errors.NarrowpassError as error:
                    print(f"{form.stem:32}{type(error).__name__}: {error}", flush=True)


if __name__ == "__main__":
    main()
