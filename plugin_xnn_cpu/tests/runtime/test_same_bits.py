"""The bits of a row: the same alone and beside others, with any threads, on any processor.

Tiles of AMX multiply many rows of weights of 4 bits in bfloat16, unless the backend is
deterministic. Levels of x86-64 below AVX2 have no FMA, which rounds once where a multiplication and
an addition round twice: the results of float32 kernels differ there. Those of int8 and 4 bits are
rounded once there, too.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from row_models_kit import MODELS, floats, nbits, row_functions

import narrowpass
from narrowpass_xnn_cpu.backend import XnnCpuBackend
from narrowpass_xnn_cpu.native import isa
from narrowpass_xnn_cpu.native.library import extension

ROWS = 70
COUNTS = (2, 3, 4, 5, 7, 8, 12, 13, 16, 20, 31, 32, 33, 64, 70)
BACKEND = "xnn-cpu{deterministic=true}"
BLOCKS = {
    f"{bits} bits in blocks of {block}": lambda rng, b=bits, s=block: nbits(rng, b, s)
    for bits, block in [(2, 16), (4, 16), (4, 128), (4, 512), (8, 32), (8, 512)]
}
ALL = {**MODELS, **BLOCKS, "row functions": row_functions}


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


COMPUTED = """
<ir_version: 9, opset_import: ["" : 20]>
computed (float[N, K] a, float[K, M] b) => (float[N, M] y) { y = MatMul (a, b) }
"""


SCALED = """
<ir_version: 9, opset_import: ["" : 20]>
scaled (float[N, K] a, float[M, K] b, float[M] c) => (float[N, M] y)
{ y = Gemm <alpha = 0.3, transB = 1> (a, b, c) }
"""
SIZES = [(4, 33), (8, 2), (64, 16), (70, 5), (250, 130), (700, 9), (1000, 70), (90, 1), (9, 1)]


@pytest.mark.parametrize(("depth", "columns"), SIZES)
@pytest.mark.parametrize("text", [COMPUTED, SCALED], ids=["matmul", "alpha, transposed"])
def test_so_does_a_matmul_of_computed_operands(text, depth, columns):
    rng = np.random.default_rng(depth)
    a, b = floats(rng, ROWS, depth), floats(rng, depth, columns)
    others = {"b": b} if text is COMPUTED else {"b": b.T.copy(), "c": floats(rng, columns)}
    model, expected = onnx.parser.parse_model(text), None
    for threads in (1, 2, 3):
        with narrowpass.load(model, BACKEND, threads=threads, cache=False) as program:
            alone = np.concatenate([program.run({"a": row[None], **others})["y"] for row in a])
            expected = alone if expected is None else expected
            for count in COUNTS:
                found = program.run({"a": a[:count], **others})["y"]
                text = f"{count} rows on {threads} threads"
                np.testing.assert_array_equal(found, expected[:count], err_msg=text)


BROADCAST = """
<ir_version: 9, opset_import: ["" : 20]>
broadcast (float[N, 40] a, float[M, 30] c) => (float[P, 30] y)
{
    m = MatMul (a, b)
    s = Add (m, c)
    y = Relu (s)
}
"""


def test_so_does_a_matmul_with_a_row_that_is_added():
    """Alone, a row has the shape of what is added: a kernel could add it to its accumulators."""
    rng = np.random.default_rng(8)
    model = onnx.parser.parse_model(BROADCAST)
    model.graph.initializer.append(numpy_helper.from_array(floats(rng, 40, 30), "b"))
    a, c = floats(rng, ROWS, 40), floats(rng, 1, 30)
    with narrowpass.load(model, BACKEND, threads=1, cache=False) as program:
        expected = program.run({"a": a, "c": c})["y"]
        alone = [program.run({"a": row[None], "c": c})["y"] for row in a]
        np.testing.assert_array_equal(np.concatenate(alone), expected)


ATTENTION = """
<ir_version: 9, opset_import: ["" : 20]>
attention (float[B, H, N, D] q, float[B, H, M, D] k, float[B, H, M, D] v) => (float[B, H, N, D] y)
{
    scale = Constant <value_float = 0.2> ()
    kt = Transpose <perm = [0, 1, 3, 2]> (k)
    s = MatMul (q, kt)
    t = Mul (s, scale)
    p = Softmax (t)
    y = MatMul (p, v)
}
"""


@pytest.mark.parametrize("depth", [8, 20, 64])
@pytest.mark.parametrize(
    ("backend", "keys"),
    [*((BACKEND, keys) for keys in (3, 17, 100)), *(("xnn-cpu", keys) for keys in (3, 17, 63))],
)
def test_so_does_attention(backend, keys, depth):
    """Without the option fewer than 4 query rows of 64 keys and more are multiplied otherwise."""
    rng, expected = np.random.default_rng(depth), None
    q, k, v = (floats(rng, 2 * rows, depth).reshape(1, 2, rows, depth) for rows in (70, keys, keys))
    for threads in (1, 3):
        model = onnx.parser.parse_model(ATTENTION)
        with narrowpass.load(model, backend, threads=threads, cache=False) as program:
            assert any("attention" in plan.kernel for plan in program.explain())
            for count in (70, 1, 2, 3, 4, 5, 12, 13, 25, 33, 69):
                found = program.run({"q": q[:, :, :count], "k": k, "v": v})["y"]
                expected = found if expected is None else expected
                text = f"{count} rows on {threads} threads"
                np.testing.assert_array_equal(found, expected[:, :, :count], err_msg=text)


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


@functools.cache
def level_digests(level):
    tests = Path(__file__).resolve().parent
    code = f"import sys; sys.path[:0] = {[str(tests), str(tests.parent / 'kits')]}; "
    command = [sys.executable, "-c", f"{code}import test_same_bits; test_same_bits.digests()"]
    environment = {**os.environ, isa.VARIABLE: level}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.mark.anywhere
def test_every_instruction_set_has_the_same_bits():
    levels = [*XnnCpuBackend().instruction_sets()]
    if len(levels) < 2:
        pytest.skip("the processor has no instruction set beyond the plain ones")
    found = {level: level_digests(level) for level in levels}
    for level in levels[1:]:
        different = [name for name in ALL if found[level][name] != found[levels[0]][name]]
        assert not different, f"{level} and {levels[0]}: {different}"


ENCODER = """
<ir_version: 9, opset_import: ["" : 20]>
encoder (float[N, T, 32] x, float[N, 1, T] mask) => (float[N, T, 32] y)
<float[32, 32] wq, float[32, 32] wk, float[32, 32] wv, float[32] scale>
{
    q = MatMul (x, wq)
    k = MatMul (x, wk)
    v = MatMul (x, wv)
    kt = Transpose <perm = [0, 2, 1]> (k)
    s = MatMul (q, kt)
    m = Add (s, mask)
    p = Softmax (m)
    a = MatMul (p, v)
    r = Add (a, x)
    y = LayerNormalization (r, scale)
}
"""


def encoder():
    rng = np.random.default_rng(3)
    proto = onnx.parser.parse_model(ENCODER)
    del proto.graph.value_info[:]
    for name in ("wq", "wk", "wv"):
        proto.graph.initializer.append(numpy_helper.from_array(0.3 * floats(rng, 32, 32), name))
    proto.graph.initializer.append(numpy_helper.from_array(np.ones(32, np.float32), "scale"))
    return proto


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("length", [1, 5, 16, 33, 70])
def test_padding_that_a_mask_hides_changes_no_bits(threads, length):
    x = floats(np.random.default_rng(length), 2 * length, 32).reshape(2, length, 32)
    with narrowpass.load(encoder(), BACKEND, threads=threads, cache=False) as program:
        expected = program.run({"x": x, "mask": np.zeros((2, 1, length), np.float32)})["y"]
        for more in (1, 3, 16, 40):
            padded = np.pad(x, ((0, 0), (0, more), (0, 0)), constant_values=0.5)
            mask = np.zeros((2, 1, length + more), np.float32)
            mask[:, :, length:] = -1e9
            found = program.run({"x": padded, "mask": mask})["y"][:, :length]
            np.testing.assert_array_equal(found, expected, err_msg=f"{more} columns")


@pytest.mark.anywhere
def test_compare_across_instruction_sets(tmp_path):
    onnx.save(encoder(), tmp_path / "encoder.onnx")
    shapes = ["--shape", "x=2x9x32", "--shape", "mask=2x1x9"]
    command = [sys.executable, "-m", "narrowpass", "compare", str(tmp_path / "encoder.onnx")]
    command += ["--backend", "xnn-cpu", "--across", "isa", "--json", *shapes]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    found = json.loads(run.stdout)
    assert run.returncode == (0 if found["same"] else 1), run.stderr
    levels = [*XnnCpuBackend().instruction_sets()]
    assert [case["case"] for case in found["cases"]] == levels
    assert found["cases"][-1]["same"]  # the processor's own
    assert all(case["relative"] < 1e-5 for case in found["cases"])
