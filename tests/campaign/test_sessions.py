"""Calls that fail while `InferenceSession` builds, keeps and finds bundles."""

from __future__ import annotations

import pytest
from faults.outcomes import ERRORS, SESSIONS, check
from faults.shim import CALLS

pytest.importorskip("narrowpass_xnn_cpu")
pytest.importorskip("narrowpass_onnxruntime")
ALL = [(name, call, error) for name in SESSIONS for call in CALLS for error in ERRORS[call]]
SOME = [
    ("sessions", "clock", "ahead"),
    ("sessions", "write", "ENOSPC"),
    ("sessions", "rename", "kill"),
    ("reopening", "open", "EIO"),
]


@pytest.mark.parametrize(("scenario", "call", "error"), SOME)
def test_a_call_that_fails(library, tmp_path, scenario, call, error):
    assert check(library, tmp_path, scenario, call, error) > 0


@pytest.mark.long
@pytest.mark.parametrize(("scenario", "call", "error"), ALL)
def test_every_call_that_fails(library, tmp_path, scenario, call, error):
    check(library, tmp_path, scenario, call, error)
