"""Several matmuls of the same rows, apart and as one whose matrices stand beside each other.

    python benchmarks/kernels/qkv_gemm.py [--threads 1]

Prints, for float32 and for int8 with rows quantized at run time, microseconds of each way and their
ratio: the median of 15 rounds, taken in turn, of processor time on one thread.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from narrowpass import Bundle, CompileOptions, Program
from narrowpass_xnn_cpu.backend import XnnCpuBackend

SHAPES = (
    (384, (384, 384, 384)),
    (768, (768, 768, 768)),
    (768, (2048, 2048)),
    (2048, (2048, 512, 512)),
    (2048, (8192, 8192)),
)


def compiled(
    channels: int, outputs: Sequence[int], rows: int, threads: int, *, int8: bool
) -> Program:
    """Compile a model of a matmul with each of the matrices."""
    rng = np.random.default_rng(0)
    nodes, initializers = [], []
    for index, width in enumerate(outputs):
        matrix = rng.standard_normal((channels, width)).astype(np.float32)
        if int8:
            bytes_ = rng.integers(-127, 128, (channels, width)).astype(np.int8)
            scale = np.full(width, 0.01, np.float32)
            initializers.append(numpy_helper.from_array(bytes_, f"q{index}"))
            initializers.append(numpy_helper.from_array(scale, f"s{index}"))
            given = [f"q{index}", f"s{index}"]
            nodes.append(helper.make_node("DequantizeLinear", given, [f"w{index}"], axis=1))
        else:
            initializers.append(numpy_helper.from_array(matrix, f"w{index}"))
        node = helper.make_node("MatMul", ["x", f"w{index}"], [f"y{index}"])
        if int8:
            node.metadata_props.add(key="narrowpass.activations", value="dynamic")
        nodes.append(node)
    results = [
        helper.make_tensor_value_info(f"y{index}", TensorProto.FLOAT, [rows, width])
        for index, width in enumerate(outputs)
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, channels])
    graph = helper.make_graph(nodes, "g", [x], results, initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    source = ir.from_proto(onnx.shape_inference.infer_shapes(model))
    return XnnCpuBackend().compile(Bundle({"main": source}), CompileOptions(threads=threads))


def main() -> None:
    """Run the script."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    threads = parser.parse_args().threads
    clock = time.process_time if threads == 1 else time.perf_counter
    for int8 in (False, True):
        for channels, outputs in SHAPES:
            for rows in (128, 1):
                ways = outputs, (sum(outputs),)
                programs = [compiled(channels, w, rows, threads, int8=int8) for w in ways]
                rng = np.random.default_rng(1)
                feeds = {"x": rng.standard_normal((rows, channels), np.float32)}
                runs = max(3, min(200, int(1.5e8 / (rows * channels * sum(outputs)))))
                times: list[list[float]] = [[], []]
                for _ in range(15):
                    for program, seconds in zip(programs, times, strict=True):
                        program.run(feeds)
                        start = clock()
                        for _ in range(runs):
                            program.run(feeds)
                        seconds.append((clock() - start) / runs * 1e6)
                apart, one = map(statistics.median, times)
                kind = "int8" if int8 else "float32"
                widths = " + ".join(map(str, outputs))
                print(
                    f"{kind}, {rows} x {channels} by {widths}: "
                    f"apart {apart:.0f}, one {one:.0f} us, {apart / one:.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
