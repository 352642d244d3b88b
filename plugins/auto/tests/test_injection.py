"""Noise that is added to single units, against numpy by hand."""

import math

import numpy as np
import pytest
from auto_kit import dense, rows

from narrowpass_auto.graph.units import find_units
from narrowpass_auto.measure.injection import injected
from narrowpass_reference import ReferenceBackend


def _forward(weights, x, at=None, noise=0.0):
    """Return the results of the matmuls, the noise added to one of them."""
    results = []
    for index, weight in enumerate(weights):
        x = x @ weight + (noise if index == at else 0.0)
        results.append(x)
        x = np.maximum(x, 0.0)
    return results


@pytest.fixture
def chain():
    model = dense(3)
    names = ("w0", "w1", "w2")
    weights = [model.graph.initializers[name].const_value.numpy() for name in names]
    feeds = rows(2)
    results = [_forward(weights, fed["x"]) for fed in feeds]
    found = {unit: [sample[unit].astype(np.float32) for sample in results] for unit in range(3)}
    return model, weights, feeds, found


def _harm(chain, *noises):
    model, _, feeds, results = chain
    with injected(model, find_units(model), results, feeds, ReferenceBackend()) as injection:
        return [injection.harm(noise) for noise in noises]


def _right(chain, unit, noise):
    """Return the noise of the output over its power, on each sample."""
    _, weights, feeds, _ = chain
    shares = []
    for fed, added in zip(feeds, noise, strict=True):
        exact, noisy = (
            _forward([w.astype(np.float64) for w in weights], fed["x"], *given)[-1]
            for given in ((), (unit, added))
        )
        shares.append(np.sum((noisy - exact) ** 2) / np.sum(exact**2))
    return shares


def test_noise_that_reaches_the_output_is_that_of_numpy(chain):
    """Within 1 %: noise of 1e-3 is far from what float32 rounds, 1e-7, and passes few Relus."""
    rng = np.random.default_rng(5)
    noise = {
        unit: [1e-3 * rng.standard_normal((4, 16)).astype(np.float32) for _ in range(2)]
        for unit in range(3)
    }
    (harm,) = _harm(chain, noise)
    assert set(harm) == {0, 1}  # the last is the output itself
    for unit, shares in harm.items():
        assert shares == pytest.approx(_right(chain, unit, noise[unit]), rel=1e-2)


def test_noise_of_other_candidates_reaches_as_large_a_share(chain):
    """Ten times the noise is a hundred times the power, without another run."""
    rng = np.random.default_rng(6)
    first = {0: [1e-3 * rng.standard_normal((4, 16)).astype(np.float32) for _ in range(2)]}
    second = {0: [10.0 * array for array in first[0]]}
    one, other = _harm(chain, first, second)
    assert other[0] == pytest.approx([100.0 * share for share in one[0]], rel=1e-6)


def test_no_noise_and_noise_without_end(chain):
    none = [np.zeros((4, 16), np.float32)] * 2
    endless = [np.full((4, 16), np.inf, np.float32)] * 2
    (harm,) = _harm(chain, {0: none, 1: endless})
    assert harm == {0: (0.0, 0.0), 1: (math.inf, math.inf)}
