"""How many threads numpy's BLAS is set to use."""

from __future__ import annotations

import numpy as np  # loads the BLAS
import pytest
from threadpoolctl import threadpool_info

from narrowpass_reference import blas_threads


def count_threads() -> list[int]:
    np.zeros(1)
    return [item["num_threads"] for item in threadpool_info() if item["user_api"] == "blas"]


@pytest.fixture(autouse=True)
def _blas():
    if not count_threads():
        pytest.skip("numpy has no BLAS that threadpoolctl knows")


def test_the_least_number_counts_and_the_first_one_comes_back():
    before = count_threads()
    with blas_threads(max(before) + 1):
        assert count_threads() == before
        with blas_threads(1):
            assert set(count_threads()) == {1}
            with blas_threads(2):
                assert set(count_threads()) == {1}
        assert count_threads() == before
    assert count_threads() == before


def test_no_number_changes_nothing():
    before = count_threads()
    with blas_threads(None):
        assert count_threads() == before


def test_an_error_ends_the_context():
    before = count_threads()
    with pytest.raises(ZeroDivisionError), blas_threads(1):
        raise ZeroDivisionError
    assert count_threads() == before
