"""Histograms for people: what they check, and JSON."""

from __future__ import annotations

import json

import pytest

from narrowpass import Decision, Histogram


def test_json_round_trip():
    histogram = Histogram(-1.5, 2.5, (1, 2, 0, 5), 7, (-1.0, 2.0))
    assert Histogram.from_json(json.loads(json.dumps(histogram.to_json()))) == histogram
    bare = Histogram(0.0, 2.5, (3,))
    assert Histogram.from_json(json.loads(json.dumps(bare.to_json()))) == bare


def test_a_decision_carries_it():
    histogram = Histogram(-1.0, 1.0, (1,) * 64, 0, (-1.0, 1.0))
    decision = Decision("v", "", "int8", "calibrator l2", sqnr=31.5, histogram=histogram).to_json()
    assert decision["sqnr"] == 31.5
    assert Histogram.from_json(decision["histogram"]) == histogram
    assert len(json.dumps(decision)) < 600
    plain = Decision("v", "", "int8", "calibrator l2").to_json()
    assert "sqnr" not in plain
    assert "histogram" not in plain


@pytest.mark.parametrize(
    ("clipping", "clipped"),
    [(None, 0.0), ((-1.0, 3.0), 0.0), ((0.0, 2.0), 0.3), ((-9.0, 1.0), 0.4)],
)
def test_what_is_clipped(clipping, clipped):
    histogram = Histogram(-1.0, 3.0, (1, 1, 2, 2), 4, clipping)
    assert histogram.clipped == pytest.approx(clipped)


@pytest.mark.parametrize(
    "document",
    [
        None,
        {},
        {"low": 0, "high": 0, "counts": [1]},
        {"low": 0, "high": float("nan"), "counts": [1]},
        {"low": 0, "high": 1, "counts": []},
        {"low": 0, "high": 1, "counts": [-1]},
        {"low": 0, "high": 1, "counts": [1.5]},
        {"low": 0, "high": 1, "counts": [1], "zeros": -1},
        {"low": 0, "high": 1, "counts": [1], "clipping": [1, 0]},
        {"low": 0, "high": 1, "counts": [1], "clipping": [1]},
        {"low": "x", "high": 1, "counts": [1]},
    ],
)
def test_what_is_none(document):
    with pytest.raises(ValueError, match=r"."):
        Histogram.from_json(document)
