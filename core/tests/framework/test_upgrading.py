"""Models written with a newer operator set; the tests of `upgrade-opset` have what changes."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from narrowpass.errors import UpgradeError
from narrowpass_ir.upgrading import upgrade
from narrowpass_testing import assert_equivalent, model_from_text

TEXT = """g (float[N,4] x) => (float[N,4] y) {
    w = Constant <value_floats = [1.0, 2.0, 3.0, 4.0]> ()
    a = Add (x, w)
    y = Softmax <axis = 1> (a)
}"""


def test_results_and_names_stay():
    model = model_from_text(TEXT, opset=12)
    before = model.clone()
    upgraded, changed = upgrade(model, 17)
    assert upgraded.opset_imports[""] == 17
    assert "Softmax" in {node.op_type for node in changed}
    assert [value.name for value in upgraded.graph.outputs] == ["y"]
    assert_equivalent(before, upgraded)


def test_large_weights_are_the_same_objects():
    model = model_from_text(
        "g (float[4,64] x, float[64,64] w) => (float[4,64] y) { y = MatMul (x, w) }", opset=12
    )
    value = model.graph.inputs[1]
    model.graph.inputs.remove(value)
    tensor = ir.Tensor(np.ones((64, 64), np.float32), name="w")
    value.const_value = tensor
    model.graph.initializers["w"] = value
    upgraded, _ = upgrade(model, 13)
    assert upgraded.graph.initializers["w"].const_value is tensor
    assert [value.name for value in upgraded.graph.inputs] == ["x"]


def test_a_model_that_is_new_enough_stays_as_it_is():
    model = model_from_text(TEXT, opset=18)
    assert upgrade(model, 13) == (model, [])


def test_an_unknown_version():
    with pytest.raises(UpgradeError, match="this onnx knows"):
        upgrade(model_from_text(TEXT), 1000)


@pytest.mark.parametrize("known", [True, False])
def test_an_operator_that_needs_the_type_of_its_input(known, monkeypatch):
    """Neg stands for those that do: the converter takes it with and without a type."""
    monkeypatch.setattr("narrowpass_ir.upgrading.READS_TYPES", {"Neg"})
    kind = "Relu" if known else "my.Mystery"
    model = ir.from_proto(
        onnx.parser.parse_model(
            '<ir_version: 8, opset_import: ["": 11, "my": 1]> '
            f"g (float[3,3] x) => (float[M,N] y) {{ h = {kind} (x) y = Neg (h) }}"
        )
    )
    if known:
        upgraded, _ = upgrade(model, 22)
        assert upgraded.opset_imports[""] == 22
        assert upgraded.graph[0].outputs[0].type is None  # as it was declared
    else:
        with pytest.raises(UpgradeError, match="Neg 'y' cannot be upgraded: the types of its inpu"):
            upgrade(model, 22)
