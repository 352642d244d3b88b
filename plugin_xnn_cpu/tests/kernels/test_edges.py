"""Each kernel at 0 to 3 tiles, and one more and less, of each size: one case for each row.

Sizes are combined pairwise; all with all, 20,000 combinations at most, in a test marked `long`.
Operands and results lie one element behind an alignment; what may be read behind operands is NaN,
and around results there are guards. AddressSanitizer sees the rest: `tox run -e native` runs this
folder.
"""

from __future__ import annotations

import itertools

import attention_cases
import conv_cases
import elementwise_cases
import gemm_cases
import index_cases
import movement_cases
import norm_cases
import own_gemm_cases
import pytest
import quantize_cases
import recurrent_cases
import reduce_cases
import tree_cases
import xnn_cases
from edge_kit import EDGES, pairwise

from narrowpass_xnn_cpu.native import calls

FAMILIES = (
    quantize_cases,
    elementwise_cases,
    norm_cases,
    reduce_cases,
    movement_cases,
    index_cases,
    attention_cases,
    xnn_cases,
    gemm_cases,
    own_gemm_cases,
    conv_cases,
    recurrent_cases,
    tree_cases,
)


def test_every_kernel_has_a_case():
    """A new row of the table of kernels cannot come without."""
    tested = [call for family in FAMILIES for call in family.CASES]
    assert len(tested) == len(set(tested))
    assert set(tested) == set(calls.table())


def test_sanitizers_run_every_case():
    """`NARROWPASS_TEST_CASES` is 12 there: more cases of one test would be left out."""
    assert max(len(family.CASES) for family in FAMILIES) <= 12


def test_sizes_are_combined_pairwise():
    sizes = {"a": EDGES, "b": range(7), "c": "xyz", "d": (False, True), "e": range(11), "f": [0]}
    found = list(pairwise(sizes))
    for one, other in itertools.combinations(sizes, 2):
        pairs = {(chosen[one], chosen[other]) for chosen in found}
        assert pairs == set(itertools.product(sizes[one], sizes[other]))


def test_edges():
    """Of tiles of 16, 32 and 64; 0 too, and nothing below."""
    assert {0, 1, 15, 16, 17, 47, 49, 63, 64, 65, 127, 128, 129, 191, 192, 193} <= set(EDGES)
    assert min(EDGES) == 0


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


@pytest.mark.parametrize("call", attention_cases.CASES)
def test_attention(call):
    attention_cases.CASES.run(call)


@pytest.mark.parametrize("call", xnn_cases.CASES)
def test_xnn(call):
    xnn_cases.CASES.run(call)


@pytest.mark.parametrize("call", gemm_cases.CASES)
def test_gemm(call):
    gemm_cases.CASES.run(call)


@pytest.mark.parametrize("call", own_gemm_cases.CASES)
def test_own_gemm(call):
    own_gemm_cases.CASES.run(call)


@pytest.mark.parametrize("call", conv_cases.CASES)
def test_conv(call):
    conv_cases.CASES.run(call)


@pytest.mark.parametrize("call", recurrent_cases.CASES)
def test_recurrent(call):
    recurrent_cases.CASES.run(call)


@pytest.mark.parametrize("call", tree_cases.CASES)
def test_trees(call):
    tree_cases.CASES.run(call)


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_all_combinations(family):
    for call in family.CASES:
        family.CASES.run(call, every=True)
