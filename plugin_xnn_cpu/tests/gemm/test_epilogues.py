"""What kernels of ours end with, alone, against functions of float64."""

from __future__ import annotations

import numpy as np
import pytest
from fp32_kit import FUNCTIONS

from narrowpass_xnn_cpu.native import isa
from narrowpass_xnn_cpu.native.library import extension
from narrowpass_xnn_cpu.native.problems.epilogue import Epilogue

LEVELS = {"best": 0, "plain": 2, "avx2": 3}
BUILT = ("best", *isa.built(extension().lib))
TARGETS = {name: number for name, number in LEVELS.items() if name in BUILT}
EPSILON = 2.0**-23
RNG = np.random.default_rng(6)


def apply(epilogue, x, target, residual=None):
    """Apply an epilogue to the inner part of an array, whose borders must stay as they are."""
    ffi, lib = extension().ffi, extension().lib
    rows, columns = x.shape
    memory = np.full((rows, columns + 7), 85, np.float32)
    memory[:, :columns] = x
    given = ffi.NULL
    if residual is not None:
        given = ffi.cast("float *", ffi.from_buffer(residual))
    lib.np_epilogue_for(TARGETS[target])(
        ffi.new("struct np_epilogue *", epilogue.params()),
        ffi.cast("float *", ffi.from_buffer(memory)),
        columns + 7,
        given,
        columns,
        rows,
        columns,
    )
    assert (memory[:, columns:] == 85).all()
    return memory[:, :columns]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("name", "least", "units", "plain_units", "absolute"),
    [
        # Units in the last place of results above a least argument, more where additions are not
        # fused; and multiples of max(1, |x|) everywhere. Those of functions by exp grow with the
        # magnitude of its argument, which is rounded.
        ("gelu", -13, 8, 11, 1e-7),
        ("tanh-gelu", -3, 16, 16, 1.5e-7),
        ("silu", -80, 6, 6, 1.5e-7),
        ("hard-swish", 0, 4, 4, 2.4e-7),
    ],
)
def test_functions(name, least, units, plain_units, absolute, target):
    x = np.concatenate([np.linspace(-20, 20, 20001), np.linspace(-100, 100, 2001), [0, 1e-30]])
    x = np.resize(x.astype(np.float32), (1001, 22))
    got = apply(Epilogue(name), x, target).astype(np.float64)
    with np.errstate(over="ignore"):
        exact = FUNCTIONS[name](x.astype(np.float64))
    error = np.abs(got - exact)
    assert (error <= absolute * np.maximum(1, np.abs(x))).all()
    assert (error <= 2 * EPSILON * np.abs(x) + 1e-37).all()
    known = (x >= least) & (np.abs(exact) > 1e-36)
    unit = np.spacing(np.abs(exact[known]).astype(np.float32))
    fused = extension().lib.np_isa_for(TARGETS[target]) >= LEVELS["avx2"]
    assert (error[known] / unit).max() <= (units if fused else plain_units)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("columns", [1, 3, 4, 7, 8, 15, 16, 17, 48, 61])
def test_residuals_and_bounds(columns, target):
    x = RNG.standard_normal((5, columns)).astype(np.float32)
    r = RNG.standard_normal((5, columns)).astype(np.float32)
    for limits in [(-np.inf, np.inf), (0.0, np.inf), (-0.5, 0.25)]:
        np.testing.assert_array_equal(
            apply(Epilogue(limits=limits), x, target), np.clip(x, *limits)
        )
        before = apply(Epilogue("clamp", limits, "before"), x, target, r)
        np.testing.assert_array_equal(before, np.clip(x + r, *limits))
        after = apply(Epilogue("clamp", limits, "after"), x, target, r)
        np.testing.assert_array_equal(after, np.clip(x, *limits) + r)
    alone = apply(Epilogue("silu"), x + r, target)
    np.testing.assert_array_equal(apply(Epilogue("silu", residual="before"), x, target, r), alone)
    after = apply(Epilogue("silu", residual="after"), x, target, r)
    np.testing.assert_array_equal(after, apply(Epilogue("silu"), x, target) + r)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_nonfinite_and_huge_numbers(name, target):
    x = np.array([[np.nan, np.inf, 3e38, -3e38, 0.0, -0.0]], np.float32)
    (got,) = apply(Epilogue(name), x, target)
    np.testing.assert_array_equal(got[:3], x[0, :3])
    assert abs(got[3]) < 1e-37
    assert (got[4:] == 0).all()


@pytest.mark.parametrize("target", TARGETS)
def test_nan_is_not_clamped(target):
    x = np.array([[np.nan, 5, -5]], np.float32)
    got = apply(Epilogue(limits=(-1.0, 1.0)), x, target)
    np.testing.assert_array_equal(got, np.array([[np.nan, 1, -1]], np.float32))
