"""Packed matrices of int8 in the weights cache."""

from __future__ import annotations

import gc
import multiprocessing

import numpy as np
import pytest
from cache_kit import INPUT, compiled, load_in_child, result, saved, weights
from int8_matmul_kit import (
    PER_CHANNEL,
    ROWS,
    WEIGHTS,
    ZEROS,
    at,
    quantized,
    quantized_matmul,
    reference,
    rows,
    run,
    with_one,
)

from narrowpass_planning.weights.weight import Quantized, Weight
from narrowpass_xnn_cpu.native.problems.matmul import Matmul, PerToken
from narrowpass_xnn_cpu.native.weights_cache import WeightsCache
from narrowpass_xnn_cpu.native.xnnpack import matmul as xnn_matmul


@pytest.mark.parametrize("dynamic", [False, True], ids=["weights", "rows too"])
def test_the_same_integers_with_another_scale_or_bias_have_another_name(tmp_path, dynamic):
    """XNNPACK's key has no scales, nor the bias if rows are int8: our content names have both."""
    base = {"s": PER_CHANNEL, "b": np.linspace(-1, 1, 19, dtype=np.float32)}
    changes = [
        {},
        {"s": PER_CHANNEL[::-1].copy()},
        {"b": base["b"][::-1].copy()},
        {"s": PER_CHANNEL[:1].copy()},
        {"w": with_one(1)},
    ]
    methods = {
        f"m{i}": quantized_matmul(bias=True, dynamic=dynamic, **{**base, **change})
        for i, change in enumerate(changes)
    }
    bundle = saved(tmp_path / "b.narrow", **methods)
    x = rows(3)
    for packs in (len(changes), 0):
        program = compiled(bundle, tmp_path / "cache")
        found = weights(program)
        assert (found["packs"], found["hits"]) == (packs, len(changes) - packs)
        assert found["private"] == {}
        for name, model in methods.items():
            right = reference(model, x)
            got = program.run({"x": x}, name)["y"]
            tolerance = (2e-2 if dynamic else 1e-5) * np.abs(right).max()
            np.testing.assert_allclose(got, right, rtol=1e-5, atol=tolerance)
            (plan,) = [p for p in program.explain() if (p.method, p.node) == (name, "matmul")]
            assert plan.kernel == (ROWS if dynamic else WEIGHTS)
        program.close()
        del program
        gc.collect()


def test_both_forms_of_one_matrix_are_two_blocks(tmp_path):
    methods = {
        name: quantized_matmul(bias=True, dynamic=name == "rows") for name in ("weights", "rows")
    }
    bundle = saved(tmp_path / "b.narrow", **methods)
    x = rows(3)
    for packs in (2, 0):
        program = compiled(bundle, tmp_path / "cache")
        assert weights(program)["packs"] == packs
        for name, model in methods.items():
            right = reference(model, x)
            got = program.run({"x": x}, name)["y"]
            tolerance = 1e-5 if name == "weights" else 2e-2
            np.testing.assert_allclose(got, right, atol=tolerance * np.abs(right).max())
        program.close()
        del program
        gc.collect()


@pytest.mark.parametrize("dynamic", [False, True], ids=["weights", "rows too"])
def test_integers_are_packed_without_dequantization(tmp_path, dynamic):
    """The packed form has a byte for each weight, and comes from the file at the second load."""
    bundle = saved(
        tmp_path / "b.narrow", main=quantized_matmul(512, 256, bias=True, dynamic=dynamic)
    )
    for packs, place in ((1, "heap_bytes"), (0, "mapped_bytes")):
        program = compiled(bundle, tmp_path / "cache")
        found = weights(program)
        assert found["packs"] == packs
        assert 512 * 256 <= found[place] < 1.1 * 512 * 256
        program.close()
        del program
        gc.collect()


@pytest.mark.parametrize("dynamic", [False, True], ids=["weights", "rows too"])
def test_a_process_that_was_not_forked_finds_them(tmp_path, dynamic):
    bundle = saved(tmp_path / "b.narrow", main=quantized_matmul(48, bias=True, dynamic=dynamic))
    here = compiled(bundle, tmp_path / "cache")
    assert weights(here)["packs"] == 1
    context = multiprocessing.get_context("spawn")
    ready, results = context.Event(), context.Queue()
    ready.set()
    arguments = str(tmp_path / "b.narrow"), str(tmp_path / "cache"), ready, results
    process = context.Process(target=load_in_child, args=arguments)
    process.start()
    assert results.get(timeout=60) == (0, result(here, INPUT).tobytes())
    process.join()


def test_matmuls_that_do_not_fit_int8_are_cached_apart(tmp_path):
    """Those run in float32; integers that differ in their zero points alone are distinct."""
    fit, unfit = {"s": PER_CHANNEL, "z": ZEROS}, {"s": PER_CHANNEL, "z": at(ZEROS, 4, 3)}
    methods = {"fit": quantized_matmul(**fit), "unfit": quantized_matmul(**unfit)}
    bundle = saved(tmp_path / "b.narrow", **methods)
    x = rows(3)
    for packs in (2, 0):
        program = compiled(bundle, tmp_path / "cache")
        assert weights(program)["packs"] == packs
        for name, model in methods.items():
            right = reference(model, x)
            got = program.run({"x": x}, name)["y"]
            np.testing.assert_allclose(got, right, rtol=1e-5, atol=1e-5 * np.abs(right).max())
        program.close()
        del program
        gc.collect()


@pytest.mark.parametrize("rows_too", [False, True], ids=["weights", "rows too"])
def test_a_hit_reads_nothing(rows_too):
    cache = WeightsCache()
    operand = PerToken() if rows_too else None
    matrix, bias = with_one(7, (19, 37)), Weight.of(np.ones(19, np.float32), "b")
    with cache.begin() as first:
        fresh = quantized(matrix, PER_CHANNEL, name="a")
        one = xnn_matmul.create(Matmul(fresh, bias, operand=operand), first)

    def unreadable():
        raise AssertionError("the weight was read")

    kept = Quantized(
        Weight((19, 37), np.dtype(np.int8), "a/w", unreadable),
        Weight((19,), np.dtype(np.float32), "a/s", unreadable),
        None,
        0,
    )
    with cache.begin() as second:
        hidden = Weight((19,), np.dtype(np.float32), "b", unreadable)
        two = xnn_matmul.create(Matmul(kept, hidden, operand=operand), second)
    assert (first.counts.packs, second.counts.packs, second.counts.hits) == (1, 0, 1)
    x = rows(2)
    np.testing.assert_array_equal(run(one, x, 19), run(two, x, 19))
