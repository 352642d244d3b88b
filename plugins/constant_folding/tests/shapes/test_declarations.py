"""What `fold` leaves of types and shapes: those that the model declared, and no others."""

from __future__ import annotations

import onnx
from folding_kit import fold, parse

from narrowpass import Context
from narrowpass_constant_folding.passes.fold import Fold
from narrowpass_constant_folding.passes.infer_shapes import InferShapes

TEXT = """g (float[N, 3] x, bool c) => (float[?, ?] y) {
    a = Neg(x) b = Exp(a) d = Identity(b)
    e = If(c) <then_branch = t () => (float[?, ?] p) { u = Abs(d) p = Sqrt(u) },
               else_branch = f () => (float[?, ?] q) { v = Exp(d) q = Sqrt(v) }>
    y = Sqrt(e) }"""


def declared(proto):
    return {info.name: onnx.helper.printable_value_info(info) for info in proto.graph.value_info}


def test_nothing_is_declared_that_was_not():
    after, _, _ = fold(parse(TEXT))
    assert not after.graph.value_info
    branches = [attr.g for node in after.graph.node for attr in node.attribute]
    assert not any(branch.value_info for branch in branches)


def test_what_was_declared_stays_as_it_was():
    proto = parse(TEXT)
    proto.graph.value_info.append(onnx.helper.make_tensor_value_info("b", 1, ["M", None]))
    proto.graph.value_info.append(onnx.helper.make_tensor_value_info("d", 1, None))
    after, _, _ = fold(proto)
    assert declared(after) == {"b": declared(proto)["b"]}


def test_infer_shapes_after_fold_declares_all():
    _, model, _ = fold(parse(TEXT))
    InferShapes().run(model, Context())
    inner = [value for node in model.graph for value in node.outputs]
    assert all(value.shape is not None for value in inner)
    assert not Fold().run(model, Context()).modified
