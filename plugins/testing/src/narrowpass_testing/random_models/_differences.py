"""How results differ: by more than rounding, or in any bit."""

from __future__ import annotations

from typing import Any

import numpy as np

from narrowpass_testing.random_models._elements import TYPES, Array, is_float
from narrowpass_testing.random_models._oracles import Values

ALIKE = {"float": 2e-4, "float16": 1e-2, "bfloat16": 8e-2, "double": 2e-4}
"""How far two oracles may be apart, relative to the largest element, and still agree.

float32 and double: 2e-4 is what 2,000 terms in another order err (2 sqrt(n) u, u = 2**-24, times
30 for functions in sequence); onnxruntime computes some operators on double in float32.
float16: 20 u, and bfloat16: 20 u, as one of them may keep intermediate values in float32."""


def difference(got: Any, expected: Any, tolerance: float | None, slack: float = 0.0) -> str:
    """Say how a result differs from what is right; "" where it does not.

    Args:
        got: an array, a list of them for a sequence, or None for an empty optional.
        expected: likewise.
        tolerance: relative to the largest element; None for that of the type.
        slack: an absolute error that is allowed in addition; integers may then be one step off.
    """
    if isinstance(expected, list) or isinstance(got, list):
        if not (isinstance(expected, list) and isinstance(got, list)):
            return f"{type(got).__name__}, not {type(expected).__name__}"
        if len(got) != len(expected):
            return f"a sequence of {len(got)}, not of {len(expected)}"
        parts = [difference(a, b, tolerance, slack) for a, b in zip(got, expected, strict=True)]
        return next(filter(None, parts), "")
    if expected is None or got is None:
        return "" if got is expected else f"{got!r}, not {expected!r}"
    got, expected = np.asarray(got), np.asarray(expected)
    if _type(got) != _type(expected) or got.shape != expected.shape:
        return f"{got.dtype}{list(got.shape)}, not {expected.dtype}{list(expected.shape)}"
    if not is_float(expected.dtype):
        # One quantum is one step of a quantized result.
        step = int(slack > 0 and expected.dtype != np.bool_)
        far = got.astype(np.int64) - expected.astype(np.int64) if step else got != expected
        wrong = int(np.sum(np.abs(far) > step)) if step else int(np.sum(far))
        return f"{wrong} of {got.size} elements differ" if wrong else ""
    a, b = got.astype(np.float64), expected.astype(np.float64)
    if not np.array_equal(np.isnan(a), np.isnan(b)):
        return "NaN in other places"
    infinite = np.isinf(b)
    if not np.array_equal(a[infinite], b[infinite]) or np.isinf(a[~infinite]).any():
        return "infinite in other places"
    finite = np.isfinite(b)
    if not finite.any():
        return ""
    name = _type(expected)
    limit = tolerance if tolerance is not None else ALIKE.get(name, 0.0)
    # Elements that cancel come from operands of about 1.
    size = max(float(np.abs(b[finite]).max()), 0.1)
    error = float(np.abs(a[finite] - b[finite]).max())
    return f"{error:.3g} of {size:.3g}" if error > limit * size + slack else ""


def _type(array: Array) -> str:
    if array.dtype.kind in "OUS":
        return "string"
    return next((n for n, t in TYPES.items() if t == array.dtype), str(array.dtype))


def differences(
    got: Values, expected: Values, tolerance: float | None, slack: float
) -> dict[str, str]:
    """Say how outputs differ, by those that do."""
    found = {}
    for name, value in expected.items():
        text = "is not there"
        if name in got:
            text = difference(got[name], value, tolerance, slack)
        if text:
            found[name] = text
    return found


def other_bits(got: Values, expected: Values) -> str:
    """Say which output has other bits than the same output elsewhere; "" where none has."""
    for name, value in expected.items():
        if not isinstance(value, np.ndarray) or value.dtype.kind in "OUS" or name not in got:
            continue
        found = np.asarray(got[name])
        if found.dtype != value.dtype or found.shape != value.shape:
            return f"{name}: {found.dtype}{list(found.shape)}, not {value.dtype}{list(value.shape)}"
        if found.tobytes() != value.tobytes():
            size = value.dtype.itemsize
            pairs = (np.frombuffer(a.tobytes(), f"V{size}") for a in (found, value))
            wrong = sum(a != b for a, b in zip(*pairs, strict=True))
            return f"{name}: {wrong} of {value.size} elements have other bits"
    return ""
