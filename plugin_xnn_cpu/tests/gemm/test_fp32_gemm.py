"""Float32 matmuls by the plugin's own kernels, against float64."""

from __future__ import annotations

import numpy as np
import pytest
from fp32_kit import apply_epilogue, compare, run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from narrowpass.errors import BackendError
from narrowpass_planning.weights.weight import Weight
from narrowpass_xnn_cpu.native.own import fp32
from narrowpass_xnn_cpu.native.problems.epilogue import FUNCTIONS, Epilogue
from narrowpass_xnn_cpu.native.problems.matmul import Matmul
from narrowpass_xnn_cpu.native.runtime.pool import shared

pytestmark = pytest.mark.usefixtures("fp32_code")

EPILOGUES = st.one_of(
    st.builds(
        Epilogue,
        st.just("clamp"),
        st.sampled_from([(-np.inf, np.inf), (0.0, np.inf), (-0.5, 0.5)]),
        st.sampled_from(["", "before", "after"]),
    ),
    st.builds(
        Epilogue, st.sampled_from(FUNCTIONS[1:]), residual=st.sampled_from(["", "before", "after"])
    ),
)


@settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    seed=st.integers(0, 10**6),
    rows=st.one_of(st.integers(1, 14), st.sampled_from([1, 25, 49, 100])),
    inputs=st.one_of(st.integers(1, 20), st.sampled_from([383, 384, 385, 1000])),
    outputs=st.one_of(st.integers(1, 130), st.sampled_from([192, 200])),
    transposed=st.booleans(),
    has_bias=st.booleans(),
    epilogue=EPILOGUES,
    in_place=st.booleans(),
    threads=st.sampled_from([1, 2]),
)
def test_gemm(
    seed, rows, inputs, outputs, transposed, has_bias, epilogue, in_place, threads
):  # fmt: skip
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, inputs)).astype(np.float32)
    matrix = (rng.standard_normal((outputs, inputs)) / np.sqrt(inputs)).astype(np.float32)
    bias = rng.standard_normal(outputs).astype(np.float32) if has_bias else np.zeros(outputs)
    operator = fp32.MATMUL.create(
        Matmul(
            Weight.of(np.ascontiguousarray(matrix.T) if transposed else matrix),
            Weight.of(bias) if has_bias else None,
            epilogue,
            transposed,
        )
    )
    assert operator.reshape(rows, shared(threads)) is operator.params
    residual = None
    if epilogue.residual:
        residual = rng.standard_normal((rows, outputs)).astype(np.float32)
    accumulators = x.astype(np.float64) @ matrix.T.astype(np.float64) + bias
    magnitudes = abs(x).astype(np.float64) @ abs(matrix.T) + abs(bias)
    if residual is not None:
        magnitudes = magnitudes + abs(residual)
    with_it = in_place and epilogue.residual == "before"
    got = run(operator, x, (rows, outputs), threads, residual, with_it)
    compare(got, apply_epilogue(accumulators, epilogue, residual), magnitudes, inputs + 2)


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("size", [(300, 700, 40), (1, 300, 1000), (40, 16, 3), (500, 8, 1)])
def test_work_is_divided(size, threads):
    rows, inputs, outputs = size
    rng = np.random.default_rng(1)
    x = rng.standard_normal((rows, inputs)).astype(np.float32)
    matrix = rng.standard_normal((outputs, inputs)).astype(np.float32)
    operator = fp32.MATMUL.create(Matmul(Weight.of(matrix), None, Epilogue()))
    params = operator.reshape(rows, shared(threads))
    if rows >= 300:
        assert params.geometry.row_tiles * params.geometry.parts >= threads
    accumulators = x.astype(np.float64) @ matrix.T
    got = run(operator, x, accumulators.shape, threads)
    compare(got, accumulators, abs(x).astype(np.float64) @ abs(matrix.T), inputs)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_nonfinite_numbers(function):
    """NaN stays, infinities are the limits of functions, or NaN; others are as ever."""
    x = np.array([[np.nan], [np.inf], [-np.inf], [3e38], [-3e38], [1.5], [-0.0]], np.float32)
    matrix = np.ones((20, 1), np.float32)
    operator = fp32.MATMUL.create(Matmul(Weight.of(matrix), None, Epilogue(function)))
    operator.reshape(7, shared(1))
    got = run(operator, x, (7, 20), 1)
    assert (got == got[:, :1]).all() or np.isnan(got[0]).all()
    one = got[:, 3]
    assert np.isnan(one[0])
    assert one[1] == np.inf
    assert one[3] == np.float32(3e38)
    if function == "clamp":
        assert one[2] == -np.inf
    else:
        assert np.isnan(one[2]) or abs(one[2]) < 1e-37
        assert abs(one[4]) < 1e-37
    assert 1.2 < one[5] <= 1.5 or function == "hard-swish"
    assert one[6] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"function": "cube"}, "no epilogue 'cube'"),
        ({"residual": "twice"}, "no epilogue 'clamp' 'twice'"),
        ({"limits": (1.0, 0.0)}, "clamped"),
        ({"function": "gelu", "limits": (0.0, 1.0)}, "cannot be clamped too"),
    ],
)
def test_epilogues_that_there_are_not(arguments, message):
    with pytest.raises(BackendError, match=message):
        Epilogue(**arguments)


def test_invalid_operands_are_refused():
    kernel = Weight.of(np.ones((16, 4), np.float32))
    with pytest.raises(BackendError, match="bias must be float32\\[16\\]"):
        fp32.MATMUL.create(Matmul(kernel, Weight.of(np.ones(4, np.float32)), Epilogue()))
    with pytest.raises(BackendError, match="must be float32"):
        fp32.MATMUL.create(Matmul(Weight.of(np.ones((16, 4))), None, Epilogue()))
    with pytest.raises(BackendError, match="cannot be computed with"):
        fp32.MATMUL.create(Matmul(kernel, None, Epilogue())).reshape(0, shared(1))
