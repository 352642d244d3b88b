"""Times depthwise convolutions of float32, alone and in one pass with the matmuls around them.

Usage: ``python benchmarks/kernels/fp32_depthwise.py [--threads 1] [--rounds 30]``

Shapes are those of MobileNetV2, and some of 5 x 5 as EfficientNet has them. The first table
compares ours with XNNPACK's depthwise convolutions: milliseconds by processor time where there is
one thread, the median of all rounds, run in turns, and the best of them in brackets; then for the
best of ours billions of operations a second, and of bytes that are read and written. The second
table has blocks of a matmul, a depthwise convolution and a matmul: in one pass, and in three
steps. Results must agree.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from narrowpass_planning.plan.executor import Entry
from narrowpass_planning.weights.weight import Weight
from narrowpass_xnn_cpu.native.own import fp32, fp32_depthwise
from narrowpass_xnn_cpu.native.own.packed import PackedConvolution, PackedMatmul
from narrowpass_xnn_cpu.native.own.separable import Separable
from narrowpass_xnn_cpu.native.problems.convolution import ConvAttributes, Convolution
from narrowpass_xnn_cpu.native.problems.epilogue import Epilogue
from narrowpass_xnn_cpu.native.problems.matmul import Matmul
from narrowpass_xnn_cpu.native.runtime.pool import ThreadPool, shared
from narrowpass_xnn_cpu.native.runtime.tape import Tape, aligned
from narrowpass_xnn_cpu.native.xnnpack import convolution as xnn_convolution
from narrowpass_xnn_cpu.native.xnnpack.convolution import XnnConvolution

# Height and width, channels, kernel_size, stride.
DEPTHWISE = (
    (112, 32, 3, 1),
    (112, 96, 3, 2),
    (56, 144, 3, 1),
    (56, 144, 3, 2),
    (28, 192, 3, 1),
    (28, 192, 3, 2),
    (14, 384, 3, 1),
    (14, 576, 3, 1),
    (14, 576, 3, 2),
    (7, 960, 3, 1),
    (56, 144, 5, 2),
    (28, 240, 5, 1),
    (14, 480, 5, 1),
)

# Height and width, inputs (0 where the first matmul is missing), channels, outputs, stride.
BLOCKS = (
    (112, 0, 32, 16, 1),
    (112, 16, 96, 24, 2),
    (56, 24, 144, 24, 1),
    (56, 24, 144, 32, 2),
    (28, 32, 192, 32, 1),
    (28, 32, 192, 64, 2),
    (14, 64, 384, 64, 1),
    (14, 96, 576, 96, 1),
    (7, 160, 960, 160, 1),
)
RELU6 = Epilogue(limits=(0.0, 6.0))

Run = tuple[Any, int]
"""An operator that was reshaped, and the floats of its output."""


class Chain:
    """Operators that run one after the other, as one tape."""

    def __init__(self, x: np.ndarray[Any, Any], runs: Sequence[Run], pool: ThreadPool) -> None:
        self._pool = pool
        self._tape = Tape(
            [
                Entry(operator.call, (i,), i + 1, operator, operator.params, False, str(i))
                for i, (operator, _) in enumerate(runs)
            ],
            len(runs) + 1,
        )
        self._kept = [aligned(x.nbytes)]
        self._kept[0][: x.nbytes].view(np.float32)[...] = x.reshape(-1)
        self._kept += [aligned(4 * size) for _, size in runs]
        self._scratch = aligned(max(operator.workspace for operator, _ in runs))
        self._tape.bind_workspace(self._scratch, 0)
        for number, memory in enumerate(self._kept):
            self._tape.bind(number, memory)
        self.run()
        self.result = self._kept[-1][: 4 * runs[-1][1]].view(np.float32).copy()

    def run(self) -> None:
        """Run them."""
        self._tape.run(self._pool)


def compare(chains: dict[str, Chain], rounds: int, threads: int) -> dict[str, list[float]]:
    """Return the seconds of each round of each chain, which are run in turns."""
    first, *rest = chains.values()
    for other in rest:
        np.testing.assert_allclose(other.result, first.result, rtol=0, atol=2e-4)
    clock = time.process_time if threads == 1 else time.perf_counter
    start = clock()
    first.run()
    repeats = max(3, round(3e-3 / max(1e-6, clock() - start)))
    seconds: dict[str, list[float]] = {name: [] for name in chains}
    for _ in range(rounds):
        for name, chain in chains.items():
            chain.run()
            start = clock()
            for _ in range(repeats):
                chain.run()
            seconds[name].append((clock() - start) / repeats)
    return seconds


def shown(times: Sequence[float]) -> str:
    """Return a median, and the best in brackets, in milliseconds."""
    return f"{1e3 * statistics.median(times):9.3f} ({1e3 * min(times):6.3f})"


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray[Any, Any]:
    """Return random numbers."""
    return rng.standard_normal(shape, np.float32)


def alone(rng: np.random.Generator, pool: ThreadPool, rounds: int) -> None:
    """Print the first table."""
    print(f"{'depthwise':28}{'ours':>18}{'XNNPACK':>18}   faster  GFLOP/s    GB/s")
    for size, channels, kernel_size, stride in DEPTHWISE:
        pad = kernel_size // 2
        attributes = ConvAttributes((pad,) * 4, (stride, stride), groups=channels)
        kernel = Weight.of(normal(rng, kernel_size, kernel_size, channels))
        bias = Weight.of(normal(rng, channels))
        x = normal(rng, 1, size, size, channels)
        chains = {}
        outputs = 0
        operators: dict[str, PackedConvolution | XnnConvolution] = {
            "ours": fp32_depthwise.DEPTHWISE.create(
                Convolution(kernel, bias, attributes, RELU6, depthwise=True)
            ),
            "XNNPACK": xnn_convolution.create(
                Convolution(kernel, bias, attributes, RELU6, depthwise=True)
            ),
        }
        for name, operator in operators.items():
            height, width = operator.reshape(x.shape, pool)
            outputs = height * width * channels
            chains[name] = Chain(x, [(operator, outputs)], pool)
        seconds = compare(chains, rounds, pool.threads)
        best, other = (statistics.median(times) for times in seconds.values())
        rate = 2 * outputs * kernel_size * kernel_size / min(seconds["ours"]) / 1e9
        moved = 4 * (x.size + outputs) / min(seconds["ours"]) / 1e9
        text = f"{size}x{size}x{channels} {kernel_size}x{kernel_size}/{stride}"
        times = "".join(map(shown, seconds.values()))
        print(f"{text:28}{times} {other / best:8.2f} {rate:8.1f} {moved:7.1f}", flush=True)


def blocks(rng: np.random.Generator, pool: ThreadPool, rounds: int) -> None:
    """Print the second table."""
    print(f"{'block':28}{'one pass':>18}{'three steps':>18}   faster  GFLOP/s")
    for size, inputs, inner, outputs, stride in BLOCKS:
        attributes = ConvAttributes((1,) * 4, (stride, stride), groups=inner)

        def product(inputs: int, outputs: int, epilogue: Epilogue) -> PackedMatmul:
            matrix = Weight.of(normal(rng, outputs, inputs) / np.float32(np.sqrt(inputs)))
            return fp32.MATMUL.create(Matmul(matrix, Weight.of(normal(rng, outputs)), epilogue))

        expand = product(inputs, inner, RELU6) if inputs else None
        kernel, bias = Weight.of(normal(rng, 3, 3, inner)), Weight.of(normal(rng, inner))
        project = product(inner, outputs, Epilogue())
        x = normal(rng, 1, size, size, inputs or inner)
        together = fp32_depthwise.DEPTHWISE.create(
            Convolution(kernel, bias, attributes, RELU6, depthwise=True)
        )
        depthwise = fp32_depthwise.DEPTHWISE.create(
            Convolution(kernel, bias, attributes, RELU6, depthwise=True)
        )
        block = Separable(expand, together, project)
        pixels = int(np.prod(block.reshape(x.shape, pool)))
        runs: list[Run] = []
        if expand is not None:
            expand.reshape(size * size, pool)
            runs.append((expand, size * size * inner))
        depthwise.reshape((1, size, size, inner), pool)
        project.reshape(pixels, pool)
        runs += [(depthwise, pixels * inner), (project, pixels * outputs)]
        chains = {
            "one pass": Chain(x, [(block, pixels * outputs)], pool),
            "three steps": Chain(x, runs, pool),
        }
        seconds = compare(chains, rounds, pool.threads)
        one, three = (statistics.median(times) for times in seconds.values())
        work = 2 * inner * (size * size * inputs + pixels * (9 + outputs))
        rate = work / min(seconds["one pass"]) / 1e9
        text = f"{size}x{size} {inputs}-{inner}-{outputs}/{stride}"
        times = "".join(map(shown, seconds.values()))
        print(f"{text:28}{times} {three / one:8.2f} {rate:8.1f}", flush=True)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=30)
    arguments = parser.parse_args()
    pool, rng = shared(arguments.threads), np.random.default_rng(0)
    alone(rng, pool, arguments.rounds)
    blocks(rng, pool, arguments.rounds)


if __name__ == "__main__":
    main()
