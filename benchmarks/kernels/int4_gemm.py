"""Matmuls with a matrix of 4 bits in blocks: this backend beside onnxruntime and its own float32.

Prints a row for each size: milliseconds of CPU time of one thread (medians of interleaved rounds)
of MatMulNBits here, in onnxruntime with rows of float32 (accuracy level 0) and of int8 (level 4),
and of the same matmul with a float32 matrix here; and GB/s of packed weights read here.

Needs onnxruntime: ``python benchmarks/kernels/int4_gemm.py [--rounds 15]``.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import narrowpass

BLOCK = 32
SIZES = [(1, 768, 768), (1, 2048, 8192), (1, 4096, 4096), (4, 4096, 4096), (32, 4096, 4096)]
SIZES += [(128, 2048, 2048)]


def models(columns: int, outputs: int) -> tuple[list[onnx.ModelProto], onnx.ModelProto]:
    """Build the matmul with 4 bits at two accuracy levels, and with float32."""
    rng = np.random.default_rng(0)
    blocks = columns // BLOCK
    constants = {
        "b": rng.integers(0, 256, (outputs, blocks, BLOCK // 2)).astype(np.uint8),
        "s": (0.01 * rng.random((outputs, blocks)) + 0.01).astype(np.float32),
    }
    initializers = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    given = [helper.make_tensor_value_info("a", TensorProto.FLOAT, ["rows", columns])]
    built = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", outputs])]
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    small = []
    for level in (0, 4):
        named = {"K": columns, "N": outputs, "bits": 4, "block_size": BLOCK}
        node = helper.make_node(
            "MatMulNBits",
            ["a", "b", "s"],
            ["y"],
            domain="com.microsoft",
            accuracy_level=level,
            **named,
        )
        graph = helper.make_graph([node], "g", given, built, initializers)
        small.append(helper.make_model(graph, opset_imports=imports, ir_version=8))
    matrix = rng.standard_normal((columns, outputs)).astype(np.float32)
    node = helper.make_node("MatMul", ["a", "w"], ["y"])
    graph = helper.make_graph([node], "g", given, built, [numpy_helper.from_array(matrix, "w")])
    return small, helper.make_model(graph, opset_imports=imports, ir_version=8)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    print("rows x inputs x outputs   here   GB/s   ort fp32   ort int8   here float32")
    for rows, columns, outputs in SIZES:
        small, wide = models(columns, outputs)
        a = np.random.default_rng(1).standard_normal((rows, columns)).astype(np.float32)
        runs: list[Callable[[], object]] = []
        for model in (small[0], wide):
            program = narrowpass.load(
                narrowpass.build(ir.from_proto(model), ""), "xnn-cpu", threads=1
            )
            runs.append(functools.partial(program.run, {"a": a}))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        for model in small:
            session = onnxruntime.InferenceSession(model.SerializeToString(), options)
            runs.append(functools.partial(session.run, None, {"a": a}))
        times: list[list[float]] = [[] for _ in runs]
        for _ in range(rounds):
            for run, found in zip(runs, times, strict=True):
                begin = time.process_time()
                for _ in range(3):
                    run()
                found.append((time.process_time() - begin) / 3)
        here, float32, exact, bytes_ = (1e3 * statistics.median(found[1:]) for found in times)
        read = outputs * columns * (0.5 + 8 / BLOCK) / here / 1e6
        print(
            f"{rows:4} x {columns:5} x {outputs:5}      {here:6.2f} {read:6.1f}"
            f" {exact:10.2f} {bytes_:10.2f} {float32:14.2f}"
        )


if __name__ == "__main__":
    main()
