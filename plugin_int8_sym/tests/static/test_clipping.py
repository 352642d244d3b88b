"""Clipping ranges of operands of matmuls: those with the least error of the results."""

from __future__ import annotations

import numpy as np
import pytest
from equalize_kit import numbers
from static_kit import graph, quantized

from narrowpass import Context, Samples
from narrowpass.errors import DataError
from narrowpass_int8_sym.calibration import Calibrator, calibrate
from narrowpass_int8_sym.static import StaticQuantizer
from narrowpass_int8_sym.static.clipping import SHARES, best_clipping_ranges
from narrowpass_int8_sym.weighted_nodes import weighted_node_of

CHANNELS = 32
MATMUL = (
    f"g (float[N,{CHANNELS}] x, float[{CHANNELS},24] w) => (float[N,24] y) {{ y = MatMul (x, w) }}"
)


def stream(count=4, height=14.0, rows=400, every=100):
    """Rows of a residual stream: some have one channel far above all others."""
    data = []
    for number in range(count):
        x = numbers(rows, CHANNELS, seed=70 + number)
        x[::every, 3] = height * (1 + 0.05 * np.abs(x[::every, 3]))
        data.append({"x": x})
    return data


def matrix(weight=8.0):
    """A matrix whose row for that channel is larger than others."""
    w = numbers(CHANNELS, 24, seed=1)
    w[3] *= weight
    return w


def samples_of(data):
    return Samples("test data", lambda: data)


def ranges_of(model, data, calibrator, **options):
    return calibrate(model, ["x"], samples_of(data), None, calibrator, symmetric=False, **options)[
        "x"
    ]


def exact_errors(x, w, candidates, *, symmetric=False):
    """Return the mean over rows of the share of its results that rounding x adds, in float64."""
    found = []
    for low, high in candidates:
        if symmetric:
            scale, zero = max(-low, high) / 127, 0
        else:
            scale = (high - low) / 255
            zero = round(-128 - low / scale)
        rounded = (np.clip(np.rint(x / scale) + zero, -128, 127) - zero) * scale
        noise, signal = (((each @ w) ** 2).sum(axis=1) for each in (rounded - x, x))
        found.append(np.minimum(noise / signal, 1).mean())
    return np.array(found)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("height", [4.0, 6.0, 9.0, 14.0, 30.0])
def test_the_range_is_the_one_of_the_least_exact_error(height, turned, symmetric):
    """Signs of chance stand for the matrix, so that near ones may be mixed up: 15 % is allowed."""
    data, w = stream(height=height, rows=64, every=10), matrix()
    text = MATMUL
    if turned:
        text = MATMUL.replace(f"float[{CHANNELS},24] w", f"float[24,{CHANNELS}] w")
        text = text.replace("MatMul", "Gemm <transB = 1>")
    model = graph(text, {"w": w.T.copy() if turned else w})
    node = next(node for node in model.graph if node.op_type in ("MatMul", "Gemm"))
    value, weighted = node.inputs[0], weighted_node_of(node)
    x = np.concatenate([feeds["x"] for feeds in data]).astype(np.float64)
    highest = max(-x.min(), x.max())
    whole = (-highest, highest) if symmetric else (x.min(), x.max())
    # A narrow one that clips what is far out, as a calibrator of the value itself may choose.
    narrow = tuple(end * 0.4 for end in whole)
    ends = {"narrow": narrow, "whole": whole}
    ranges = {name: type(ranges_of(model, data, "minmax"))(*each) for name, each in ends.items()}
    found = best_clipping_ranges(
        model,
        {value: [weighted]},
        {"x": ranges["narrow"]},
        {"x": ranges["whole"]},
        samples_of(data),
        None,
        symmetric=symmetric,
        limit=4,
    )
    candidates = [
        tuple(a + share * (b - a) for a, b in zip(narrow, whole, strict=True)) for share in SHARES
    ]
    chosen = found.get("x", ranges["narrow"])
    places = [np.allclose((chosen.low, chosen.high), each, rtol=1e-6) for each in candidates]
    assert sum(places) == 1
    errors = exact_errors(x, w.astype(np.float64), candidates, symmetric=symmetric)
    assert errors[places.index(True)] <= 1.15 * errors.min()


def test_clipped_outliers_that_a_matmul_depends_on_are_included():
    """The l2 range of the value clips them, which adds a large error to the matmul."""
    data, w = stream(), matrix()
    model = graph(MATMUL, {"w": w})
    plain = ranges_of(model, data, "l2")
    x = np.concatenate([feeds["x"] for feeds in data]).astype(np.float64)
    assert plain.high < 0.5 * x.max(), "the test is about a range that clips"
    result = quantized(model, data, mode="static", smooth=False, bias_correction=False)
    scale, zero = result.parameters("x.float")
    chosen = scale * (-128 - zero), scale * (127 - zero)
    (decision,) = (item for item in result.decisions if item.node == "x" and item.histogram)
    assert "matmuls that read it have a smaller error" in decision.reason
    before, after = exact_errors(x, w.astype(np.float64), [(plain.low, plain.high), chosen])
    assert after < before / 3


def static_ranges(text, constants, data, **options):
    model = graph(text, constants)
    ctx = Context(samples=samples_of(data))
    return model, StaticQuantizer(**options).calibrate(model, samples_of(data), ctx).ranges


def test_a_value_that_others_read_as_bytes_keeps_the_range_of_its_calibrator():
    text = f"""g (float[N,{CHANNELS}] x, float[{CHANNELS},24] w, float[{CHANNELS},24] v)
        => (float[N,24] y, float[N,24] z) {{
        y = MatMul (x, w) t = Tanh (x) z = MatMul (t, v) }}"""
    data = stream()
    constants = {"w": matrix(), "v": matrix(1.0)}
    model, ranges = static_ranges(text, constants, data, green=("op:Tanh",))
    assert ranges["x"] == ranges_of(model, data, "l2")
    _, alone = static_ranges(text, constants, data, red=("op:Tanh",))
    assert alone["x"] != ranges["x"]


@pytest.mark.parametrize("calibrator", ["minmax", "percentile", "entropy", "moving-average"])
def test_a_calibrator_that_is_asked_for_is_taken_at_its_word(calibrator):
    data = stream()
    model, ranges = static_ranges(MATMUL, {"w": matrix()}, data, calibrator=calibrator)
    assert ranges["x"] == ranges_of(model, data, calibrator)


def test_rows_of_zeros_say_nothing():
    data = stream()
    padded = [
        {"x": np.concatenate([feeds["x"], np.zeros((300, CHANNELS), np.float32)])} for feeds in data
    ]
    _, ranges = static_ranges(MATMUL, {"w": matrix()}, padded)
    x = np.concatenate([feeds["x"] for feeds in padded])
    assert x.min() <= ranges["x"].low < 0 < ranges["x"].high <= x.max()
    zeros = [{"x": np.zeros((3, CHANNELS), np.float32)} for _ in range(2)]
    _, ranges = static_ranges(MATMUL, {"w": matrix()}, zeros)
    assert (ranges["x"].low, ranges["x"].high) == (0, 1)


def test_samples_without_rows_are_refused():
    data = [*stream(2), {"x": np.zeros((0, CHANNELS), np.float32)}]
    with pytest.raises(DataError, match=r"sample 3 of .* has no elements: input 'x' has shape"):
        static_ranges(MATMUL, {"w": matrix()}, data)


def test_values_that_pile_up_at_the_ends_keep_the_whole_range():
    data = [{"x": np.clip(numbers(64, CHANNELS, seed=n), -1, 1)} for n in range(3)]
    model, ranges = static_ranges(MATMUL, {"w": matrix()}, data)
    assert ranges["x"] == ranges_of(model, data, Calibrator("minmax"))
    assert ranges["x"] != ranges_of(model, data, Calibrator("l2"))
