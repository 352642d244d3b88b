"""What `explain` and the page of a build say that int8 operators compute in."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from int8_kit import floats, model
from onnx import helper

import narrowpass
from narrowpass_report.graph import computed_types


def network():
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["c1"], "conv", pads=[1] * 4),
        helper.make_node("Relu", ["c1"], ["r1"], "relu"),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], "second", pads=[1] * 4),
        helper.make_node("Add", ["c2", "r1"], ["s"], "add"),
        helper.make_node("GlobalAveragePool", ["s"], ["p"], "mean"),
        helper.make_node("Flatten", ["p"], ["f"], "flat"),
        helper.make_node("Gemm", ["f", "w3"], ["g"], "head"),
        helper.make_node("Softmax", ["g"], ["y"], "softmax"),
    ]
    constants = {
        "w1": floats(8, 3, 3, 3),
        "w2": floats(8, 8, 3, 3, scale=0.2),
        "w3": floats(8, 4),
    }
    return model(nodes, {"x": ["N", 3, 8, 8]}, {"y": ["N", 4]}, constants)


INT8 = {"conv", "relu", "second", "add", "mean", "flat", "head"}


def built(text: str, target: str) -> narrowpass.Bundle:
    data = [{"x": floats(2, 3, 8, 8)} for _ in range(3)]
    given = ir.from_proto(network())
    return narrowpass.build(given, text, target=target, calibration=data)


def counted(bundle: narrowpass.Bundle) -> set[str]:
    computed = computed_types(list(bundle.methods["main"].graph))
    plain = ("QuantizeLinear", "DequantizeLinear")
    return {node.name for node in computed if node.op_type not in plain}


def test_the_page_counts_what_is_computed():
    assert counted(built("int8-sym", "reference")) == INT8


def test_the_page_counts_operators_that_stay_float_as_float():
    found = counted(built("int8-sym{red=[second,add]}", "reference"))
    assert "conv" in found
    assert "head" in found
    assert not found & {"second", "add", "softmax"}


def test_the_page_counts_weights_alone_as_float():
    assert not counted(built("int8-sym{mode=weight-only}", "reference"))


def test_the_page_counts_rows_that_are_quantized_at_run_time():
    assert counted(built("int8-sym{mode=dynamic}", "reference")) == {"head"}


def test_the_report_of_a_build_says_8_bits():
    from narrowpass_report.page import render

    page = render(built("int8-sym", "reference"), "title")
    part = page[page.index("Nodes by precision they compute in") :][:800]
    assert part.index("8 bits or fewer") < part.index("</ul>")
    share = float(part[part.index("8 bits or fewer") :].split("(")[1].split("%")[0])
    assert share > 70


def test_explain_says_int8_of_what_kernels_compute_with_bytes():
    pytest.importorskip("narrowpass_xnn_cpu")
    with narrowpass.load(built("int8-sym", "xnn-cpu"), "xnn-cpu") as program:
        rows = {plan.node: plan for plan in program.explain()}
    assert {rows[name].dtype for name in INT8} == {"int8"}
    assert rows["softmax"].dtype == "float"


@pytest.mark.parametrize("text", ["", "int8-sym{mode=weight-only}"])
def test_explain_says_float_of_what_computes_in_float(text):
    pytest.importorskip("narrowpass_xnn_cpu")
    with narrowpass.load(built(text, "xnn-cpu"), "xnn-cpu") as program:
        rows = {plan.node: plan for plan in program.explain()}
    assert {rows[name].dtype for name in INT8 - {"conv", "second", "head"}} == {"float"}


def test_only_data_movement_is_called_renamed_axes():
    pytest.importorskip("narrowpass_xnn_cpu")
    bundle = built("int8-sym", "xnn-cpu")
    half = network()
    half.graph.node.append(helper.make_node("Cast", ["y"], ["z"], "cast", to=1))
    half.graph.output[0].name = "z"
    for given in (bundle, ir.from_proto(half)):
        with narrowpass.load(given, "xnn-cpu") as program:
            moving = {"Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}
            for plan in program.explain():
                assert "renamed axes" not in plan.kernel or plan.op_type in moving


def test_rows_gathered_from_bytes_are_floats():
    pytest.importorskip("narrowpass_xnn_cpu")
    nodes = [
        helper.make_node("Cast", ["x"], ["ids"], to=7),
        helper.make_node("Gather", ["table", "ids"], ["rows"], "rows"),
        helper.make_node("MatMul", ["rows", "w"], ["y"], "dense"),
    ]
    constants = {"table": floats(512, 64), "w": floats(64, 16)}
    proto = model(nodes, {"x": [4]}, {"y": [4, 16]}, constants)
    with narrowpass.load(
        narrowpass.build(ir.from_proto(proto), "int8-sym", target="xnn-cpu"), "xnn-cpu"
    ) as program:
        rows = {plan.op_type: plan for plan in program.explain()}
        got = program.run({"x": np.arange(4, dtype=np.float32)})["y"]
    assert rows["Mul"].dtype == "float"
    assert got.shape == (4, 16)
