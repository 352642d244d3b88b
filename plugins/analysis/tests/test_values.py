"""Values between nodes on samples, against numpy's own."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from narrowpass import Samples
from narrowpass.errors import BackendError
from narrowpass_analysis.values import run_on_samples, split_groups
from narrowpass_reference import ReferenceBackend

SAMPLES = Samples("three", lambda: [{"x": np.float32([n, -n])} for n in range(3)])


def chain() -> ir.Model:
    text = "agraph (float[2] x) => (float[2] y) { a = Abs(x) b = Exp(a) y = Neg(b) }"
    graph = onnx.parser.parse_graph(text)
    opsets = [onnx.helper.make_opsetid("", 18)]
    return ir.from_proto(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9))


@pytest.mark.parametrize(("size", "groups"), [(1, 3), (2, 2), (3, 1), (4, 1)])
def test_names_in_groups(size, groups):
    names = ["a", "b", "c"]
    found = list(split_groups(names, size))
    assert len(found) == groups
    assert [name for group in found for name in group] == names


@pytest.mark.parametrize("limit", [None, 2, 9])
def test_inner_values_and_outputs_of_each_sample(limit):
    runs = list(run_on_samples(chain(), ["b", "y"], SAMPLES, ReferenceBackend(), limit))
    assert len(runs) == min(3, limit or 3)
    for count, (number, feeds, values) in enumerate(runs):
        assert number == count + 1
        np.testing.assert_array_equal(feeds["x"], np.float32([count, -count]))
        assert list(values) == ["b", "y"]
        wanted = np.exp(np.float32([count, count]))
        np.testing.assert_allclose(values["b"], wanted, rtol=2.0**-22)
        np.testing.assert_array_equal(values["y"], -values["b"])


def test_without_names_the_outputs():
    (_, _, values), *_ = run_on_samples(chain(), [], SAMPLES, ReferenceBackend())
    assert list(values) == ["y"]


def test_a_model_that_cannot_run_is_refused():
    model = chain()
    model.graph[0].op_type, model.graph[0].domain = "Nothing", "nowhere"
    with pytest.raises(BackendError, match="Nothing"):
        list(run_on_samples(model, ["b"], SAMPLES, ReferenceBackend()))
