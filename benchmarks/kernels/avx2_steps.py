"""Times what convolutional models spend on processors with AVX2 alone, and compares with the limit.

Usage: ``python benchmarks/kernels/avx2_steps.py [--isa avx2] [--rounds 10] [--only depthwise]``

``depthwise``: depthwise convolutions of 3 x 3 to 11 x 11, ours and XNNPACK's. ``gemm``: those
of 1 x 1 with few channels, as fully connected, ours and XNNPACK's. ``norm``: layer normalization
of pixels, and a copy of as many bytes. Milliseconds are the least of all rounds, in turns and
by one thread; operations are counted without taps in the padding. The share is of a loop of FMA
instructions on 256 bits that reads nothing, the best so far. ``--isa`` caps XNNPACK's
instruction sets too; the results of both must agree. Needs x86-64 and a C compiler.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

DEPTHWISE = tuple(
    (size, channels, kernel_size, stride)
    for kernel_size in (3, 5, 7, 9, 11)
    for size, channels in ((112, 64), (56, 96), (28, 192), (14, 384), (7, 768))
    for stride in (1, 2)
    if size > 7 or stride == 1
)
"""Height and width, channels, kernel, stride."""
GEMM = (
    *((12544, 32, 16), (12544, 16, 96), (3136, 96, 24), (3136, 24, 144), (784, 144, 32)),
    *((784, 32, 192), (196, 192, 64), (196, 64, 384), (196, 384, 96), (196, 96, 576)),
    *((49, 960, 160), (6400, 16, 48), (1600, 48, 80), (3136, 96, 384), (3136, 384, 96)),
)
"""Rows, inputs, outputs."""
NORM = ((56, 96), (28, 192), (14, 384), (7, 768))
"""Height and width, channels."""
TURNS = 500_000
FMAS = 12 * 8

"""Multiplications and additions of a turn of the loop."""


class Meter:
    """Runs things in turns, and a loop of FMA instructions between them."""

    def __init__(self, folder: Path, rounds: int) -> None:
        library, source = folder / "peak.so", Path(__file__).with_name("peak.c")
        compiler = os.environ.get("CC", "cc")
        command = [compiler, "-O2", "-mavx512f", "-shared", "-fPIC", str(source)]
        subprocess.run([*command, "-o", str(library)], check=True)
        self._loop = ctypes.CDLL(str(library)).fma_256
        self._loop.argtypes = [ctypes.c_uint64]
        self._rounds = rounds
        self._peak = 0.0
        for _ in range(50):  # until the core runs at its rate
            self._measure()

    def _measure(self) -> None:
        self._peak = max(self._peak, 2.0 * TURNS * FMAS / _seconds(lambda: self._loop(TURNS), 1))

    def least(self, runs: dict[str, Callable[[], None]]) -> tuple[dict[str, float], float]:
        """Return the least seconds of each, and the most operations a second of the loop so far."""
        times = dict.fromkeys(runs, float("inf"))
        for _ in range(self._rounds):
            self._measure()
            for name, run in runs.items():
                run()
                repeats = 1 if times[name] > 1 else max(1, round(2e-3 / times[name]))
                times[name] = min(times[name], _seconds(run, repeats))
        return times, self._peak


def _seconds(run: Callable[[], object], repeats: int) -> float:
    start = time.process_time()
    for _ in range(repeats):
        run()
    return (time.process_time() - start) / repeats


def _chain(x: Any, operator: Any, size: int, pool: Any) -> Any:
    from fp32_depthwise import Chain

    return Chain(x, [(operator, size)], pool)


def _compared(meter: Meter, text: str, chains: dict[str, Any], work: float) -> None:
    import numpy as np

    ours, other = chains.values()
    np.testing.assert_allclose(ours.result, other.result, rtol=0, atol=2e-4)
    times, peak = meter.least({name: chain.run for name, chain in chains.items()})
    best, theirs = times.values()
    print(
        f"{text:26}{1e3 * best:9.3f}{1e3 * theirs:9.3f}{theirs / best:9.2f}"
        f"{work / best / 1e9:9.1f}{work / best / peak:9.2f}",
        flush=True,
    )


def _taps(size: int, outputs: int, kernel_size: int, stride: int) -> int:
    """Count the taps along one axis that are not in the padding."""
    places = (i * stride - kernel_size // 2 + k for i in range(outputs) for k in range(kernel_size))
    return sum(0 <= place < size for place in places)


def depthwise(meter: Meter) -> None:
    """Print the table of depthwise convolutions."""
    import numpy as np

    from narrowpass_planning.weights.weight import Weight
    from narrowpass_xnn_cpu.native.own import fp32_depthwise
    from narrowpass_xnn_cpu.native.problems.convolution import ConvAttributes, Convolution
    from narrowpass_xnn_cpu.native.problems.epilogue import Epilogue
    from narrowpass_xnn_cpu.native.runtime.pool import shared
    from narrowpass_xnn_cpu.native.xnnpack import convolution as xnn_convolution

    print(f"{'depthwise':26}{'ours':>9}{'XNNPACK':>9}{'faster':>9}{'GFLOP/s':>9}{'share':>9}")
    rng, pool, relu6 = np.random.default_rng(0), shared(1), Epilogue(limits=(0.0, 6.0))
    for size, channels, kernel_size, stride in DEPTHWISE:
        pads = (kernel_size // 2,) * 4
        attributes = ConvAttributes(pads, (stride, stride), groups=channels)
        kernel = Weight.of(
            rng.standard_normal((kernel_size, kernel_size, channels), np.float32) / kernel_size
        )
        bias = Weight.of(rng.standard_normal(channels, np.float32))
        x = rng.standard_normal((1, size, size, channels), np.float32)
        chains, out = {}, (0, 0)
        problem = Convolution(kernel, bias, attributes, relu6, depthwise=True)
        for name, operator in {
            "ours": fp32_depthwise.DEPTHWISE.create(problem),
            "XNNPACK": xnn_convolution.create(problem),
        }.items():
            out = operator.reshape(x.shape, pool)
            chains[name] = _chain(x, operator, out[0] * out[1] * channels, pool)
        down, along = (_taps(size, outputs, kernel_size, stride) for outputs in out)
        text = f"{size}x{size}x{channels} {kernel_size}x{kernel_size}/{stride}"
        _compared(meter, text, chains, 2.0 * channels * down * along)


def gemm(meter: Meter) -> None:
    """Print the table of fully connected operators."""
    import numpy as np

    from narrowpass_planning.weights.weight import Weight
    from narrowpass_xnn_cpu.native.own import fp32
    from narrowpass_xnn_cpu.native.problems.epilogue import Epilogue
    from narrowpass_xnn_cpu.native.problems.matmul import Matmul
    from narrowpass_xnn_cpu.native.runtime.pool import shared
    from narrowpass_xnn_cpu.native.xnnpack import matmul as xnn_matmul

    print(f"{'fully connected':26}{'ours':>9}{'XNNPACK':>9}{'faster':>9}{'GFLOP/s':>9}{'share':>9}")
    rng, pool = np.random.default_rng(0), shared(1)
    for rows, inputs, outputs in GEMM:
        matrix = rng.standard_normal((outputs, inputs), np.float32) / np.float32(inputs**0.5)
        kernel, bias = Weight.of(matrix), Weight.of(rng.standard_normal(outputs, np.float32))
        x = rng.standard_normal((rows, inputs), np.float32)
        chains = {}
        for name, operator in {
            "ours": fp32.MATMUL.create(Matmul(kernel, bias, Epilogue(limits=(0.0, 6.0)))),
            "XNNPACK": xnn_matmul.create(Matmul(kernel, bias, Epilogue(limits=(0.0, 6.0)))),
        }.items():
            operator.reshape(rows, pool)
            chains[name] = _chain(x, operator, rows * outputs, pool)
        _compared(meter, f"{rows} x {inputs} to {outputs}", chains, 2.0 * rows * inputs * outputs)


def norm(meter: Meter) -> None:
    """Print the table of layer normalization."""
    import numpy as np

    from narrowpass_planning.plan.executor import Entry
    from narrowpass_xnn_cpu.native import kernels
    from narrowpass_xnn_cpu.native.runtime.pool import shared
    from narrowpass_xnn_cpu.native.runtime.tape import Tape, aligned

    print(f"{'layer normalization':26}{'ours':>9}{'copy':>9}{'faster':>9}{'GB/s':>9}")
    rng, pool = np.random.default_rng(0), shared(1)
    for size, channels in NORM:
        rows = size * size
        params = kernels.layer_norm(
            [rows], channels, [[1]], 1e-6, bias=True, root_mean_square=False, sum_offset=0
        )
        tape = Tape([Entry("NP_LAYER_NORM", (0, 1, 2), 3, None, params, False, "norm")], 4)
        x, out = (aligned(4 * rows * channels).view(np.float32) for _ in range(2))
        x[...] = rng.standard_normal(x.size, np.float32)
        scale, bias = (rng.standard_normal(channels, np.float32) for _ in range(2))
        for number, memory in enumerate((x, scale, bias, out)):
            tape.bind(number, memory)
        runs = {
            "ours": lambda tape=tape: tape.run(pool),
            "copy": lambda x=x, out=out: np.copyto(out, x),
        }
        times, _ = meter.least(runs)
        best, copied = times.values()
        text, moved = f"{size}x{size}x{channels}", 8e-9 * rows * channels
        print(
            f"{text:26}{1e3 * best:9.4f}{1e3 * copied:9.4f}{copied / best:9.2f}{moved / best:9.1f}"
        )


TABLES = {"depthwise": depthwise, "gemm": gemm, "norm": norm}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--isa", default="avx2", help="as NARROWPASS_ISA")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--only", choices=TABLES)
    arguments = parser.parse_args()
    os.environ["NARROWPASS_ISA"] = arguments.isa  # read when the extension is imported
    with tempfile.TemporaryDirectory() as folder:
        meter = Meter(Path(folder), arguments.rounds)
        for name, table in TABLES.items():
            if arguments.only in (None, name):
                table(meter)


if __name__ == "__main__":
    main()
