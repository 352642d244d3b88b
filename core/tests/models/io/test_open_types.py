"""Outputs whose types or shapes a model leaves open, as the format allows, when it is saved."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from narrowpass_ir.errors import ModelError
from narrowpass_ir.io import load_model, save_model
from narrowpass_ir.upgrading import upgrade

OPEN = {
    "no shape": helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
    "no type": onnx.ValueInfoProto(name="y"),
}


@pytest.mark.parametrize("name", OPEN)
def test_an_output_may_leave_its_type_or_shape_open(tmp_path, caplog, name):
    """As of an inner value that was declared an output: the format and runtimes allow it."""
    onnxruntime = pytest.importorskip("onnxruntime")
    proto = helper.make_model(
        helper.make_graph(
            [helper.make_node("Relu", ["x"], ["y"], name="n")],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3])],
            [OPEN[name]],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    save_model(ir.from_proto(proto), tmp_path / "m.onnx")
    assert "is required but missing" in caplog.text
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    (result,) = session.run(None, {"x": np.array([-1, 0, 2], np.float32)})
    assert result.tolist() == [0, 0, 2]


def test_another_fault_behind_an_open_shape_is_reported(tmp_path):
    model = ir.from_proto(
        helper.make_model(
            helper.make_graph(
                [helper.make_node("Relu", ["x"], ["y"], alpha=1.0)],
                "g",
                [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3])],
                [OPEN["no shape"]],
            ),
            opset_imports=[helper.make_opsetid("", 17)],
            ir_version=8,
        )
    )
    with pytest.raises(ModelError, match=r"Unrecognized attribute: alpha"):
        save_model(model, tmp_path / "m.onnx")


def test_what_the_checker_said_is_known_after_an_upgrade(tmp_path):
    proto = helper.make_model(
        helper.make_graph(
            [helper.make_node("Relu", ["x"], ["y"], name="n")],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3])],
            [OPEN["no shape"]],
        ),
        opset_imports=[helper.make_opsetid("", 11)],
        ir_version=8,
    )
    onnx.save(proto, tmp_path / "m.onnx")
    upgraded, _ = upgrade(load_model(tmp_path / "m.onnx"), 17)
    save_model(upgraded, tmp_path / "n.onnx")
    assert onnx.load(tmp_path / "n.onnx").opset_import[0].version == 17
