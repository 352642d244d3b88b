"""Sessions whose KV caches are float16, bfloat16 or int8, beside numpy on rows narrowed by hand."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from xnn_kit import compile_model

import narrowpass
from narrowpass.errors import BackendError, DataError, UsageError
from narrowpass_planning.state.session import AppendingSession
from narrowpass_xnn_cpu.native import attention_params, kernels, target

CHUNK = 512
"""``NP_CACHE_CHUNK``: rows that are attended at a time."""

DTYPES = ("float16", "bfloat16", "int8")
TARGETS = ("best", "avx512", "avx2", "plain")

TEXT = """
<ir_version: 9, opset_import: ["" : 18]>
attend (float[B, H, S, D] q, float[B, G, S, D] k, float[B, G, S, E] v, float[S, T] mask,
        float[B, G, P, D] past_k, float[B, G, P, E] past_v)
    => (float[B, H, S, E] y, float[B, G, T, D] all_k, float[B, G, T, E] all_v)
    <int64[1] two = {2}, int64[2] groups = {G, N}, int64[1] heads = {H}, int64[1] depth = {D},
     int64[1] values = {E}, float scale = {SCALE}> {
    all_k = Concat <axis = 2> (past_k, k)
    all_v = Concat <axis = 2> (past_v, v)
    ku = Unsqueeze(all_k, two)
    vu = Unsqueeze(all_v, two)
    first = Shape <start = 0, end = 1> (all_k)
    rows = Shape <start = 2, end = 3> (all_k)
    spread_k = Concat <axis = 0> (first, groups, rows, depth)
    spread_v = Concat <axis = 0> (first, groups, rows, values)
    heads_k = Concat <axis = 0> (first, heads, rows, depth)
    heads_v = Concat <axis = 0> (first, heads, rows, values)
    ke = Expand(ku, spread_k)
    kh = Reshape(ke, heads_k)
    ve = Expand(vu, spread_v)
    vh = Reshape(ve, heads_v)
    t = Transpose <perm = [0, 1, 3, 2]> (kh)
    s0 = MatMul(q, t)
    s1 = Mul(s0, scale)
    s2 = Add(s1, mask)
    p = Softmax <axis = -1> (s2)
    y = MatMul(p, vh)
}
"""


class Case:
    """Attention of `heads` query heads over `groups` heads of keys and values."""

    def __init__(self, heads: int, groups: int, depth: int, values: int, batch: int = 1) -> None:
        self.heads, self.groups, self.depth, self.values = heads, groups, depth, values
        self.batch = batch
        text = TEXT.replace("SCALE", repr(depth**-0.5))
        for name, size in zip(
            "HGNDE", (heads, groups, heads // groups, depth, values), strict=True
        ):
            for before, after in ((f" {name},", f" {size},"), (f"{{{name}", f"{{{size}")):
                text = text.replace(before, after)
            text = text.replace(f"{name}]", f"{size}]").replace(f" {name}}}", f" {size}}}")
        self.text = text
        self.model = onnx.parser.parse_model(text)

    def caches(self, rows: int, seed: int = 0) -> dict[str, np.ndarray]:
        """Return rows of which some have far larger elements than others."""
        rng = np.random.default_rng(seed)
        found = {}
        for name, width in (("past_k", self.depth), ("past_v", self.values)):
            shape = self.batch, self.groups, rows, width
            sizes = np.exp(rng.standard_normal((*shape[:3], 1)))
            found[name] = (rng.standard_normal(shape) * sizes).astype(np.float32)
        return found

    def feeds(self, rows: int, past: int, seed: int = 1) -> dict[str, np.ndarray]:
        """Return feeds without caches; a row sees those before it, and not all of them."""
        rng = np.random.default_rng(seed)
        found = {}
        for name, heads, width in (
            ("q", self.heads, self.depth),
            ("k", self.groups, self.depth),
            ("v", self.groups, self.values),
        ):
            shape = self.batch, heads, rows, width
            found[name] = rng.standard_normal(shape).astype(np.float32)
        seen = np.arange(past + rows)[None] <= past + np.arange(rows)[:, None]
        mask = np.where(seen, rng.standard_normal(seen.shape), -np.inf).astype(np.float32)
        if past > CHUNK:
            mask[:, :CHUNK] = -np.inf  # a chunk of which nothing is seen
        return {**found, "mask": mask}

    def wanted(self, feeds: dict[str, np.ndarray], caches: dict[str, np.ndarray], dtype: str):
        """Return the result of float64 over caches that are rounded to a type.

        With it the bound of the error where attention rounds queries, keys, weights and values to
        bfloat16, by half a unit each, 2^-9: a twentieth more for terms of higher order.
        """
        k, v = (rounded(np.concatenate([caches[f"past_{x}"], feeds[x]], 2), dtype) for x in "kv")
        k, v = (np.repeat(x.astype(np.float64), self.heads // self.groups, 1) for x in (k, v))
        scores = feeds["q"].astype(np.float64) @ k.swapaxes(2, 3) * self.depth**-0.5
        scores += feeds["mask"]
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        terms = np.abs(feeds["q"]) @ np.abs(k).swapaxes(2, 3) * self.depth**-0.5
        off = 2 * 2.0**-9 * np.where(np.isfinite(scores), terms, 0.0)
        off += (weights * off).sum(-1, keepdims=True) + 2 * 2.0**-9
        bound = 1.05 * (weights * off) @ np.abs(v) + 2e-5 * np.abs(v).max()
        return weights @ v, bound


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """Return float32 values as a cache of `dtype` has them."""
    if dtype == "float16":
        return values.astype(np.float16).astype(np.float32)
    if dtype == "bfloat16":
        return values.astype(ml_dtypes.bfloat16).astype(np.float32)
    if dtype == "float32":
        return values
    largest = np.abs(values).max(-1, keepdims=True)
    return np.rint(values * (np.float32(127) / largest)) * (largest / np.float32(127))


def assert_close(found: np.ndarray, wanted: np.ndarray) -> None:
    """Compare float32 accumulators: some tens of epsilon of the largest element."""
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())


def is_rounded(rows: int, dtype: str) -> bool:
    """Return whether operands of attention are rounded to bfloat16: prompts, by tiles."""
    tiles = target.current().has_amx and dtype in ("bfloat16", "int8")
    return tiles and rows > attention_params.MOST_UNROUNDED_ROWS


LENGTHS = (0, 1, 15, CHUNK - 2, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK - 2, 2 * CHUNK, 1500)
SHAPES = {
    "alone": (2, 2, 64, 64),
    "grouped": (9, 3, 64, 64),
    "one": (12, 1, 32, 48),  # all heads share keys
    "odd": (4, 2, 22, 7),
    "wide": (2, 1, 136, 136),
}


@pytest.mark.parametrize("dtype", ["float32", *DTYPES])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("target", TARGETS)
def test_tokens_and_prompts(target, shape, dtype, monkeypatch):
    """Tokens after each number of rows, and a prompt: what comes out is that of rounded rows."""
    monkeypatch.setattr(kernels, "TARGET", target)
    case = Case(*SHAPES[shape], batch=2 if shape == "odd" else 1)
    with compile_model(case.model, threads=2) as program, program.session(dtype) as session:
        assert isinstance(session, AppendingSession), session.reason
        for length in LENGTHS:
            for rows in (1, 3, 50) if length in (0, 15, 1500) else (1,):
                caches = case.caches(length)
                session.restore(caches if length else {})
                feeds = case.feeds(rows, length)
                found = session.run(feeds)["y"]
                wanted, bound = case.wanted(feeds, caches, dtype)
                if is_rounded(rows, dtype):
                    assert np.all(np.abs(found - wanted) <= bound)
                else:
                    assert_close(found, wanted)
                assert session.length == length + rows


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS)
def test_appended_rows_have_the_bits_of_narrowed_ones(target, dtype, monkeypatch):
    """Zeros, subnormal, huge and infinite elements too; what is read back is what was rounded."""
    monkeypatch.setattr(kernels, "TARGET", target)
    case = Case(4, 2, 24, 24)
    feeds = case.feeds(70, 0)
    for rows in (feeds["k"], feeds["v"]):
        rows[0, 0, 0] = 0.0
        rows[0, 0, 1] *= 1e-41
        rows[0, 0, 2] *= 1e-6  # subnormal in float16
        rows[0, 0, 3] = np.linspace(-2.5, 2.5, 24)  # halves are rounded to even
        rows[0, 0, 4] *= 60_000
    with compile_model(case.model) as program, program.session(dtype) as session:
        session.run(feeds)
        values = session.values()
        other = program.session(dtype)
        other.restore({"past_k": feeds["k"], "past_v": feeds["v"]})
        for name in ("past_k", "past_v"):
            with np.errstate(all="ignore"):
                wanted = rounded(feeds[name[-1]], dtype)
            if dtype == "int8":
                wanted[0, 0, :2] = 0.0  # of no scale
            np.testing.assert_array_equal(values[name], wanted)
            np.testing.assert_array_equal(values[name], other.values()[name])
        (buffers, others) = session._buffers, other._buffers
        for name in ("past_k", "past_v"):
            own, given = (each.stored_rows(name, 70) for each in (buffers, others))
            np.testing.assert_array_equal(own.elements, given.elements)
            if dtype == "int8":
                np.testing.assert_array_equal(own.scales, given.scales)


def test_rows_that_are_not_finite_yield_nan():
    """A row of int8 with an infinite element has no scale; others keep theirs."""
    case = Case(2, 2, 16, 16)
    feeds = case.feeds(3, 0)
    feeds["v"][0, 0, 1, 5] = np.inf
    with compile_model(case.model) as program, program.session("int8") as session:
        found = session.run(feeds)["y"]
        assert np.isfinite(found[0, 1]).all()
        assert np.isnan(found[0, 0, 1:]).all()
        assert np.isnan(session.values()["past_v"][0, 0, 1]).all()


BOUNDS = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "int8": 1 / 254}
"""The largest rounding error: relative to an element, or to the largest of a row for int8."""


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_error_is_that_of_rounding(dtype):
    """Beside caches of float32, and never more than the type's epsilon allows.

    Keys that are off by e of their row move a score by e · |q|₁ · max |k| · scale; weights by twice
    that, relatively; values by e of their largest.
    """
    case = Case(4, 2, 64, 64)
    caches, feeds = case.caches(700), case.feeds(1, 700)
    with compile_model(case.model) as program:
        results = {}
        for each in ("float32", dtype):
            session = program.session(each)
            session.restore(caches)
            results[each] = session.run(feeds)["y"]
    error = np.abs(results[dtype] - results["float32"]).max()
    keys, values = (max(np.abs(caches[f"past_{x}"]).max(), np.abs(feeds[x]).max()) for x in "kv")
    moved = BOUNDS[dtype] * np.abs(feeds["q"]).sum(-1).max() * keys * 64**-0.5
    assert 0 < error <= values * (2 * moved + BOUNDS[dtype])


@pytest.mark.parametrize("dtype", ["float32", *DTYPES])
def test_the_number_of_threads_changes_no_bit(dtype):
    case = Case(6, 2, 64, 64)
    results = []
    for threads in (1, 2, 3):
        with compile_model(case.model, threads=threads) as program:
            session = program.session(dtype)
            session.restore(case.caches(5000))
            results.append([session.run(case.feeds(1, 5000 + n, n))["y"] for n in range(2)])
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


@pytest.mark.parametrize("dtype", DTYPES)
def test_forks_rewinds_growth_and_files(dtype, tmp_path):
    """All go on with the same bits; a file keeps the rows as they are stored."""
    case = Case(4, 2, 16, 24)

    def run(session: narrowpass.Session, seeds: range) -> list[np.ndarray]:
        return [session.run(case.feeds(1, session.length, seed))["y"] for seed in seeds]

    with compile_model(case.model) as program:
        straight = program.session(dtype)
        straight.run(case.feeds(250, 0))
        wanted = run(straight, range(12))
        assert straight.length == 262  # more than the first buffers have room for
        session = program.session(dtype)
        session.run(case.feeds(250, 0))
        run(session, range(6))
        fork = session.fork()
        assert fork.cache_dtype == dtype
        run(fork, range(100, 103))
        session.save(tmp_path / "state.npz")
        loaded = program.session(dtype)
        loaded.load(tmp_path / "state.npz")
        rewound = session.fork()
        run(rewound, range(200, 203))
        rewound.rewind(3)
        for other in (session, loaded, rewound):
            np.testing.assert_array_equal(run(other, range(6, 12)), wanted[6:])
        size = (tmp_path / "state.npz").stat().st_size
        bytes_of_row = 2 * (16 + 24) * (1 if dtype == "int8" else 2)
        assert size < 256 * bytes_of_row * 1.3
        plain = program.session()
        plain.load(tmp_path / "state.npz")
        again = program.session(dtype)
        again.load(tmp_path / "state.npz")
        for name, value in again.values().items():
            np.testing.assert_array_equal(plain.values()[name], value)


def test_damaged_files(tmp_path):
    case = Case(4, 2, 16, 24)
    with compile_model(case.model) as program, program.session("int8") as session:
        session.run(case.feeds(3, 0))
        session.save(tmp_path / "state.npz")
        before = session.values()
        with np.load(tmp_path / "state.npz") as file:
            arrays = dict(file)
        for change in (
            {"scales.past_k": None},
            {"scales.past_k": arrays["scales.past_k"][..., :2]},
            {"int8.past_k": arrays["int8.past_k"].astype(np.int16)},
            {"int8.past_k": arrays["int8.past_k"][:, :1]},
            {"float16.past_k": arrays["int8.past_k"]},
            {"int8.other": arrays["int8.past_k"]},
        ):
            given = {
                name: value for name, value in {**arrays, **change}.items() if value is not None
            }
            np.savez(tmp_path / "damaged.npz", **given)
            with pytest.raises((DataError, UsageError), match=r"past_k|damaged|no state"):
                session.load(tmp_path / "damaged.npz")
        for name, value in session.values().items():
            np.testing.assert_array_equal(value, before[name])


@pytest.mark.parametrize("dtype", DTYPES)
def test_files_of_narrow_caches_in_plain_sessions(dtype, tmp_path):
    """They have no reader for them, and say so; what they have stays."""
    case = Case(4, 2, 16, 24)
    with compile_model(case.model) as program, program.session(dtype) as session:
        session.run(case.feeds(3, 0))
        session.save(tmp_path / "state.npz")
    bundle = narrowpass.build(ir.from_proto(case.model), "", target="reference")
    with narrowpass.load(bundle, "reference") as program, program.session() as plain:
        plain.restore(case.caches(2))
        with pytest.raises(UsageError, match=rf"caches of {dtype}, which only .* its backend"):
            plain.load(tmp_path / "state.npz")
        assert plain.length == 2


def test_what_cannot_be_asked_for():
    case = Case(4, 2, 16, 24)
    with compile_model(case.model) as program:
        for wrong in ("int4", "", 8, np.float16):
            with pytest.raises(UsageError, match="float32, float16, bfloat16, int8"):
                program.session(wrong)
    bundle = narrowpass.build(case.model, "")
    reference = narrowpass.load(bundle, "reference")
    with pytest.raises(UsageError, match="leave `cache_dtype` out"):
        reference.session("float16")
    text = case.text.replace("vu = Unsqueeze(all_v, two)", "n = Neg(all_v) vu = Unsqueeze(n, two)")
    with compile_model(onnx.parser.parse_model(text)) as program:
        reason = "from the rows of a cache in a way that is not followed"
        with pytest.raises(UsageError, match=reason):
            program.session("int8")
        assert reason in program.session().reason


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_without_elements_are_refused(dtype):
    """There is nothing that a scale could be of; the kernel must not divide by their size."""
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["" : 18]>
        attend (float[1, 2, S, D] q, float[1, 2, S, D] k, float[1, 2, S, E] v,
                float[1, 2, P, D] past_k, float[1, 2, P, E] past_v)
            => (float[1, 2, S, E] y, float[1, 2, T, D] all_k, float[1, 2, T, E] all_v) {
            all_k = Concat <axis = 2> (past_k, k)
            all_v = Concat <axis = 2> (past_v, v)
            t = Transpose <perm = [0, 1, 3, 2]> (all_k)
            s = MatMul(q, t)
            p = Softmax <axis = -1> (s)
            y = MatMul(p, all_v)
        }""")
    with compile_model(model) as program:
        for depth, values in ((0, 4), (4, 0), (4, 4)):
            feeds = {x: np.ones((1, 2, 1, depth), np.float32) for x in "qk"}
            feeds["v"] = np.ones((1, 2, 1, values), np.float32)
            session = program.session(dtype)
            if depth and values:
                np.testing.assert_array_equal(session.run(feeds)["y"], feeds["v"])
                continue
            with pytest.raises(BackendError, match="no elements to narrow"):
                session.run(feeds)
            assert session.length == 0
