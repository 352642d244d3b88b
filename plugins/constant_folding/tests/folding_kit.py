"""Helpers of the tests: models from ONNX text, and runs by evaluators that are not ours."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator
from onnxruntime_kit import run_onnxruntime

from narrowpass import Context, Observer
from narrowpass.framework.passes import run_checked
from narrowpass_constant_folding.passes.fold import Fold
from narrowpass_ir.verify import verify

HEADER = '<ir_version: {ir}, opset_import: ["" : {opset}{more}]>\n'


def parse(text, ir_version=8, opset=17, more="", initializers=None):
    """Return the model of ONNX text, with further initializers by name."""
    proto = onnx.parser.parse_model(HEADER.format(ir=ir_version, opset=opset, more=more) + text)
    for name, value in (initializers or {}).items():
        tensor = (
            value if isinstance(value, onnx.TensorProto) else onnx.numpy_helper.from_array(value)
        )
        tensor.name = name
        proto.graph.initializer.append(tensor)
    return proto


def fold(proto, **options):
    """Run `fold`; check what holds for every model; return the result, its IR and the context."""
    return run(Fold(**options), proto)


def run(pass_, proto):
    """Run a pass; check what holds for every model; return the result, its IR and the context."""
    # Serialization renames a tensor to its value's name, also one that is part of `proto`.
    model = ir.from_proto(onnx.ModelProto.FromString(proto.SerializeToString()))
    ctx = Context(observer=Observer(strict=True))
    result = run_checked(pass_, model, ctx)
    verify(result.model)
    after = ir.to_proto(result.model)
    onnx.checker.check_model(after, full_check=True)
    assert signature(after) == signature(proto)
    assert_stable(result.model, pass_)
    if not result.modified:
        assert after == ir.to_proto(ir.from_proto(proto))
    return after, result.model, ctx


def assert_stable(model, pass_=None):
    """Check that a second run (of `fold`) changes nothing, in memory and after a reload."""
    pass_ = pass_ or Fold()
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    assert not pass_.run(model, Context()).modified
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before
    again = ir.from_proto(onnx.ModelProto.FromString(before))
    assert not pass_.run(again, Context()).modified
    assert ir.to_proto(again).SerializeToString(deterministic=True) == before


def signature(proto):
    return (
        [value.SerializeToString(deterministic=True) for value in proto.graph.input],
        [value.SerializeToString(deterministic=True) for value in proto.graph.output],
    )


def ops(proto):
    return [node.op_type for node in proto.graph.node]


def initializer(proto, name):
    (found,) = [item for item in proto.graph.initializer if item.name == name]
    return found


def assert_same_bits(actual, expected):
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape
    if expected.dtype.kind in "OU":
        assert actual.dtype.kind in "OU"
        assert actual.tolist() == expected.tolist()
        return
    assert actual.dtype == expected.dtype
    if actual.dtype.kind not in "fiubc":  # a type of ml_dtypes
        assert actual.tobytes() == expected.tobytes()
    else:
        np.testing.assert_array_equal(actual, expected)
        if actual.dtype.kind == "f":
            np.testing.assert_array_equal(np.signbit(actual), np.signbit(expected))


def check_reference(before, after, feeds):
    """Check that onnx's evaluator returns the same bits for both models."""
    expected = ReferenceEvaluator(before).run(None, feeds)
    actual = ReferenceEvaluator(after).run(None, feeds)
    for got, due in zip(actual, expected, strict=True):
        assert_same_bits(got, due)


def check_onnxruntime(before, after, feeds, tolerance=1e-5):
    """Check that onnxruntime's outputs differ by at most `tolerance` of their largest value."""
    for got, due in zip(run_onnxruntime(after, feeds), run_onnxruntime(before, feeds), strict=True):
        assert got.dtype == due.dtype
        assert got.shape == due.shape
        np.testing.assert_array_equal(np.isnan(got), np.isnan(due))
        scale = np.abs(due[np.isfinite(due)]).max(initial=0)
        np.testing.assert_allclose(got, due, rtol=0, atol=float(scale) * tolerance)


SPECIAL = [0.0, -0.0, 1.5, -2.25, np.nan, np.inf, -np.inf, 1e-40, 3.0e38, 7.0]


def feeds_of(proto, seed=0, special=True, **sizes):
    """Return feeds for a model's inputs; floats hold NaN, infinities and both zeros."""
    rng = np.random.default_rng(seed)
    feeds = {}
    defaults = {item.name for item in proto.graph.initializer}
    for value in proto.graph.input:
        if value.name in defaults:
            continue
        tensor = value.type.tensor_type
        dims = [sizes.get(d.dim_param, 2) if d.dim_param else d.dim_value for d in tensor.shape.dim]
        dtype = ir.DataType(tensor.elem_type)
        if dtype == ir.DataType.BOOL:
            feeds[value.name] = rng.integers(0, 2, dims).astype(bool)
        elif dtype.is_integer():
            feeds[value.name] = rng.integers(0, 3, dims).astype(dtype.numpy())
        else:
            array = rng.standard_normal(dims)
            if special:
                array = np.where(rng.random(dims) < 0.3, rng.choice(SPECIAL, dims), array)
            feeds[value.name] = np.asarray(array, dtype.numpy())
    return feeds


def check_bits(before, after, seeds=2, special=True, **sizes):
    """Check that onnx's evaluator returns the same bits for both, for random and special feeds."""
    with np.errstate(all="ignore"):
        for seed in range(seeds):
            check_reference(before, after, feeds_of(before, seed, special, **sizes))


def check_close(before, after, tolerance, reference=True, **sizes):
    """Check both by onnx's evaluator and by onnxruntime, to a share of the largest value."""
    feeds = feeds_of(before, special=False, **sizes)
    check_onnxruntime(before, after, feeds, tolerance)
    if not reference:
        return
    expected = ReferenceEvaluator(before).run(None, feeds)
    actual = ReferenceEvaluator(after).run(None, feeds)
    for got, due in zip(actual, expected, strict=True):
        assert got.dtype == due.dtype
        assert got.shape == due.shape
        scale = np.abs(due.astype(np.float64)).max(initial=0)
        np.testing.assert_allclose(
            got.astype(np.float64), due.astype(np.float64), rtol=0, atol=scale * tolerance
        )


def in_branch(body, inputs="float[N, 3, 4] x", output="float[N, 3, 4]", outer=""):
    """Return ONNX text with nodes in both branches of an If; they compute `p` from `x`."""
    return (
        f"g ({inputs}, bool c) => (float[?] y) {{ {outer} y = If(c)"
        f" <then_branch = t () => ({output} p) {{ {body} }},"
        f" else_branch = e () => ({output} q) {{ q = Abs(x) }}> }}"
    )
