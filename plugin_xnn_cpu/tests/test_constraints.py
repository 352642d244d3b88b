"""What passes that quantize are told of XNNPACK."""

from __future__ import annotations

import json

import numpy as np
import onnx.defs
import pytest

from narrowpass_xnn_cpu.backend import XnnCpuBackend
from narrowpass_xnn_cpu.native.operators import FullyConnectedInt8, UnfitError
from narrowpass_xnn_cpu.native.operators.quantized import LEAST_WEIGHT
from narrowpass_xnn_cpu.weights.weight import Quantized, Weight

FOUND = XnnCpuBackend().quantization_constraints()


def test_it_is_plain_data_of_the_callers_own():
    assert json.loads(json.dumps(FOUND))["weights"]["range"] == [LEAST_WEIGHT, 127]
    assert FOUND["smallest_scale"] == np.finfo(np.float32).tiny
    other = XnnCpuBackend().quantization_constraints()
    other["ratios"]["Conv"]["low"] = 1.0
    assert XnnCpuBackend().quantization_constraints() == FOUND


def test_operators_are_those_of_onnx():
    names = {schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain}
    assert set(FOUND["ratios"]) | set(FOUND["dynamic"]["operators"]) <= names


def test_ratios():
    """The figures that XNNPACK asserts; 2^-12 for each scale is what PyTorch's presets do."""
    ratios = FOUND["ratios"]
    assert all(0 < item["low"] < 1 < item["high"] for item in ratios.values())
    assert ratios["Conv"]["low"] == 2.0**-12 * 2.0**-12 / 256
    assert ratios["Conv"]["high"] == 256
    assert (ratios["Add"]["low"], ratios["Mul"]["low"]) == (1 / 1024, 1 / 65536)


def product(matrix: np.ndarray, scale: float, zero: int = 0, *, rows: bool = False) -> None:
    stored = Quantized(
        Weight.of(matrix), Weight.of(np.float32([scale])), Weight.of(np.int8([zero])), 0
    )
    FullyConnectedInt8(stored, None, rows_too=rows)


@pytest.mark.parametrize("rows", [False, True], ids=["weights", "rows too"])
def test_what_is_within_them_is_taken_and_what_is_not_is_not(rows):
    low, high = FOUND["weights"]["range"]
    matrix, smallest = np.full((3, 4), low, np.int8), FOUND["smallest_scale"]
    matrix[0] = high
    product(matrix, smallest, rows=rows)
    for changed in (
        (matrix, float(np.nextafter(np.float32(smallest), np.float32(0)))),
        (matrix, np.inf),
        (matrix, 1.0, 1),  # XNNPACK's own operators take no zero points
    ):
        with pytest.raises(UnfitError):
            product(*changed, rows=rows)


def test_the_most_channels_of_rows():
    most = FOUND["dynamic"]["most_channels"]
    assert most * 255 * 128 < 2**31 <= (most + 1) * 255 * 128
    product(np.ones((1, most), np.int8), 1.0, rows=True)
    with pytest.raises(UnfitError, match="32 bits"):
        product(np.ones((1, most + 1), np.int8), 1.0, rows=True)
