"""Compares decoders with caches in narrowpass and other runtimes: one token, and the prompt.

    python benchmarks/decoders.py FOLDER [--size tiny 100m 1b] [--threads 1 all] [--past 128]
        [--prompt 128] [--form "narrowpass fp32" ...] [--phase decode prefill] [--rounds 7]
        [--clock wall|cpu] [--json OUT.json]

Makes the models in FOLDER/SIZE where they are not there (see ``decoder.py``), and the forms of each
tool: narrowpass's bundles in float32, in bfloat16, with weights stored as float16, with int8
weights, and with quantized rows too; onnxruntime in float32, by ``quantize_dynamic``, and with
``MatMulNBits`` of 8 and 4 bits in blocks of 128; OpenVINO in float32, by its defaults, and with
NNCF's int8 weights; ExecuTorch in float32 and with quantized rows, for inputs of these sizes alone.
Each form has a process of its own, and the processes are asked in turn. Shown are the median over
rounds of each round's median, the ratio to narrowpass's form of the same kind (above 1, narrowpass
is faster), the cosine and the largest error over the largest magnitude of the logits against
onnxruntime in float32; and, for one token, the bytes of weights that it reads, in GB/s, and their
share of what the same number of threads reads of a large array.

``--clock cpu`` takes the time that a process computes: what to use with one thread where other
programs run beside. The size 1b needs 12 GB of disk for each form and as much memory.
"""

from __future__ import annotations

import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # the threads of `bandwidth` are its own

import argparse
import json
import logging
import multiprocessing
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import decoder
import numpy as np
import onnx
from runners import CLOCKS, Entrant, Timing, cores, in_turns, installed

from narrowpass import metrics

SECONDS = 0.4
REFERENCE = "onnxruntime fp32"


@dataclass(frozen=True)
class Source:
    """What forms are made of.

    Attributes:
        model: the ONNX file of a phase.
        size: the name of its sizes, in ``decoder.SIZES``.
        feeds: what it is timed with.
    """

    model: Path
    size: str
    feeds: dict[str, np.ndarray[Any, Any]]


Make = Callable[[Source, Path], None]


def _bundle(pipeline: str) -> Make:
    def make(source: Source, target: Path) -> None:
        import narrowpass

        narrowpass.build(str(source.model), pipeline, out=str(target), target="xnn-cpu")

    return make


def _executorch(*, dynamic: bool) -> Make:
    def make(source: Source, target: Path) -> None:
        import decoder_executorch

        decoder_executorch.lower(source.model, source.size, source.feeds, target, dynamic=dynamic)

    return make


def _dynamic(source: Source, target: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    kind = QuantType.QInt8
    quantize_dynamic(
        source.model, target, weight_type=kind, per_channel=True, use_external_data_format=True
    )


def _blocks(bits: int) -> Make:
    def make(source: Source, target: Path) -> None:
        from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

        quantizer = MatMulNBitsQuantizer(
            onnx.load(source.model), bits=bits, block_size=128, is_symmetric=True, accuracy_level=4
        )
        quantizer.process()
        quantizer.model.save_model_to_file(str(target), use_external_data_format=True)

    return make


def _nncf(source: Source, target: Path) -> None:
    import nncf
    import openvino

    made = nncf.compress_weights(
        openvino.convert_model(source.model), mode=nncf.CompressWeightsMode.INT8_SYM
    )
    openvino.save_model(made, target, compress_to_fp16=False)


@dataclass(frozen=True)
class Form:
    """One form of a decoder.

    Attributes:
        name: what the tables call it.
        precision: what it narrows to, as in ``fast_path.py``.
        ending: what follows the phase in the name of its file; empty for the model itself.
            ``{rows}`` and ``{total}`` are the sizes of the mask, for files that are for them alone.
        width: bytes that a weight takes.
        rival: narrowpass's form that it is compared with.
        make: writes the file.
    """

    name: str
    precision: str
    ending: str
    width: float
    rival: str
    make: Make | None = None

    @property
    def runtime(self) -> str:
        """What runs it."""
        return self.name.partition(" ")[0]

    def path(self, source: Source) -> Path:
        """Where its file is."""
        if not self.ending:
            return source.model
        rows, total = source.feeds["mask"].shape
        ending = self.ending.format(rows=rows, total=total)
        return source.model.with_name(source.model.stem + ending)


OURS = "narrowpass"
FORMS = (
    Form("narrowpass fp32", "float32", "-fp32.narrow", 4, "narrowpass fp32", _bundle("fold")),
    Form("onnxruntime fp32", "float32", "", 4, "narrowpass fp32"),
    Form("openvino fp32", "float32", "", 4, "narrowpass fp32"),
    Form(
        "executorch fp32",
        "float32",
        "-{rows}-{total}-fp32.pte",
        4,
        "narrowpass fp32",
        _executorch(dynamic=False),
    ),
    Form(
        "narrowpass bf16",
        "bfloat16",
        "-bf16.narrow",
        2,
        "narrowpass bf16",
        _bundle("fold,fp16{dtype=bfloat16}"),
    ),
    Form(
        "narrowpass fp16 weights",
        "bfloat16",
        "-fp16.narrow",
        2,
        "narrowpass fp16 weights",
        _bundle("fold,store-weights{dtype=float16}"),
    ),
    Form("openvino-default", "bfloat16", "", 4, "narrowpass bf16"),
    Form(
        "narrowpass int8 weights",
        "int8",
        "-weights.narrow",
        1,
        "narrowpass int8 weights",
        _bundle("fold,int8-sym{mode=weight-only}"),
    ),
    Form(
        "narrowpass int8 dynamic",
        "int8",
        "-dynamic.narrow",
        1,
        "narrowpass int8 dynamic",
        _bundle("fold,int8-sym{mode=dynamic}"),
    ),
    Form("onnxruntime dynamic", "int8", "-dynamic.onnx", 1, "narrowpass int8 dynamic", _dynamic),
    Form(
        "onnxruntime 8 bits",
        "int8",
        "-8bits.onnx",
        1 + 4 / 128,
        "narrowpass int8 weights",
        _blocks(8),
    ),
    Form(
        "onnxruntime 4 bits",
        "int8",
        "-4bits.onnx",
        0.5 + 4 / 128,
        "narrowpass int8 weights",
        _blocks(4),
    ),
    Form("openvino nncf", "int8", "-nncf.xml", 1, "narrowpass int8 weights", _nncf),
    Form(
        "executorch dynamic",
        "int8",
        "-{rows}-{total}-dynamic.pte",
        1,
        "narrowpass int8 dynamic",
        _executorch(dynamic=True),
    ),
)


def prepared(form: Form, source: Source) -> str:
    """Write a form in a process of its own, if it is not there; tell why there is none, if so."""
    path = form.path(source)
    if form.make is None or path.exists():
        return ""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_write, args=(form.name, source, path, theirs))
    process.start()
    theirs.close()
    try:
        failure: str = ours.recv()
    except EOFError:
        failure = "its process was killed"
    process.join()
    return failure


def _write(name: str, source: Source, path: Path, pipe: Any) -> None:
    (form,) = [form for form in FORMS if form.name == name]
    logging.disable()
    try:
        if form.make is not None:
            form.make(source, path)
        pipe.send("")
    except Exception as error:  # noqa: BLE001 - the table shows what a tool cannot do
        pipe.send(f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}")


def weights_of(size: str) -> int:
    """Give how many weights one token is multiplied with: all matrices, the table once."""
    shape = decoder.SIZES[size]
    inner = shape.groups * shape.head
    layer = shape.width * (2 * shape.width + 2 * inner + 3 * shape.hidden)
    return shape.layers * layer + shape.vocabulary * shape.width


def bandwidth(threads: int, clock: str) -> float:
    """Give the bytes of a large array that threads read in a second, at best.

    Read by products with a vector that stays in cache, which take several rows at once: that is
    faster than one stream of memory. Each thread has a part of its own.
    """
    array = np.ones((1 << 17, 1024), np.float32)
    vector = np.ones(1024, np.float32)
    parts = np.array_split(array, threads)
    taken = []
    for _ in range(12):
        start = CLOCKS[clock]()
        workers = [threading.Thread(target=np.dot, args=(part, vector)) for part in parts]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        taken.append(CLOCKS[clock]() - start)
    return array.nbytes / min(taken) * (1 if clock == "wall" else threads)


def judge(timing: Timing, right: Timing | None) -> dict[str, Any]:
    """Give the figures of one form."""
    if timing.failure:
        return {"failure": timing.failure}
    row: dict[str, Any] = {
        "latency": timing.latency,
        "spread": timing.spread,
        "load": timing.load,
        "memory": timing.memory,
        "rounds": timing.rounds,
    }
    if right is not None and not right.failure:
        ours, theirs = timing.outputs[0][0], right.outputs[0][0]
        difference = metrics.difference(ours, theirs)
        row["cosine"], row["sqnr"] = difference.cosine, difference.sqnr
        row["relative"] = float(np.abs(ours - theirs).max() / np.abs(theirs).max())
    return row


def measure(
    size: str, phase: str, threads: int, arguments: argparse.Namespace
) -> dict[str, dict[str, Any]]:
    """Time all forms of one phase, in turns; give a row for each."""
    folder = arguments.folder / size
    prefill, decode = decoder.make(folder, size, tied=True)
    model = decode if phase == "decode" else prefill
    past = arguments.past if phase == "decode" else None
    source = Source(model, size, decoder.feeds(size, arguments.prompt, past))
    there, rows = [], {}
    for form in FORMS:
        if form.name not in arguments.form:
            continue
        if form.runtime not in installed():
            rows[form.name] = {"failure": f"{form.runtime} is not installed"}
        elif failure := prepared(form, source):
            rows[form.name] = {"failure": failure}
        else:
            there.append(Entrant(form.name, form.runtime, str(form.path(source))))
    timings = in_turns(there, [source.feeds], threads, arguments.rounds, SECONDS, arguments.clock)
    rows |= {name: judge(timing, timings.get(REFERENCE)) for name, timing in timings.items()}
    for form in FORMS:
        if form.name in rows:
            rows[form.name]["precision"] = form.precision
            rows[form.name]["bytes"] = form.width * weights_of(size)
    return rows


def show(
    size: str, phase: str, threads: int, rows: dict[str, dict[str, Any]], speed: float
) -> None:
    """Print the rows of one phase, and add what follows from others to them."""
    for form in FORMS:
        row = rows.get(form.name)
        if row is None:
            continue
        head = f"{size:5} {phase:8} {threads:7} {form.name:24}"
        if "failure" in row:
            print(f"{head} {row['failure']}", flush=True)
            continue
        rival = rows.get(form.rival, {})
        ratio = row["latency"] / rival["latency"] if "latency" in rival else None
        row["ratio"] = ratio
        line = f"{head} {row['latency'] * 1e3:9.3f} {_shown(ratio, '6.2f')}"
        line += f" {_shown(row.get('cosine'), '9.6f')} {_shown(row.get('relative'), '9.1e')}"
        if phase == "decode":
            row["read"] = weights_of(size) * form.width / row["latency"]
            row["share"] = row["read"] / speed
            line += f" {row['read'] / 1e9:6.1f} {row['share'] * 100:5.0f}%"
        print(line, flush=True)


def _shown(value: float | None, form: str) -> str:
    return f"{'-':>{form.partition('.')[0]}}" if value is None else format(value, form)


def main() -> None:
    """Read the command line, measure and print."""
    names = [form.name for form in FORMS]
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", nargs="+", choices=decoder.SIZES, default=["100m"])
    parser.add_argument("--threads", nargs="+", default=["1", "all"], metavar="N")
    parser.add_argument("--phase", nargs="+", choices=("decode", "prefill"))
    parser.add_argument("--form", nargs="+", choices=names, default=names)
    parser.add_argument("--past", type=int, default=128)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--json", metavar="OUT.json", type=Path)
    arguments = parser.parse_args()
    print(
        f"{'size':5} {'phase':8} {'threads':>7} {'form':24} {'ms':>9} {'ratio':>6} {'cosine':>9}"
        f" {'relative':>9} {'GB/s':>6} {'share':>6}"
    )
    results = []
    for threads in dict.fromkeys(map(cores, arguments.threads)):
        for size in arguments.size:
            for phase in arguments.phase or ("decode", "prefill"):
                speeds = [bandwidth(threads, arguments.clock)]
                rows = measure(size, phase, threads, arguments)
                speeds.append(bandwidth(threads, arguments.clock))
                speed = statistics.fmean(speeds)
                show(size, phase, threads, rows, speed)
                print(f"{size:5} {phase:8} {threads:7} memory {speed / 1e9:35.1f} GB/s")
                results.append(
                    {
                        "size": size,
                        "phase": phase,
                        "threads": threads,
                        "bandwidth": speed,
                        "rows": rows,
                        "time": time.time(),
                    }
                )
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
