"""Times convolutions and matmuls of int8 by the kernels of this package.

Usage: ``python benchmarks/kernels/int8_kernels.py [--threads 1] [--rounds 100] [--only ResNet-50]``

Shapes are those of ResNet-50, MobileNetV2, MiniLM and BERT, with int8 in and out. Ours, and float32
and int8 on XNNPACK, are run in turns. Shown are billions of operations a second, a multiplication
and an addition being two, in the fastest run, since other programs only slow it down; and how
many times faster ours is. Its results must be those of XNNPACK.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from timing import alone, in_turns, parser

from narrowpass_planning.weights.weight import Quantized, Weight
from narrowpass_xnn_cpu.native.problems.convolution import ConvAttributes, Convolution
from narrowpass_xnn_cpu.native.problems.quantization import Quantization, Requantized
from narrowpass_xnn_cpu.native.runtime.pool import ThreadPool, shared
from narrowpass_xnn_cpu.native.table import create_convolution
from narrowpass_xnn_cpu.native.xnnpack import convolution as xnn_convolution

Shape = tuple[str, tuple[int, int], int, int, int, int, bool]

# Name, height and width, inputs, outputs, kernel_size, stride, depthwise.
SHAPES: tuple[Shape, ...] = (
    ("ResNet-50", (224, 224), 3, 64, 7, 2, False),
    ("ResNet-50", (56, 56), 64, 64, 1, 1, False),
    ("ResNet-50", (56, 56), 64, 64, 3, 1, False),
    ("ResNet-50", (56, 56), 64, 256, 1, 1, False),
    ("ResNet-50", (56, 56), 256, 64, 1, 1, False),
    ("ResNet-50", (56, 56), 128, 128, 3, 2, False),
    ("ResNet-50", (56, 56), 256, 512, 1, 2, False),
    ("ResNet-50", (28, 28), 128, 128, 3, 1, False),
    ("ResNet-50", (28, 28), 512, 128, 1, 1, False),
    ("ResNet-50", (14, 14), 256, 256, 3, 1, False),
    ("ResNet-50", (14, 14), 1024, 256, 1, 1, False),
    ("ResNet-50", (7, 7), 512, 512, 3, 1, False),
    ("ResNet-50", (7, 7), 512, 2048, 1, 1, False),
    ("ResNet-50", (1, 1), 2048, 1000, 1, 1, False),
    ("MobileNetV2", (224, 224), 3, 32, 3, 2, False),
    ("MobileNetV2", (112, 112), 32, 32, 3, 1, True),
    ("MobileNetV2", (112, 112), 16, 96, 1, 1, False),
    ("MobileNetV2", (112, 112), 96, 96, 3, 2, True),
    ("MobileNetV2", (56, 56), 96, 24, 1, 1, False),
    ("MobileNetV2", (56, 56), 144, 144, 3, 1, True),
    ("MobileNetV2", (28, 28), 192, 32, 1, 1, False),
    ("MobileNetV2", (14, 14), 64, 384, 1, 1, False),
    ("MobileNetV2", (14, 14), 576, 576, 3, 1, True),
    ("MobileNetV2", (7, 7), 960, 960, 3, 1, True),
    ("MobileNetV2", (7, 7), 960, 160, 1, 1, False),
    ("MobileNetV2", (7, 7), 320, 1280, 1, 1, False),
    ("MiniLM", (128, 1), 384, 384, 1, 1, False),
    ("MiniLM", (128, 1), 384, 1536, 1, 1, False),
    ("MiniLM", (128, 1), 1536, 384, 1, 1, False),
    ("BERT", (128, 1), 768, 768, 1, 1, False),
    ("BERT", (128, 1), 768, 3072, 1, 1, False),
    ("BERT", (128, 1), 3072, 768, 1, 1, False),
)

REQUANTIZED = Requantized(Quantization(0.5, -128), Quantization(0.25, -128))


def operators(shape: Shape, rng: np.random.Generator) -> tuple[dict[str, Any], np.ndarray]:
    """Return three operators, and their input."""
    _, size, inputs, outputs, kernel_size, stride, depthwise = shape
    pad = kernel_size // 2
    attributes = ConvAttributes(
        pads=(pad,) * 4, strides=(stride, stride), groups=inputs if depthwise else 1
    )
    dims = (
        (kernel_size, kernel_size, outputs)
        if depthwise
        else (outputs, kernel_size, kernel_size, inputs)
    )
    integers = rng.integers(-127, 128, dims).astype(np.int8)
    depth = kernel_size * kernel_size * (1 if depthwise else inputs)
    scales = (rng.uniform(0.5, 1, outputs) / np.sqrt(depth) / 100).astype(np.float32)
    axis = 2 if depthwise else 0
    stored = Quantized(Weight.of(integers), Weight.of(scales), None, axis)
    wide = Weight.of(integers * (scales if depthwise else scales[:, None, None, None]))
    bias = Weight.of(rng.integers(-999, 999, outputs).astype(np.int32))
    float_bias = Weight.of(rng.standard_normal(outputs).astype(np.float32))
    built = {
        "float32": xnn_convolution.create(
            Convolution(wide, float_bias, attributes, depthwise=depthwise)
        ),
        "ours": create_convolution(
            Convolution(stored, bias, attributes, REQUANTIZED, depthwise=depthwise)
        ),
        "int8": xnn_convolution.create(
            Convolution(stored, bias, attributes, REQUANTIZED, depthwise=depthwise)
        ),
    }
    x = rng.integers(-128, 128, (1, *size, inputs)).astype(np.int8)
    return built, x


def measure(
    shape: Shape, rng: np.random.Generator, pool: ThreadPool, rounds: int
) -> tuple[int, dict[str, float]]:
    """Return the operations of a run, and the least seconds of each operator."""
    built, x = operators(shape, rng)
    runs, results, out = {}, {}, (1, 1)
    for name, operator in built.items():
        out = operator.reshape(x.shape, pool)
        dtype = np.float32 if name == "float32" else np.int8
        params = operator.params if name == "ours" else None
        results[name] = np.empty((*out, shape[3]), dtype)
        runs[name] = alone(operator, params, x.astype(dtype), results[name], pool)
        runs[name]()
    if (results["int8"] != results["ours"]).any():
        raise SystemExit(f"{shape}: ours and XNNPACK's results differ")
    _, _, inputs, outputs, kernel_size, _, depthwise = shape
    work = 2 * out[0] * out[1] * outputs * kernel_size * kernel_size * (1 if depthwise else inputs)
    seconds = in_turns(runs, rounds, 1, pool)
    return work, {name: min(times) for name, times in seconds.items()}


def main() -> None:
    """Print a row for each shape."""
    options = parser(__doc__, 100)
    options.add_argument("--only", default="")
    arguments = options.parse_args()
    pool, rng = shared(arguments.threads), np.random.default_rng(0)
    print(f"{'':44}  ours GOP/s   ours µs   float32 GOP/s   to float32   to XNNPACK int8")
    for shape in SHAPES:
        if arguments.only not in shape[0]:
            continue
        work, seconds = measure(shape, rng, pool, arguments.rounds)
        name, size, inputs, outputs, kernel_size, stride, depthwise = shape
        kind = "depthwise" if depthwise else f"{inputs} to {outputs}"
        text = f"{name:11} {size[0]:3}x{size[1]:<3} {kernel_size}x{kernel_size}/{stride} {kind:13}"
        print(
            f"{text:44} {work / seconds['ours'] / 1e9:11.1f} {seconds['ours'] * 1e6:9.1f}"
            f"{work / seconds['float32'] / 1e9:14.1f} {seconds['float32'] / seconds['ours']:12.2f}"
            f" {seconds['int8'] / seconds['ours']:10.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
