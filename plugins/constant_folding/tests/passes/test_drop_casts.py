"""Which casts `drop-casts` drops and joins: exactly those that lose nothing."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from folding_kit import check_bits, ops, parse, run
from onnx.reference import ReferenceEvaluator

from narrowpass_constant_folding.passes.dead_code import DeadCode
from narrowpass_constant_folding.passes.drop_casts import DropCasts, is_lossless_cast
from narrowpass_constant_folding.passes.infer_shapes import InferShapes

D = ir.DataType
TYPES = {
    "bool": D.BOOL,
    "uint8": D.UINT8,
    "int8": D.INT8,
    "uint16": D.UINT16,
    "int16": D.INT16,
    "uint32": D.UINT32,
    "int32": D.INT32,
    "uint64": D.UINT64,
    "int64": D.INT64,
    "float16": D.FLOAT16,
    "bfloat16": D.BFLOAT16,
    "float": D.FLOAT,
    "double": D.DOUBLE,
}


def samples(dtype):
    """Return values of a type at its borders."""
    if dtype == D.BOOL:
        return np.array([False, True])
    if dtype.is_integer():
        info = ml_dtypes.iinfo(dtype.numpy())
        return np.array([info.min, info.max, info.max - 1, 0, 1, 77], dtype.numpy())
    info = ml_dtypes.finfo(dtype.numpy())
    special = [info.max, info.min, info.smallest_subnormal, info.tiny, 1 + float(info.eps), -0.0]
    return np.array([*map(float, special), np.inf, -np.inf, 0.1], dtype.numpy())


@pytest.mark.parametrize("source", TYPES)
@pytest.mark.parametrize("target", TYPES)
def test_the_table_of_exact_casts(source, target):
    values = samples(TYPES[source])
    with np.errstate(all="ignore"):
        there = values.astype(TYPES[target].numpy())
        back = there.astype(TYPES[source].numpy())
        wide = values.astype(np.float64), there.astype(np.float64)
    same = back.tobytes() == values.tobytes() and bool((wide[0] == wide[1]).all())
    assert is_lossless_cast(TYPES[source], TYPES[target]) == same


def chain(*types):
    names = ["x", *(f"v{index}" for index in range(1, len(types)))]
    casts = " ".join(
        f"{new} = Cast <to = {int(TYPES[to])}> ({old})"
        for old, new, to in zip(names, names[1:], types[1:], strict=False)
    )
    return parse(
        f"g ({types[0]}[N] x) => ({types[-1]}[N] y){{ {casts} y = Identity({names[-1]}) }}"
    )


@pytest.mark.parametrize(
    ("types", "left"),
    [
        (("float", "float"), 0),
        (("float16", "float", "float16"), 0),
        (("float16", "double", "float"), 1),
        (("int32", "int64", "int32"), 0),
        (("int32", "int64", "int8"), 1),
        (("bool", "int64", "float"), 1),
        (("uint8", "int32", "bool"), 1),
        (("int32", "int64", "bool"), 1),
        (("bfloat16", "float", "double", "bfloat16"), 0),
        # these round, or wrap around
        (("float", "float16", "float"), 2),
        (("double", "float", "double"), 2),
        (("int64", "int32", "int64"), 2),
        (("int64", "double", "int64"), 2),
        (("int32", "float", "int32"), 2),
        (("int8", "uint8", "int8"), 2),
        (("float", "int32", "float"), 2),
        (("int64", "bool", "int64"), 2),
        # what is out of range depends on where it comes from
        (("float16", "float", "int8"), 2),
    ],
)
def test_a_chain_of_casts(types, left):
    proto = chain(*types)
    after, _, _ = run(DropCasts(), run(InferShapes(), proto)[0])
    after, _, _ = run(DeadCode(), after)
    assert ops(after).count("Cast") == left
    if types[-1] == "int8" and types[0] == "float16":
        return
    x = samples(TYPES[types[0]])
    with np.errstate(all="ignore"):
        expected = ReferenceEvaluator(proto).run(None, {"x": x})[0]
        actual = ReferenceEvaluator(after).run(None, {"x": x})[0]
    assert actual.dtype == expected.dtype
    assert actual.tobytes() == expected.tobytes()


def test_a_cast_like_of_a_known_type_becomes_a_cast():
    proto = parse("g (float[N] x, double[1] t) => (double[N] y) { y = CastLike(x, t) }")
    after, _, ctx = run(DropCasts(), proto)
    assert ops(after) == ["Cast"]
    assert ctx.counters["casts"] == 1
    check_bits(proto, after)


def test_the_attribute_saturate_is_kept():
    text = "g (float[N] x, int64[1] t) => (int64[N] y) { y = CastLike <saturate = 0> (x, t) }"
    proto = parse(text, opset=19)
    after, _, _ = run(DropCasts(), proto)
    assert {attr.name: attr.i for attr in after.graph.node[0].attribute} == {
        "saturate": 0,
        "to": onnx.TensorProto.INT64,
    }


def test_a_kept_cast_stays():
    proto = parse(
        "g (float16[N] x) => (float16[N] y)"
        "{ [a] v = Cast <to = 1> (x) w = Cast <to = 10> (v) y = Neg(w) }"
    )
    assert ops(run(DropCasts(keep=("a",)), proto)[0]) == ["Cast", "Cast", "Neg"]
    assert ops(run(DropCasts(), proto)[0]) == ["Cast", "Neg"]


def test_in_a_function_and_a_branch():
    proto = parse(
        """g (float[4] x, bool c) => (float[4] y) {
        y = If(c) <then_branch = t () => (float[4] p) { u = Cast <to = 1> (x) p = Neg(u) },
                   else_branch = e () => (float[4] q) { q = local.f(x) }> }
        <domain: "local", opset_import: ["" : 17]> f (v) => (w) {
        a = Constant <value = float {2}> () b = Cast <to = 1> (a) w = Mul(v, b) }""",
        more=', "local" : 1',
    )
    after, _, ctx = run(DropCasts(), proto)
    assert ctx.counters["casts"] == 2
    check_bits(proto, after)
