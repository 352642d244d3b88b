"""Normalizations of narrow data, whose statistics are float32: against onnxruntime and float64."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from runtime_kit import as_onnxruntime, evaluate, floats

from narrowpass.bundle import Bundle
from narrowpass.runtime.backend import CompileOptions
from narrowpass_reference import ReferenceBackend

NARROW = [np.float16, ml_dtypes.bfloat16]
"""Results of these are rounded once for the normalized data and once for each of scale and bias: 2
and 3 units of the last place, 2⁻¹⁰ and 2⁻⁷ of magnitudes up to 4."""


@pytest.mark.parametrize("axis", [-1, 1])
@pytest.mark.parametrize("bias", [False, True])
def test_layer_normalization(axis, bias):
    x = floats(2, 3, 40)
    given = [x, floats(*x.shape[axis:], seed=1)]
    as_onnxruntime("LayerNormalization", [*given, *given[1:]][: 2 + bias], opset=17, axis=axis)


@pytest.mark.parametrize("dtype", NARROW, ids=lambda dtype: np.dtype(dtype).name)
def test_layer_normalization_of_narrow_data(dtype):
    x, scale = (floats(*shape, seed=i).astype(dtype) for i, shape in enumerate([(4, 700), (700,)]))
    y, mean, inverse = evaluate("LayerNormalization", [x, scale, scale], outputs=3, opset=17)
    wide = x.astype(np.float64)
    spread = np.sqrt(wide.var(axis=-1, keepdims=True) + 1e-5)
    expected = (wide - wide.mean(axis=-1, keepdims=True)) / spread
    expected = expected * scale.astype(np.float64) + scale.astype(np.float64)
    assert (y.dtype, mean.dtype, inverse.dtype) == (dtype, np.float32, np.float32)
    unit = float(ml_dtypes.finfo(dtype).eps)
    np.testing.assert_allclose(y.astype(np.float64), expected, rtol=3 * unit, atol=6 * unit)
    np.testing.assert_allclose(mean, wide.mean(axis=-1, keepdims=True), atol=1e-6)
    np.testing.assert_allclose(inverse, 1 / spread, rtol=1e-6)


@pytest.mark.parametrize("dtype", NARROW, ids=lambda dtype: np.dtype(dtype).name)
def test_rms_normalization_of_narrow_data(dtype):
    x, scale = floats(2, 3, 40).astype(dtype), floats(3, 40, seed=1).astype(dtype)
    (y,) = evaluate("RMSNormalization", [x, scale], opset=23, axis=1)
    assert y.dtype == dtype
    unit = float(ml_dtypes.finfo(dtype).eps)
    np.testing.assert_allclose(y.astype(np.float64), rms(x, scale), rtol=2 * unit, atol=unit)


def test_rms_normalization_has_the_type_of_its_scale():
    """onnx's inference says that of the data, so that the model states it."""
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 23]>
        g (bfloat16[2, 3, 40] x, float[3, 40] s) => (float[2, 3, 40] y)
        { y = RMSNormalization<axis = 1>(x, s) }""")
    x, scale = floats(2, 3, 40).astype(ml_dtypes.bfloat16), floats(3, 40, seed=1)
    program = ReferenceBackend().compile(Bundle({"main": ir.from_proto(model)}), CompileOptions())
    y = program.run({"x": x, "s": scale})["y"]
    assert y.dtype == np.float32
    unit = float(ml_dtypes.finfo(ml_dtypes.bfloat16).eps)
    np.testing.assert_allclose(y, rms(x, scale), rtol=unit, atol=1e-6)


def rms(x, scale):
    """Return x over its root mean square along all axes but the first, times the scale."""
    wide = x.astype(np.float64)
    root = np.sqrt(np.square(wide).mean(axis=(1, 2), keepdims=True) + 1e-5)
    return wide / root * scale.astype(np.float64)


def test_other_types_of_statistics_are_refused():
    with pytest.raises(Exception, match="stash_type=11"):
        evaluate("RMSNormalization", [floats(2, 3), floats(3)], opset=23, stash_type=11)
