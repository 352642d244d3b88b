"""Counterexamples to naive rewrites: layout operators."""

from __future__ import annotations

import numpy as np
from counterexample_kit import Counterexample, F, M, S, constant, i64

RESHAPES = {
    "reshape with 0": Counterexample(
        "g (float[N, 3] x) => (float[?, ?] y) { y = Reshape(x, k) }", {"k": i64(0, 3)}
    ),
    "reshape with 0 elsewhere": Counterexample(
        "g (float[2, 3, 2] x) => (float[?, ?, ?] y) { a = Transpose <perm = [1, 0, 2]> (x)"
        " y = Reshape(a, k) }",
        {"k": i64(0, 2, 2)},
    ),
    "two reshapes with 0": Counterexample(
        "g (float[2, 3, 4] x) => (float[?, ?] y) { a = Reshape(x, k) y = Reshape(a, l) }",
        {"k": i64(4, 3, 2), "l": i64(0, -1)},
    ),
    "reshape allowzero": Counterexample(
        "g (float[N, 0] x) => (float[?, ?] y) { y = Reshape <allowzero = 1> (x, k) }",
        {"k": i64(3, 0)},
        {"x": np.zeros((2, 0), F)},
    ),
    "reshape allowzero, then reshape": Counterexample(
        "g (float[0, 3] x) => (float[?, ?] y) { a = Reshape <allowzero = 1> (x, k)"
        " y = Reshape <allowzero = 1> (a, l) }",
        {"k": i64(3, 0), "l": i64(0, 5)},
    ),
    "reshape to a scalar": Counterexample(
        "g (float[1] x) => (float y) { y = Reshape(x, k) }", {"k": i64()}
    ),
    "expand to fewer dimensions": Counterexample(
        "g (float[2, 3] x) => (float[?, ?] y) { y = Expand(x, k) }", {"k": i64(3)}
    ),
    "expand to one": Counterexample(
        "g (float[2, 3] x) => (float[?, ?] y) { y = Expand(x, k) }", {"k": i64(1, 1)}
    ),
    "expand adds a dimension": Counterexample(
        "g (float[2, 3] x) => (float[?, ?, ?] y) { y = Expand(x, k) }", {"k": i64(1, 2, 3)}
    ),
    "expand N by one": Counterexample(
        "g (float[N] x) => (float[?] y) { y = Expand(x, k) }", {"k": i64(4)}, {"x": np.ones(1, F)}
    ),
    "expand to nothing": Counterexample(
        "g (float[1] x) => (float[?] y) { y = Expand(x, k) }", {"k": i64(0)}
    ),
    "squeeze without axes": Counterexample(
        "g (float[N, 1, 3] x) => (float[?] y) { y = Squeeze(x) }",
        feeds={"x": np.ones((1, 1, 3), F)},
    ),
    "squeeze negative": Counterexample(
        "g (float[2, 1] x) => (float[?] y) { y = Squeeze(x, k) }", {"k": i64(-1)}
    ),
    "unsqueeze then squeeze elsewhere": Counterexample(
        "g (float[1, 3] x) => (float[?, ?] y) { a = Unsqueeze(x, k) y = Squeeze(a, l) }",
        {"k": i64(0), "l": i64(1)},
    ),
    "unsqueeze of unsorted axes": Counterexample(
        "g (float[2] x) => (float[?, ?, ?] y) { y = Unsqueeze(x, k) }", {"k": i64(2, 0)}
    ),
    "transpose, rank not known": Counterexample(
        "g (float[2, 3] x, bool c) => (float[?, ?] y) { a = If(c) <then_branch = t () =>"
        " (float[?, ?] p) { p = Neg(x) }, else_branch = e () => (float[?, ?] q) { q = Abs(x) }>"
        " b = Transpose(a) y = Transpose(b) }"
    ),
    "transpose of three": Counterexample(
        "g (float[2, 3, 4] x) => (float[?, ?, ?] y) { a = Transpose <perm = [1, 2, 0]> (x)"
        " y = Transpose <perm = [1, 2, 0]> (a) }"
    ),
    "flatten at 0": Counterexample(
        "g (float[2, 3] x) => (float[?, ?] y) { y = Flatten <axis = 0> (x) }"
    ),
    "flatten negative": Counterexample(
        "g (float[2, 3, 4] x) => (float[?, ?] y) { y = Flatten <axis = -1> (x) }"
    ),
    "flatten then reshape": Counterexample(
        "g (float[N, 3, 4] x) => (float[?, ?] y) { a = Flatten(x) y = Reshape(a, k) }",
        {"k": i64(-1, 6)},
    ),
    "slice all": Counterexample(
        "g (float[N, 3] x) => (float[?, ?] y) { y = Slice(x, k, l) }",
        {"k": i64(0, 0), "l": i64(2**63 - 1, 3)},
    ),
    "slice backwards": Counterexample(
        "g (float[N] x) => (float[?] y) { y = Slice(x, a, b, c, d) }",
        {"a": i64(-1), "b": i64(-(2**63)), "c": i64(0), "d": i64(-1)},
    ),
    "slice backwards by two": constant(
        "y = Slice(k, a, b, c, d)",
        constants={"k": S, "a": i64(100), "b": i64(-100), "c": i64(0), "d": i64(-2)},
    ),
    "slice beyond": constant(
        "y = Slice(k, a, b)", constants={"k": S, "a": i64(-100), "b": i64(100)}
    ),
    "slice of nothing": constant(
        "y = Slice(k, a, b)", constants={"k": S, "a": i64(5), "b": i64(2)}
    ),
    "slice of end of N": Counterexample(
        "g (float[N] x) => (float[?] y) { y = Slice(x, k, l) }", {"k": i64(0), "l": i64(-1)}
    ),
    "slice with int32": constant(
        "y = Slice(k, a, b)", constants={"k": S, "a": np.int32([1]), "b": np.int32([2**31 - 1])}
    ),
    "concat of an empty one": Counterexample(
        "g (float[2, 3] x) => (float[?, ?] y) { y = Concat <axis = 0> (x, k) }",
        {"k": np.zeros((0, 3), F)},
    ),
    "concat of empties": constant("y = Concat <axis = 0> (k, k)", constants={"k": np.zeros(0, F)}),
    "concat negative axis": constant("y = Concat <axis = -1> (k, k)", rank=2, constants={"k": M}),
    "split of unequal": Counterexample(
        "g (float[5] x) => (float[?] y, float[?] z) { y, z = Split(x, k) }", {"k": i64(2, 3)}
    ),
    "split with num_outputs": Counterexample(
        "g (float[1] x) => (float[?] y, float[?] z) { y, z = Split <num_outputs = 2> (k) }",
        {"k": S[:7]},
        opset=18,
    ),
    "gather negative": constant(
        "y = Gather(k, l)", constants={"k": S, "l": i64(-1, -8, 0)}, gone=("Gather",)
    ),
    "gather a scalar": constant("y = Gather(k, l)", rank=0, constants={"k": S, "l": np.int64(-2)}),
    "gather along axis": constant(
        "y = Gather <axis = -1> (k, l)", rank=3, constants={"k": M, "l": i64(2, 0).reshape(1, 2)}
    ),
    "gather elements": constant(
        "y = GatherElements <axis = 1> (k, l)",
        rank=2,
        constants={"k": M, "l": i64(-1, 0).reshape(2, 1)},
    ),
    "gather nd with batches": constant(
        "y = GatherND <batch_dims = 1> (k, l)", constants={"k": M, "l": i64(1, 2).reshape(2, 1)}
    ),
    "scatter nd": constant(
        "y = ScatterND(k, l, m)",
        constants={"k": S, "l": i64(1, -1).reshape(2, 1), "m": np.array([7, 8], F)},
    ),
    "scatter elements adding twice": constant(
        'y = ScatterElements <reduction = "add"> (k, l, m)',
        constants={"k": S[5:], "l": i64(1, 1), "m": np.array([7, 8], F)},
    ),
    "tile": constant("y = Tile(k, l)", rank=2, constants={"k": M, "l": i64(2, 1)}),
    "tile by zero": constant("y = Tile(k, l)", rank=2, constants={"k": M, "l": i64(0, 1)}),
    "pad negative": constant("y = Pad(k, l)", rank=2, constants={"k": M, "l": i64(-1, 0, 1, -1)}),
    "pad with nothing but a mode": Counterexample(
        'g (float[3] x) => (float[?] y) { y = Pad <mode = "reflect"> (x, k) }', {"k": i64(0, 0)}
    ),
    "pad along axes": constant(
        "y = Pad(k, l, , m)", rank=2, constants={"k": M, "l": i64(1, 1), "m": i64(-1)}, opset=18
    ),
    "depth to space": constant(
        'y = DepthToSpace <blocksize = 2, mode = "CRD"> (k)',
        rank=4,
        constants={"k": np.arange(32, dtype=F).reshape(1, 8, 2, 2)},
    ),
}
