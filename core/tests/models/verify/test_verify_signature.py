"""Signatures and their differences, as sentences."""

from __future__ import annotations

import json

import numpy as np
import onnx_ir as ir
import pytest

from narrowpass_ir.verify import Signature, ValueSpec

TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[N,4] x, int64[?] n, seq(float[2]) s) => (float[N,4] y, float[2] e) <int64[1] n = {0}>
{
    y = Neg(x)
    e = SequenceAt(s, n)
}
"""


def signature() -> Signature:
    return Signature.of(ir.from_onnx_text(TEXT))


def with_default(value: ir.Value) -> ir.Value:
    value.const_value = ir.tensor(np.zeros((1, 4), np.float32), name=value.name)
    return value


def test_signature_says_names_types_and_shapes():
    assert signature() == Signature(
        inputs=(
            ValueSpec("x", "float", ("N", 4)),
            ValueSpec("n", "int64", (None,), has_default=True),
            ValueSpec("s", "seq(tensor(float))", (2,)),
        ),
        outputs=(ValueSpec("y", "float", ("N", 4)), ValueSpec("e", "float", (2,))),
    )


def test_signature_is_json():
    assert json.loads(json.dumps(signature().to_json())) == {
        "inputs": [
            {"name": "x", "dtype": "float", "shape": ["N", 4]},
            {"name": "n", "dtype": "int64", "shape": [None], "default": True},
            {"name": "s", "dtype": "seq(tensor(float))", "shape": [2]},
        ],
        "outputs": [
            {"name": "y", "dtype": "float", "shape": ["N", 4]},
            {"name": "e", "dtype": "float", "shape": [2]},
        ],
    }


def test_unknown_type_and_rank():
    value = ir.Value(name="v")
    node = ir.node("Neg", [value])
    model = ir.Model(ir.Graph([value], node.outputs, nodes=[node]), ir_version=8)
    assert Signature.of(model).inputs == (ValueSpec("v", None, None),)


def test_equal_signatures_do_not_differ():
    assert signature().differences(signature()) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            lambda g: g.inputs[0].__setattr__("shape", ir.Shape([1, 4])),
            ["input 'x': dimension 0 was N, and is now 1 (refined: it could vary)"],
        ),
        (
            lambda g: g.inputs[1].__setattr__("shape", ir.Shape(["K"])),
            ["input 'n': dimension 0 was unknown, and is now K (refined: it could vary)"],
        ),
        (
            lambda g: g.inputs[0].__setattr__("shape", ir.Shape(["M", 4])),
            ["input 'x': dimension 0 was N, and is now M"],
        ),
        (
            lambda g: g.outputs[1].__setattr__("shape", ir.Shape([3])),
            ["output 'e': dimension 0 was 2, and is now 3"],
        ),
        (
            lambda g: g.outputs[1].__setattr__("shape", ir.Shape([2, 1])),
            ["output 'e' was of rank 1, and is now of rank 2"],
        ),
        (
            lambda g: g.outputs[1].__setattr__("shape", None),
            ["output 'e' was of shape [2], and is now unknown"],
        ),
        (
            lambda g: g.inputs[0].__setattr__("type", ir.TensorType(ir.DataType.FLOAT16)),
            ["input 'x' was of type float, and is now float16"],
        ),
        (
            lambda g: g.outputs[0].__setattr__("name", "z"),
            ["output 'y' is gone", "output 'z' is new"],
        ),
        (
            lambda g: g.outputs.reverse(),
            ["the outputs were in the order y, e, and are now in the order e, y"],
        ),
        (lambda g: g.outputs.pop(), ["output 'e' is gone"]),
        (lambda g: g.outputs.append(g.outputs[0]), ["output 'y' is new"]),
        (lambda g: g.outputs.extend([g.outputs[0]] * 2), ["output 'y' is new (2 times)"]),
        (
            lambda g: g.initializers.pop("n"),
            ["input 'n' had a default value, and has none now"],
        ),
        (
            lambda g: g.register_initializer(with_default(g.inputs[0])),
            ["input 'x' had no default value, and has one now"],
        ),
    ],
)
def test_differences_are_sentences(change, expected):
    model = ir.from_onnx_text(TEXT)
    change(model.graph)
    assert signature().differences(Signature.of(model)) == expected


def test_shape_that_becomes_known_is_refined():
    model = ir.from_onnx_text(TEXT)
    model.graph.outputs[0].shape = None
    model.graph.outputs[0].type = None
    assert Signature.of(model).differences(signature()) == [
        "output 'y' was of type unknown, and is now float (refined: it was unknown)",
        "output 'y' was of shape unknown, and is now [N, 4] (refined: its rank was unknown)",
    ]
