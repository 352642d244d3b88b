"""The node tests that the onnx package ships."""

from __future__ import annotations

import warnings

import numpy as np
from onnx.backend.test.loader import load_model_tests

SAMPLED = 9
"""Every ninth node test: about 200."""


def node_cases(step=SAMPLED):
    """Return each `step`-th node test that has a model."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # onnx's computation of some results overflows
        cases = [case for case in load_model_tests(kind="node") if case.model is not None]
    return cases[::step]
