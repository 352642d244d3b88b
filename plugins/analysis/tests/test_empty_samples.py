"""Samples without elements, on which everything is equal."""

from __future__ import annotations

import numpy as np
import pytest

from narrowpass import Samples
from narrowpass.errors import DataError
from narrowpass_analysis.values import check_elements


def test_samples_refuse_what_has_no_elements():
    samples = Samples("data", lambda: [{"x": np.ones((1, 2))}, {"x": np.zeros((0, 2))}])
    with pytest.raises(DataError, match=r"sample 2 of data has no elements.*'x'.*\[0, 2\]"):
        list(samples)


def test_samples_take_what_has_elements_somewhere():
    given = {"ids": np.ones((1, 2)), "past": np.zeros((1, 2, 0, 4))}
    assert len(list(Samples("data", lambda: [given]))) == 1
    assert len(list(Samples("data", lambda: [{}]))) == 1


def test_outputs_without_elements_are_the_samples_fault_only_if_inputs_have_none():
    nothing, some = np.zeros((0, 2)), np.ones((1, 2))
    check_elements({"x": some}, {"y": nothing}, "here")
    check_elements({"x": nothing}, {"y": some, "z": nothing}, "here")
    with pytest.raises(DataError, match="here has no elements: input 'x'"):
        check_elements({"x": nothing}, {"y": nothing, "count": np.array(0)}, "here")
