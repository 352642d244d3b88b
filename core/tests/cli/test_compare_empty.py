"""``narrowpass compare`` on samples without elements."""

from __future__ import annotations

import numpy as np

from narrowpass import save_model
from narrowpass_testing import model_from_text


def test_compare_refuses_a_batch_of_0(call):
    text = "g (float[N, 2] x, float[M] z) => (float[N, 2] y) { y = Exp(x) }"
    save_model(model_from_text(text), "a.onnx")
    np.savez("d.npz", x=np.zeros((0, 2), np.float32), z=np.ones(3, np.float32))
    result = call("compare", "a.onnx", "a.onnx", "--data", "d.npz", code=1)
    assert "no elements" in result.err
    assert "'x' has shape [0, 2]" in result.err
