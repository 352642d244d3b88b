"""Each kernel has the same bits with every instruction set: `test_edges`' cases at each level.

A sample of the combinations; all pairwise ones in the test marked `long`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_edges import FAMILIES

from narrowpass_xnn_cpu.backend import XnnCpuBackend
from narrowpass_xnn_cpu.native import isa

pytestmark = pytest.mark.anywhere

STRIDE = 7
"""Of so many combinations one is in the sample."""

OTHERWISE = {
    "NP_BF16_CONVOLUTION": "tiles of AMX add pairs of bfloat16, other instruction sets one by one",
    "NP_FULLY_CONNECTED_BF16": "XNNPACK's kernels of AVX512-BF16 add pairs of bfloat16",
}
"""Kernels that have other bits with some instruction sets, and why. None of them multiplies int8 or
4 bits by int8."""

UNFUSED = (
    "NP_CONVOLUTION",
    "NP_DECONVOLUTION",
    "NP_FULLY_CONNECTED",
    "NP_FULLY_CONNECTED_INT8",
    "NP_FULLY_CONNECTED_INT8_ROWS",
    "NP_FULLY_CONNECTED_S8_F32",
)
"""Kernels of XNNPACK, which round twice without FMA. At ``plain`` our kernels stand in for them,
but for some transposed convolutions."""


def test_reasons_are_of_kernels():
    known = {call for family in FAMILIES for call in family.CASES}
    assert {*OTHERWISE, *UNFUSED} <= known


def print_digests(stride):
    """Print a digest of each combination's results, at the level in use."""
    found = {}
    for family in FAMILIES:
        found.update(family.CASES.digests(stride))
    print(json.dumps(found))


def digests(level, stride):
    here = Path(__file__).resolve().parent
    code = f"import sys; sys.path[:0] = {[str(here), str(here.parent / 'kits')]}; "
    code += f"import test_levels; test_levels.print_digests({stride})"
    environment = {**os.environ, isa.VARIABLE: level}
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def compare_levels(stride):
    levels = [*XnnCpuBackend().instruction_sets()]
    if len(levels) < 2:
        pytest.skip("the processor has no instruction set beyond the plain ones")
    expected = digests(levels[-1], stride)
    for level in levels[:-1]:
        found = digests(level, stride)
        assert found.keys() == expected.keys()
        both = [name for name in expected if found[name] and expected[name]]
        otherwise = {*OTHERWISE, *(UNFUSED if level == "plain" else ())}
        different = [
            name
            for name in both
            if found[name] != expected[name] and name.split()[0] not in otherwise
        ]
        assert not different, f"{level} and {levels[-1]}: {len(different)}, {different[:20]}"


def test_every_instruction_set_has_the_same_bits():
    compare_levels(STRIDE)


@pytest.mark.long
def test_so_it_has_with_all_combinations():
    compare_levels(1)
