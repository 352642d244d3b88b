"""Random networks of quantized layers: each byte is at most one step off onnx's evaluator."""

from __future__ import annotations

from collections import Counter

import onnx_ir as ir
import pytest
from layer_recipes import LAYERS
from qdq_kit import off_by

from narrowpass_testing.random_models import random_models


def campaign(seed: int, count: int) -> Counter[int]:
    steps: Counter[int] = Counter()
    for number, case in enumerate(random_models(seed, count, recipes=LAYERS.only(["quantized"]))):
        found = off_by(ir.from_proto(case.model), case.feeds, threads=1 + number % 2)
        assert set(found) <= {0, 1}, case.model.graph.name
        steps += found
    assert steps[1] <= 0.002 * sum(steps.values())
    return steps


def test_random_networks():
    assert sum(campaign(0, 25).values()) > 10_000


@pytest.mark.long
def test_many_random_networks():
    steps = campaign(100, 3000)
    print(f"{steps[1]} of {sum(steps.values())} elements are one step off")
