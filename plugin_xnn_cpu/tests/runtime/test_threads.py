"""Steps that are worth dividing, and those that the thread of the run computes alone."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import pytest
from xnn_kit import compile_model

from narrowpass.runtime.backend import Program

pytestmark = pytest.mark.once

RNG = np.random.default_rng(3)


def chain() -> onnx.ModelProto:
    return onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["" : 18]>
        g (float[n, 64] x) => (float[n, 64] y) <int64[1] last = {-1}> {
            a = Abs(x)
            b = Add(a, x)
            s = Softmax <axis = -1> (b)
            m = ReduceMax(s, last)
            y = Mul(s, m)
        }
    """)


def test_rows_that_grow_and_shrink():
    """From steps of 1 KiB, which nobody is woken for, to 4 MiB and back, in one program."""
    model = chain()
    session = onnx.reference.ReferenceEvaluator(model)
    with compile_model(model, threads=2) as program, compile_model(model, threads=1) as single:
        for rows in (4, 100, 20_000, 84, 85, 86, 4):
            x = RNG.standard_normal((rows, 64)).astype(np.float32)
            (got,) = program.run({"x": x}).values()
            (alone,) = single.run({"x": x}).values()
            np.testing.assert_array_equal(got, alone)
            if rows <= 100:
                (expected,) = session.run(None, {"x": x})
                np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def attention_free_layer() -> onnx.ModelProto:
    """Own kernels (the normalization, mostly the matmuls too) beside some of XNNPACK."""
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["" : 18]>
        g (float[n, 96] x) => (float[n, 96] y) {
            p = MatMul(x, w)
            s = Softmax <axis = -1> (p)
            t = Add(s, x)
            z = LayerNormalization(t, scale)
            q = MatMul(z, w)
            y = Relu(q)
        }
    """)
    w = (RNG.standard_normal((96, 96)) / 10).astype(np.float32)
    for name, value in {"w": w, "scale": np.ones(96, np.float32)}.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    return model


@pytest.mark.parametrize("pause", [0.0, 0.002], ids=["spinning", "sleeping"])
def test_runs_at_the_same_time_share_the_workers(pause):
    """More threads than processors, and runs that find the workers at another job."""
    model = attention_free_layer()
    session = onnx.reference.ReferenceEvaluator(model)
    feeds = [RNG.standard_normal((rows, 96)).astype(np.float32) for rows in (40, 300, 700, 1500)]
    wanted = [session.run(None, {"x": x})[0] for x in feeds]
    with compile_model(model, threads=4) as first, compile_model(model, threads=4) as second:

        def work(program: Program, number: int) -> None:
            for turn in range(30):
                x, right = feeds[(turn + number) % 4], wanted[(turn + number) % 4]
                got = program.run({"x": x})["y"]
                np.testing.assert_allclose(got, right, rtol=1e-4, atol=1e-5)
                time.sleep(pause)

        with ThreadPoolExecutor(4) as runs:
            list(runs.map(work, (first, second, first, second), range(4)))
