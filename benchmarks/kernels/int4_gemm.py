"""Matmuls with a matrix of few bits in blocks: this backend beside onnxruntime and its own int8.

Prints a row for each size: milliseconds of one thread (medians of rounds in turns), by CPU time, of
MatMulNBits here and in onnxruntime, each with rows of float32 (accuracy level 0) and rows quantized
in blocks (level 4); of int8 weights and dynamically quantized rows here; how many times as long
onnxruntime takes at each level; and GB/s of packed weights that both of ours read, beside those of
a read loop over as many bytes in the same rounds (numpy's bitwise OR of 64-bit integers).

Needs onnxruntime: ``python benchmarks/kernels/int4_gemm.py [--rounds 15] [--bits 4] [--block 32]``.
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

SIZES = [(1, 768, 768), (1, 2048, 8192), (1, 4096, 4096), (1, 4096, 32768), (4, 4096, 4096)]
SIZES += [(32, 4096, 4096), (128, 2048, 2048)]


def nbits_model(level: int, columns: int, outputs: int, bits: int, block: int) -> onnx.ModelProto:
    """Build MatMulNBits with one zero point."""
    rng = np.random.default_rng(0)
    blocks = columns // block
    constants = {
        "b": rng.integers(0, 256, (outputs, blocks, block * bits // 8)).astype(np.uint8),
        "s": (0.01 * rng.random((outputs, blocks)) + 0.01).astype(np.float32),
    }
    node = helper.make_node(
        "MatMulNBits",
        ["a", "b", "s"],
        ["y"],
        domain="com.microsoft",
        accuracy_level=level,
        K=columns,
        N=outputs,
        bits=bits,
        block_size=block,
    )
    return model_of([node], columns, outputs, constants)


def int8_model(columns: int, outputs: int) -> onnx.ModelProto:
    """Build a matmul with int8 weights, whose rows are quantized dynamically."""
    rng = np.random.default_rng(0)
    constants = {
        "q": rng.integers(-127, 128, (columns, outputs)).astype(np.int8),
        "s": (0.01 * rng.random(outputs) + 0.01).astype(np.float32),
    }
    dequantize = helper.make_node("DequantizeLinear", ["q", "s"], ["w"], axis=1)
    node = helper.make_node("MatMul", ["a", "w"], ["y"])
    node.metadata_props.add(key="narrowpass.activations", value="dynamic")
    return model_of([dequantize, node], columns, outputs, constants)


def model_of(
    nodes: list[onnx.NodeProto], columns: int, outputs: int, constants: dict[str, np.ndarray]
) -> onnx.ModelProto:
    """Build a model of rows times a matrix."""
    inputs_info = [helper.make_tensor_value_info("a", TensorProto.FLOAT, ["rows", columns])]
    outputs_info = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", outputs])]
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    initializers = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "g", inputs_info, outputs_info, initializers)
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def ours(model: onnx.ModelProto, a: np.ndarray) -> Callable[[], object]:
    """Return a run of this backend with one thread."""
    program = narrowpass.load(narrowpass.build(ir.from_proto(model), ""), "xnn-cpu", threads=1)
    return functools.partial(program.run, {"a": a})


def onnxruntimes(model: onnx.ModelProto, a: np.ndarray) -> Callable[[], object]:
    """Return a run of onnxruntime with one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return functools.partial(session.run, None, {"a": a})


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--bits", type=int, default=4)
    parser.add_argument("--block", type=int, default=32)
    given = parser.parse_args()
    bits, block = given.bits, given.block
    print("rows x inputs x outputs    ours 0  ours 4   ort 0   ort 4  ours int8", end="")
    print("   ort/ours 0, 4    GB/s 0     4  read")
    for rows, columns, outputs in SIZES:
        a = np.random.default_rng(1).standard_normal((rows, columns)).astype(np.float32)
        models = [nbits_model(level, columns, outputs, bits, block) for level in (0, 4)]
        size = int(outputs * columns * (bits / 8 + 4 / block))
        numbers = np.ones(size // 8, np.int64)
        runs = [ours(model, a) for model in models]
        runs += [onnxruntimes(model, a) for model in models]
        runs += [ours(int8_model(columns, outputs), a)]
        runs += [functools.partial(np.bitwise_or.reduce, numbers)]
        times: list[list[float]] = [[] for _ in runs]
        for _ in range(given.rounds):
            for run, found in zip(runs, times, strict=True):
                begin = time.process_time()
                for _ in range(3):
                    run()
                found.append((time.process_time() - begin) / 3)
        exact, quantized, ort_exact, ort_quantized, int8, read = (
            1e3 * statistics.median(found[1:]) for found in times
        )
        print(
            f"{rows:4} x {columns:5} x {outputs:5}    {exact:8.3f}{quantized:8.3f}{ort_exact:8.3f}"
            f"{ort_quantized:8.3f}{int8:11.3f}   {ort_exact / exact:6.2f}"
            f"{ort_quantized / quantized:6.2f}    {size / exact / 1e6:6.1f}"
            f"{size / quantized / 1e6:6.1f}{size / read / 1e6:6.1f}"
        )


if __name__ == "__main__":
    main()
