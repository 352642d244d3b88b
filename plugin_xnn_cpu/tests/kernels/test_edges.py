"""Each kernel at 0 to 3 tiles, and one more and less, of each size: one case for each row."""

from __future__ import annotations

import attention_cases
import elementwise_cases
import index_cases
import movement_cases
import norm_cases
import pytest
import quantize_cases
import reduce_cases
import xnn_cases

FAMILIES = (
    quantize_cases,
    elementwise_cases,
    norm_cases,
    reduce_cases,
    movement_cases,
    index_cases,
)


@pytest.mark.parametrize("call", quantize_cases.CASES)
def test_quantize(call):
    quantize_cases.CASES.run(call)


@pytest.mark.parametrize("call", elementwise_cases.CASES)
def test_elementwise(call):
    elementwise_cases.CASES.run(call)


@pytest.mark.parametrize("call", norm_cases.CASES)
def test_norm(call):
    norm_cases.CASES.run(call)


@pytest.mark.parametrize("call", reduce_cases.CASES)
def test_reduce(call):
    reduce_cases.CASES.run(call)


@pytest.mark.parametrize("call", movement_cases.CASES)
def test_movement(call):
    movement_cases.CASES.run(call)


@pytest.mark.parametrize("call", index_cases.CASES)
def test_index(call):
    index_cases.CASES.run(call)


@pytest.mark.parametrize("call", xnn_cases.CASES)
def test_xnn(call):
    xnn_cases.CASES.run(call)


@pytest.mark.parametrize("call", attention_cases.CASES)
def test_attention(call):
    attention_cases.CASES.run(call)
