"""What the campaign finds where bits differ, and which steps of quantized results are rounding."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("narrowpass_reference")
pytest.importorskip("narrowpass_xnn_cpu")

from differential.__main__ import UNFUSED, Campaign, levels
from differential.slices import OPERATORS, findings_of, is_sampled
from differential.subjects import SUBJECTS

from narrowpass_testing.random_models import (
    RECIPES,
    Case,
    Subject,
    batched,
    difference,
    judge,
    other_bits,
    random_case,
)

FIRST = next(index for index, (domain, _) in enumerate(OPERATORS) if domain == "narrow")
"""The first block of few bits; those of quantized operators follow."""

BLOCKS = sum(group in ("narrow", "qdq") for group, _ in RECIPES.blocks)
"""How many there are."""


def rows_case(body, rows=3, columns=8):
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 21]> g (float[{rows},{columns}] x) => '
        f"(float[{rows},M] y) <float[{columns},4] w = {{{', '.join(['0.3', '-0.7'] * 16)}}}> "
        f"{{ {body} }}"
    )
    x = np.random.default_rng(5).standard_normal((rows, columns)).astype(np.float32)
    return Case(model, {"x": x})


class Moved:
    """A program whose results are one ulp above the right ones."""

    def __init__(self, program, when):
        self.program, self.when = program, when

    def __enter__(self):
        return self

    def __exit__(self, *details):
        self.program.__exit__(*details)

    def explain(self):
        return self.program.explain()

    def run(self, feeds, out=None):
        found = self.program.run(feeds, out=out)
        if self.when(feeds):
            for value in found.values():
                np.nextafter(value, np.float32(np.inf), out=value)
        return found


def moved(monkeypatch, when):
    right = Subject.program

    def program(self, case):
        return Moved(right(self, case), lambda feeds: when(self, feeds))

    monkeypatch.setattr(Subject, "program", program)


def test_an_ulp_between_threads_is_found(monkeypatch):
    case, subject = rows_case("y = MatMul(x, w)"), SUBJECTS["xnn-cpu on 2 threads"]
    assert findings_of(case, subject) == []
    moved(monkeypatch, lambda subject, feeds: subject.threads == 2)
    (found,) = findings_of(case, subject)
    assert found.kind == "other bits"
    assert found.message == "y: 12 of 12 elements have other bits"


def test_an_ulp_in_a_row_alone_is_found(monkeypatch):
    case, subject = rows_case("y = MatMul(x, w)"), SUBJECTS["deterministic"]
    assert findings_of(case, subject) == []
    moved(monkeypatch, lambda subject, feeds: len(feeds["x"]) == 1)
    (found,) = findings_of(case, subject)
    assert found.kind == "other bits"
    assert found.message == "rows 0 to 0 of 3 alone: y: 4 of 4 elements have other bits"


@pytest.mark.parametrize(
    ("body", "independent"),
    [
        ("y = MatMul(x, w)", True),
        ("y = Softmax <axis = 0> (x)", False),
        ("y = CumSum(x, zero)", False),
        ("s = ReduceMean <keepdims = 1> (x) y = Sub(x, s)", False),
        ("s = Transpose(x) t = Relu(s) y = Transpose(t)", True),
    ],
)
def test_rows_that_depend_on_each_other(body, independent):
    if "zero" in body:
        body = f"zero = Constant <value_int = 0> () {body}"
    case = rows_case(body)
    found = batched(case, judge(case.model, case.feeds).values)
    assert (found is not None) == independent


def test_bits_are_more_than_numbers():
    one = {"y": np.float32([0.0, 1.0]), "n": np.array("text", object)}
    assert other_bits(one, one) == ""
    assert other_bits({"y": np.float32([-0.0, 1.0])}, one) == "y: 1 of 2 elements have other bits"
    assert other_bits({"y": np.float64([0, 1])}, one) == "y: float64[2], not float32[2]"


def test_levels_that_differ_are_found(tmp_path):
    campaign = Campaign(tmp_path, float("inf"))
    seed = next(s for s in range(10**6) if is_sampled(s) and random_case(s))
    campaign.digests = {seed: {"own": {"int4": "a", "int8, dynamic": "c"}, "avx2": {"int4": "b"}}}
    campaign.compare_levels()
    (found,) = campaign.found
    assert (found["kind"], found["subject"], found["known"]) == ("other bits", "int4", None)
    assert found["message"] == "levels own and avx2 have other bits"


def test_levels_have_the_same_bits(tmp_path):
    """Of matmuls, convolutions and quantized models, through pipelines of int8 and of 4 bits."""
    own, *others = (level for level in levels() if level != UNFUSED)
    if not others:
        pytest.skip("the processor has no instruction set beyond the plain ones")
    others = others[:1]  # the campaign and plugin_xnn_cpu/tests/runtime/test_same_bits.py: all
    campaign, first = Campaign(tmp_path, float("inf")), 3 * len(OPERATORS) + FIRST
    seeds = range(first, first + BLOCKS)
    campaign.slice(seeds.start, len(seeds), own)
    # Of the cases of the first slice the others compute digests only.
    for index, level in enumerate(others):
        campaign.slice(10_000 + index, 1, level, seeds)
    campaign.compare_levels()
    assert campaign.counts["results compared between two levels"] >= 5 * len(others)
    assert [entry for entry in campaign.found if not entry["known"]] == []


def quantized(name):
    index = OPERATORS.index(("qdq", name))
    cases = (random_case(index + k * len(OPERATORS)) for k in range(40))
    return next(case for case in cases if case is not None and case.model.graph.output)


@pytest.mark.parametrize("name", ["Conv", "MatMul", "Add", "Softmax", "Concat"])
def test_a_step_is_rounding_and_more_are_not(name):
    case = quantized(name)
    ((_, value),) = judge(case.model, case.feeds, case.slack).values.items()
    step = case.slack if value.dtype == np.float32 else 1
    limit = 2e-4 * max(float(np.abs(value.astype(float)).max()), 0.1)
    for steps, right in ((0.9, True), (2.1, False)):
        far = (value + steps * (step + limit * (steps > 1))).astype(value.dtype)
        assert (difference(far, value, None, case.slack) == "") == right
