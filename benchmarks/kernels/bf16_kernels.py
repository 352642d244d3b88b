"""Times matmuls and convolutions with weights of bfloat16 by the kernels of this package.

Usage: ``python benchmarks/kernels/bf16_kernels.py [--threads 1] [--rounds 15] [--only ResNet-50]
[--openvino]``

Ours are run with each code that the processor has: AMX, AVX512-BF16, or AVX-512 and AVX2, which
split pairs and multiply them as float32. They are compared with float32 (by the kernel that the
table selects), with XNNPACK's matmuls of bfloat16 where it has any for the processor,
and with a model of that one operator in OpenVINO that computes in bf16. All are run in
turns. Shown are billions of operations a second, a multiplication and an addition being two, by
processor time where there is one thread: medians of all rounds. The last column has the bytes of
the matrix of bfloat16 over the best time, in GB/s: what few rows wait for.
"""

from __future__ import annotations

import math
import statistics
from typing import Any

import ml_dtypes
import numpy as np
from fp32_kernels import SHAPES, Shape
from timing import Array, Run, alone, in_turns, parser

from narrowpass.errors import BackendError
from narrowpass_planning.weights.weight import Weight
from narrowpass_xnn_cpu.native import isa, kernels
from narrowpass_xnn_cpu.native.own import bf16
from narrowpass_xnn_cpu.native.problems.convolution import ConvAttributes, Convolution
from narrowpass_xnn_cpu.native.problems.epilogue import Epilogue
from narrowpass_xnn_cpu.native.problems.matmul import Matmul
from narrowpass_xnn_cpu.native.runtime.pool import ThreadPool, shared
from narrowpass_xnn_cpu.native.table import create_convolution, create_matmul
from narrowpass_xnn_cpu.native.xnnpack import matmul as xnn_matmul

CODES = {"avx512amx": "amx_bf16", "avx512bf16": "avx512_bf16", "avx512": "avx512f", "avx2": "avx2"}
"""Codes of ours, and the flag of a processor that runs them."""


def contenders(
    shape: Shape, kernel: Array, bias: Array, pool: ThreadPool
) -> dict[str, tuple[Any, tuple[int, ...]]]:
    """Return sized operators, each with the shape of its output."""
    _, size, inputs, outputs, kernel_size, stride = shape
    found: dict[str, tuple[Any, tuple[int, ...]]] = {}
    narrow, added = Weight.of(kernel.astype(ml_dtypes.bfloat16)), Weight.of(bias)
    names = [name for name, flag in CODES.items() if flag in isa.flags()]
    for name in ("float32", "XNNPACK", *names):
        kernels.TARGET = name if name in names else "best"
        operator: Any
        if len(size) == 2:
            pad = kernel_size // 2
            attributes = ConvAttributes(pads=(pad,) * 4, strides=(stride, stride))
            if name == "XNNPACK":
                continue
            if name in names:
                operator = bf16.CONVOLUTION.create(Convolution(narrow, added, attributes))
            else:
                operator = create_convolution(Convolution(Weight.of(kernel), added, attributes))
            found[name] = operator, (1, *operator.reshape((1, *size, inputs), pool), outputs)
            continue
        try:
            if name == "XNNPACK":
                operator = xnn_matmul.create(Matmul(narrow, added))
            elif name in names:
                operator = bf16.MATMUL.create(Matmul(narrow, added, Epilogue()))
            else:
                operator = create_matmul(Matmul(Weight.of(kernel), added, Epilogue()))
        except BackendError:
            continue  # XNNPACK has matmuls of bfloat16 for few processors
        operator.params = operator.reshape(size[0], pool)
        found[name] = operator, (size[0], outputs)
    return found


def openvino(shape: Shape, kernel: Array, bias: Array, x: Array, threads: int) -> Run:
    """Return what runs the operator in OpenVINO."""
    import openvino as ov
    from openvino import opset13 as ops

    _, size, _, outputs, kernel_size, stride = shape
    given = ops.parameter(x.shape if len(size) == 1 else (1, x.shape[3], *size), np.float32)
    if len(size) == 1:
        built = ops.matmul(given, ops.constant(kernel), False, True)
        added = bias
    else:
        pads = [kernel_size // 2] * 2
        weights = ops.constant(np.ascontiguousarray(kernel.transpose(0, 3, 1, 2)))
        built = ops.convolution(given, weights, [stride, stride], pads, pads, [1, 1])
        added = bias.reshape(1, outputs, 1, 1)
    model = ov.Model([ops.add(built, ops.constant(added))], [given])
    hints = {"INFERENCE_PRECISION_HINT": "bf16", "INFERENCE_NUM_THREADS": threads}
    request = ov.Core().compile_model(model, "CPU", hints).create_infer_request()
    fed = x if len(size) == 1 else np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    request.set_input_tensor(ov.Tensor(fed, shared_memory=True))
    run: Run = request.infer
    return run


def measure(
    shape: Shape, pool: ThreadPool, rounds: int, peer: bool
) -> tuple[float, int, dict[str, list[float]]]:
    """Return operations, bytes of the matrix, and the seconds of each round of each contender."""
    rng = np.random.default_rng(0)
    _, size, inputs, outputs, kernel_size, _ = shape
    image = (1, *size, inputs) if len(size) == 2 else (*size, inputs)
    dims = (outputs, kernel_size, kernel_size, inputs) if len(size) == 2 else (outputs, inputs)
    scale = np.float32(math.sqrt(kernel_size * kernel_size * inputs))
    kernel, bias = rng.standard_normal(dims, np.float32) / scale, rng.standard_normal(outputs)
    bias, x = bias.astype(np.float32), rng.standard_normal(image).astype(np.float32)
    runs: dict[str, Run] = {}
    results, pixels = {}, 0
    for name, (operator, built) in contenders(shape, kernel, bias, pool).items():
        results[name] = np.empty(built, np.float32)
        runs[name] = alone(operator, operator.params, x, results[name], pool)
        runs[name]()
        error = np.abs(results[name] - results["float32"]).max()
        if error > 0.05 * np.abs(results["float32"]).max():
            raise SystemExit(f"{shape}: the results of {name} are off by {error}")
        pixels = math.prod(built[:-1])
    if peer:
        runs["OpenVINO"] = openvino(shape, kernel, bias, x, pool.threads)
    work = 2.0 * pixels * kernel.size
    seconds = in_turns(runs, rounds, max(1, round(1e8 / work)), pool)
    return work, 2 * kernel.size, seconds


def main() -> None:
    """Print a row for each shape."""
    options = parser(__doc__, 15)
    options.add_argument("--only", default="")
    options.add_argument("--openvino", action="store_true")
    arguments = options.parse_args()
    pool = shared(arguments.threads)
    for shape in SHAPES:
        if arguments.only not in shape[0]:
            continue
        work, size, seconds = measure(shape, pool, arguments.rounds, arguments.openvino)
        name, sizes, inputs, outputs, kernel_size, stride = shape
        text = f"{name:11} {'x'.join(map(str, sizes)):8} {kernel_size}x{kernel_size}/{stride}"
        medians = {key: statistics.median(times) for key, times in seconds.items()}
        rates = "  ".join(f"{key} {work / t / 1e9:6.1f}" for key, t in medians.items())
        ours = min(min(times) for key, times in seconds.items() if key in CODES)
        line = f"{text} {f'{inputs} to {outputs}':14} {rates}  {size / ours / 1e9:5.1f} GB/s"
        print(line, flush=True)


if __name__ == "__main__":
    main()
