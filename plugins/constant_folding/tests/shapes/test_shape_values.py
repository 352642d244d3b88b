"""What is said of integers computed from shapes, against what comes out for several sizes."""

from __future__ import annotations

import math

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from folding_kit import fold, ops, parse
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from narrowpass import Context
from narrowpass_constant_folding.passes.infer_shapes import InferShapes
from narrowpass_constant_folding.shapes.sizes import (
    Size,
    add,
    broadcast,
    divide,
    is_equal,
    is_less,
    multiply,
    named,
    subtract,
)
from narrowpass_constant_folding.shapes.values import ShapeValues

SIZES = ({"N": 1, "M": 1}, {"N": 3, "M": 5}, {"N": 4, "M": 4}, {"N": 0, "M": 2}, {"N": 2, "M": 0})


@st.composite
def arithmetic(draw):
    """Build integers of rank 1 from the shape of an input, and from each other."""
    constants = {
        "c0": np.array([0]),
        "c1": np.array([1]),
        "c2": np.array([2]),
        "cm": np.array([-1]),
        "c12": np.array([12]),
        "z": np.array(0),
    }
    nodes = ["s0 = Shape(x)", "s1 = Shape <start = 1, end = 2> (x)", "n0 = Size(x)"]
    nodes.append("r0 = Unsqueeze(n0, c0)")
    single, several = ["c0", "c1", "c2", "cm", "c12", "s1", "r0"], ["s0"]
    for index in range(draw(st.integers(1, 9))):
        new = f"v{index}"
        kind = draw(
            st.sampled_from(
                [
                    "Gather",
                    "Slice",
                    "Concat",
                    "Scalar",
                    "Where",
                    "Prod",
                    "Add",
                    "Sub",
                    "Mul",
                    "Min",
                    "Max",
                    "Div",
                    "Mod",
                ]
            )
        )
        one, other = draw(st.sampled_from(single)), draw(st.sampled_from(single))
        if kind == "Gather":
            constants[f"i{index}"] = np.array([draw(st.integers(-3, 2))])
            nodes.append(f"{new} = Gather(s0, i{index})")
        elif kind == "Slice":
            start = draw(st.integers(0, 2))
            constants[f"a{index}"] = np.array([start])
            constants[f"e{index}"] = np.array([start + 1])
            nodes.append(f"{new} = Slice(s0, a{index}, e{index})")
        elif kind == "Concat":
            nodes.append(f"{new} = Concat <axis = 0> ({one}, {other})")
            several.append(new)
            continue
        elif kind == "Scalar":
            nodes.append(f"q{index} = Squeeze({one}, c0) {new} = Unsqueeze(q{index}, c0)")
        elif kind == "Where":
            compared = draw(st.sampled_from(["Equal", "Less", "GreaterOrEqual"]))
            third = draw(st.sampled_from(single))
            nodes.append(
                f"b{index} = {compared}({one}, {other}) {new} = Where(b{index}, {third}, {one})"
            )
        elif kind == "Prod":
            source = draw(st.sampled_from(several))
            nodes.append(f"{new} = ReduceProd <keepdims = 1> ({source})")
        elif kind in ("Div", "Mod"):
            divisor = draw(st.sampled_from(["c1", "c2", "c12"]))
            nodes.append(f"{new} = {kind}({one}, {divisor})")
        else:
            nodes.append(f"{new} = {kind}({one}, {other})")
        single.append(new)
    text = f"g (float[N, M, 6] x) => (int64[?] y) {{ {' '.join(nodes)} y = Identity(s0) }}"
    used = {name: value for name, value in constants.items() if f"{name}" in text}
    return parse(text, initializers=used)


def value_of(element, sizes):
    if not isinstance(element, Size):
        return element
    return element.factor * math.prod(sizes[name] for name in element.symbols)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(arithmetic())
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_elements_equal_evaluated_integers(proto):
    model = ir.from_proto(onnx.ModelProto.FromString(proto.SerializeToString()))
    InferShapes().run(model, Context())
    values = ShapeValues()
    known = {
        value.name: values.elements(value)
        for node in model.graph
        for value in node.outputs
        if value.name
    }
    whole = onnx.ModelProto.FromString(proto.SerializeToString())
    whole.graph.output.extend(onnx.ValueInfoProto(name=name) for name in known if name != "y")
    evaluator = ReferenceEvaluator(whole)
    for sizes in SIZES:
        x = np.zeros((sizes["N"], sizes["M"], 6), np.float32)
        results = dict(zip(evaluator.output_names, evaluator.run(None, {"x": x}), strict=True))
        for name, elements in known.items():
            if elements is None:
                continue
            actual = np.asarray(results[name])
            assert actual.ndim == elements.rank, name
            for item, number in zip(elements.items, actual.ravel(), strict=True):
                assert value_of(item, sizes) in (None, int(number)), (name, item, sizes)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(arithmetic())
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_folding_them_changes_nothing(proto):
    kept = onnx.ModelProto.FromString(proto.SerializeToString())
    last = kept.graph.node[-2].output[0]
    kept.graph.output.append(onnx.helper.make_tensor_value_info(last, onnx.TensorProto.INT64, None))
    kept.graph.output[-1].type.tensor_type.shape.dim.add()
    after, _, _ = fold(kept)
    for sizes in SIZES:
        x = np.zeros((sizes["N"], sizes["M"], 6), np.float32)
        expected = ReferenceEvaluator(kept).run(None, {"x": x})
        actual = ReferenceEvaluator(after).run(None, {"x": x})
        for got, due in zip(actual, expected, strict=True):
            np.testing.assert_array_equal(got, due)


N, M = named("N"), named("M")


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        (multiply(multiply(N, 3), M), Size(3, ("M", "N"))),
        (multiply(N, 0), 0),
        (multiply(None, 0), 0),
        (multiply(N, -1), None),
        (divide(Size(12, ("M", "N")), multiply(N, 4)), multiply(M, 3)),
        (divide(N, N), 1),
        (divide(N, 2), None),
        (divide(6, 4), None),
        (add(N, 0), N),
        (add(N, N), multiply(N, 2)),
        (add(N, 1), None),
        (subtract(N, N), 0),
        (subtract(multiply(N, 3), N), multiply(N, 2)),
        (subtract(N, multiply(N, 3)), None),
        (is_less(-1, N), True),
        (is_less(N, 0), False),
        (is_less(0, N), None),
        (is_less(N, N), False),
        (is_equal(N, -1), False),
        (is_equal(N, 0), None),
        (is_equal(N, M), None),
        (broadcast(N, 1), N),
        (broadcast(N, 7), 7),
        (broadcast(N, M), None),
        (broadcast(1, None), None),
    ],
)
def test_arithmetic_with_sizes(actual, expected):
    assert actual == expected


@pytest.mark.parametrize("step", [1, -1, 2, -2, -3])
@pytest.mark.parametrize("stop", [-(2**31), -4, -2, 0, 1, 3, 2**31 - 1])
@pytest.mark.parametrize("start", [-(2**31), -4, -2, 0, 1, 3, 2**31 - 1])
def test_slices_of_constants_from_anywhere(start, stop, step):
    """Before the first element a negative step starts at the first one, as ONNX clamps it."""
    proto = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
    g () => (int64[n] y)
    <int64[3] c = {{7, 8, 9}}, int64[1] s = {{{start}}}, int64[1] e = {{{stop}}},
     int64[1] t = {{{step}}}> {{ y = Slice(c, s, e, "", t) }}""")
    places = [at + 3 if at < 0 else at for at in (start, stop)]
    first, last = np.clip(places, *((0, -1), (2, 3)) if step < 0 else (0, 3))
    after, _, _ = fold(proto)
    assert "Slice" not in ops(after)
    (found,) = ReferenceEvaluator(after).run(None, {})
    assert found.tolist() == [7 + at for at in range(first, last, step)]
