"""Rotary embedding as one operation: the kernel, and the forms that exporters write."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import parser
from xnn_kit import check, close, compile_model

from narrowpass.errors import BackendError
from narrowpass_planning.plan.executor import Entry
from narrowpass_xnn_cpu.native import attention_params
from narrowpass_xnn_cpu.native.runtime.pool import ThreadPool
from narrowpass_xnn_cpu.native.runtime.tape import Tape


def turned(x, cosines, sines, rotated, interleaved):
    """The definition, in float64."""
    x, cosines, sines = (np.asarray(array, np.float64) for array in (x, cosines, sines))
    half = rotated // 2
    first = np.arange(0, rotated, 2) if interleaved else np.arange(half)
    second = first + 1 if interleaved else first + half
    if cosines.shape[-1] == half:
        spread = np.empty(rotated, int)
        spread[first], spread[second] = np.arange(half), np.arange(half)
        cosines, sines = cosines[..., spread], sines[..., spread]
    shape = np.broadcast_shapes(x.shape[:-1], cosines.shape[:-1], sines.shape[:-1])
    result = np.broadcast_to(x, (*shape, x.shape[-1])).copy()
    a, b = x[..., first], x[..., second]
    result[..., first] = a * cosines[..., first] - b * sines[..., first]
    result[..., second] = b * cosines[..., second] + a * sines[..., second]
    return result


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    sizes=st.tuples(st.integers(1, 3), st.integers(1, 4), st.sampled_from([1, 2, 5, 40])),
    half=st.sampled_from([1, 2, 3, 4, 8, 16, 31, 32, 63, 64, 65, 128, 200]),
    rest=st.sampled_from([0, 1, 7, 64]),
    interleaved=st.booleans(),
    halved=st.booleans(),
    in_place=st.booleans(),
    threads=st.sampled_from([1, 2]),
    seed=st.integers(0, 1000),
)
def test_kernel_against_numpy(sizes, half, rest, interleaved, halved, in_place, threads, seed):
    rng = np.random.default_rng(seed)
    depth, width = 2 * half + rest, half if halved else 2 * half
    x = rng.standard_normal((*sizes, depth)).astype(np.float32)
    tables = rng.standard_normal((2, sizes[2], width)).astype(np.float32)
    expected = turned(x, tables[0], tables[1], 2 * half, interleaved)
    steps = [sizes[1] * sizes[2] * depth, sizes[2] * depth, depth]
    params = attention_params.rotary(
        sizes=sizes,
        depth=depth,
        rotated=2 * half,
        strides=[steps, [0, 0, width], [0, 0, width], steps],
        interleaved=interleaved,
        halved=halved,
    )
    out = x if in_place else np.full_like(x, np.nan)
    tape = Tape([Entry("NP_ROTARY", (0, 1, 2), 3, None, params, True, "rotary")], 4)
    for number, array in enumerate((x, tables[0], tables[1], out)):
        tape.bind(number, array)
    tape.run(ThreadPool(threads, spin=False))
    # Two multiplications and an addition of float32 numbers up to 5, each rounded once.
    np.testing.assert_allclose(out, expected, rtol=0, atol=5e-6)


@pytest.mark.parametrize("rotated", [3, -2, 18])
def test_operands_that_are_no_pairs_are_refused(rotated):
    with pytest.raises(BackendError, match="rotated in pairs"):
        attention_params.rotary(
            sizes=(1, 1, 1),
            depth=16,
            rotated=rotated,
            strides=[[0] * 3] * 4,
            interleaved=False,
            halved=False,
        )


HALVES = {
    "Slice": """a = Slice(x, zero, half, last, one) b = Slice(x, half, most, last, one)""",
    "Split": """a, b = Split<axis = -1>(x, halves)""",
}
JOINED = "n = Neg(b) r = Concat<axis = -1>(n, a)"
NEIGHBOURS = """a = Slice(x, zero, most, last, two) b = Slice(x, one, most, last, two) n = Neg(b)
    n1 = Unsqueeze(n, end) a1 = Unsqueeze(a, end) s = Concat<axis = -1>(n1, a1)
    r = Reshape(s, flat)"""
ADDITIONS = {
    "first": "u = Mul(x, cos) v = Mul(r, sin) y = Add(u, v)",
    "turned around": "u = Mul(cos, x) v = Mul(sin, r) y = Add(v, u)",
}
CONSTANTS = """int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] half = {8},
    int64[1] most = {9223372036854775807}, int64[1] last = {3}, int64[2] halves = {8, 8},
    int64[1] end = {-1}, int64[4] flat = {0, 0, 0, 16}, int64[4] wide = {0, 0, 5, 16},
    int64[4] split = {0, 0, -1, 16},
    int64[1] whole = {24}, int64[1] turn = {16}"""


def model_of(body, x="float[b, h, n, 16] x", table="b, 1, n, 16", y="float[b, h, n, 16] y"):
    text = f"""<ir_version: 9, opset_import: ["": 18]>
    g ({x}, float[{table}] cos, float[{table}] sin) => ({y})
    <{CONSTANTS}> {{ {body} }}"""
    return onnx.shape_inference.infer_shapes(parser.parse_model(text), data_prop=True)


def given_for(table, depth=16, x=(2, 3, 5, 16), seed=0):
    rng = np.random.default_rng(seed)
    sizes = {"b": 2, "1": 1, "n": 5, "16": 16, "h": 3}
    shape = [sizes[dim] for dim in table.split(", ")]
    names = {"x": x, "cos": shape, "sin": shape}
    return {name: rng.standard_normal(dims).astype(np.float32) for name, dims in names.items()}


def kernels_of(program):
    return {plan.kernel for plan in program.explain()}


@pytest.mark.parametrize("halves", HALVES)
@pytest.mark.parametrize("addition", ADDITIONS)
@pytest.mark.parametrize("table", ["b, 1, n, 16", "n, 16", "1, 1, n, 16", "1, 16"])
def test_rotation_of_halves_is_one_step(halves, addition, table):
    model = model_of(f"{HALVES[halves]} {JOINED} {ADDITIONS[addition]}", table=table)
    program = check(model, given_for(table))
    assert kernels_of(program) == {"rotary"}


@pytest.mark.parametrize("addition", ADDITIONS)
def test_rotation_of_pairs_is_one_step(addition):
    program = check(model_of(f"{NEIGHBOURS} {ADDITIONS[addition]}"), given_for("b, 1, n, 16"))
    assert kernels_of(program) == {"rotary"}


@pytest.mark.parametrize("form", ["halves", "neighbours"])
def test_the_start_of_rows_alone(form):
    """24 numbers in a row, 16 of which are turned."""
    body = NEIGHBOURS if form == "neighbours" else f"{HALVES['Slice']} {JOINED}"
    body = f"""x = Slice(w, zero, turn, last, one) rest = Slice(w, turn, most, last, one) {body}
        u = Mul(x, cos) v = Mul(r, sin) t = Add(u, v) y = Concat<axis = -1>(t, rest)"""
    model = model_of(body, x="float[b, h, n, 24] w", y="float[b, h, n, 24] y")
    feeds = given_for("b, 1, n, 16", x=(2, 3, 5, 24))
    feeds["w"] = feeds.pop("x")
    program = check(model, feeds)
    assert kernels_of(program) == {"rotary"}


def test_heads_stay_where_they_are():
    """Rows of a projection that are cut into heads: nothing is moved but what is given."""
    body = f"""x0 = Reshape(p, split) x = Transpose<perm = [0, 2, 1, 3]>(x0)
        {HALVES["Slice"]} {JOINED} u = Mul(x, cos) v = Mul(r, sin) t = Add(u, v)
        y = Transpose<perm = [0, 2, 1, 3]>(t)"""
    model = model_of(body, x="float[b, n, w] p", y="float[b, n, h, 16] y")
    feeds = given_for("b, 1, n, 16", x=(2, 5, 48))
    feeds["p"] = feeds.pop("x")
    program = check(model, feeds)
    assert [row.kernel for row in program.profile(feeds, runs=1)] == ["rotary"]


def test_narrow_floats():
    text = f"""<ir_version: 9, opset_import: ["": 18]>
    g (float16[b, h, n, 16] x, float16[n, 16] cos, float16[n, 16] sin) => (float16[b, h, n, 16] y)
    <{CONSTANTS}> {{ {HALVES["Slice"]} {JOINED} {ADDITIONS["first"]} }}"""
    model = onnx.shape_inference.infer_shapes(parser.parse_model(text), data_prop=True)
    feeds = {name: array.astype(np.float16) for name, array in given_for("n, 16").items()}
    program = compile_model(model)
    names = "x", "cos", "sin"
    expected = turned(*(feeds[name] for name in names), 16, False)
    # Rounded once, to float16: half a unit in the last place of numbers up to 8.
    close(program.run(feeds)["y"], expected.astype(np.float16), tolerance=1e-3)
    assert kernels_of(program) == {"rotary in float32"}


NOT_ONE = {
    "the other half is negated": "n = Neg(a) r = Concat<axis = -1>(b, n)",
    "halves stay": "n = Neg(a) r = Concat<axis = -1>(n, b)",
    "along another axis": "n = Neg(b) r0 = Concat<axis = 2>(n, a) r = Reshape(r0, wide)",
    "it is read": "n = Neg(b) r = Concat<axis = -1>(n, a) z = Relu(r)",
}


@pytest.mark.parametrize("name", NOT_ONE)
def test_near_misses_are_not_fused(name):
    y = "float[b, h, n, 16] y" + (", float[b, h, n, 16] z" if name == "it is read" else "")
    body = f"{HALVES['Slice']} {NOT_ONE[name]} {ADDITIONS['first']}"
    program = check(model_of(body, y=y), given_for("b, 1, n, 16"))
    assert "rotary" not in kernels_of(program)
