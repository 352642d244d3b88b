"""What `expand-operators` writes: plain models with the same results.

onnx's checker and onnxruntime take them.

The tolerance is 1e-5 of the largest element: fp32 accumulation in another order.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import narrowpass
from narrowpass.errors import NarrowpassError

RNG = np.random.default_rng(2)
DOMAIN = "com.microsoft"


def floats(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def layer(opset=17):
    """Build an attention, a residual and a gated linear unit, with symbolic dimensions."""
    constants = {
        "w": floats(8, 24),
        "b": floats(24),
        "gamma": floats(8),
        "beta": floats(8),
        "up": floats(8, 16),
        "upb": floats(16),
        "scale": floats(16),
    }
    mask = helper.make_tensor_value_info("mask", TensorProto.INT32, ["batch", "rows"])
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "rows", 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "rows", 16])
    nodes = [
        helper.make_node(
            "Attention", ["x", "w", "b", "mask"], ["a"], "attention", domain=DOMAIN, num_heads=2
        ),
        helper.make_node(
            "SkipLayerNormalization",
            ["a", "x", "gamma", "beta"],
            ["n", "", "", "total"],
            "skip",
            domain=DOMAIN,
        ),
        helper.make_node("MatMul", ["n", "up"], ["u"], "up"),
        helper.make_node("BiasGelu", ["u", "upb"], ["g"], "gelu", domain=DOMAIN),
        helper.make_node("SimplifiedLayerNormalization", ["g", "scale"], ["y"], "norm", axis=-1),
    ]
    initializers = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "g", [x, mask], [y], initializers)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def expanded(proto, text="expand-operators"):
    before = proto.SerializeToString()
    bundle = narrowpass.build(ir.from_proto(proto), text, target="reference")
    assert proto.SerializeToString() == before
    return ir.to_proto(bundle.methods["main"])


@pytest.mark.parametrize("opset", [13, 17, 21])
@pytest.mark.parametrize("text", ["expand-operators", "expand-operators,fold"])
def test_a_layer_equals_onnxruntime(opset, text):
    onnxruntime = pytest.importorskip("onnxruntime")
    proto = layer(opset)
    after = expanded(proto, text)
    onnx.checker.check_model(after, full_check=True)
    assert not {node.domain for node in after.graph.node} - {""}
    assert after.graph.input == proto.graph.input
    assert after.graph.output == proto.graph.output
    feeds = {"x": floats(2, 5, 8), "mask": np.array([[1] * 5, [1, 1, 1, 0, 0]], np.int32)}
    results = []
    for model in (proto, after):
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(model.SerializeToString(), options)
        results.append(session.run(None, feeds)[0])
    bundle = narrowpass.build(ir.from_proto(after), "", target="reference")
    with narrowpass.load(bundle, "reference") as program:
        results.append(program.run(feeds)["y"])
    for result in results[1:]:
        largest = np.abs(results[0]).max()
        np.testing.assert_allclose(result, results[0], rtol=1e-5, atol=1e-5 * largest)


def test_decisions_are_reported():
    bundle = narrowpass.build(ir.from_proto(layer()), "expand-operators", target="reference")
    (part,) = bundle.reports[0].methods.values()
    decisions = {(item["node"], item["decision"]) for item in part.decisions}
    assert decisions == {(name, "expanded") for name in ("attention", "skip", "gelu", "norm")}


def test_nodes_that_are_kept():
    after = expanded(layer(), "expand-operators{keep=[op:BiasGelu]}")
    assert [node.op_type for node in after.graph.node if node.domain] == ["BiasGelu"]


def test_a_second_run_changes_nothing():
    once = expanded(layer())
    assert expanded(once).SerializeToString() == once.SerializeToString()


def test_unsupported_nodes_stay_with_a_reason():
    proto = layer()
    proto.graph.node[0].attribute.append(helper.make_attribute("do_rotary", 1))
    bundle = narrowpass.build(ir.from_proto(proto), "expand-operators", target="reference")
    (part,) = bundle.reports[0].methods.values()
    kept = [item for item in part.decisions if item["decision"] == "kept"]
    assert [(item["node"], item["reason"]) for item in kept] == [("attention", "do_rotary is set")]


def test_a_model_with_functions_is_refused():
    proto = layer()
    body = [helper.make_node("Relu", ["a"], ["r"])]
    function = helper.make_function("own", "F", ["a"], ["r"], body, [helper.make_opsetid("", 17)])
    proto.functions.append(function)
    proto.opset_import.append(helper.make_opsetid("own", 1))
    with pytest.raises(NarrowpassError, match="functions"):
        expanded(proto)
