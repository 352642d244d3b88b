"""Times matmuls and convolutions of float32 by the kernels of this package.

Usage: ``python benchmarks/kernels/fp32_kernels.py [--threads 1] [--rounds 30] [--only ResNet-50]
[--cold] [--errors]``

Shapes are those of ResNet-50, MobileNetV2, MiniLM, BERT, ViT and GPT-2, and matmuls of few rows,
for which reading the matrix takes longest. Ours and XNNPACK's are run in turns. Shown are billions
of operations a second, a multiplication and an addition being two, by processor time where there
is one thread; the median of all rounds, and the best of them in brackets, since other programs
only slow it down; of the medians, how many times faster ours is; and how fast the matrix is read
in the best round. Results must agree.

Convolutions of 3 x 3 by 1 are also run by Winograd's algorithm, with tiles of 2 x 2 and 4 x 4; its
operations are counted as if it did all of them. A star shows what the backend would take. With
``--cold``, other memory is written before each run, so that weights leave the caches, as they do
in a large model. ``--errors`` shows the errors of convolutions against float64, too: root
mean squares, in units of the distance from 1 to the next float32 times that of the results.
"""

from __future__ import annotations

import math
import statistics
from typing import Any

import numpy as np
from timing import alone, in_turns, parser

from narrowpass_planning.weights.weight import Weight
from narrowpass_xnn_cpu.native import target
from narrowpass_xnn_cpu.native.own import fp32, fp32_winograd
from narrowpass_xnn_cpu.native.problems.convolution import (
    ConvAttributes,
    Convolution,
    fits_winograd,
)
from narrowpass_xnn_cpu.native.problems.epilogue import Epilogue
from narrowpass_xnn_cpu.native.problems.matmul import Matmul
from narrowpass_xnn_cpu.native.runtime.pool import ThreadPool, shared
from narrowpass_xnn_cpu.native.table.winograd import TILES, tile_for
from narrowpass_xnn_cpu.native.xnnpack import convolution as xnn_convolution
from narrowpass_xnn_cpu.native.xnnpack import matmul as xnn_matmul

Shape = tuple[str, tuple[int, ...], int, int, int, int]

# Name, height and width or rows, inputs, outputs, kernel_size, stride.
SHAPES: tuple[Shape, ...] = (
    ("ResNet-50", (224, 224), 3, 64, 7, 2),
    ("ResNet-50", (56, 56), 64, 64, 1, 1),
    ("ResNet-50", (56, 56), 64, 64, 3, 1),
    ("ResNet-50", (56, 56), 64, 256, 1, 1),
    ("ResNet-50", (56, 56), 256, 64, 1, 1),
    ("ResNet-50", (56, 56), 128, 128, 3, 2),
    ("ResNet-50", (56, 56), 256, 512, 1, 2),
    ("ResNet-50", (28, 28), 128, 128, 3, 1),
    ("ResNet-50", (28, 28), 128, 512, 1, 1),
    ("ResNet-50", (28, 28), 512, 128, 1, 1),
    ("ResNet-50", (14, 14), 256, 256, 3, 1),
    ("ResNet-50", (14, 14), 1024, 256, 1, 1),
    ("ResNet-50", (14, 14), 256, 1024, 1, 1),
    ("ResNet-50", (7, 7), 512, 512, 3, 1),
    ("ResNet-50", (7, 7), 512, 2048, 1, 1),
    ("ResNet-50", (7, 7), 2048, 512, 1, 1),
    ("MobileNetV2", (224, 224), 3, 32, 3, 2),
    ("MobileNetV2", (112, 112), 16, 96, 1, 1),
    ("MobileNetV2", (56, 56), 96, 24, 1, 1),
    ("MobileNetV2", (28, 28), 192, 32, 1, 1),
    ("MobileNetV2", (14, 14), 64, 384, 1, 1),
    ("MobileNetV2", (7, 7), 960, 160, 1, 1),
    ("MobileNetV2", (7, 7), 320, 1280, 1, 1),
    ("MiniLM", (128,), 384, 384, 1, 1),
    ("MiniLM", (128,), 384, 1536, 1, 1),
    ("MiniLM", (128,), 1536, 384, 1, 1),
    ("BERT", (128,), 768, 768, 1, 1),
    ("BERT", (128,), 768, 3072, 1, 1),
    ("BERT", (128,), 3072, 768, 1, 1),
    ("ViT", (197,), 768, 768, 1, 1),
    ("ViT", (197,), 768, 3072, 1, 1),
    ("ViT", (197,), 3072, 768, 1, 1),
    ("GPT-2", (128,), 768, 2304, 1, 1),
    ("GPT-2", (128,), 768, 50257, 1, 1),
    ("Winograd", (28, 28), 16, 16, 3, 1),
    ("Winograd", (112, 112), 32, 32, 3, 1),
    ("Winograd", (56, 56), 96, 96, 3, 1),
    ("Winograd", (7, 7), 64, 64, 3, 1),
    ("Winograd", (10, 10), 160, 160, 3, 1),
    ("Winograd", (14, 14), 192, 192, 3, 1),
    ("Winograd", (20, 20), 256, 256, 3, 1),
    ("Winograd", (10, 10), 512, 512, 3, 1),
    ("few rows", (1,), 768, 768, 1, 1),
    ("few rows", (1,), 768, 3072, 1, 1),
    ("few rows", (2,), 768, 3072, 1, 1),
    ("few rows", (4,), 768, 3072, 1, 1),
    ("few rows", (7,), 768, 3072, 1, 1),
    ("few rows", (8,), 768, 3072, 1, 1),
    ("few rows", (1,), 2048, 1000, 1, 1),
    ("few rows", (1,), 2048, 8192, 1, 1),
)


Array = np.ndarray[Any, Any]


def operators(
    shape: Shape, rng: np.random.Generator
) -> tuple[dict[str, Any], tuple[Weight, Weight]]:
    """Return the operators by name, and their kernel and bias."""
    _, size, inputs, outputs, kernel_size, stride = shape
    bias = Weight.of(rng.standard_normal(outputs).astype(np.float32))
    if len(size) == 1:
        matrix = rng.standard_normal((outputs, inputs), np.float32) / np.float32(math.sqrt(inputs))
        kernel = Weight.of(matrix)
        matmuls: dict[str, Any] = {
            "ours": fp32.MATMUL.create(Matmul(kernel, bias, Epilogue())),
            "XNNPACK": xnn_matmul.create(Matmul(kernel, bias)),
        }
        return matmuls, (kernel, bias)
    pad = kernel_size // 2
    attributes = ConvAttributes(pads=(pad,) * 4, strides=(stride, stride))
    depth = np.float32(math.sqrt(kernel_size * kernel_size * inputs))
    kernel = Weight.of(
        rng.standard_normal((outputs, kernel_size, kernel_size, inputs), np.float32) / depth
    )
    built: dict[str, Any] = {
        "ours": fp32.CONVOLUTION.create(Convolution(kernel, bias, attributes)),
        "XNNPACK": xnn_convolution.create(Convolution(kernel, bias, attributes)),
    }
    if fits_winograd(kernel.shape, attributes):
        for tile in TILES:
            image, lanes = (1, size[0], size[1]), target.current().fp32_packing
            star = "*" * (tile_for(kernel.shape, attributes, image, lanes) == tile)
            name = f"{tile} x {tile}{star}"
            built[name] = fp32_winograd.BY_TILE[tile].create(Convolution(kernel, bias, attributes))
    return built, (kernel, bias)


def convolved(x: Array, kernel: Array, bias: Array, stride: int) -> Array:
    """Return a convolution of [1, H, W, C] with [O, K, K, C], in float64."""
    outputs, kernel_size, _, _ = kernel.shape
    pad = kernel_size // 2
    wide = np.pad(x[0].astype(np.float64), ((pad, pad), (pad, pad), (0, 0)))
    seen = np.lib.stride_tricks.sliding_window_view(wide, (kernel_size, kernel_size), (0, 1))
    seen = seen[::stride, ::stride].transpose(0, 1, 3, 4, 2)
    rows = seen.reshape(seen.shape[0] * seen.shape[1], -1)
    built: Array = rows @ kernel.astype(np.float64).reshape(outputs, -1).T + bias
    return built.reshape(-1)


def measure(
    shape: Shape, rng: np.random.Generator, pool: ThreadPool, rounds: int, cold: bool
) -> tuple[float, dict[str, list[float]], dict[str, float]]:
    """Return the operations of a run, the seconds of each round of each operator, and their errors.

    There are errors of convolutions only.
    """
    _, size, inputs, outputs, kernel_size, stride = shape
    built, (kernel, bias) = operators(shape, rng)
    image = (1, *size, inputs) if len(size) == 2 else (*size, inputs)
    x = rng.standard_normal(image).astype(np.float32)
    runs, results, pixels = {}, {}, size[0]
    for name, operator in built.items():
        if len(size) == 2:
            pixels = math.prod(operator.reshape(image, pool))
        else:
            operator.reshape(size[0], pool)
        results[name] = np.empty(pixels * outputs, np.float32)
        runs[name] = alone(operator, operator.params, x, results[name], pool)
        runs[name]()
    for name, result in results.items():
        if not np.allclose(result, results["XNNPACK"], rtol=0, atol=1e-4):
            raise SystemExit(f"{shape}: the results of {name} and XNNPACK differ")
    errors = {}
    if len(size) == 2:
        exact = convolved(x, kernel.array(), bias.array(), stride)
        unit = math.sqrt(float((exact**2).mean())) * float(np.finfo(np.float32).eps)
        for name, result in results.items():
            errors[name] = math.sqrt(float(((result - exact) ** 2).mean())) / unit
    work = 2.0 * pixels * outputs * kernel_size * kernel_size * inputs
    repeats = 1 if cold else max(1, round(1e8 / work))
    return work, in_turns(runs, rounds, repeats, pool, cold=cold), errors


def main() -> None:
    """Print a row for each shape."""
    options = parser(__doc__, 30)
    options.add_argument("--only", default="")
    options.add_argument("--cold", action="store_true")
    options.add_argument("--errors", action="store_true")
    arguments = options.parse_args()
    pool, rng = shared(arguments.threads), np.random.default_rng(0)
    print(f"{'':40}{'ours':>18}{'XNNPACK':>18}   faster   GB/s")
    for shape in SHAPES:
        if arguments.only not in shape[0]:
            continue
        work, seconds, errors = measure(shape, rng, pool, arguments.rounds, arguments.cold)
        name, size, inputs, outputs, kernel_size, stride = shape
        sizes = "x".join(map(str, size))
        text = f"{name:11} {sizes:8} {kernel_size}x{kernel_size}/{stride} {inputs} to {outputs}"
        medians = {key: statistics.median(times) for key, times in seconds.items()}
        rates = [
            f"{work / medians[key] / 1e9:9.1f} ({work / min(times) / 1e9:6.1f})"
            for key, times in seconds.items()
        ]
        matrix = 4 * kernel_size * kernel_size * inputs * outputs / min(seconds["ours"]) / 1e9
        ratio = medians["XNNPACK"] / medians["ours"]
        more = "".join(f"  {key}: {rate}" for key, rate in zip(seconds, rates, strict=True))
        more = more[len(f"  ours: {rates[0]}  XNNPACK: {rates[1]}") :]
        print(f"{text:40}{rates[0]}{rates[1]} {ratio:8.2f} {matrix:6.1f}{more}", flush=True)
        if arguments.errors and errors:
            print("  errors: ", *(f"{key}: {error:.1f}" for key, error in errors.items()))


if __name__ == "__main__":
    main()
