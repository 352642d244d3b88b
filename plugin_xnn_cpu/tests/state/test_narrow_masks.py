"""Narrow caches, and float32 ones in chunks, under masks that a graph computes from their shapes.

Beside onnx's evaluator with float32 caches as feeds. Tolerances are relative to the largest element
of the result: float32 accumulators err by tens of epsilon, a rounded element of a cache by half
a unit in its last place (2**-11 of float16, 2**-8 of bfloat16, 1/254 of the largest of a row of
int8), which scores and values share. A mask that is wrong errs by a tenth or more.
"""

from __future__ import annotations

import numpy as np
import pytest
from masks_kit import MASKS, Reference, decoder, feeds_of
from xnn_kit import compile_model

from narrowpass.framework.classify import ACTIVATIONS
from narrowpass_planning.state.session import AppendingSession
from narrowpass_xnn_cpu.native import kernels

TOLERANCES = {
    "float32": 2e-5,
    "float16": 2 * 2.0**-11,
    "bfloat16": 2 * 2.0**-8,
    "int8": 2 / 127,
}
TARGETS = ("best", "avx512", "avx2", "plain")


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("form", MASKS)
def test_short_and_long_caches(form, dtype):
    """Prompts and tokens; beyond 512 rows, caches are attended in chunks."""
    _compare(form, dtype, (9, 1, 1, 12, 480, 1, 10, 1, 1, 530, 1, 3, 1))


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("target", TARGETS)
def test_instruction_sets(target, dtype, monkeypatch):
    """A causal mask with a `window_size`: keys in front of it are not read."""
    monkeypatch.setattr(kernels, "TARGET", target)
    _compare("window_size", dtype, (3, 1, 600, 1, 1, 7, 1))


@pytest.mark.parametrize("form", MASKS)
def test_rounded_prompts_over_float32_caches(form):
    """Attention that may be rounded to bfloat16, of prompts of a block of rows, and of several."""
    _compare(form, "float32", (40, 1, 33, 600, 1, 50), rounded=True)


def _compare(form: str, dtype: str, steps: tuple[int, ...], *, rounded: bool = False) -> None:
    model = decoder(form)
    reference = Reference(model)
    if rounded:
        for node in model.graph.node:
            if node.output[0] in ("s0", "a0"):
                node.metadata_props.add(key=ACTIVATIONS, value="bfloat16")
    with compile_model(model, threads=2) as program, program.session(dtype) as session:
        assert isinstance(session, AppendingSession), session.reason
        for step, rows in enumerate(steps):
            feeds = feeds_of(form, rows, session.length, step)
            wanted = reference.run(feeds)
            found = session.run(feeds)["y"]
            limit = TOLERANCES["bfloat16" if rounded else dtype] * np.abs(wanted).max()
            np.testing.assert_allclose(found, wanted, rtol=0, atol=limit)
