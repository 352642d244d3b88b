"""Histograms for people: what they check, and JSON."""

from __future__ import annotations

import json

import pytest

from narrowpass import Decision, Histogram


def test_json_gives_it_back():
    made = Histogram(-1.5, 2.5, (1, 2, 0, 5), 7, (-1.0, 2.0))
    assert Histogram.from_json(json.loads(json.dumps(made.to_json()))) == made
    bare = Histogram(0.0, 2.5, (3,))
    assert Histogram.from_json(json.loads(json.dumps(bare.to_json()))) == bare


def test_a_decision_carries_it():
    made = Histogram(-1.0, 1.0, (1,) * 64, 0, (-1.0, 1.0))
    told = Decision("v", "", "int8", "calibrator l2", sqnr=31.5, histogram=made).to_json()
    assert told["sqnr"] == 31.5
    assert Histogram.from_json(told["histogram"]) == made
    assert len(json.dumps(told)) < 600
    plain = Decision("v", "", "int8", "calibrator l2").to_json()
    assert "sqnr" not in plain
    assert "histogram" not in plain


@pytest.mark.parametrize(
    ("window", "clipped"), [(None, 0.0), ((-1.0, 3.0), 0.0), ((0.0, 2.0), 0.3), ((-9.0, 1.0), 0.4)]
)
def test_what_is_clipped(window, clipped):
    made = Histogram(-1.0, 3.0, (1, 1, 2, 2), 4, window)
    assert made.clipped == pytest.approx(clipped)


@pytest.mark.parametrize(
    "told",
    [
        None,
        {},
        {"low": 0, "high": 0, "counts": [1]},
        {"low": 0, "high": float("nan"), "counts": [1]},
        {"low": 0, "high": 1, "counts": []},
        {"low": 0, "high": 1, "counts": [-1]},
        {"low": 0, "high": 1, "counts": [1.5]},
        {"low": 0, "high": 1, "counts": [1], "zeros": -1},
        {"low": 0, "high": 1, "counts": [1], "window": [1, 0]},
        {"low": 0, "high": 1, "counts": [1], "window": [1]},
        {"low": "x", "high": 1, "counts": [1]},
    ],
)
def test_what_is_none(told):
    with pytest.raises(ValueError, match=r"."):
        Histogram.from_json(told)
