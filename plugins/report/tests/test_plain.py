"""Reports as text and as JSON, and the plots and tables that passes show."""

import json
import math
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from narrowpass.bundle import Bundle, MethodReport, Report
from narrowpass_report.exhibits import exhibit
from narrowpass_report.page import render
from narrowpass_report.plain import JsonReport, TextReport
from narrowpass_testing import model_from_text

POINTS = [
    {"x": 0.25, "y": 1e-4, "label": "one", "kind": "chosen"},
    {"x": 0.5, "y": 1e-6, "label": "two", "kind": "front"},
    {"x": 0.9, "y": 0.0, "label": "<three>", "kind": ""},
    {"x": 0.1, "y": math.inf, "label": "four", "kind": ""},
]
PLOT = {
    "title": "Time & error",
    "plot": {"x": "time", "y": "error", "log": ["y"], "limit": 1e-3, "points": POINTS},
}
TABLE = {
    "title": "Runs",
    "table": {
        "columns": ["run", "error"],
        "rows": [[1, "a\x1b[31mb"], [2, 0.25]],
        "numbers": ["run"],
    },
}


@pytest.fixture
def bundle():
    model = model_from_text(
        '<ir_version: 10, opset_import: ["" : 21]> g (float[2] x) => (float[2] y) { y = Neg(x) }'
    )
    decision = {"node": "n", "op_type": "Neg", "decision": "kept", "by": "rule", "reason": "why"}
    part = MethodReport((decision,), {"kept": 1}, (PLOT, TABLE))
    return Bundle({"main": model}, pipeline="auto", reports=[Report("auto", {"main": part})])


def test_text(bundle):
    text = TextReport().render(bundle, "a title")
    assert text.startswith("a title\npipeline: auto\nmethod main: 1 nodes")
    assert "Runs\n  run  error\n  1    a [31mb\n  2    0.25\n" in text
    assert "  n     Neg       kept      rule  why" in text
    assert "\x1b" not in text


def test_json(bundle):
    document = json.loads(JsonReport().render(bundle, "a title"))
    assert document["version"] == 1
    assert document["methods"] == {"main": {"nodes": 1, "weight_bytes": 0}}
    (entry,) = document["passes"]
    assert entry["methods"]["main"]["counters"] == {"kept": 1}
    shown = entry["methods"]["main"]["exhibits"]
    assert shown[1] == TABLE
    assert shown[0]["plot"]["points"][3]["y"] is None
    assert entry["methods"]["main"]["decisions"][0]["reason"] == "why"


def test_plot_is_well_formed_and_places_points():
    text = exhibit(PLOT)
    svg = ElementTree.fromstring(text[text.index("<svg") :])
    circles = [element for element in svg if element.tag == "circle"]
    assert len(circles) == 3  # what is infinite has no place
    titles = {circle[0].text.partition(":")[0]: circle for circle in circles}
    x = {label: float(circle.get("cx")) for label, circle in titles.items()}
    y = {label: float(circle.get("cy")) for label, circle in titles.items()}
    assert x["one"] < x["two"] < x["<three>"]
    assert y["one"] < y["two"] < y["<three>"]  # larger errors are higher; 0 is at the lower end
    # The axis is logarithmic: the limit, ten times the error of `one`, is half as far as `two`.
    line = next(element for element in svg if element.get("class") == "limit")
    gap = y["one"] - float(line.get("y1"))
    assert y["two"] - y["one"] == pytest.approx(2 * gap, abs=0.5)


@pytest.mark.parametrize(
    "given",
    [
        {"title": "odd"},
        {"title": "odd", "plot": 3},
        {"title": "odd", "plot": {"x": "a", "y": "b", "points": [{"x": "?", "y": 1, "label": ""}]}},
        {"title": "odd", "table": {"rows": []}},
        {"title": "odd", "plot": {"x": "<b>", "y": "<i>", "points": []}},
    ],
)
def test_exhibits_of_another_form_are_shown_as_text(given):
    found = exhibit(given)
    assert "odd" in found
    assert "<b>" not in found
    HTMLParser().feed(found)


def test_page_has_exhibits(bundle):
    page = render(bundle, "a title")
    assert "Time &amp; error" in page
    assert "&lt;three&gt;" in page
    assert page.count('<circle class="point') == 3
