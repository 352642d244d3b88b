"""`Backend.supports_quantized`: a node with proposed Q/DQ, and invalid attributes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from narrowpass import Accept, Reject
from narrowpass.errors import SchemaError
from narrowpass.runtime.quantization import (
    NodeQuantization,
    OperatorSpec,
    Parameters,
    QuantizationSpec,
    ScaleBound,
)
from narrowpass_ir.attributes import check_attributes
from narrowpass_reference import ReferenceBackend

SPEC = QuantizationSpec(
    operators={
        "Conv": OperatorSpec(ScaleBound("input * weight / output", 2.0**-10, 4.0)),
        "LeakyRelu": OperatorSpec(ScaleBound("input / output", 0.25, 4.0)),
    },
    others=None,
)
ONE = Parameters(1.0, 0)


class Limited(ReferenceBackend):
    name = "limited"

    def quantization_spec(self):
        return SPEC


def ask(node, *inputs, output=ONE, **more):
    backend = Limited()
    proposal = NodeQuantization(inputs or (ONE,), output, **more)
    return backend.supports_quantized(node, proposal)


def node(op_type, domain="", **attributes):
    return ir.node(op_type, [ir.Value(name="x")], attributes, domain=domain)


def test_each_channel_counts():
    conv = node("Conv")
    assert ask(conv, weight_scales=np.float32([0.5, 3.9])) == Accept()
    assert ask(conv, weight_scales=np.float32([0.5, 4.5])) == Reject(
        "input * weight / output is 4.5, the limit 4"
    )
    assert ask(conv, weight_scales=np.float32([2.0**-11, 1])) == Reject(
        "input * weight / output is 0.000488281, the limit 0.000976562"
    )


def test_a_float_result_is_not_requantized():
    assert ask(node("Conv"), output=None, weight_scales=np.float32([5.0])) == Accept()


def test_the_slope_is_part_of_the_ratio():
    assert ask(node("LeakyRelu", alpha=0.5), slope=0.5) == Accept()
    assert isinstance(ask(node("LeakyRelu", alpha=0.1), slope=0.1), Reject)


@pytest.mark.parametrize("other", [node("Softmax"), node("Conv", domain="com.example")])
def test_what_is_not_listed(other):
    assert ask(other) == Reject(f"limited has no int8 {other.op_type}")


def test_attributes_of_another_type_are_a_reason():
    assert ask(node("LeakyRelu", alpha="steep")) == Reject(
        "its attribute 'alpha' is of type STRING, not FLOAT"
    )


def test_attributes_are_those_of_the_schema():
    check_attributes(node("LeakyRelu", alpha=0.1))
    check_attributes(node("Unknown", domain="com.example", anything="x"))
    check_attributes(node("Split", num_outputs=2), 18)
    with pytest.raises(SchemaError, match=r"'axis' is of type FLOAT, not INT$"):
        check_attributes(node("Split", axis=1.5), 18)
    reference = ir.RefAttr("alpha", "a", ir.AttributeType.FLOAT)
    check_attributes(ir.Node("", "LeakyRelu", [ir.Value(name="x")], [reference]))


def test_the_version_is_that_of_the_graph():
    """`spatial` is an integer in version 7, and unknown since version 9."""
    for version in (7, 21):
        x = ir.Value(name="x")
        norm = ir.node("BatchNormalization", [x], {"spatial": 1.5})
        ir.Graph([x], norm.outputs, nodes=[norm], opset_imports={"": version})
        if version == 21:
            check_attributes(norm)
            continue
        with pytest.raises(SchemaError, match="'spatial' is of type FLOAT, not INT"):
            check_attributes(norm)
