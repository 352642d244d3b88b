"""The part of the page about quantized values: histograms, noise, and what stayed wide."""

from __future__ import annotations

import json
import re

import pytest
from page_kit import Page

from narrowpass import Decision, Histogram
from narrowpass.bundle import Bundle, MethodReport, Report
from narrowpass_report.page import render
from narrowpass_report.quantized import quantized

HISTOGRAM = Histogram(-2.0, 6.0, (1, 10, 100, 1000, 100, 10, 0, 1), 500, (-1.0, 4.0))


def _decisions():
    return [
        Decision("x_out", "", "int8", "calibrator l2", histogram=HISTOGRAM, sqnr=38.25),
        Decision("first", "MatMul", "int8", "rule", sqnr=30.5),
        Decision("second", "Relu", "int8", "rule", sqnr=float("inf")),
        Decision("third", "Softmax", "float", "option red", "op:Softmax is red"),
        Decision("fourth", "Div", "red, wide", "constraint", "a ratio of 300", 300.0, 256.0),
    ]


@pytest.fixture
def page(deep):
    """Write the page of a bundle whose reports went through JSON, as files do."""

    def create(decisions):
        model = deep(1).methods["main"]
        decisions = tuple(decision.to_json() for decision in decisions)
        report = Report("int8-sym", {"main": MethodReport(decisions)}).to_json()
        return render(Bundle({"main": model}, reports=[Report.from_json(report.encode())]), "t")

    return create


def test_a_histogram_with_its_clipping_range(page):
    content = page(_decisions())
    text = " ".join(Page(content).text.split())
    assert "Values and their clipping ranges: 1" in text
    assert "x_out clipping range -1 to 4, clipped 0.12%, zeros 29%, 38.2 dB" in text
    (drawing,) = re.findall(r"<svg.*?</svg>", content)
    # 256 pixels from -2 to 6: the clipping range from 32 to 192, and zero at 64.
    assert '<rect x="32" y="0" width="160.0"' in drawing
    assert '<path class="zero" d="M64 0v64"/>' in drawing
    inside, outside = re.findall(r'<path class="(?:in|out)side" d="(.*?)"/>', drawing)
    assert inside.count("M") == 5
    assert outside.count("M") == 2  # and nothing for the empty bin
    assert "M96 64v-64h" in inside  # the largest fills the height
    assert "http" not in drawing


def test_noise_of_layers(page):
    text = " ".join(Page(page(_decisions())).text.split())
    assert "Signal to quantization noise: 3" in text
    assert "firstMatMul30.5" in text
    assert "secondReluinf" in text


def test_what_stayed_wide(page):
    text = " ".join(Page(page(_decisions())).text.split())
    assert "Stayed wide: 2" in text
    assert "option red: op:Softmax is red1third" in text
    assert "constraint: a ratio of 3001fourth" in text
    assert "Stayed wide: nothing" in Page(page(_decisions()[:3])).text


def test_other_passes_have_no_such_part(page):
    decisions = [Decision("a", "Relu", "folded", "rule"), Decision("b", "Add", "float", "rule")]
    assert "Stayed wide" not in page(decisions)


def test_many_of_them_are_cut():
    decisions = json.loads(json.dumps([_decisions()[0].to_json()] * 700))
    decisions += [Decision(f"n{i}", "Div", "float", "rule").to_json() for i in range(30)]
    content = quantized("main", decisions)
    assert content.count("<svg") == 500
    assert "and 200 more, in the reports folder" in content
    assert "n19 and 10 more" in content
    assert len(content) < 1_000_000


@pytest.mark.parametrize("clipping", [None, (-100.0, 100.0), (0.5, 0.75)])
@pytest.mark.parametrize("ends", [(-2.0, -1.0), (0.0, 1e-30), (-1e30, 1e30)])
def test_drawings_stay_in_their_frame(page, ends, clipping):
    histogram = Histogram(*ends, (3, 0, 5), 0, clipping)
    content = page([Decision("v", "", "int8", "rule", histogram=histogram)])
    Page(content)
    (drawing,) = re.findall(r"<svg.*?</svg>", content)
    for x in re.findall(r"M([-\d.e+]+) ", drawing):
        assert 0 <= float(x) <= 256


def test_names_and_damage_stay_text(page):
    name = "<img src=x onerror=alert(1)>"
    decision = Decision(name, name, "float, " + name, name, name, sqnr=1.0, histogram=HISTOGRAM)
    parsed = Page(page([decision]))
    assert "img" not in parsed.tags
    assert name in parsed.text
    content = quantized("main", [{"node": name, "histogram": {"low": name}}])
    assert "its histogram cannot be read" in content
    assert "<img" not in content
