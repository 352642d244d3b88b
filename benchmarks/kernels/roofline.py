"""Reports how near a model runs to what its arithmetic alone takes.

    python benchmarks/kernels/roofline.py MODEL.onnx BUNDLE [--precision float32|bfloat16|int8]
        [--threads 1] [--rounds 40]

MODEL.onnx is the float32 model of known sizes whose multiplications are counted: those of
convolutions and matmuls, done directly. BUNDLE, or another ONNX file, is what runs on xnn-cpu.
The processor's rate of the precision's instruction is measured in turns with the runs, by a loop
that reads nothing, since the rate of a shared machine changes from second to second. Shown are the
medians: multiplications and additions a second of the loop, what the model's would take at that
rate, what a run takes, and the share, of each round the rate by the time; with the best round in
brackets. Needs x86-64 and a C compiler.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import os
import platform
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import shape_inference

import narrowpass

TURNS = 4_000_000
TILE_TURNS = 400_000
"""Of loops of AMX, whose instructions take 32 times as long."""
CHAINS = 12
# Name in the C file, multiplications and additions of an instruction, what the processor must have.
LOOPS: dict[str, tuple[tuple[str, int, str], ...]] = {
    "float32": (("fma_512", 16, "avx512f"), ("fma_256", 8, "fma")),
    "bfloat16": (("tiles_bf16", 16 * 16 * 32, "amx_bf16"), ("bf16_512", 32, "avx512_bf16")),
    "int8": (("tiles_int8", 16 * 16 * 64, "amx_int8"), ("bytes_512", 64, "avx512_vnni")),
}


def multiplications(model: onnx.ModelProto) -> int:
    """Count those of convolutions and matmuls."""
    graph = shape_inference.infer_shapes(model, data_prop=True).graph
    shapes = {
        value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.value_info, *graph.output)
    }
    shapes |= {weight.name: list(weight.dims) for weight in graph.initializer}
    total = 0
    for node in graph.node:
        if node.op_type not in ("Conv", "MatMul", "Gemm"):
            continue
        built, given, weight = (shapes.get(name) for name in (node.output[0], *node.input[:2]))
        if not built or not given or not weight or 0 in built:
            raise SystemExit(
                f"the sizes of node {node.name!r} are not known: pass a model of fixed sizes"
            )
        if node.op_type == "Conv":
            terms = math.prod(weight[1:])
        else:
            turned = any(a.name == "transA" and a.i for a in node.attribute)
            terms = given[-2] if turned else given[-1]
        total += math.prod(built) * terms
    return total


def loop_of(precision: str, folder: Path, first: int = 0) -> tuple[Any, int]:
    """Build the loop of this processor's instruction; return it, and what one turn of it does.

    Args:
        precision: one of `LOOPS`.
        folder: where it is built.
        first: number of the instruction from which on one is looked for.
    """
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("flags")[2].split("\n")[0]
    for name, lanes, needed in LOOPS[precision][first:]:
        if needed in flags.split():
            library = folder / "peak.so"
            source = Path(__file__).with_name("peak.c")
            compiler = os.environ.get("CC", "cc")
            command = [compiler, "-O2", "-mavx512f", "-shared", "-fPIC", str(source)]
            subprocess.run([*command, "-o", str(library)], check=True)
            function = ctypes.CDLL(str(library))[name]
            function.argtypes = [ctypes.c_uint64]
            return function, CHAINS * lanes
    raise SystemExit(f"this processor has no instruction for matmuls of {precision}")


def rate(loop: Callable[[int], None], operations: int, threads: int) -> float:
    """Return what so many threads multiply and add in a second."""
    turns = TILE_TURNS if operations > 64 * CHAINS else TURNS
    workers = [threading.Thread(target=loop, args=(turns,)) for _ in range(threads)]
    start = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return turns * operations * threads / (time.perf_counter() - start)


def feeds_of(model: onnx.ModelProto) -> dict[str, np.ndarray[Any, Any]]:
    """Build inputs: small integers that are valid as words and masks, and normal numbers."""
    rng, feeds = np.random.default_rng(0), {}
    weights = {weight.name for weight in model.graph.initializer}
    for value in model.graph.input:
        if value.name in weights:
            continue
        kind = value.type.tensor_type
        shape = [dim.dim_value for dim in kind.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        integer = np.issubdtype(dtype, np.integer)
        built = np.ones(shape) if integer else rng.standard_normal(shape)
        feeds[value.name] = built.astype(dtype)
    return feeds


def main() -> None:
    """Measure in turns and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--precision", choices=LOOPS, default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=40)
    arguments = parser.parse_args()
    if platform.machine() not in ("x86_64", "AMD64"):
        parser.error(f"its loops are written for x86-64, not for {platform.machine()}")
    for file in (arguments.model, arguments.bundle):
        if not file.exists():
            parser.error(f"there is no {file}: build_variants.py builds models and bundles")
    model = onnx.load(str(arguments.model))
    work = multiplications(model)
    feeds = feeds_of(model)
    program = narrowpass.load(str(arguments.bundle), "xnn-cpu", threads=arguments.threads)
    for _ in range(3):
        program.run(feeds)
    rates, times = [], []
    with tempfile.TemporaryDirectory() as folder:
        loop, operations = loop_of(arguments.precision, Path(folder))
        for _ in range(arguments.rounds):
            before = rate(loop, operations, arguments.threads)
            start = time.perf_counter()
            program.run(feeds)
            times.append(time.perf_counter() - start)
            rates.append((before + rate(loop, operations, arguments.threads)) / 2)
    shares = [work / found / seconds for found, seconds in zip(rates, times, strict=True)]
    alone = work / statistics.median(rates)
    print(
        f"{arguments.bundle.name}, {arguments.precision}, {arguments.threads} threads:"
        f" {work / 1e9:.2f} G, {statistics.median(rates) / 1e9:.0f} G/s,"
        f" {alone * 1e3:.2f} ms alone, {statistics.median(times) * 1e3:.2f} ms"
        f" ({min(times) * 1e3:.2f}), share {statistics.median(shares):.2f} ({max(shares):.2f})"
    )


if __name__ == "__main__":
    main()
