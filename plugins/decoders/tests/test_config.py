"""Frequencies of rotary embeddings, and configurations that no decoder has."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from narrowpass_decoders import Config, Rotary, rotary
from narrowpass_ir.errors import ModelError

CONFIG = Config(
    vocabulary=10,
    width=8,
    layers=2,
    heads=4,
    groups=2,
    head=4,
    hidden=16,
    epsilon=1e-5,
    score_scale=0.5,
)


def test_frequencies():
    found = rotary(8, 10_000.0).frequencies
    # Computed in float32, whose rounding is 6e-8 of each.
    np.testing.assert_allclose(found, [1.0, 0.1, 0.01, 0.001], rtol=1e-6)


def test_divisors_and_linear_scaling_divide():
    whole = np.array(rotary(4, 100.0).frequencies)
    np.testing.assert_allclose(rotary(4, 100.0, divisors=[2, 4]).frequencies, whole / [2, 4])
    scaled = rotary(4, 100.0, scaling={"rope_type": "linear", "factor": 8})
    np.testing.assert_allclose(scaled.frequencies, whole / 8)


def test_llama3_scales_low_frequencies_only():
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    whole = np.array(rotary(16, 10_000.0).frequencies)
    found = np.array(rotary(16, 10_000.0, scaling=scaling).frequencies)
    lengths = 2 * math.pi / whole
    np.testing.assert_allclose(found[lengths < 16], whole[lengths < 16])
    np.testing.assert_allclose(found[lengths > 64], whole[lengths > 64] / 8)
    share = np.interp(64 / lengths, [1, 4], [1 / 8, 1])
    assert ((share > 1 / 8) & (share < 1)).any()
    np.testing.assert_allclose(found, whole * share)


@pytest.mark.parametrize(
    ("given", "fast", "slow", "factor"),
    [
        ({"factor": 1.5}, 32, 1, 0.1 * math.log(1.5) + 1),
        ({"factor": 4, "beta_fast": 8, "beta_slow": 2, "attention_factor": 0.5}, 8, 2, 0.5),
    ],
)
def test_yarn_blends_between_pairs_that_turn_often_and_seldom(given, fast, slow, factor):
    scaling = {"rope_type": "yarn", "truncate": False, **given}
    whole = np.array(rotary(64, 10_000.0).frequencies)
    found = rotary(64, 10_000.0, scaling=scaling, positions=512)
    # The pair that turns so often in 512 positions: its number is linear in the logarithm.
    turns = np.log(whole * 512 / (2 * math.pi))
    low, high = np.interp(-np.log([fast, slow]), -turns, np.arange(32))
    ramp = np.clip((np.arange(32) - low) / (high - low), 0, 1)
    stretched = whole / given["factor"]
    expected = whole * (1 - ramp) + stretched * ramp
    np.testing.assert_allclose(found.frequencies, expected, rtol=1e-6)
    assert found.factor == pytest.approx(factor)
    rounded = np.array(
        rotary(64, 10_000.0, scaling={**scaling, "truncate": True}, positions=512).frequencies
    )
    first, last = math.floor(low), math.ceil(high)
    np.testing.assert_array_equal(rounded[: first + 1], whole[: first + 1])
    assert rounded[first + 1] < whole[first + 1]
    np.testing.assert_array_equal(rounded[last:], stretched[last:])
    assert rounded[last - 1] > stretched[last - 1]


@pytest.mark.parametrize(
    "scaling", [{"rope_type": "odd"}, {"rope_type": "linear"}, {"type": "yarn"}]
)
def test_scalings_that_are_refused(scaling):
    with pytest.raises(ModelError, match="rope scaling"):
        rotary(8, 10_000.0, scaling=scaling)


def test_the_configuration_is_one():
    CONFIG.check()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": 0}, "its layers is 0"),
        ({"groups": 3}, "4 heads cannot share 3"),
        ({"activation": "mish"}, "activation is 'mish'"),
        ({"spans": (4,)}, "one entry for each of 2 layers"),
        ({"rotary": (None, Rotary(6, (1.0,) * 3))}, "6 elements of a head of 4"),
    ],
)
def test_configurations_that_are_refused(change, message):
    with pytest.raises(ModelError, match=message):
        dataclasses.replace(CONFIG, **change).check()
