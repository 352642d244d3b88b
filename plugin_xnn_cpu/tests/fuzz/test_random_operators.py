"""Random models of any operators against onnxruntime: sizes that change, threads, processors.

The oracle is onnxruntime where onnx's evaluator agrees with it or does not run the model.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from importlib.util import find_spec

import numpy as np
import pytest
from random_blocks import random_graph
from random_judge import Finding, Judge

pytestmark = pytest.mark.once

PIPELINES = {
    "fold": 0.0,
    "fold,fp16": 5e-2,
    "fold,fp16{dtype=bfloat16}": 0.2,
    "fold,int8-sym{mode=dynamic}": 0.15,
    "fold,int8-sym{mode=weight-only}": 0.1,
    "fold,expand-operators,store-weights": 0.02,
    "fold,upgrade-opset,fold": 0.0,
}
"""What the long campaign puts models through, and how far results may be off; 0 for as always."""

TOLERATED = {"onnxruntime alone differs", "fails as onnx"}

REFUSALS = (
    "kernel window of",  # larger than its image: onnxruntime computes something
    "from operator set 13 on",
    "cannot be upgraded",
    "the rank of",  # the output of a Loop, as an operand of com.microsoft's
)
"""Words of documented errors."""


def unexpected(
    seed: int, pipelines: Mapping[str, float], *, zeros: bool = False
) -> Iterator[Finding]:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # onnx's evaluator divides by zero
        judge = Judge(random_graph(seed, zeros=zeros), zeros=zeros)
        for found in judge.findings(pipelines):
            refused = found.kind in ("refused", "fails")
            if refused and any(word in found.message for word in REFUSALS):
                continue
            if found.kind not in TOLERATED:
                yield found


@pytest.mark.parametrize("first", range(0, 120, 20))
def test_random_models(first):
    pytest.importorskip("onnxruntime")
    for seed in range(first, first + 20):
        assert not list(unexpected(seed, {})), f"seed {seed}"


@pytest.mark.long
def test_many_random_models():
    pytest.importorskip("onnxruntime")
    plugins = ("narrowpass_constant_folding", "narrowpass_fp16", "narrowpass_int8_sym")
    texts = list(PIPELINES) if all(map(find_spec, plugins)) else []
    for seed in range(1000, 6000):
        chosen = [texts[seed % len(texts)]] if texts else []
        found = list(unexpected(seed, {text: PIPELINES[text] for text in chosen}))
        assert not found, f"seed {seed}"
