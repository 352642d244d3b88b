"""Matmuls with weights of float8 beside those of float32.

Prints a row for each size: milliseconds of one thread by CPU time (medians of rounds in turns) with
a matrix of float32, and with FLOAT8E4M3FN and FLOAT8E5M2 behind a DequantizeLinear with a scale for
each output.

``python benchmarks/kernels/float8_gemm.py [--rounds 9]``
"""

from __future__ import annotations

import argparse
import statistics
import time

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

import narrowpass

SIZES = [(rows, width) for width in (768, 2048, 4096) for rows in (1, 4, 16, 128)]
KINDS = {
    "e4m3fn": (ml_dtypes.float8_e4m3fn, TensorProto.FLOAT8E4M3FN),
    "e5m2": (ml_dtypes.float8_e5m2, TensorProto.FLOAT8E5M2),
}
WORK = 3e8
"""Multiply-accumulates of a round, or one run."""


def model(width: int, kind: str) -> onnx.ModelProto:
    """Build a matmul with a square matrix of float8, or of float32 where `kind` is empty."""
    matrix = np.random.default_rng(0).standard_normal((width, width)).astype(np.float32)
    nodes = []
    if kind:
        dtype, code = KINDS[kind]
        numbers = matrix.astype(dtype)
        initializers = [
            helper.make_tensor("q", code, numbers.shape, numbers.tobytes(), raw=True),
            numpy_helper.from_array(np.ones(width, np.float32), "s"),
        ]
        nodes = [helper.make_node("DequantizeLinear", ["q", "s"], ["w"], axis=1)]
    else:
        initializers = [numpy_helper.from_array(matrix, "w")]
    nodes.append(helper.make_node("MatMul", ["x", "w"], ["y"]))
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", width])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", width])
    graph = helper.make_graph(nodes, "g", [given], [result], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    kinds = ("", *KINDS)
    print(f"rows x inputs x outputs {'float32':>10}" + "".join(f"{kind:>10}" for kind in KINDS))
    for rows, width in SIZES:
        x = np.random.default_rng(1).standard_normal((rows, width)).astype(np.float32)
        built = [narrowpass.build(ir.from_proto(model(width, kind)), "") for kind in kinds]
        programs = [narrowpass.load(bundle, "xnn-cpu", threads=1) for bundle in built]
        count = max(1, int(WORK / (width * width * max(rows, 2))))
        times: list[list[float]] = [[] for _ in programs]
        for _ in range(rounds):
            for program, found in zip(programs, times, strict=True):
                program.run({"x": x})
                begin = time.process_time()
                for _ in range(count):
                    program.run({"x": x})
                found.append((time.process_time() - begin) / count)
        row = "".join(f"{1e3 * statistics.median(found):10.3f}" for found in times)
        print(f"{rows:4} x {width:5} x {width:5}    {row}", flush=True)
        for program in programs:
            program.close()


if __name__ == "__main__":
    main()
