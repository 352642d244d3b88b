"""The ONNX node suite: what onnxruntime's provider for CPUs has right, ours has right too."""

import warnings

import numpy as np
import onnxruntime
import pytest
from onnx.backend.test.loader import load_model_tests
from provider_kit import CPU, settings

import narrowpass_onnxruntime
from narrowpass_onnxruntime.provider.registration import NAME


def cases():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the suite computes expected values when it is loaded
        found = load_model_tests(kind="node")
    for case in found:
        given, expected = case.data_sets[0]
        if case.model and all(isinstance(x, np.ndarray | np.generic) for x in (*given, *expected)):
            names = [value.name for value in case.model.graph.input]
            yield case, dict(zip(names, given, strict=False)), expected


def right(found, expected, case):
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return False
    if found.dtype.kind not in "fc":
        return found.tobytes() == np.asarray(expected, order="C").tobytes()
    return np.allclose(found, expected, rtol=case.rtol, atol=case.atol, equal_nan=True)


def session_of(data, *providers):
    options = settings()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(data, options, providers=[*providers, CPU])


@pytest.mark.long
def test_no_result_is_wrong_that_was_right():
    """Tolerances are the suite's own; the third run is one without Python, where there is one."""
    narrowpass_onnxruntime.register()
    wrong, compared = [], 0
    for case, feeds, expected in cases():
        data = case.model.SerializeToString()
        try:
            found = session_of(data).run(None, feeds)
        except Exception:  # noqa: BLE001  # what onnxruntime does not run is not compared
            continue
        if not all(right(*pair, case) for pair in zip(found, expected, strict=True)):
            continue
        compared += 1
        session = session_of(data, NAME)
        assert session.get_providers() == [NAME, CPU]
        for _ in range(3):
            try:
                found = session.run(None, feeds)
            except Exception as error:  # noqa: BLE001  # its classes have no base of their own
                wrong.append(f"{case.name}: {error}")
                break
        if not all(right(*pair, case) for pair in zip(found, expected, strict=True)):
            wrong.append(case.name)
    assert compared > 1200
    assert wrong == []
