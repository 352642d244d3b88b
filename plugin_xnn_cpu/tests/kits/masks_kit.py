"""A decoder's layer whose graph computes positions and a mask from the shapes of its caches.

`follow` runs a session of such a layer, or of another, beside onnx's evaluator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

import narrowpass

WIDTH, GROUPS, HEAD = 24, 2, 6
Feeds = dict[str, np.ndarray]
CACHES = ("past_k", "past_v")

TEXT = """
<ir_version: 9, opset_import: ["" : 18]>
layer (float[B, S, 24] x, float[B, 2, P, 6] past_k, float[B, 2, P, 6] past_v MORE)
    => (float[B, S, 24] y, float[B, 2, T, 6] present_k, float[B, 2, T, 6] present_v)
    <int64[4] queries = {0, 0, 4, 6}, int64[4] keys = {0, 0, 2, 6}, int64[3] joined = {0, 0, 24},
     int64[1] two = {2}, int64[1] last = {-1}, int64[1] lead = {0}, int64[2] groups = {2, 2},
     int64[1] four = {4}, int64[1] depth = {6}, int64 zero = {0}, int64 one = {1}, int64 i2 = {2},
     int64[2] both = {0, 1}, float scale = {0.40824829}, float none = {0.0}, float low = {-3.0e38},
     int64 window_size = {4}, int64[1] tail = {-1}> {
    xs = Shape(x)
    S0 = Gather(xs, one)
    ps = Shape(past_k)
    P0 = Gather(ps, i2)
    T0 = Add(P0, S0)
    positions = Range(P0, T0, one)
    pe = Gather(table, positions)
    xp = Add(x, pe)
    q0 = MatMul(xp, wq)
    q1 = Reshape(q0, queries)
    q = Transpose <perm = [0, 2, 1, 3]> (q1)
    k0 = MatMul(xp, wk)
    k1 = Reshape(k0, keys)
    k2 = Transpose <perm = [0, 2, 1, 3]> (k1)
    present_k = Concat <axis = 2> (past_k, k2)
    v0 = MatMul(xp, wv)
    v1 = Reshape(v0, keys)
    v2 = Transpose <perm = [0, 2, 1, 3]> (v1)
    present_v = Concat <axis = 2> (past_v, v2)
    B1 = Shape <start = 0, end = 1> (x)
    T1 = Unsqueeze(T0, lead)
    spread = Concat <axis = 0> (B1, groups, T1, depth)
    heads = Concat <axis = 0> (B1, four, T1, depth)
    ku = Unsqueeze(present_k, two)
    ke = Expand(ku, spread)
    kh = Reshape(ke, heads)
    vu = Unsqueeze(present_v, two)
    ve = Expand(vu, spread)
    vh = Reshape(ve, heads)
    t = Transpose <perm = [0, 1, 3, 2]> (kh)
    s0 = MatMul(q, t)
    s1 = Mul(s0, scale)
    rows = Unsqueeze(positions, last)
    columns = Range(zero, T0, one)
    MASKED
    p = Softmax <axis = -1> (s2)
    a0 = MatMul(p, vh)
    a1 = Transpose <perm = [0, 2, 1, 3]> (a0)
    a2 = Reshape(a1, joined)
    o = MatMul(a2, wo)
    y = Add(x, o)
}
"""

SEEN = "seen = LessOrEqual(columns, rows) "
SHAPE = "S1 = Unsqueeze(S0, lead) square = Concat <axis = 0> (S1, T1) "
LOWS = SHAPE + "lows = Expand(low, square) "
MASKS = {
    "added": SEEN + "m = Where(seen, none, low) s2 = Add(s1, m)",
    "kept": SEEN + "s2 = Where(seen, s1, low)",
    "filled": "ahead = Greater(columns, rows) s2 = Where(ahead, low, s1)",
    "trilu": LOWS + "k = Add(P0, one) m = Trilu <upper = 1> (lows, k) s2 = Add(s1, m)",
    # As transformers' older models: a triangle, times what is behind the position.
    "multiplied": LOWS
    + """m0 = Trilu <upper = 1> (lows, one) ahead = Greater(columns, rows)
    f = Cast <to = 1> (ahead) m1 = Mul(m0, f) m2 = Unsqueeze(m1, both)
    B4 = Concat <axis = 0> (B1, lead1, S1, T1) m = Expand(m2, B4) s2 = Add(s1, m)""",
    "window_size": SEEN
    + """first = Sub(rows, window_size) near = Greater(columns, first) both_ = And(seen, near)
    m = Where(both_, none, low) m4 = Unsqueeze(m, both) s2 = Add(s1, m4)""",
    "two": SEEN
    + """first = Sub(rows, window_size) near = Greater(columns, first)
    m = Where(seen, none, low) s9 = Add(s1, m) n = Where(near, none, low) s2 = Add(s9, n)""",
    "capped": SEEN
    + """c0 = Div(s1, cap) c1 = Tanh(c0) c2 = Mul(c1, cap)
    m = Where(seen, none, low) s2 = Add(c2, m)""",
    "padded": SEEN
    + """pad = Cast <to = 9> (attention_mask) lead2 = Constant <value_ints = [1, 2]> ()
    pad4 = Unsqueeze(pad, lead2) all = And(seen, pad4) m = Where(all, none, low)
    s2 = Add(s1, m)""",
    "padded kept": SEEN
    + """pad = Cast <to = 9> (attention_mask) lead2 = Constant <value_ints = [1, 2]> ()
    pad4 = Unsqueeze(pad, lead2) all = And(seen, pad4) s2 = Where(all, s1, low)""",
    # As torch's exporter indexes the padding: a pair of indices for each element.
    "gathered": SEEN
    + """i0 = Range(zero, B0, one) i1 = Unsqueeze(i0, four3) c1 = Unsqueeze(columns, lead)
    B4 = Concat <axis = 0> (B1, lead1, lead1, T1) ie = Expand(i1, B4) ce = Expand(columns, B4)
    iu = Unsqueeze(ie, last) cu = Unsqueeze(ce, last) at = Concat <axis = -1> (iu, cu)
    pad = Cast <to = 9> (attention_mask) pad4 = GatherND(pad, at)
    all = And(seen, pad4) m = Where(all, none, low) s2 = Add(s1, m)""",
    # As Optimum's exports: an index into the flattened padding, batch * columns + column.
    "flattened": SEEN
    + """pad = Cast <to = 9> (attention_mask) flat = Flatten <axis = 2> (pad)
    i0 = Range(zero, B0, one) i1 = Unsqueeze(i0, four3) wide = Shape(pad)
    count = Gather(wide, lead1) c4 = Unsqueeze(columns, four0) begin = Mul(i1, count)
    at = Add(c4, begin) g5 = Gather(flat, at) g1 = Reshape(g5, last) sizes = Shape(at)
    pad4 = Reshape(g1, sizes) all = And(seen, pad4) m = Where(all, none, low)
    s2 = Add(s1, m)""",
}
FED = [name for name in MASKS if "attention_mask" in MASKS[name]]


LAST = "y = Add(x, o)"


def decoder(form: str, last: str = LAST, masked: str = "", more: str = "") -> onnx.ModelProto:
    """Return a layer with grouped attention whose graph computes positions and a mask.

    Args:
        form: of `MASKS`.
        last: text of the last nodes.
        masked: text of the mask, in place of the form's.
        more: text of other inputs.
    """
    masked = masked or MASKS[form]
    more += ", int64[B, T] attention_mask" if form in FED else ""
    text = TEXT.replace("MASKED", masked).replace("MORE", more).replace(LAST, last)
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    constants = {
        name: (rng.standard_normal((WIDTH, columns)) * WIDTH**-0.5).astype(np.float32)
        for name, columns in (("wq", 24), ("wk", 12), ("wv", 12), ("wo", 24))
    }
    constants["table"] = rng.standard_normal((4096, WIDTH)).astype(np.float32)
    constants |= {"cap": np.array(0.5, np.float32), "lead1": np.array([1], np.int64)}
    constants |= {"four3": np.array([1, 2, 3]), "four0": np.array([0, 1, 2])}
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(array, name) for name, array in constants.items()
    )
    if "B0" in masked:
        gather = onnx.helper.make_node("Squeeze", ["B1", "lead"], ["B0"])
        at = [node.output[0] for node in model.graph.node].index("B1") + 1
        model.graph.node.insert(at, gather)
    return model


def feeds_of(form: str, rows: int, past: int, seed: int, batch: int = 1) -> dict[str, np.ndarray]:
    """Return feeds without caches; the first columns of each second sequence are padded."""
    rng = np.random.default_rng(seed)
    feeds = {"x": rng.standard_normal((batch, rows, WIDTH)).astype(np.float32)}
    if form in FED:
        mask = np.ones((batch, past + rows), np.int64)
        mask[1::2, 1:3] = 0
        feeds["attention_mask"] = mask
    return feeds


class Reference:
    """The loop of a decoder on onnx's evaluator: keys and values of [batch, groups, rows, head]."""

    def __init__(
        self, model: onnx.ModelProto, batch: int = 1, groups: int = 2, head: int = 6
    ) -> None:
        self._evaluator = ReferenceEvaluator(model)
        self.caches = [np.zeros((batch, groups, 0, head), np.float32)] * len(CACHES)

    def run(self, feeds: Feeds) -> np.ndarray:
        """Return ``y``, and keep the caches."""
        y, *self.caches = self._evaluator.run(
            None, feeds | dict(zip(CACHES, self.caches, strict=True))
        )
        return y


def follow(
    session: narrowpass.Session,
    reference: Reference,
    feeds_of: Callable[[int, int, int], Feeds],
    steps: Iterable[int],
) -> None:
    """Run steps of so many rows in both, and compare the outputs of each.

    Args:
        session: of the model.
        reference: at the same row.
        feeds_of: returns feeds without caches for new rows, rows before them, and a seed.
        steps: rows of each.
    """
    for seed, rows in enumerate(steps):
        feeds = feeds_of(rows, session.length, seed)
        assert_close(session.run(feeds)["y"], reference.run(feeds))


def assert_close(found: np.ndarray, wanted: np.ndarray) -> None:
    """Compare float32 accumulated in another order: 24 terms, relative to the largest element."""
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())
