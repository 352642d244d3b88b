"""Ranges of a model's values, against what onnx's evaluator computes."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from calibration_kit import CALIBRATORS, NAMES, data, found, network, samples
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from narrowpass import Samples
from narrowpass.errors import DataError, UsageError
from narrowpass.runtime.backend import Backend
from narrowpass_int8_sym.calibration import Calibrator, calibrate, ranges
from narrowpass_reference import ReferenceBackend

HISTOGRAMS = ("percentile", "l2", "entropy")


def values(items, names=NAMES):
    """Compute values with onnx's evaluator: arrays by name, one for each sample."""
    proto = ir.to_proto(network())
    del proto.graph.output[:]
    proto.graph.output.extend(
        helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names
    )
    evaluator = ReferenceEvaluator(proto)
    runs = [evaluator.run(None, feeds) for feeds in items]
    return dict(zip(names, zip(*runs, strict=True), strict=True))


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("calibrator", CALIBRATORS)
def test_values_are_observed(calibrator, symmetric):
    items = data()
    got = calibrate(network(), NAMES, samples(items), None, calibrator, symmetric=symmetric)
    assert list(got) == list(NAMES)
    right = values(items)
    for name in NAMES:
        assert got[name] == found(right[name], calibrator, symmetric=symmetric)


@pytest.mark.parametrize("calibrator", CALIBRATORS)
def test_on_the_native_backend(calibrator):
    xnn = pytest.importorskip("narrowpass_xnn_cpu.backend").XnnCpuBackend()
    if xnn.available() is not None:
        pytest.skip(xnn.available())
    items = data()
    got = calibrate(network(), NAMES, samples(items), xnn, calibrator, symmetric=False)
    right = calibrate(network(), NAMES, samples(items), None, calibrator, symmetric=False)
    for name in NAMES:
        # Additions have another order, so an element may be in the next bin; entropy may then
        # choose another range of nearly the same divergence.
        near = 0.1 if calibrator == "entropy" else 2e-3
        width = right[name].high - right[name].low
        assert got[name].low == pytest.approx(right[name].low, abs=near * width)
        assert got[name].high == pytest.approx(right[name].high, abs=near * width)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("calibrator", CALIBRATORS)
def test_observing_in_place_does_not_change_ranges(calibrator, symmetric, monkeypatch):
    """To what comes out: given out and counted by numpy, it is the same to the bit."""
    xnn = pytest.importorskip("narrowpass_xnn_cpu.backend").XnnCpuBackend
    if xnn().available() is not None:
        pytest.skip(xnn().available())
    compiled = []

    class Watched(xnn):
        def compile(self, bundle, options):
            compiled.append(options.keep)
            return super().compile(bundle, options)

    class GivenOut(Watched):
        observes = False

        def compile(self, bundle, options):
            return super().compile(bundle, replace(options, observe=False))

    monkeypatch.setattr(ranges, "AT_ONCE", 1)
    items = data()
    items[3]["x"] = np.tile(items[3]["x"], (700, 1))  # more than one thread's work
    for item in items:
        item["x"] = item["x"].astype(np.float32)
    both = [
        calibrate(network(), NAMES, samples(items), backend, calibrator, symmetric=symmetric)
        for backend in (Watched(), GivenOut())
    ]
    assert both[0] == both[1]
    assert [each.histogram for each in both[0].values()] == [
        each.histogram for each in both[1].values()
    ]
    # All at once where they lie, which takes no memory; else in groups.
    assert compiled == [("x", "h", "r"), ("x",), ("h",), ("r",), ()]


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("calibrator", HISTOGRAMS)
def test_ranges_come_with_histograms(calibrator, symmetric):
    items = data()
    chosen = Calibrator(calibrator, bins=300)
    got = calibrate(network(), NAMES, samples(items), None, chosen, symmetric=symmetric)
    right = values(items)
    for name, found_ in got.items():
        histogram = found_.histogram
        assert histogram.clipping == (0.0 if symmetric else found_.low, found_.high)
        assert len(histogram.counts) <= 65
        seen = np.concatenate([array.reshape(-1) for array in right[name]])
        seen = np.abs(seen) if symmetric else seen
        assert histogram.zeros == np.count_nonzero(seen == 0)
        seen = seen[seen != 0].astype(np.float64)
        edges = np.linspace(histogram.low, histogram.high, len(histogram.counts) + 1)
        assert 0 in np.round(edges, 9)
        expected, _ = np.histogram(seen, edges)
        # Elements beside edges may be on the other side.
        assert np.abs(np.cumsum(expected - np.array(histogram.counts))).max() <= 1
        assert sum(histogram.counts) == seen.size


@pytest.mark.parametrize("calibrator", ["minmax", "moving-average"])
def test_calibrators_without_histograms_have_none(calibrator):
    got = calibrate(network(), NAMES, samples(data()), None, calibrator, symmetric=False)
    assert {each.histogram for each in got.values()} == {None}


@pytest.mark.parametrize("calibrator", ["minmax", "l2"])
def test_groups_do_not_change_ranges(calibrator, monkeypatch):
    whole = calibrate(network(), NAMES, samples(data()), None, calibrator, symmetric=False)
    monkeypatch.setattr(ranges, "AT_ONCE", 1)
    reported = []
    got = calibrate(
        network(),
        NAMES,
        samples(data()),
        None,
        calibrator,
        symmetric=False,
        progress=lambda *both: reported.append(both),
    )
    assert got == whole
    total = 10 * len(NAMES) * Calibrator(calibrator).rounds
    assert reported == [(done, total) for done in range(1, total + 1)]


def test_groups_go_by_bytes(monkeypatch):
    """Shapes with names are taken from the first sample: 1000 rows of 8 floats are 32 kB."""
    seen = []

    class Spy(ReferenceBackend):
        name = "spy"

        def compile(self, bundle, options):
            seen.append(options.keep)
            return super().compile(bundle, options)

    monkeypatch.setattr(ranges, "BYTES_AT_ONCE", 70_000)
    items = [{"x": np.ones((1000, 8), np.float32)}]
    calibrate(network(), NAMES, samples(items), Spy(), "minmax", symmetric=False)
    assert seen == [("x", "h"), ("r",)]  # y is an output, and is not kept


def test_a_limit():
    got = calibrate(network(), NAMES, samples(data()), None, "l2", symmetric=False, limit=3)
    assert got == calibrate(network(), NAMES, samples(data(3)), None, "l2", symmetric=False)
    with pytest.raises(UsageError, match="limit"):
        calibrate(network(), NAMES, samples(data()), None, "l2", symmetric=False, limit=0)


def test_nothing_changes_the_model():
    model = network()
    before = ir.to_proto(model).SerializeToString()
    assert calibrate(model, [], samples(data()), None, "l2", symmetric=False) == {}
    calibrate(model, ["h", "h"], samples(data()), None, "l2", symmetric=False)
    assert ir.to_proto(model).SerializeToString() == before


def test_a_target_that_is_not_available():
    class Absent(Backend):
        name = "absent"

        def available(self):
            return "there is none"

        def supports(self, node):
            raise AssertionError

        def compile(self, bundle, options):
            raise AssertionError

    got = calibrate(network(), NAMES, samples(data()), Absent(), "minmax", symmetric=False)
    assert got == calibrate(network(), NAMES, samples(data()), None, "minmax", symmetric=False)


@pytest.mark.parametrize("calibrator", CALIBRATORS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_bad_numbers_name_value_and_sample(calibrator, bad):
    items = data()
    items[6]["x"][0, 0] = bad
    with pytest.raises(DataError, match="value 'h' on sample 7 of test data is"):
        calibrate(network(), ["h", "y"], samples(items), None, calibrator, symmetric=False)


def test_samples_that_change():
    rounds = iter([data(10), data(9), data(10), data(10, seed=2), []])
    changing = Samples("a generator", lambda: next(rounds))
    with pytest.raises(DataError, match="a generator had 10 samples at first, and then 9"):
        calibrate(network(), NAMES, changing, None, "minmax", symmetric=False)
    rounds = iter([data(10), data(10), [{"x": 2 * item["x"]} for item in data(10)]])
    with pytest.raises(DataError, match="must be the same each time"):
        calibrate(network(), NAMES, changing, None, "l2", symmetric=False)
    rounds = iter([[]])
    with pytest.raises(DataError, match="holds no samples"):
        calibrate(network(), NAMES, changing, None, "l2", symmetric=False)


def test_what_has_no_range():
    with pytest.raises(UsageError, match="'nothing'"):
        calibrate(network(), ["nothing"], samples(data()), None, "l2", symmetric=False)
    got = calibrate(network(), ["w"], samples(data()), None, "minmax", symmetric=False)
    weight = network().graph.initializers["w"].const_value.numpy()
    assert got["w"] == found([weight], "minmax")


MEMORY = """
import resource, sys
import numpy as np
from calibration_kit import network, samples
from narrowpass import Samples
from narrowpass_int8_sym.calibration import calibrate

def feeds(count):
    for seed in range(count):
        rng = np.random.default_rng(seed)
        yield {"x": rng.standard_normal((2000, 64), np.float32)}

calibrator, count = sys.argv[1], int(sys.argv[2])
names = ["x", "h", "r", "y"]
data = Samples("data", lambda: feeds(count))
calibrate(network(64), names, data, None, calibrator, symmetric=False)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def resident(calibrator, count):
    """Return the peak of a process's memory, in kB."""
    command = [sys.executable, "-c", MEMORY, calibrator, str(count)]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[1] / "kits", capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def test_memory_is_that_of_one_sample():
    """One sample's values have 2 MB; 90 more of them would be seen."""
    few, many = resident("l2", 10), resident("l2", 100)
    assert many <= 1.05 * few
    assert many <= 1.3 * resident("minmax", 10)
