"""Extremes and counts of values, against numpy's own."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from narrowpass import Bundle, CompileOptions
from narrowpass.errors import UsageError
from narrowpass.runtime.meters import CHUNK, Counts, Extremes
from narrowpass_reference import ReferenceBackend


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_extremes(dtype):
    array = np.random.default_rng(0).standard_normal((3, CHUNK)).astype(dtype)
    meter = Extremes()
    meter.add(array, "v")
    assert (meter.low, meter.high, meter.nan) == (
        np.float32(array.min()),
        np.float32(array.max()),
        False,
    )
    meter.add(np.zeros((0, 3), dtype), "v")
    assert meter.low == np.float32(array.min())


@pytest.mark.parametrize("meter", [Extremes(), Counts(4, 2, 1.0)])
def test_nan(meter):
    meter.add(np.array([1, np.nan, 2], np.float32), "v")
    assert (meter.extremes if isinstance(meter, Counts) else meter).nan


@pytest.mark.parametrize(("below", "folded"), [(40, False), (100, False), (0, True), (0, False)])
def test_counts(below, folded):
    """Bins a quarter wide: their edges are float32 numbers, so no rounding decides."""
    array = np.random.default_rng(1).standard_normal(100_000).astype(np.float32) * 4
    array[::7] = 0
    meter = Counts(100, below, 0.25, folded)
    for part in np.array_split(array, 3):
        meter.add(part, "v")
    seen = np.abs(array) if folded else array
    edges = (np.arange(101) - below) * 0.25
    # numpy's last bin has its upper edge too; ours has all that lies further out.
    inside = np.clip(seen[seen != 0], edges[0], np.nextafter(edges[-1], 0, dtype=np.float32))
    right, _ = np.histogram(inside.astype(np.float64), edges)
    np.testing.assert_array_equal(meter.counts, right)
    assert meter.zeros == np.count_nonzero(array == 0)
    assert meter.extremes == Extremes(float(array.min()), float(array.max()))


@pytest.mark.parametrize(
    ("bins", "below", "width"), [(0, 0, 1), (1 << 17, 0, 1), (4, 5, 1), (4, 2, 0), (4, 2, np.inf)]
)
def test_invalid_bins(bins, below, width):
    with pytest.raises(UsageError, match="bins cannot be"):
        Counts(bins, below, width)


def test_observing_by_default():
    """A backend that does not measure values in place returns them, and numpy measures."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[N] x) => (float[N] y, int64[1] z) { a = Exp(x) y = Neg(a) z = Shape(a) }"""
    proto = onnx.parser.parse_model(text)
    feeds = {"x": np.linspace(-2, 2, 9, dtype=np.float32)}
    options = CompileOptions(keep=("a", "x"), observe=True)
    program = ReferenceBackend().compile(Bundle({"main": ir.from_proto(proto)}), options)
    meters = {name: Extremes() for name in ("a", "y", "x")}
    program.observe(feeds, meters)
    right = ReferenceEvaluator(proto).run(None, feeds, intermediate=True)
    for name, meter in meters.items():
        value = feeds[name] if name == "x" else right[name]
        assert (meter.low, meter.high) == (value.min(), value.max())
    with pytest.raises(UsageError, match="value 'z' is int64; only tensors of floating"):
        program.observe(feeds, {"z": Extremes()})
