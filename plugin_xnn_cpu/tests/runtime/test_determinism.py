"""Packed weights in a cache, from a file or in memory: one kernel, and the same bits of results.

Without a cache, shared in memory, on disk when the file is written, and when it is read: whatever
holds the packed weights, the kernel that reads them is the same one.
"""

from __future__ import annotations

import gc

import ml_dtypes
import numpy as np
import onnx
import pytest
from cache_kit import compiled, saved, weights
from onnx import TensorProto, helper, numpy_helper

pytestmark = pytest.mark.once

ROWS = (1, 2, 3, 4, 5, 7, 8, 9, 12, 20)
DTYPES = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}


def rows_model(nodes, columns, constants, *, opset=21):
    """Build a model from x [N, columns] to y."""
    initializers = []
    for name, array in constants.items():
        if isinstance(array, onnx.TensorProto):
            initializers.append(array)
        else:
            initializers.append(numpy_helper.from_array(array, name))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", int(columns)])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        initializers,
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    return onnx.shape_inference.infer_shapes(model)


def floats(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def gemm(rng):
    c, o = rng.integers(3, 90, 2)
    constants = {"w": floats(rng, o, c), "b": floats(rng, o), "v": floats(rng, 33, o)}
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["h"], transB=1),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "v"], ["y"], transB=1),
    ]
    return rows_model(nodes, c, constants)


def matmul(rng):
    c, o = rng.integers(3, 200, 2)
    return rows_model([helper.make_node("MatMul", ["x", "w"], ["y"])], c, {"w": floats(rng, c, o)})


def convolution(rng, groups=1):
    channels = 4 * groups if groups == 1 else groups
    outputs = int(rng.integers(1, 20)) if groups == 1 else groups
    size = int(rng.integers(5, 9))
    constants = {
        "k": floats(rng, outputs, channels // groups, 3, 3),
        "b": floats(rng, outputs),
        "shape": np.array([-1, channels, size, size], np.int64),
    }
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["i"]),
        helper.make_node("Conv", ["i", "k", "b"], ["y"], group=groups, pads=[1, 1, 1, 1]),
    ]
    return rows_model(nodes, channels * size * size, constants)


def depthwise(rng):
    return convolution(rng, int(rng.integers(3, 20)))


def transposed(rng):
    constants = {"k": floats(rng, 3, 4, 2, 2), "shape": np.array([-1, 3, 5, 5], np.int64)}
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["i"]),
        helper.make_node("ConvTranspose", ["i", "k"], ["y"], strides=[2, 2]),
    ]
    return rows_model(nodes, 75, constants)


def int8(rng, activations=""):
    c, o = (int(size) for size in rng.integers(8, 200, 2))
    constants = {
        "q": rng.integers(-127, 128, (c, o)).astype(np.int8),
        "s": (rng.random(o) + 0.01).astype(np.float32),
        "b": floats(rng, o),
    }
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s"], ["w"], axis=1),
        helper.make_node("MatMul", ["x", "w"], ["m"], name="mm"),
        helper.make_node("Add", ["m", "b"], ["y"]),
    ]
    if activations:
        prop = onnx.StringStringEntryProto(key="narrowpass.activations", value=activations)
        nodes[1].metadata_props.append(prop)
    return rows_model(nodes, c, constants)


def int8_rows(rng):
    return int8(rng, "dynamic")


def half(rng, kind, c, o):
    array = floats(rng, c, o).astype(np.float16 if kind == "float16" else ml_dtypes.bfloat16)
    stored = helper.make_tensor("n", DTYPES[kind], (c, o), array.tobytes(), raw=True)
    nodes = [
        helper.make_node("Cast", ["n"], ["w"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    return rows_model(nodes, c, {"n": stored})


def float16(rng):
    return half(rng, "float16", 70, 130)


def float16_large(rng):
    return half(rng, "float16", 600, 1024)


def bfloat16(rng):
    return half(rng, "bfloat16", 72, 130)


def bfloat16_computed(rng):
    """A bfloat16 matmul, as the pass `fp16` emits it."""
    array = floats(rng, 64, 48).astype(ml_dtypes.bfloat16)
    stored = helper.make_tensor("w", TensorProto.BFLOAT16, (64, 48), array.tobytes(), raw=True)
    nodes = [
        helper.make_node("Cast", ["x"], ["n"], to=TensorProto.BFLOAT16),
        helper.make_node("MatMul", ["n", "w"], ["m"]),
        helper.make_node("Cast", ["m"], ["y"], to=TensorProto.FLOAT),
    ]
    return rows_model(nodes, 64, {"w": stored})


def nbits(rng, bits=4):
    c, o, block = 96, 50, 32
    constants = {
        "q": rng.integers(0, 256, (o, c // block, block * bits // 8)).astype(np.uint8),
        "s": (rng.random((o, c // block)) + 0.01).astype(np.float32),
        "z": (rng.random((o, c // block)) * 16).astype(np.float32),
    }
    sizes = {"K": c, "N": o, "bits": bits, "block_size": block}
    names = ["x", "q", "s", "z"]
    node = helper.make_node("MatMulNBits", names, ["y"], domain="com.microsoft", **sizes)
    model = rows_model([node], c, constants)
    declared = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", o])
    model.graph.output[0].CopyFrom(declared)
    return model


MODELS = {
    build.__name__: build
    for build in (
        *(gemm, matmul, convolution, depthwise, transposed, int8, int8_rows),
        *(float16, float16_large, bfloat16, bfloat16_computed, nbits),
    )
}


def results(program, inputs):
    return [program.run({"x": x})["y"] for x in inputs]


@pytest.mark.parametrize("kernels", ["chosen", "XNNPACK's"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_the_same_bits_with_and_without_a_cache(tmp_path, name, threads, kernels, monkeypatch):
    if kernels != "chosen":
        # As on processors where XNNPACK's kernels are the faster ones: others read what it packs.
        from narrowpass_xnn_cpu.native import target

        monkeypatch.setitem(target.OVERRIDES, "fp32_lanes", 0)
    for seed in (0, 1):
        rng = np.random.default_rng([seed, len(name)])
        model = MODELS[name](rng)
        bundle = saved(tmp_path / f"{seed}.narrow", main=model)
        columns = model.graph.input[0].type.tensor_type.shape.dim[1].dim_value
        inputs = [floats(rng, rows, columns) for rows in ROWS]
        folder = tmp_path / f"{seed}.cache"
        expected = None
        for cache in (False, "memory", "cold", "warm"):
            chosen = True if cache in ("cold", "warm") else cache
            program = compiled(bundle, folder, cache=chosen, threads=threads)
            # XNNPACK packs transposed convolutions without looking; small weights have no file.
            if cache == "warm" and name != "transposed" and bundle.manifest.tensors:
                assert weights(program)["packs"] == 0
                assert weights(program)["mapped_bytes"] > 0
            got = results(program, inputs)
            plan = [(p.node, p.kernel, p.reason) for p in program.explain()]
            program.close()
            del program
            gc.collect()
            if expected is None:
                expected, plans = got, plan
            assert plan == plans, cache
            for rows, one, other in zip(ROWS, got, expected, strict=True):
                np.testing.assert_array_equal(one, other, err_msg=f"{cache}, {rows} rows")


def test_the_same_bits_where_a_default_is_overridden(tmp_path):
    """What is compiled again for that is compiled without a session of the cache."""
    rng = np.random.default_rng(4)
    model = int8(rng)
    added = next(t for t in model.graph.initializer if t.name == "b")
    info = helper.make_tensor_value_info("b", TensorProto.FLOAT, list(added.dims))
    model.graph.input.append(info)
    bundle = saved(tmp_path / "b.narrow", main=model)
    columns = model.graph.input[0].type.tensor_type.shape.dim[1].dim_value
    bias = numpy_helper.to_array(added)
    zero = np.zeros_like(bias)
    for rows in ROWS:
        x = floats(rng, rows, columns)
        found = []
        for cache in (False, "memory", True):
            program = compiled(bundle, tmp_path / "cache", cache=cache)
            found.append(program.run({"x": x, "b": zero})["y"])
        for other in found[1:]:
            np.testing.assert_array_equal(found[0], other)
