"""Which nodes are units, what follows them, and which decide together."""

import numpy as np
import onnx_ir as ir
from auto_kit import dense

from narrowpass_auto.graph.units import find_regions, find_units, followers, name_nodes


def test_chain():
    model = dense(3)
    units = find_units(model)
    assert [unit.name for unit in units] == ["mm0", "mm1", "mm2"]
    assert [sorted(unit.before) for unit in units] == [[], [0], [1]]
    assert [sorted(unit.after) for unit in units] == [[1], [2], []]
    assert [unit.from_input for unit in units] == [True, False, False]
    assert [unit.to_output for unit in units] == [False, False, True]
    assert followers(model, units) == {"relu0": {0, 1}, "relu1": {1, 2}}
    assert [region.units for region in find_regions(units)] == [(0,), (1,), (2,)]


def test_red_nodes_are_boundaries():
    model = dense(3)
    red = {model.graph.node("mm1")}
    units = find_units(model, red)
    assert [unit.name for unit in units] == ["mm0", "mm2"]
    assert units[0].to_output
    assert units[1].from_input
    assert units[0].after == frozenset()
    assert followers(model, units, red) == {"relu0": {0}, "relu1": {1}}


def test_units_that_share_a_weight_decide_together():
    model = dense(3)
    model.graph.node("mm2").replace_input_with(1, model.graph.initializers["w0"])
    assert [region.units for region in find_regions(find_units(model))] == [(0, 2), (1,)]


def test_what_is_no_unit():
    """Constants of few elements, weights that runs may feed, and nodes on constants alone."""
    many, few = ", ".join(["1"] * 64), ", ".join(["1"] * 8)
    model = ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["" : 21]> '
        "g (float[1, 8] x, float[8, 8] fed) => (float[1, 8] y, float[1, 8] z, float[8, 8] c) "
        f"<float[8, 8] fed = {{{many}}}, float[8] small = {{{few}}}, float[8, 8] w = {{{many}}}> "
        "{ y = MatMul(x, fed) z = Add(x, small) c = MatMul(w, w) }"
    )
    assert find_units(model) == []


def test_names_are_unique_afterwards():
    model = dense(3)
    for node in model.graph:
        node.name = "" if node.op_type == "Relu" else "same"
    assert name_nodes(model) == 4
    names = [node.name for node in model.graph]
    assert len(set(names)) == 5
    assert all(names)
    assert name_nodes(model) == 0


def test_weights_may_be_outputs_of_constant_nodes():
    tensor = ir.Tensor(np.ones((8, 8), np.float32), name="c")
    model = ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["" : 21]> '
        "g (float[1, 8] x) => (float[1, 8] y) { c = Constant<value_float=1.0>() y = MatMul(x, c) }"
    )
    constant = model.graph[0]
    constant.attributes.clear()
    constant.attributes["value"] = ir.AttrTensor("value", tensor)
    assert [unit.node.op_type for unit in find_units(model)] == ["MatMul"]


def test_parameters_of_channels_follow_and_positions_do_not():
    """A unit that no candidate changes would keep what is around it as it was."""
    text = """<ir_version: 10, opset_import: ["" : 21]>
        g (float[2, 8, 64] x, float[64, 64] w, float[1, 64] b, float[1, 1, 64] s,
           float[1, 8, 64] p, float[64, 64] v) => (float[2, 8, 64] y) {
        [first] a = MatMul (x, w)
        [bias] c = Add (a, b)
        [scale] d = Mul (s, c)
        [positions] e = Add (d, p)
        [second] y = MatMul (e, v)
    }"""
    model = ir.from_onnx_text(text)
    for value in list(model.graph.inputs)[1:]:
        value.const_value = ir.Tensor(np.ones(value.shape.numpy(), np.float32), name=value.name)
        model.graph.inputs.remove(value)
        model.graph.initializers[value.name] = value
    units = find_units(model)
    assert [unit.name for unit in units] == ["first", "positions", "second"]
    assert followers(model, units) == {"bias": {0, 1}, "scale": {0, 1}}
