"""What is warned of: scales that are too coarse, and convolutions that need data."""

from __future__ import annotations

import logging

import numpy as np
import onnx_ir as ir
import pytest
from int8_kit import floats, model
from onnx import helper

import narrowpass


def dense(scale: float = 1.0, channel: float | None = None):
    weight = floats(16, 16)
    if channel is not None:
        weight[:, 3] = channel
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("MatMul", ["r", "w2"], ["y"]),
    ]
    proto = model(nodes, {"x": ["N", 16]}, {"y": ["N", 16]}, {"w": weight, "w2": floats(16, 16)})
    return proto, [{"x": floats(8, 16, scale=scale)}]


def image_model(count: int = 3):
    nodes, constants, value = [], {}, "x"
    for number in range(count):
        constants[f"w{number}"] = floats(4, 4, 3, 3)
        nodes.append(helper.make_node("Conv", [value, f"w{number}"], [f"c{number}"], pads=[1] * 4))
        value = f"c{number}"
    shape = ["N", 4, 8, 8]
    return model(nodes, {"x": shape}, {value: shape}, constants)


def warnings(caplog, proto, text, data=None) -> list[str]:
    with caplog.at_level(logging.WARNING, "narrowpass"):
        narrowpass.build(ir.from_proto(proto), text, target="reference", calibration=data)
    return [r.getMessage() for r in caplog.records if r.name.startswith("narrowpass")]


def test_floor_warns_of_values_that_become_zeros(caplog):
    proto, data = dense(1e-6)
    messages = warnings(caplog, proto, "int8-sym{scale-policy=floor}", data)
    (line,) = [text for text in messages if "value 'x'" in text]
    assert "rounds to zero all of" in line
    largest = float(np.abs(data[0]["x"]).max())
    assert f"{float(data[0]['x'].max()):.4g}" in line or f"{largest:.4g}" in line
    assert "scale-policy=solve" in line


def test_floor_warns_of_values_with_few_steps(caplog):
    proto, data = dense(5e-4)
    messages = warnings(caplog, proto, "int8-sym{scale-policy=floor}", data)
    assert any("is too coarse for value 'x'" in text for text in messages)


@pytest.mark.parametrize("text", ["int8-sym", "int8-sym{scale-policy=floor}"])
def test_nothing_is_warned_of_where_scales_fit(caplog, text):
    proto, data = dense(1.0 if "floor" in text else 1e-6)
    assert not warnings(caplog, proto, text, data)


@pytest.mark.parametrize("mode", ["static", "dynamic", "weight-only"])
def test_floor_warns_of_channels_that_become_zeros(caplog, mode):
    proto, data = dense(channel=1e-6)
    options = f"mode={mode},scale-policy=floor"
    if mode == "static":
        options += ",smooth=false"
    messages = warnings(caplog, proto, f"int8-sym{{{options}}}", data if mode == "static" else None)
    (line,) = [text for text in messages if "channels" in text]
    assert "1 channels of 1 weights" in line
    assert "'w'" in line
    assert "scale-policy=solve" in line


def test_channels_of_zeros_are_not_warned_of(caplog):
    proto, _ = dense(channel=0.0)
    assert not warnings(caplog, proto, "int8-sym{mode=weight-only,scale-policy=floor}")


@pytest.mark.parametrize("text", ["int8-sym", "int8-sym{mode=dynamic}"])
def test_convolutions_without_data_are_one_line_with_the_fix(caplog, text):
    (line,) = warnings(caplog, image_model(), text)
    assert "0 of 3 convolutions became int8" in line
    assert "--calibration" in line
    assert ("mode=dynamic" in line) == ("dynamic" in text)


def test_convolutions_with_data_or_with_weights_alone_are_not_warned_of(caplog):
    data = [{"x": floats(1, 4, 8, 8)}]
    assert not warnings(caplog, image_model(), "int8-sym", data)
    assert not warnings(caplog, image_model(), "int8-sym{mode=weight-only}")


def test_red_convolutions_are_not_missed(caplog):
    messages = warnings(caplog, image_model(1), "int8-sym{red=[op:Conv]}")
    assert not any("convolutions became" in text for text in messages)
