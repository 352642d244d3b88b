"""Each operator that onnxruntime's quantization tools write, against onnxruntime's own kernel."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from contrib_kit import model_of, onnxruntime_results
from quantizer_cases import CASES
from xnn_kit import close, compile_model

onnxruntime = pytest.importorskip("onnxruntime")


@pytest.mark.parametrize("name", CASES)
def test_operators_of_the_tools_agree_with_onnxruntime(name):
    case = CASES[name]
    op_type = name.split()[0]
    model = model_of(
        op_type,
        case.inputs,
        case.outputs,
        constants=case.constants,
        domain=case.domain,
        **case.attributes,
    )
    feeds = {k: v for k, v in case.inputs.items() if v is not None and k not in case.constants}
    expected = onnxruntime_results(model, feeds)
    with compile_model(model) as program:
        reasons = [plan.reason for plan in program.explain() if plan.reason]
        got = [program.run(feeds)[output] for output in case.outputs]
    assert not reasons
    for mine, theirs in zip(got, expected, strict=True):
        assert mine.dtype == theirs.dtype
        assert mine.shape == theirs.shape
        if theirs.dtype.kind == "f":
            close(mine, theirs, case.tolerance)
        else:
            assert np.abs(mine.astype(np.int64) - theirs.astype(np.int64)).max() <= case.steps


def test_no_operator_of_the_installed_tools_is_left_out():
    """What files of the tools name in quotes that onnxruntime has a kernel for, in their domain."""
    folder = Path(onnxruntime.__file__).parent / "quantization"
    words: set[str] = set()
    for path in folder.rglob("*.py"):
        words.update(re.findall(r"[\"'](\w+)[\"']", path.read_text(encoding="utf-8")))
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    known = {schema.name for schema in state.get_all_operator_schema()}
    quantized = {
        word
        for word in words & known
        if re.match(
            r"Q[A-Z]|DynamicQuantize|MatMul.|Conv.*Integer|GatherBlock|(De)?[Qq]uantize", word
        )
    }
    covered = {name.split()[0] for name in CASES}
    assert quantized
    assert quantized <= covered
