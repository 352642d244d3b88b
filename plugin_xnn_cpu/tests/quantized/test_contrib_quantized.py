"""Matmuls with 4-bit and 8-bit block-quantized weights, against onnxruntime's kernels.

The tolerance is 1e-5 of an output's largest element: fp32 accumulation in another order. It is
1e-3 with scales of float16, since onnxruntime computes with that type then.
"""

from __future__ import annotations

import numpy as np
import pytest
from contrib_kit import compare, model_of
from hypothesis import given, settings
from hypothesis import strategies as st
from xnn_kit import close, compile_model

pytest.importorskip("onnxruntime")
QUICK = settings(max_examples=15, deadline=None)
RNG = np.random.default_rng(11)


def floats(*shape, dtype=np.float32):
    return np.asarray(RNG.standard_normal(shape), dtype)


def integers(*shape):
    return RNG.integers(0, 256, shape).astype(np.uint8)


def unpacked(packed, bits):
    """Take numbers out of bytes, the low bits first."""
    if bits == 8:
        return packed
    return np.stack([packed & 15, packed >> 4], -1).reshape(*packed.shape[:-1], -1)


def operands(rows, columns, outputs, block, bits, zeros, dtype=np.float32, lead=()):
    blocks = -(-columns // block)
    zero = None
    if zeros == "packed":
        zero = integers(outputs, -(-blocks * bits // 8))
    elif zeros == "floats":
        zero = RNG.integers(0, 1 << bits, (outputs, blocks)).astype(dtype)
    return {
        "a": floats(*lead, rows, columns, dtype=dtype),
        "b": integers(outputs, blocks, block * bits // 8),
        "scales": (0.01 * RNG.random((outputs, blocks)) + 0.01).astype(dtype),
        "zeros": zero,
    }


CONSTANTS = ("b", "scales", "zeros", "bias")


@QUICK
@given(
    rows=st.sampled_from([1, 2, 5, 17]),
    columns=st.integers(1, 150),
    outputs=st.integers(1, 40),
    block=st.sampled_from([16, 32, 64, 128, 256]),
    bits=st.sampled_from([4, 8]),
    zeros=st.sampled_from([None, "packed"]),
    bias=st.booleans(),
)
def test_matmul_nbits(rows, columns, outputs, block, bits, zeros, bias):
    inputs = operands(rows, columns, outputs, block, bits, zeros, lead=(1,))
    inputs |= {"group": None, "bias": floats(outputs) if bias else None}
    compare(
        "MatMulNBits",
        inputs,
        constants=CONSTANTS,
        K=columns,
        N=outputs,
        bits=bits,
        block_size=block,
    )


def test_zero_points_that_are_floats():
    inputs = operands(3, 64, 8, 32, 4, "floats")
    compare("MatMulNBits", inputs, constants=CONSTANTS, K=64, N=8, bits=4, block_size=32)


@pytest.mark.parametrize("zeros", [None, "packed"])
def test_matmul_nbits_of_float16(zeros):
    """Against float64, since onnxruntime has no such kernel on every processor."""
    inputs = operands(3, 64, 8, 32, 4, zeros, dtype=np.float16)
    model = model_of(
        "MatMulNBits", inputs, ["y"], constants=CONSTANTS, K=64, N=8, bits=4, block_size=32
    )
    zero = 8 if zeros is None else unpacked(inputs["zeros"], 4)[:, :2, None].astype(float)
    matrix = (unpacked(inputs["b"], 4).astype(float) - zero) * inputs["scales"][:, :, None]
    expected = inputs["a"].astype(float) @ matrix.reshape(8, 64).T
    with compile_model(model) as program:
        got = program.run({"a": inputs["a"]})["y"]
    close(got, expected.astype(np.float16), 1e-3)


@QUICK
@given(
    shape=st.tuples(st.integers(1, 4), st.integers(1, 40), st.integers(1, 9)),
    unsigned=st.booleans(),
    channels=st.booleans(),
    zero=st.booleans(),
    bias=st.booleans(),
)
def test_matmul_integer_to_float(shape, unsigned, channels, zero, bias):
    m, k, n = shape
    kind = np.uint8 if unsigned else np.int8
    inputs = {
        "a": RNG.integers(0, 256, (m, k)).astype(np.uint8),
        "b": RNG.integers(-50, 50, (k, n)).astype(np.int8).view(kind),
        "a_scale": np.float32(0.02).reshape(()),
        "b_scale": (RNG.random(n) + 0.1).astype(np.float32) if channels else np.float32(0.3),
        "a_zero": np.array(7, np.uint8) if zero else None,
        "b_zero": np.array(3, kind) if zero else None,
        "bias": floats(n) if bias else None,
    }
    inputs["b_scale"] = np.asarray(inputs["b_scale"])
    constants = tuple(name for name in inputs if name != "a")
    compare("MatMulIntegerToFloat", inputs, constants=constants, native=False)


@QUICK
@given(
    shape=st.tuples(st.integers(1, 4), st.integers(2, 40), st.integers(1, 9)), bias=st.booleans()
)
def test_dynamic_quantize_matmul(shape, bias):
    m, k, n = shape
    inputs = {
        "a": floats(m, k),
        "b": RNG.integers(-50, 50, (k, n)).astype(np.int8),
        "b_scale": np.array(0.3, np.float32),
        "b_zero": np.array(0, np.int8),
        "bias": floats(n) if bias else None,
    }
    constants = tuple(name for name in inputs if name != "a")
    compare("DynamicQuantizeMatMul", inputs, constants=constants, native=False)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", [False, True])
def test_gather_block_quantized(bits, zeros):
    packed = 64 * bits // 8
    inputs = {
        "data": integers(9, packed),
        "places": np.array([[0, 8, 3], [4, 4, 1]], np.int64),
        "scales": (RNG.random((9, 2)) + 0.1).astype(np.float32),
        "zeros": integers(9, 2 * bits // 8) if zeros else None,
    }
    compare(
        "GatherBlockQuantized",
        inputs,
        constants=("data", "scales", "zeros"),
        gather_axis=0,
        quantize_axis=1,
        block_size=32,
        bits=bits,
        native=False,
    )
