"""The bits of a row: the same alone and beside others, with any threads, on any processor.

Tiles of AMX multiply many rows of weights of 4 bits in bfloat16, unless the backend is
deterministic. Levels below AVX2 have no FMA, which rounds once where they round twice: the results
of floating-point kernels differ there.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from row_models_kit import MODELS, floats, nbits

import narrowpass
from narrowpass_xnn_cpu.backend import XnnCpuBackend
from narrowpass_xnn_cpu.native import isa
from narrowpass_xnn_cpu.native.library import extension

pytestmark = pytest.mark.once

ROWS = 70
COUNTS = (2, 3, 4, 5, 7, 8, 12, 13, 16, 20, 31, 32, 33, 64, 70)
BACKEND = "xnn-cpu{deterministic=true}"
BLOCKS = {
    f"{bits} bits in blocks of {block}": lambda rng, b=bits, s=block: nbits(rng, b, s)
    for bits, block in [(2, 16), (4, 16), (4, 128), (4, 512), (8, 32), (8, 512)]
}
ALL = {**MODELS, **BLOCKS}


def model_and_rows(name):
    rng = np.random.default_rng(list(name.encode()))
    model = ALL[name](rng)
    return model, floats(rng, ROWS, model.graph.input[0].type.tensor_type.shape.dim[1].dim_value)


def alone(program, x):
    return np.concatenate([program.run({"x": row[None]})["y"] for row in x])


@pytest.mark.parametrize("name", ALL)
def test_a_row_has_the_same_bits_beside_others(name):
    model, x = model_and_rows(name)
    expected = None
    for threads in (1, 3):
        with narrowpass.load(model, BACKEND, threads=threads, cache=False) as program:
            found = alone(program, x)
            expected = found if expected is None else expected
            np.testing.assert_array_equal(found, expected, err_msg=f"{threads} threads, alone")
            for count in COUNTS:
                for first in (0, ROWS - count):
                    rows = slice(first, first + count)
                    found = program.run({"x": x[rows]})["y"]
                    text = f"{threads} threads, {count} rows from {first} on"
                    np.testing.assert_array_equal(found, expected[rows], err_msg=text)


@pytest.mark.parametrize("name", [name for name in ALL if name != "nbits_rows"])
def test_so_does_a_backend_with_default_options(name):
    model, x = model_and_rows(name)
    with narrowpass.load(model, "xnn-cpu", threads=2, cache=False) as program:
        np.testing.assert_array_equal(program.run({"x": x})["y"], alone(program, x))


def test_only_tiles_round_rows_of_4_bits():
    """What `deterministic` is for: without it many rows are bfloat16 where there are tiles."""
    model, x = model_and_rows("nbits_rows")
    with narrowpass.load(model, "xnn-cpu", cache=False) as program:
        same = np.array_equal(program.run({"x": x})["y"], alone(program, x))
    assert same == (isa.in_use(extension().lib) != "avx512amx")


def digests():
    """Print a digest of the results of each model, for the level that is in use."""
    found = {}
    for name in ALL:
        model, x = model_and_rows(name)
        with narrowpass.load(model, BACKEND, threads=2, cache=False) as program:
            found[name] = hashlib.sha256(program.run({"x": x})["y"].tobytes()).hexdigest()
    print(json.dumps(found))


def test_every_instruction_set_from_avx2_on_has_the_same_bits():
    levels = [*XnnCpuBackend().instruction_sets()][1:]
    if len(levels) < 2:
        pytest.skip("the processor has no instruction set beyond AVX2")
    tests = Path(__file__).resolve().parent
    code = f"import sys; sys.path[:0] = {[str(tests), str(tests.parent / 'kits')]}; "
    command = [sys.executable, "-c", f"{code}import test_same_bits; test_same_bits.digests()"]
    found = {}
    for level in levels:
        environment = {**os.environ, isa.VARIABLE: level}
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr
        found[level] = json.loads(run.stdout)
    for level in levels[1:]:
        different = [name for name in ALL if found[level][name] != found[levels[0]][name]]
        assert not different, f"{level} and {levels[0]}: {different}"
