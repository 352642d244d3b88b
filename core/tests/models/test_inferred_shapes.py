"""Shapes that onnx's own inference gets wrong."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from narrowpass_ir.inference import infer

POOLS = ("AveragePool", "LpPool", "MaxPool")
CASES = [
    *(
        (
            opset,
            f"{pool} <kernel_shape = [2], strides = [3], pads = [1, 1], ceil_mode = 1> (x)",
            {"x": (1, 1, 7)},
            [[1, 1, 3]],
        )
        for pool in POOLS
        for opset in (18, 21, 22)
    ),
    *(
        (
            opset,
            f"{pool} <kernel_shape = [1, 1], strides = [1, 2], ceil_mode = 1> (x)",
            {"x": (1, 1, 5, 4)},
            [[1, 1, 5, 2]],
        )
        for pool in POOLS
        for opset in (19, 22)
    ),
    (12, "MaxPool <kernel_shape = [2], strides = [2]> (x)", {"x": (1, 1, 7)}, [[1, 1, 3]]),
    (17, "STFT (x, two, w)", {"x": (1, 11, 1), "w": (5,)}, [[1, 4, 3, 2]]),
    (17, "STFT (x, two, w)", {"x": (1, 11, 1), "w": (4,)}, [[1, 4, 3, 2]]),
    (17, "STFT <onesided = 0> (x, two, w)", {"x": (1, 11, 1), "w": (4,)}, [[1, 4, 4, 2]]),
    (
        18,
        "ConvTranspose <auto_pad = 'SAME_UPPER', strides = [2], output_padding = [1]> (x, w)",
        {"x": (2, 1, 8), "w": (1, 1, 2)},
        [[2, 1, None]],
    ),
    (18, "ConvTranspose <strides = [2]> (x, w)", {"x": (2, 1, 8), "w": (1, 1, 2)}, [[2, 1, 16]]),
    (
        23,
        "Attention (q, k, v, , pk, pv)",
        {"q": (1, 2, 3, 4), "k": (1, 2, 5, 4), "v": (1, 2, 5, 6), "pk": (1, 2, 2, 4)},
        [[1, 2, 3, 6], [1, 2, 7, 4], [1, 2, 7, 6], [1, 2, 3, None]],
    ),
    (
        23,
        "Attention (q, k, v)",
        {"q": (1, 2, 3, 4), "k": (1, 2, 5, 4), "v": (1, 2, 5, 6)},
        [[1, 2, 3, 6], None, None, [1, 2, 3, 5]],
    ),
]


def dims_of(value):
    return None if value.shape is None else [d if isinstance(d, int) else None for d in value.shape]


def model_of(opset, node, shapes, outputs):
    shapes = {**shapes, **({"pv": (1, 2, 2, 6)} if "pk" in shapes else {})}
    inputs = ", ".join(
        f"float[{','.join(map(str, shape))}] {name}" for name, shape in shapes.items()
    )
    names = [f"y{index}" for index, dims in enumerate(outputs) if dims is not None]
    written = ", ".join(f"y{i}" if dims is not None else '""' for i, dims in enumerate(outputs))
    node = node.replace("'", '"').replace(", ,", ', "",')
    text = f"""<ir_version: 8, opset_import: ["": {opset}]>
    g ({inputs}) => ({", ".join(f"float[?] {name}" for name in names)})
    <int64 two = {{2}}> {{ {written} = {node} }}"""
    model = onnx.parser.parse_model(text)
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    return model, shapes


@pytest.mark.parametrize(("opset", "node", "shapes", "right"), CASES)
def test_shapes_are_those_that_are_computed(opset, node, shapes, right):
    model = ir.from_proto(model_of(opset, node, shapes, right)[0])
    infer(model)
    assert [dims_of(value) for value in model.graph.outputs] == [d for d in right if d is not None]


@pytest.mark.parametrize(("opset", "node", "shapes", "right"), CASES)
def test_onnxruntime_computes_these_shapes(opset, node, shapes, right):
    # The oracle of the table above; tox fails without it (NARROWPASS_TEST_PEERS).
    onnxruntime = pytest.importorskip("onnxruntime")
    model, shapes = model_of(opset, node, shapes, right)
    feeds = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    session = onnxruntime.InferenceSession(model.SerializeToString())
    expected = [dims for dims in right if dims is not None]
    for result, dims in zip(session.run(None, feeds), expected, strict=True):
        assert [d for d, e in zip(result.shape, dims, strict=True) if e is not None] == [
            e for e in dims if e is not None
        ]


@pytest.mark.parametrize(
    ("shapes", "right"),
    [
        ("float[1,2,4] q, float[1,M,2] k, float[1,M,H] v", [1, 2, None]),
        ("float[1,2,4] q, float[1,M,2] k, float[1,M,3] v", [1, 2, 6]),
    ],
)
def test_an_unknown_size_of_values_is_not_0(shapes, right):
    model = ir.from_proto(
        onnx.parser.parse_model(
            f"""<ir_version: 10, opset_import: ["": 23]> g ({shapes}) => (float[a, b, c] y)
            {{ y = Attention <q_num_heads = 2, kv_num_heads = 1> (q, k, v) }}"""
        )
    )
    infer(model)
    assert dims_of(model.graph.outputs[0]) == right
