"""Messages to users when quantizing does nothing, or cannot go on."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from equalize_kit import depthwise_chain, images
from int8_kit import build, floats, model
from onnx import helper

import narrowpass
from narrowpass.errors import NarrowpassError


def fed():
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="dense")
    proto = model([node], {"x": [3, 16]}, {"y": [3, 8]}, {"w": floats(16, 8)})
    proto.graph.input.append(helper.make_tensor_value_info("w", 1, [16, 8]))
    return proto


def without_weights():
    return model([helper.make_node("Relu", ["x"], ["y"])], {"x": [3]}, {"y": [3]}, {})


def of_columns():
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="dense")
    weights = {"w": floats(4, 4, 1, 1)}
    return model([node], {"x": [1, 4, 8, 8]}, {"y": [1, 4, 8, 8]}, weights)


@pytest.mark.parametrize(
    ("proto", "text", "why"),
    [
        (fed(), "int8-sym", "'dense': its weight 'w' may be fed; freeze-weights turns it into a"),
        (without_weights(), "int8-sym", "no node has a constant weight"),
        (of_columns(), "int8-sym{mode=weight-only,red=[dense]}", "'dense': it is to stay"),
    ],
)
def test_a_model_that_stays_as_it_is_has_a_warning(caplog, proto, text, why):
    build(proto, text)
    (message,) = [item.getMessage() for item in caplog.records if item.levelname == "WARNING"]
    assert message.startswith(f"int8-sym: nothing is quantized; {why}")


def test_a_model_that_is_quantized_has_none(caplog):
    build(of_columns(), "int8-sym{mode=weight-only}")
    assert not [item for item in caplog.records if item.levelname == "WARNING"]


def test_nan_within_the_model_is_reported_with_its_input():
    node = helper.make_node("Identity", ["first"], ["last"], name="last")
    data = images(3)
    data[2]["x"][0, 1, 0, 0] = np.nan
    found = r"value '\w+' on sample 3 of .* is NaN or infinite; so is input 'x'"
    with pytest.raises(NarrowpassError, match=found):
        narrowpass.build(
            ir.from_proto(depthwise_chain(node)), "equalize", calibration=data, target="reference"
        )
