"""Calibration by workers: the ranges of one machine, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ray_kit import QUIET

import narrowpass
from narrowpass import Samples
from narrowpass.errors import DataError, UsageError
from narrowpass_ray import shared_samples
from narrowpass_ray.calibrate import emptied
from narrowpass_ray.shards import Sizes
from narrowpass_testing import model_from_text

calibration = pytest.importorskip("narrowpass_int8_sym.calibration")

pytestmark = QUIET


def model() -> Any:
    values = ", ".join(map(str, np.random.default_rng(1).normal(size=64).tolist()))
    return model_from_text(f"""
        g (float[N, 8] x) => (float[N, 8] y)
        <float[8, 8] w = {{{values}}}> {{
            h = MatMul(x, w)
            r = Relu(h)
            t = Tanh(h)
            y = Sub(r, t)
        }}
    """)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of rows whose range grows from file to file."""
    folder = tmp_path_factory.mktemp("rows")
    for number in range(4):
        x = np.random.default_rng(number).standard_cauchy((60, 8)).astype(np.float32)
        pq.write_table(pa.table({"x": list(x * (number + 1))}), folder / f"{number}.parquet")
    return folder


@pytest.mark.parametrize(
    "calibrators",
    [["l2"], pytest.param(["minmax", "percentile", "entropy"], marks=pytest.mark.long)],
)
def test_ranges_are_those_of_one_machine(rows: Path, one_core: Any, calibrators: list[str]) -> None:
    backend = narrowpass.load_plugins().registry.backend("xnn-cpu")
    shared = shared_samples(str(rows), batch_size=7, concurrency=1)
    alone = Samples("one machine", shared.open)
    names = ["x", "h", "r", "t", "y"]
    for calibrator in calibrators:
        got = calibration.calibrate(model(), names, shared, backend, calibrator, symmetric=True)
        wanted = calibration.calibrate(model(), names, alone, backend, calibrator, symmetric=True)
        assert got == wanted
        assert {name: got[name].histogram for name in names} == {
            name: wanted[name].histogram for name in names
        }
        largest = max(float(np.abs(feeds["x"]).max()) for feeds in alone)
        assert calibrator != "minmax" or got["x"].high == largest  # numpy's


def test_an_interrupted_calibration_goes_on_after_its_round(
    rows: Path, one_core: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = narrowpass.load_plugins().registry.backend("xnn-cpu")
    shared = shared_samples(str(rows), batch_size=7, concurrency=1)
    cache = calibration.CalibrationCache(tmp_path)
    whole = type(shared).observe
    rounds: list[int] = []

    def once(self: Any, *args: Any) -> Any:
        rounds.append(len(rounds))
        if len(rounds) == 2:
            raise KeyboardInterrupt
        return whole(self, *args)

    monkeypatch.setattr(type(shared), "observe", once)

    def calibrated() -> Any:
        return calibration.calibrate(
            model(), ["h"], shared, backend, "l2", symmetric=True, cache=cache
        )

    with pytest.raises(KeyboardInterrupt):
        calibrated()
    found = calibrated()
    assert len(rounds) == 3  # the first round was not run again
    alone = Samples("one machine", shared.open)
    assert found == calibration.calibrate(model(), ["h"], alone, backend, "l2", symmetric=True)


def test_a_sample_that_cannot_be_used_is_named(rows: Path, one_core: Any, tmp_path: Path) -> None:
    bad = np.ones((3, 8), np.float32)
    bad[1, 1] = np.nan
    pq.write_table(pa.table({"x": list(bad)}), tmp_path / "bad.parquet")
    shared = shared_samples(str(tmp_path), batch_size=7, concurrency=1)
    with pytest.raises(DataError, match=r"value 'h' on bad\.parquet of .* is NaN"):
        calibration.calibrate(model(), ["h"], shared, None, "minmax", symmetric=True)


def test_a_range_that_depends_on_the_order_is_refused() -> None:
    observer = calibration.Calibrator("moving-average").observer("v", symmetric=True)
    meter = observer.meter()
    meter.add(np.ones(3, np.float32), "v")
    with pytest.raises(UsageError, match="depends on the order"):
        observer.merge(meter, "a part")


def test_parts_in_any_order_are_the_whole() -> None:
    """The histograms of 40 divisions of the same elements, merged in other orders."""
    rng = np.random.default_rng(0)
    elements = rng.standard_cauchy(10_000).astype(np.float32)
    whole = calibration.Calibrator("l2").observer("v", symmetric=False)
    whole.observe(elements, "all")
    whole.next_round()
    whole.observe(elements, "all")
    for _ in range(40):
        cuts = np.sort(rng.integers(0, elements.size, 9))
        parts = list(np.split(elements, cuts))
        observer = calibration.Calibrator("l2").observer("v", symmetric=False)
        for number in range(2):
            for index in rng.permutation(len(parts)):
                meter = emptied(observer.meter())
                meter.add(parts[index], "part")
                observer.merge(meter, "part")
            if not number:
                observer.next_round()
        np.testing.assert_array_equal(observer.state()[1], whole.state()[1])
        assert observer.result() == whole.result()


def test_counts_in_other_bins_are_refused() -> None:
    from narrowpass.runtime.meters import Counts
    from narrowpass_int8_sym.calibration.spread import add_counts

    with pytest.raises(UsageError, match="cannot be added"):
        add_counts(Counts(8, 0, 1.0), Counts(8, 0, 2.0))


def test_samples_are_the_same_in_this_process(rows: Path) -> None:
    shared = shared_samples(str(rows), batch_size=25, sizes=Sizes(rows=30))
    assert [len(feeds["x"]) for feeds in shared] == [25, 25, 10] * 4
    with pytest.raises(UsageError, match="batch_size"):
        shared_samples(str(rows), batch_size=0)
