"""Ranges of arrays, against numpy, PyTorch, and slow formulations of what is searched for."""

from __future__ import annotations

import itertools
import math
import tracemalloc
import warnings

import ml_dtypes
import numpy as np
import pytest
from calibration_kit import CALIBRATORS, found
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from narrowpass.errors import DataError, UsageError
from narrowpass_int8_sym.calibration import Calibrator, Range, entropy, l2
from narrowpass_int8_sym.calibration.histogram import CalibrationHistogram

RNG = np.random.default_rng(9)
HISTOGRAMS = ("percentile", "l2", "entropy")
SPLITTABLE = ("minmax", *HISTOGRAMS)


def data():
    """Return arrays of many shapes of distribution, by name; without outliers beyond a gap."""
    normal = np.random.default_rng(4).standard_normal(50_000)
    laplace = np.random.default_rng(5).laplace(size=50_000)
    arrays = {
        "normal": normal,
        "relu": np.maximum(normal, 0),
        "relu6": np.clip(4 * normal, 0, 6),
        "gelu": normal * (1 + np.vectorize(math.erf)(normal / math.sqrt(2))),
        "laplace": laplace,
        "uniform": np.random.default_rng(6).uniform(-1, 1, 50_000),
        "far from zero": np.random.default_rng(6).uniform(5, 6, 50_000),
        "below zero": -np.abs(normal),
        "lopsided": np.exp(normal) - 0.1,
        "integers": np.random.default_rng(7).integers(0, 20, 10_000),
        "huge": normal * 1e36,
        "small": normal * 1e-30,
    }
    return {name: array.astype(np.float32) for name, array in arrays.items()}


DATA = data()
OUTLIER = np.append(np.random.default_rng(0).standard_normal(4096), 60).astype(np.float32)

floats32 = st.floats(-1e6, 1e6, width=32)
some = arrays.arrays(np.float32, st.integers(0, 300), elements=floats32)


def squared_error(array, low, high, symmetric):
    """Quantize with numpy as int8 is quantized, and return the mean squared error."""
    exact = array.astype(np.float64)
    scale, zero, least = high / 127, 0, -127
    if not symmetric:
        scale, least = (high - low) / 255, -128
        zero = round(-128 - low / scale)
    levels = np.clip(np.rint(exact / scale) + zero, least, 127) - zero
    return float(np.mean((levels * scale - exact) ** 2))


# The extremes


@pytest.mark.parametrize("name", DATA)
def test_minmax_is_numpys(name):
    array = DATA[name]
    low, high = min(float(array.min()), 0.0), max(float(array.max()), 0.0)
    assert found([array], "minmax") == Range(low, high)
    peak = float(np.abs(array).max())
    assert found([array], "minmax", symmetric=True) == Range(-peak, peak)


def test_a_moving_average_goes_by_samples():
    parts = [RNG.standard_normal(50).astype(np.float32) for _ in range(20)]
    low, high = float(parts[0].min()), float(parts[0].max())
    for part in parts[1:]:
        low = 0.9 * low + 0.1 * float(part.min())
        high = 0.9 * high + 0.1 * float(part.max())
    got = found(parts, Calibrator("moving-average", averaging=0.1))
    # The same in another order of operations, in float64.
    np.testing.assert_allclose([got.low, got.high], [low, high], rtol=1e-12)
    assert found(parts[::-1], "moving-average") != found(parts, "moving-average")
    empty = np.zeros(0, np.float32)
    assert found([empty, *parts, empty], Calibrator("moving-average", averaging=0.1)) == got


def test_a_moving_average_is_pytorchs():
    torch, quantization = pytorch()
    parts = [RNG.standard_normal(50).astype(np.float32) for _ in range(20)]
    observer = quantization.MovingAverageMinMaxObserver()
    for part in parts:
        observer(torch.from_numpy(part))
    got = found(parts, "moving-average")
    # PyTorch averages in float32.
    np.testing.assert_allclose(
        [got.low, got.high], [float(observer.min_val), float(observer.max_val)], rtol=1e-5
    )


# Percentiles


@pytest.mark.parametrize("percentile", [90, 99, 99.9, 99.99, 100])
@pytest.mark.parametrize("name", DATA)
def test_percentiles_are_numpys_but_for_a_bin(name, percentile):
    # With one element less no rank is a whole number: numpy rounds those either way.
    array, chosen = DATA[name][1:], Calibrator("percentile", percentile=percentile)
    tail = (100 - percentile) / 2
    low, high = (
        float(np.percentile(array.astype(np.float64), at, method="inverted_cdf"))
        for at in (tail, 100 - tail)
    )
    got = found([array], chosen)
    width = 1.001 * (max(array.max(), 0) - min(array.min(), 0)) / 2046
    assert min(low, 0.0) - width <= got.low <= min(low, 0.0) + width / 1000
    assert max(high, 0.0) - width / 1000 <= got.high <= max(high, 0.0) + width
    peak = float(np.percentile(np.abs(array).astype(np.float64), percentile, method="inverted_cdf"))
    got = found([array], chosen, symmetric=True)
    assert got.low == -got.high
    assert peak - width / 1000 <= got.high <= peak + width


@given(some, st.sampled_from([50, 97.5, 99.99]))
def test_percentiles_of_anything(array, percentile):
    array = np.where(np.abs(array) < 1e-30, 0, array).astype(np.float64)
    got = found([array], Calibrator("percentile", percentile=percentile, bins=256))
    inside = (array >= got.low * (1 + 1e-12)) & (array <= got.high * (1 + 1e-12))
    assert inside.sum() >= math.floor(percentile / 100 * array.size)


# Squared error


def pytorch():
    torch = pytest.importorskip("torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch.ao.quantization as quantization
    return torch, quantization


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("name", [*DATA, "outlier"])
def test_l2_is_as_good_as_pytorchs(name, symmetric):
    """Both ranges are used by PyTorch's own rounding: ours must lose at most 1 % more.

    The ranges themselves differ: PyTorch's search stops early, takes zeros to be spread over a
    bin, and its range need not hold zero.
    """
    torch, quantization = pytorch()
    array = OUTLIER if name == "outlier" else DATA[name]
    scheme = torch.per_tensor_symmetric if symmetric else torch.per_tensor_affine
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        observer = quantization.HistogramObserver(dtype=torch.qint8, qscheme=scheme, eps=1e-37)
        observer(torch.from_numpy(array))
        scale, zero = (float(item) for item in observer.calculate_qparams())

    def loss(scale, zero):
        levels = torch.fake_quantize_per_tensor_affine(
            torch.from_numpy(array), scale, int(zero), -128, 127
        )
        return float(((levels.double() - torch.from_numpy(array).double()) ** 2).mean())

    got = found([array], Calibrator("l2", outliers=0), symmetric=symmetric)
    ours = (got.high - got.low) / (254 if symmetric else 255)
    ours_zero = 0 if symmetric else round(-128 - got.low / ours)
    assert loss(ours, ours_zero) <= 1.01 * loss(scale, zero)


def test_l2_ends_where_pytorchs_does():
    """Where its search gets to the end: within 5 % of the range, which costs less than 1 %."""
    torch, quantization = pytorch()
    for name in ("normal", "relu6", "uniform", "integers", "below zero"):
        array = DATA[name]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            observer = quantization.HistogramObserver(dtype=torch.qint8)
            observer(torch.from_numpy(array))
            low, high = (float(item) for item in observer._non_linear_param_search())
        got = found([array], Calibrator("l2", outliers=0))
        near = 0.05 * (high - low)
        assert got.low == pytest.approx(low, abs=near)
        assert got.high == pytest.approx(high, abs=near)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("name", DATA)
def test_no_range_of_a_grid_loses_less(name, symmetric):
    """Against all ranges of 20 by 20, by rounding the data itself: at most 2 % worse."""
    array = DATA[name][:10_000]
    got = found([array], "l2", symmetric=symmetric)
    low, high = min(float(array.min()), 0.0), max(float(array.max()), 0.0)
    peak = max(-low, high)
    shares = np.linspace(0.05, 1, 20)
    tried = [(-peak * share, peak * share) for share in shares]
    if not symmetric:
        tried = [(low * a, high * b) for a, b in itertools.product(shares, shares)]
    best = min(squared_error(array, *each, symmetric) for each in tried)
    assert squared_error(array, got.low, got.high, symmetric) <= 1.02 * best


def binned(counts, below):
    """Build a histogram of bins that are 1 wide."""
    histogram = CalibrationHistogram(
        -float(below), float(len(counts) - below), len(counts), folded=False
    )
    histogram.meter.counts[:] = counts
    assert (histogram.below, histogram.width) == (below, 1.0)
    histogram.ends = []
    return histogram


def shapes():
    rng = np.random.default_rng(3)
    for below in (0, 7, 20, 40):
        place = np.arange(40) + 0.5 - below
        yield binned(1000 * np.exp(-((place / 8) ** 2)), below)
        yield binned(1000 * np.exp(-np.abs(place) / 3), below)
        yield binned(rng.integers(0, 50, 40), below)
        yield binned(rng.integers(0, 2, 40) * rng.integers(0, 900, 40) + (place > 0), below)


def slow_error(histogram, below, above, levels, points=400):
    """Round many points of each bin to the nearest level."""
    step = (below + above) / (levels - 1)
    grid = (np.arange(levels) - round(below / step)) * step
    total = 0.0
    for index, count in enumerate(histogram.counts):
        inside = index - histogram.below + (np.arange(points) + 0.5) / points
        nearest = np.abs(inside[:, None] - grid[None, :]).min(axis=1)
        total += count * float(np.mean(nearest**2))
    return total


def test_the_modelled_error_is_that_of_many_points():
    for histogram in shapes():
        for below, above in [(histogram.below, histogram.above), (3, 9), (0, 5), (7, 0)]:
            if below > histogram.below or above > histogram.above:
                continue
            got = l2.error(histogram, histogram.counts, below, above, 8)
            # The midpoint rule with 400 points has an error of 1 / (12 · 400²) of a bin squared,
            # and more where levels meet within a bin.
            assert got == pytest.approx(slow_error(histogram, below, above, 8), rel=1e-3)


def test_l2_finds_the_best_of_all_ranges():
    for histogram in shapes():
        ranges = [
            (low, high)
            for low in range(histogram.below + 1)
            for high in range(histogram.above + 1)
            if low + high
        ]
        best = min(slow_error(histogram, *each, 8, points=100) for each in ranges)
        chosen = slow_error(histogram, *l2.clipping_range(histogram, 8), 8, points=100)
        # It goes down from two places; 5 levels a bin leave shallow dips that it may stop in.
        assert chosen <= 1.03 * best


# Divergence


def slow_divergence(histogram, below, above, levels):
    """Build P and Q, bin by bin, and return KL(P || Q)."""
    start, stop = histogram.below - below, histogram.below + above
    counts = [int(count) for count in histogram.counts]
    inside = counts[start:stop]
    left, right = sum(counts[:start]), sum(counts[stop:])
    total = sum(counts)
    if left + right > 0.01 * total:
        return math.inf
    p = [float(count) for count in inside]
    p[0] += left
    p[-1] += right
    q = []
    for level in range(levels):
        first, last = level * len(inside) // levels, (level + 1) * len(inside) // levels
        filled = sum(count > 0 for count in p[first:last])
        q += [sum(inside[first:last]) / filled if count else 0.0 for count in p[first:last]]
    q = [each + 1e-10 * total for each in q]
    scale = sum(q)
    return sum(
        a / total * math.log(a / total / (b / scale)) for a, b in zip(p, q, strict=True) if a
    )


def test_the_divergence_is_that_of_p_and_q():
    for histogram in shapes():
        for below in range(0, histogram.below + 1, 3):
            for above in range(0, histogram.above + 1, 3):
                if below + above < 8:
                    continue
                (got,) = entropy.divergence(histogram, np.array([below]), np.array([above]), 8)
                right = slow_divergence(histogram, below, above, 8)
                # Additions have another order; entropies of some nats leave 1e-13 of rounding.
                assert got == pytest.approx(right, rel=1e-9, abs=1e-12)


def test_entropy_finds_the_best_of_all_ranges():
    for histogram in shapes():
        ranges = [
            (low, high)
            for low in range(histogram.below + 1)
            for high in range(histogram.above + 1)
            if low + high >= 8
        ]
        best = min(slow_divergence(histogram, *each, 8) for each in ranges)
        chosen = entropy.clipping_range(histogram, 8)
        assert slow_divergence(histogram, *chosen, 8) == pytest.approx(best, rel=1e-9, abs=1e-12)


def test_a_large_histogram_is_searched_well():
    """Ranges between the grid positions are better by 1e-3 nats at most."""
    array = DATA["laplace"]
    histogram = CalibrationHistogram(float(array.min()), float(array.max()), 512, folded=False)
    histogram.add(array, "v")
    chosen = entropy.clipping_range(histogram, 64)
    (got,) = entropy.divergence(histogram, *np.array([chosen]).T, 64)
    ends = np.array(
        list(itertools.product(range(histogram.below + 1), range(0, histogram.above + 1, 2)))
    )
    ends = ends[ends.sum(axis=1) >= 64]
    best = min(
        entropy.divergence(histogram, part[:, 0], part[:, 1], 64).min()
        for part in np.array_split(ends, 50)
    )
    assert got <= best + 1e-3


# Traps


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_one_outlier(seed, symmetric):
    rest = np.random.default_rng(seed).standard_normal(4096)
    array = np.append(rest, 60).astype(np.float32)
    assert found([array], "minmax", symmetric=symmetric).high == 60
    for calibrator in ("l2", "entropy"):
        got = found([array], calibrator, symmetric=symmetric)
        assert 3 <= max(-got.low, got.high) <= 8
        assert got.high >= 2.5
    # The squared error itself is least where the outlier stays.
    assert found([array], Calibrator("l2", outliers=0), symmetric=symmetric).high > 55


def test_few_huge_activations_stay():
    """They carry the signal: more than half of its squares."""
    array = np.random.default_rng(2).standard_normal(100_000).astype(np.float32)
    array[:4] = 1000
    assert found([array], "l2").high > 950


@pytest.mark.parametrize("calibrator", CALIBRATORS)
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize(
    ("array", "affine"),
    [
        (np.zeros(7), Range(0, 1)),
        (np.zeros((3, 0)), Range(0, 1)),
        (np.full(7, -0.0), Range(0, 1)),
        (np.full(7, 1e-42), Range(0, 1)),
        (np.full((2, 3), 5.0), Range(0, 5)),
        (np.full(7, -5.0), Range(-5, 0)),
        (np.array(-5.0), Range(-5, 0)),
        (np.array([-3e38, 3e38]), Range(float(np.float32(-3e38)), float(np.float32(3e38)))),
    ],
)
def test_what_is_constant_or_zero_or_empty(array, affine, calibrator, symmetric):
    got = found([array.astype(np.float32)], calibrator, symmetric=symmetric)
    peak = max(-affine.low, affine.high)
    assert got == (Range(-peak, peak) if symmetric else affine)
    assert np.float32((got.high - got.low) / 255) >= np.finfo(np.float32).tiny


@pytest.mark.parametrize("calibrator", CALIBRATORS)
@pytest.mark.parametrize(
    ("bad", "what"), [(np.nan, "NaN"), (np.inf, "infinite"), (-np.inf, "infinite")]
)
def test_what_is_no_number_is_named(calibrator, bad, what):
    array = np.ones(1 << 19, np.float32)
    array[-1] = bad
    observer = Calibrator(calibrator).observer("layer/out", symmetric=False)
    observer.observe(array[:-1], "sample 1 of them")
    with pytest.raises(DataError, match=f"value 'layer/out' on sample 2 of them is {what}"):
        observer.observe(array, "sample 2 of them")


@pytest.mark.parametrize("calibrator", HISTOGRAMS)
@pytest.mark.parametrize("bad", [2.5, -2.5, np.nan, np.inf])
def test_other_data_in_the_second_round(calibrator, bad):
    observer = Calibrator(calibrator).observer("v", symmetric=True)
    observer.observe(np.array([-1, 2], np.float32), "sample 1")
    observer.next_round()
    with pytest.raises(DataError, match=r"value 'v' on sample 1 (goes|is) .* must be the same"):
        observer.observe(np.array([0, bad], np.float32), "sample 1")


@pytest.mark.parametrize("dtype", [np.float16, np.float64, ml_dtypes.bfloat16])
@pytest.mark.parametrize("calibrator", CALIBRATORS)
def test_other_floating_types(dtype, calibrator):
    array = DATA["normal"][:1000].astype(dtype)
    assert found([array], calibrator) == found([array.astype(np.float32)], calibrator)


def test_no_floats():
    with pytest.raises(UsageError, match="value 'v' on sample 1 is int64"):
        found([np.zeros(3, np.int64)], "minmax")
    with pytest.raises(UsageError, match="is list"):
        found([[1.0]], "minmax")  # type: ignore[list-item]


def test_wrong_options():
    with pytest.raises(UsageError, match=r"no calibrator 'minmx' \(did you mean 'minmax'\?\)"):
        Calibrator.of("minmx")
    for options in (
        {"percentile": 0},
        {"percentile": 101},
        {"bins": 100},
        {"averaging": 0},
        {"outliers": 1},
        {"percentile": math.nan},
    ):
        with pytest.raises(UsageError):
            Calibrator("l2", **options)
    for low, high in [(1, 2), (-2, -1), (math.nan, 1), (0, math.inf)]:
        with pytest.raises(DataError):
            Range(low, high)


# Division into batches


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("calibrator", SPLITTABLE)
@given(array=some, cuts=st.lists(st.integers(0, 300), max_size=5), turn=st.randoms())
def test_batches_do_not_change_the_range(calibrator, symmetric, array, cuts, turn):
    parts = np.split(array, sorted(min(cut, array.size) for cut in cuts))
    turn.shuffle(parts)
    whole = found([array], calibrator, symmetric=symmetric)
    assert found(parts, calibrator, symmetric=symmetric) == whole
    assert whole.low <= 0 <= whole.high
    assert whole.low >= min(array.min(initial=0), -whole.high if symmetric else 0)


@pytest.mark.parametrize("calibrator", SPLITTABLE)
@pytest.mark.parametrize("name", DATA)
def test_large_batches_do_not_change_the_range(calibrator, name):
    array = DATA[name]
    whole = found([array], calibrator)
    assert found(np.array_split(array, 7), calibrator) == whole
    assert found([array.reshape(2, -1).T], calibrator) == whole
    assert found([array[::2], array[1::2]], calibrator) == whole


@pytest.mark.parametrize("calibrator", CALIBRATORS)
@pytest.mark.parametrize("symmetric", [False, True])
def test_the_state_can_be_taken_over(calibrator, symmetric):
    chosen = Calibrator(calibrator)
    parts = np.array_split(DATA["lopsided"], 4)
    right = found(parts, chosen, symmetric=symmetric)
    observer = chosen.observer("v", symmetric=symmetric)
    for number in range(chosen.rounds):
        if number:
            observer.next_round()
        for part in parts:
            observer.observe(part, "sample")
            state = observer.state()
            observer = chosen.observer("v", symmetric=symmetric)
            for _ in range(number):
                observer.next_round()
            observer.restore(*state)
    assert observer.result() == right


def test_memory_does_not_grow_with_the_data():
    def peak(count):
        tracemalloc.start()
        try:
            array = np.ones(200_000, np.float32)
            observer = Calibrator("l2").observer("v", symmetric=False)
            for number in range(2):
                if number:
                    observer.next_round()
                for index in range(count):
                    array[0] = index
                    array[1] = -count
                    observer.observe(array, "sample")
            observer.result()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(50) <= 1.02 * peak(5)
