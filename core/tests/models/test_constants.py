"""Tensors of constants, and how large models are: compared with onnx's evaluator and the files."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

import narrowpass_ir
from narrowpass_ir import public
from narrowpass_ir.constants import constant_tensor
from narrowpass_ir.io import load_model, save_model
from narrowpass_ir.sizes import count_bytes, count_nodes, disk_bytes, memory_bytes


@pytest.mark.parametrize(
    "attribute",
    [
        "value = float[2] {1, 2}",
        "value_float = 0.1",
        "value_floats = [0.1, -3.0]",
        "value_int = 7",
        "value_ints = [7, -8]",
        'value_string = "text"',
        'value_strings = ["a", "b"]',
    ],
)
def test_constant_nodes_have_the_tensor_that_they_compute(attribute):
    text = (
        f'<ir_version: 10, opset_import: ["" : 21]> g () => (y) {{ y = Constant <{attribute}> () }}'
    )
    proto = onnx.parser.parse_model(text)
    tensor = constant_tensor(ir.from_proto(proto).graph.outputs[0])
    expected = np.asarray(ReferenceEvaluator(proto).run(None, {})[0])
    got = onnx.numpy_helper.to_array(ir.to_proto(tensor))
    assert got.shape == expected.shape
    if got.dtype == object:
        expected = expected.astype(object)
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected)


def test_what_is_computed_is_no_constant():
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["" : 21, "acme" : 1, "l" : 1]>
        g (float x) => (float y) <float w = {3}> {
            n = Neg(x)  other = acme.Constant <value_int = 1> ()  y = Add(n, w) }
        <domain: "l", opset_import: ["" : 21]>
        f <k: float> (a) => (b) { c = Constant <value_float: float = @k> ()  b = Add(a, c) }"""
    )
    values = {value.name: value for node in model.graph for value in node.outputs}
    weight = model.graph.initializers["w"]
    assert constant_tensor(weight) is weight.const_value
    for value in (None, model.graph.inputs[0], values["n"], values["other"]):
        assert constant_tensor(value) is None
    (constant, _) = model.functions["l", "f", ""]
    assert constant_tensor(constant.outputs[0]) is None
    sparse = ir.Attr("sparse_value", ir.AttributeType.SPARSE_TENSOR, onnx.SparseTensorProto())
    assert constant_tensor(ir.Node("", "Constant", [], [sparse]).outputs[0]) is None


def sized() -> ir.Model:
    weight, other = (ir.Tensor(np.ones(600, np.float32), name=name) for name in ("w", "tied"))
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["" : 21, "l" : 1]>
        g (float[600] x, bool c) => (float[600] y) <float[600] w, float[600] tied> {
            i = If(c) <then_branch = t () => (float[600] p) { p = Add(x, w) },
                       else_branch = e () => (float[600] q) { q = Mul(x, tied) }>
            y = l.f (i) }
        <domain: "l", opset_import: ["" : 21]>
        f (a) => (b) { c = Neg(a)  b = Abs(c) }""",
        initializers=[weight, other],
    )
    model.graph.initializers["tied"].const_value = weight
    model.graph.register_initializer(
        ir.Value(name="empty", const_value=ir.Tensor(np.zeros(0, np.float32), name="empty"))
    )
    model.graph.initializers["empty"].const_value = None
    return model


def test_sizes_of_a_model():
    model = sized()
    assert count_nodes(model) == 6  # two, one in each branch, and two of the function
    assert count_bytes(model) == 2400  # a tied weight has no memory of its own
    assert memory_bytes(model) == 4800


def test_sizes_on_disk_are_those_of_the_files(tmp_path):
    folder, path = tmp_path / "a[b]", tmp_path / "a[b]" / "m.onnx"
    folder.mkdir()
    model = sized()
    model.graph.initializers.pop("empty")
    save_model(model, path, inline_limit=2000)
    (folder / "m.onnx.notes").write_bytes(bytes(99))
    written = sum(file.stat().st_size for file in folder.glob("m.onnx*")) - 99
    loaded = load_model(path)
    assert len(list(folder.iterdir())) == 3
    assert (
        disk_bytes(path) == disk_bytes(path, [loaded]) == disk_bytes(path, [loaded] * 2) == written
    )
    assert disk_bytes(folder) == written + 99
    assert memory_bytes(loaded) == 0
    assert count_bytes(loaded) == 4800


def test_public_modules_are_modules_in_order():
    assert list(public.PUBLIC_MODULES) == sorted(set(public.PUBLIC_MODULES))
    for name in public.PUBLIC_MODULES:
        found = importlib.util.find_spec(name)
        assert found is not None
        assert Path(found.origin).is_relative_to(Path(narrowpass_ir.__file__).parent)
