"""Values that are looked at where they lie, against numpy on the arrays themselves."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator
from xnn_kit import compile_model, feeds_for, one_node

from narrowpass.errors import DataError, UsageError
from narrowpass.runtime.meters import Counts, Extremes
from narrowpass_xnn_cpu.program import XnnProgram

F32 = np.finfo(np.float32)
RNG = np.random.default_rng(5)

BLOCK = """g (float[1, 8, 33, 33] x) => (float[1, 8] y) {
    a = Conv<pads = [1, 1, 1, 1]>(x, w) b = Relu(a)
    c = Conv<pads = [1, 1, 1, 1], group = 8>(b, d) e = Add(c, x) f = Relu(e)
    p = MaxPool<kernel_shape = [3, 3]>(f) t = Transpose<perm = [0, 2, 3, 1]>(p)
    r = Reshape(t, s) m = ReduceMean<keepdims = 0>(r, i) h = Det(q) n = Mul(m, h) y = Identity(n)
}"""


def block() -> onnx.ModelProto:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> {BLOCK}')
    weights = {
        "w": RNG.standard_normal((8, 8, 3, 3)).astype(np.float32),
        "d": RNG.standard_normal((8, 1, 3, 3)).astype(np.float32),
        "s": np.array([1, 961, 8]),
        "i": np.array([1]),
        "q": np.eye(3, dtype=np.float32),
    }
    for name, array in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


def view(shape: tuple[int, ...], **options: int) -> XnnProgram:
    """Build a program whose output is a view of its input."""
    model = one_node("Unsqueeze", [shape, np.array([0])])
    program = compile_model(model, keep=("y0",), observe=True, **options)
    assert program.explain()[0].kernel == "view"
    assert program.stats()["steps"] == 2  # the view and its observer
    return program


def observe(array: np.ndarray, meter: Counts | Extremes, **options: int) -> None:
    """Observe one array with a meter."""
    view(array.shape, **options).observe({"x0": array}, {"y0": meter})


def assert_counts(array: np.ndarray, *meters: Counts) -> None:
    """Assert that meters hold what is counted here one element at a time, to the bit."""
    for counts in meters:
        expected = count_by_hand(array, counts.bins, counts.below, counts.width, counts.folded)
        np.testing.assert_array_equal(counts.counts, expected)
        assert counts.zeros == array.size - np.count_nonzero(array)
        assert counts.extremes == Extremes(float(array.min()), float(array.max()))


def count_by_hand(array, bins, below, width, folded) -> list[int]:
    """Count elements other than zero by the documented bins, in Python's own floats.

    An element on an edge belongs to the bin above it; edges are multiples of the width as
    `Counts.scale` rounds them: the reciprocal of the width, in double.
    """
    expected = [0] * bins
    for element in array.reshape(-1).tolist():
        if element != 0:
            place = math.floor((abs(element) if folded else element) * (1 / width)) + below
            expected[min(max(place, 0), bins - 1)] += 1
    return expected


@settings(deadline=None, max_examples=60)
@given(
    data=st.data(),
    bins=st.sampled_from([1, 2, 255, 256, 2048, 65536]),
    folded=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_counts_are_those_of_numpy(data, bins, folded, seed):
    rng = np.random.default_rng(seed)
    below = 0 if folded else data.draw(st.integers(0, bins))
    width = data.draw(st.sampled_from([2.0**-8, 0.01, 1 / 3, 1e-30, 3e-41, 1e30]))
    count = data.draw(st.sampled_from([1, 7, 2047, 2048, 2049, 5000]))
    # Elements around the edges of bins, inside of the range and outside.
    places = rng.integers(-below - 2, bins - below + 3, count) * width
    array = np.asarray(places * (1 + rng.integers(-2, 3, count) * 2.0**-24), np.float32)
    array[rng.random(count) < 0.3] = rng.choice(np.float32([0, -0.0, F32.tiny / 8, F32.max]))
    meter = Counts(bins, below, width, folded)
    observe(array, meter)
    assert_counts(array, meter)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("folded", [False, True])
def test_threads_count_the_same(threads, folded):
    array = np.maximum(RNG.standard_normal(300_001), -1).astype(np.float32)
    array[::3] = 0
    meter = Counts(2048, 0 if folded else 1000, 1 / 250, folded)
    program = view(array.shape, threads=threads)
    program.observe({"x0": array}, {"y0": meter})
    program.observe({"x0": array[::-1].copy()}, {"y0": meter})
    assert_counts(np.concatenate([array, array]), meter)


def test_subnormal_numbers_are_no_zeros():
    array = np.full(50_000, F32.smallest_subnormal, np.float32)
    meter = Counts(256, 128, 1.0)
    observe(array, meter, threads=2)
    assert meter.zeros == 0
    assert meter.counts[128] == array.size


@pytest.mark.parametrize("count", [5, 40_000])
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
def test_nonfinite_numbers(count, bad):
    array = np.linspace(-1, 2, count, dtype=np.float32)
    array[count // 2] = bad
    for meter in (Extremes(), Counts(256, 128, 0.1)):
        observe(array, meter, threads=2)
        found = meter.extremes if isinstance(meter, Counts) else meter
        assert found.nan == np.isnan(bad)
        if not found.nan:
            assert (found.low, found.high) == (array.min(), array.max())


def test_empty_arrays_and_single_elements():
    meter = Extremes()
    observe(np.zeros((0, 3), np.float32), meter)
    assert meter == Extremes()
    observe(np.zeros((1,), np.float32), meter)
    assert meter == Extremes(0.0, 0.0)


def inner(model: onnx.ModelProto) -> list[str]:
    return [name for node in model.graph.node for name in node.output]


def test_values_of_a_network_against_onnx():
    """In whatever order they lie, and whatever computes them: Det has no kernel of ours."""
    model = block()
    names = [*inner(model), "x", "w"]
    feeds = feeds_for(model)
    program = compile_model(model, keep=tuple(names), observe=True)
    meters = {name: Counts(256, 128, 0.25) for name in names}
    program.observe(feeds, meters)
    evaluator = ReferenceEvaluator(model)
    right = evaluator.run(None, feeds, intermediate=True)
    right |= {**feeds, "w": numpy_helper.to_array(model.graph.initializer[0])}
    for name, meter in meters.items():
        assert meter.counts.sum() + meter.zeros == right[name].size
        # Dot products of 72 elements in another order.
        near = pytest.approx
        assert meter.extremes.low == near(float(right[name].min()), rel=1e-5, abs=1e-5)
        assert meter.extremes.high == near(float(right[name].max()), rel=1e-5, abs=1e-5)
        expected = count_by_hand(np.asarray(right[name]), 256, 128, 0.25, folded=False)
        # An element beside an edge may be on its other side.
        moved = np.abs(np.cumsum(meter.counts - expected)).max()
        assert moved <= 1e-4 * right[name].size + 1


def test_observing_adds_steps_and_moves_no_data():
    """Each observed value has a step of its own; all other steps are unchanged."""
    model = block()
    names = ("b", "f", "p")
    plain = compile_model(model).profile(feeds_for(model), runs=1)
    program = compile_model(model, keep=names, observe=True)
    watched = [row.kernel for row in program.profile(feeds_for(model), runs=1)]
    assert watched.count("observe") == len((*names, "y"))
    assert [kernel for kernel in watched if kernel != "observe"] == [row.kernel for row in plain]
    assert [plan.kernel for plan in program.explain()] == [
        plan.kernel for plan in compile_model(model).explain()
    ]


def test_only_requested_outputs_are_filled():
    model = block()
    feeds = feeds_for(model)
    program = compile_model(model, keep=("b", "f"), observe=True)
    before, after = Extremes(), Extremes()
    program.observe(feeds, {"b": before})
    kept = Extremes(before.low, before.high)
    result = program.run(feeds)
    program.observe(feeds, {"f": after, "y": Extremes()})
    assert before == kept
    assert after.low < after.high
    np.testing.assert_array_equal(result["y"], compile_model(model).run(feeds)["y"])


def test_values_that_cannot_be_observed_are_refused():
    model = block()
    feeds = feeds_for(model)
    program = compile_model(model, keep=("b", "s"), observe=True)
    with pytest.raises(UsageError, match="'f' of method 'main' was not kept"):
        program.observe(feeds, {"f": Extremes()})
    with pytest.raises(UsageError, match="'b' of method 'main' was not kept"):
        program.run(feeds, outputs=["b"])
    with pytest.raises(UsageError, match="value 's' is int64; only tensors of floating"):
        program.observe(feeds, {"s": Extremes()})
    with pytest.raises(UsageError, match="no method has a value 'q2'"):
        compile_model(model, keep=("q2",), observe=True)
    with pytest.raises(DataError):
        program.observe({}, {"b": Extremes()})
    program.close()
    with pytest.raises(UsageError, match="closed"):
        program.observe(feeds, {"b": Extremes()})


def test_without_observe_values_are_outputs():
    model = block()
    feeds = feeds_for(model)
    program = compile_model(model, keep=("b",))
    meter = Extremes()
    program.observe(feeds, {"b": meter})
    array = program.run(feeds, outputs=["b"])["b"]
    assert (meter.low, meter.high) == (array.min(), array.max())


def test_narrow_values_are_seen_as_they_are_stored():
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 20]>
        g (float16[N, 5] x) => (float16[N, 5] y) { a = Exp(x) y = Neg(a) }"""
    )
    model = onnx.shape_inference.infer_shapes(model)
    feeds = {"x": RNG.standard_normal((9, 5)).astype(np.float16)}
    program = compile_model(model, keep=("a",), observe=True)
    meter = Extremes()
    program.observe(feeds, {"a": meter})
    assert meter.high == np.float16(meter.high)
    assert meter.high == pytest.approx(float(np.exp(feeds["x"].astype(np.float32)).max()), rel=1e-3)
