"""Limits and their metrics, the latter against SciPy."""

import math

import numpy as np
import pytest
from scipy.special import rel_entr, softmax

from narrowpass.errors import DataError, UsageError
from narrowpass_auto.limits import Limit


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("rel:1e-2", 1e-2),
        ("cosine:0.999", 0.001),
        ("top1:0.99", 0.01),
        ("sqnr:30", 1e-3),
        ("kl:0.05", 0.05),
        ("some.module:score:0.5", 0.5),
    ],
)
def test_text(text, bound):
    limit = Limit.parse(text)
    assert limit.bound == pytest.approx(bound)
    assert Limit.parse(str(limit)) == limit


@pytest.mark.parametrize(
    "text", ["rel", "rel:x", "relative:1", "kl:-1", "kl:inf", "kl:nan", "top1:2"]
)
def test_text_that_is_none(text):
    with pytest.raises(ValueError, match=r"limit|metric|form|between|must"):
        Limit.parse(text)


def test_kl_is_that_of_scipy():
    """To 1e-12: both are computed in float64."""
    rng = np.random.default_rng(0)
    meter = Limit.parse("kl:1").meter()
    total, rows = 0.0, 0
    for count in (3, 5):
        right = rng.standard_normal((2, count, 11)).astype(np.float32)
        other = right + 0.1 * rng.standard_normal(right.shape).astype(np.float32)
        meter.add({"y": right}, {"y": other})
        wide = softmax(right.astype(np.float64), -1), softmax(other.astype(np.float64), -1)
        total += float(rel_entr(*wide).sum())
        rows += 2 * count
    assert meter.error == pytest.approx(total / rows, rel=1e-12)


def test_worst_sample_counts():
    meter = Limit.parse("rel:1").meter()
    meter.add({"y": np.array([1.0, 2.0])}, {"y": np.array([1.0, 2.0])})
    meter.add({"y": np.array([1.0, 2.0])}, {"y": np.array([1.5, 2.0])})
    assert meter.error == pytest.approx(0.25)
    assert meter.noise == pytest.approx(0.25 / 5.0)


def test_top1_counts_rows_of_all_samples():
    meter = Limit.parse("top1:0.5").meter()
    meter.add({"y": np.eye(3)}, {"y": np.eye(3)})
    meter.add({"y": np.eye(3)[:1]}, {"y": np.eye(3)[1:2]})
    assert meter.error == pytest.approx(0.25)


def test_nan_is_beyond_any_limit():
    for metric in ("rel:1e9", "sqnr:-500", "kl:1e9"):
        meter = Limit.parse(metric).meter()
        meter.add({"y": np.ones((1, 4), np.float32)}, {"y": np.full((1, 4), np.nan, np.float32)})
        assert meter.error == math.inf


def test_own_metric(tmp_path, monkeypatch):
    (tmp_path / "own_metric.py").write_text(
        "def changed(reference, outputs):\n"
        "    return float((reference['y'].argmax(-1) != outputs['y'].argmax(-1)).mean())\n"
        "def wrong(reference, outputs):\n    return -1\n"
        "def broken(reference, outputs):\n    raise KeyError('z')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    meter = Limit.parse("own_metric:changed:0.1").meter()
    meter.add({"y": np.eye(4)}, {"y": np.eye(4)[[0, 1, 2, 0]]})
    assert meter.error == pytest.approx(0.25)
    for name, message in (("wrong", "at least 0"), ("broken", "KeyError")):
        with pytest.raises(DataError, match=message):
            Limit.parse(f"own_metric:{name}:1").meter().add({"y": np.eye(2)}, {"y": np.eye(2)})
    with pytest.raises(UsageError, match="cannot be imported"):
        Limit.parse("own_metric:missing:1").meter()


def test_metrics_that_need_rows_say_so():
    for text in ("top1:0.9", "kl:0.1"):
        meter = Limit.parse(text).meter()
        meter.add({"y": np.float32(1.0)}, {"y": np.float32(1.0)})
        with pytest.raises(DataError, match="rows of two numbers"):
            _ = meter.error
