"""Packed weights in a cache, from a file or in memory: one kernel, and the same bits of results.

Without a cache, shared in memory, on disk when the file is written, and when it is read: whatever
holds the packed weights, the kernel that reads them is the same one.
"""

from __future__ import annotations

import gc

import numpy as np
import pytest
from cache_kit import compiled, saved, weights
from onnx import TensorProto, helper, numpy_helper
from row_models_kit import MODELS, floats, int8

ROWS = (1, 2, 3, 4, 5, 7, 8, 9, 12, 20)


def results(program, inputs):
    return [program.run({"x": x})["y"] for x in inputs]


def packs_again(name, program):
    """Whether XNNPACK packs although the cache may have the block.

    It does not look for transposed convolutions. For static int8 it looks with a seed that differs
    from call to call, so that it may miss the block.
    """
    if name == "int8_static":
        return any(plan.kernel.startswith("xnn ") for plan in program.explain() if plan.kernel)
    return name == "transposed"


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
            # Small weights have no file.
            if cache == "warm" and bundle.manifest.tensors and not packs_again(name, program):
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
