"""Each limit by itself, in each form of the node: kept just inside, named just beyond."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from repair_kit import MICROSOFT, XNNPACK, integers, model, node, repaired

from narrowpass.runtime.quantization import IntegerRange, QuantizationSpec

FORMS = ["int8", "uint8", "one node"]

IN_ONE = {
    "Conv": ("QLinearConv", ""),
    "MatMul": ("QLinearMatMul", ""),
    "Gemm": ("QGemm", MICROSOFT),
    "Add": ("QLinearAdd", MICROSOFT),
    "Mul": ("QLinearMul", MICROSOFT),
    "LeakyRelu": ("QLinearLeakyRelu", MICROSOFT),
    "Concat": ("QLinearConcat", MICROSOFT),
    "Softmax": ("QLinearSoftmax", MICROSOFT),
}
WEIGHT = {"Conv": (4, 3, 1, 1), "MatMul": (8, 4), "Gemm": (8, 4), "ConvTranspose": (3, 4, 1, 1)}
SHAPE = {"Conv": [1, 3, 4, 8], "ConvTranspose": [1, 3, 4, 8]}


@dataclass(frozen=True)
class Case:
    """An operator on quantized tensors: of two operands, or of one and a weight.

    Scales are powers of two, so that ratios are exact. Zero points are those of signed bytes.
    """

    op_type: str
    x: float = 2.0**-6
    other: float = 2.0**-6
    y: float = 2.0**-5
    x_zero: int = 3
    y_zero: int = 3
    weight_zero: int = 0
    weight: tuple[int, int] = (-127, 127)
    channels: int | None = None
    attributes: tuple[tuple[str, Any], ...] = ()
    opset: int = 17

    def build(self, form):
        """Write it: with Q/DQ of signed or unsigned bytes, or in one node of unsigned ones."""
        dtype, shift = (np.int8, 0) if form == "int8" else (np.uint8, 128)
        weighted = self.op_type in WEIGHT
        shape = SHAPE.get(self.op_type, [4, 8])
        second = weighted or self.op_type in ("Add", "Sub", "Mul", "Concat")
        constants: dict[str, Any] = {
            "xs": np.float32(self.x),
            "xz": dtype(self.x_zero + shift),
            "os": np.float32(self.other),
            "oz": dtype((self.weight_zero if weighted else self.x_zero) + shift),
            "ys": np.float32(self.y),
            "yz": dtype(self.y_zero + shift),
        }
        inputs = {"x": shape}
        nodes = [node("QuantizeLinear", ["x", "xs", "xz"], "xq")]
        if weighted:
            dims = WEIGHT[self.op_type]
            ends = np.array(self.weight)
            stored = integers(np.int16, *dims, low=max(-126, ends[0]), high=min(126, ends[1]))
            stored.reshape(-1)[:2] = ends
            constants["oq"] = (stored + shift).astype(dtype)
            if self.channels is not None:
                size = dims[self.channels]
                constants["os"] = np.full(size, self.other, np.float32)
                constants["oz"] = np.full(size, constants["oz"], dtype)
        elif second:
            inputs["o"] = shape
            nodes.append(node("QuantizeLinear", ["o", "os", "oz"], "oq"))
        if form == "one node":
            nodes.append(self._in_one(second))
        else:
            nodes += self._between(second)
        nodes.append(node("DequantizeLinear", ["yq", "ys", "yz"], "y"))
        read = {name for each in nodes for name in each.input}
        known = {name: value for name, value in constants.items() if name in read}
        return model(nodes, inputs, {"y": [None] * len(shape)}, known, self.opset)

    def _in_one(self, second):
        kind, domain = IN_ONE[self.op_type]
        operands = ["xq", "xs", "xz", *(["oq", "os", "oz"] if second else [])]
        result = ["ys", "yz"]
        given = [*result, *operands] if self.op_type == "Concat" else [*operands, *result]
        if self.op_type == "Gemm":
            given.insert(6, "")
        return node(kind, given, "yq", domain, **dict(self.attributes))

    def _between(self, second):
        axis = {} if self.channels is None else {"axis": self.channels}
        nodes = [node("DequantizeLinear", ["xq", "xs", "xz"], "xf")]
        if second:
            nodes.append(node("DequantizeLinear", ["oq", "os", "oz"], "of", **axis))
        operands = ["xf", "of"] if second else ["xf"]
        operator = node(self.op_type, operands, "h", **dict(self.attributes))
        operator.name = "yq"
        return [*nodes, operator, node("QuantizeLinear", ["h", "ys", "yz"], ["yq2", "yq"][1])]


def limited(**changed):
    return replace(XNNPACK, **changed)


ATTRIBUTES = {
    "LeakyRelu": (("alpha", 0.5),),
    "Concat": (("axis", 1),),
    "Softmax": (("axis", -1),),
}
BASE = {
    kind: Case(kind, attributes=ATTRIBUTES.get(kind, ()))
    for kind in ("Conv", "ConvTranspose", "MatMul", "Gemm", "Add", "Sub", "Mul", "LeakyRelu")
}
ADDITION, MATMUL = "input / output", "input * weight / output"

RATIOS = []
for _kind in ("Conv", "ConvTranspose", "MatMul", "Gemm"):
    # 2⁻¹² over the scale of the result must be in [2⁻³², 2⁸).
    RATIOS += [
        (_kind, {"y": 2.0**-19}, None),
        (_kind, {"y": 2.0**-20}, (MATMUL, 2.0**8, 2.0**8)),
        (_kind, {"y": 2.0**20}, None),
        (_kind, {"y": 2.0**21}, (MATMUL, 2.0**-33, 2.0**-32)),
    ]
for _kind in ("Add", "Sub"):
    RATIOS += [
        (_kind, {"y": 2.0**-13}, None),
        (_kind, {"y": 2.0**-14}, (ADDITION, 2.0**8, 2.0**8)),
        (_kind, {"y": 2.0**4}, None),
        (_kind, {"y": 2.0**5}, (ADDITION, 2.0**-11, 2.0**-10)),
        (_kind, {"other": 2.0**-16}, (ADDITION, 2.0**-11, 2.0**-10)),
        (_kind, {"other": 2.0**3}, (ADDITION, 2.0**8, 2.0**8)),
    ]
RATIOS += [
    ("Mul", {"y": 2.0**-19}, None),
    ("Mul", {"y": 2.0**-20}, ("input * input / output", 2.0**8, 2.0**8)),
    ("Mul", {"y": 2.0**4}, None),
    ("Mul", {"y": 2.0**5}, ("input * input / output", 2.0**-17, 2.0**-16)),
    ("LeakyRelu", {"y": 2.0**-13}, None),
    ("LeakyRelu", {"y": 2.0**-14}, (ADDITION, 2.0**8, 2.0**7)),
    # The half of what is negative is smaller by one more power.
    ("LeakyRelu", {"y": 2.0**1}, None),
    ("LeakyRelu", {"y": 2.0**2}, (ADDITION, 2.0**-9, 2.0**-8)),
]


def held(case, form, limits=None):
    """Run the pass; check that one warning has all verdicts on the operator, and return them."""
    found = repaired(case.build(form), limits)
    verdicts = [each for each in found.of("yq") if each.decision != "repaired"]
    left = [each for each in found.decisions if each.decision == "float"]
    assert len(found.warnings) == bool(left)
    assert all(each.reason in found.warnings[0] for each in left)
    return verdicts


def check(case, form, expected, limits=None):
    verdicts = held(case, form, limits)
    if expected is None:
        assert [each.decision for each in verdicts] == ["int8"]
        return
    (only,) = verdicts
    assert (only.decision, only.by) == ("float", "constraints")
    name, measured, limit = expected
    assert only.reason.startswith(name)
    assert (only.measured, only.limit) == (measured, limit)


@pytest.mark.parametrize(
    ("kind", "changed", "expected", "form"),
    [(*row, form) for row in RATIOS for form in FORMS if form != "one node" or row[0] in IN_ONE],
)
def test_ratios(kind, changed, expected, form):
    check(replace(BASE[kind], **changed), form, expected)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("channel", [0, 3])
def test_each_channel_is_measured(form, channel):
    case = replace(BASE["Conv"], channels=0)
    proto = case.build(form)
    for tensor in proto.graph.initializer:
        if tensor.name == "os":
            scales = np.full(4, 2.0**-6, np.float32)
            scales[channel] = 2.0**9
            tensor.raw_data = scales.tobytes()
    (only,) = [d for d in repaired(proto).of("yq") if d.decision != "repaired"]
    assert (only.measured, only.limit) == (2.0**8, 2.0**8)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("where", ["x", "other", "y"])
@pytest.mark.parametrize("kind", ["Conv", "Add"])
def test_smallest_scale(kind, where, form):
    limits = limited(smallest_scale=2.0**-12, operators={})
    check(replace(BASE[kind], **{where: 2.0**-12}), form, None, limits)
    expected = "smallest scale", 2.0**-13, 2.0**-12
    check(replace(BASE[kind], **{where: 2.0**-13}), form, expected, limits)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["Conv", "MatMul", "Gemm"])
class TestWeights:
    def test_least_integer(self, kind, form):
        case = replace(BASE[kind], weight=(-128, 127))
        check(case, form, ("integer of the weight", -128, -127))

    def test_narrower_range(self, kind, form):
        limits = limited(weights=IntegerRange("int8", -7, 7))
        check(replace(BASE[kind], weight=(-7, 7)), form, None, limits)
        check(replace(BASE[kind], weight=(-7, 9)), form, ("integer of the weight", 9, 7), limits)

    def test_zero_point(self, kind, form):
        """Integers less the zero point must be within the range for it to go."""
        case = replace(BASE[kind], weight=(-100, 127), weight_zero=3)
        check(case, form, None)
        case = replace(BASE[kind], weight=(-127, 127), weight_zero=3)
        check(case, form, ("zero point of the weight", 3, 0))

    def test_axis(self, kind, form):
        right = 0 if kind == "Conv" else 1
        check(replace(BASE[kind], channels=right), form, None)
        if form != "one node":
            expected = "axis of the weight's scales", 1 - right, right
            check(replace(BASE[kind], channels=1 - right), form, expected)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["Conv", "Add", "LeakyRelu"])
def test_range_of_activations(kind, form):
    limits = limited(activations=IntegerRange("int8", -127, 127))
    verdicts = held(BASE[kind], form, limits)
    measured = [(each.reason.split(" is ")[0], each.measured, each.limit) for each in verdicts]
    assert measured == [
        ("least integer of the operand", -128, -127),
        ("least integer of the result", -128, -127),
    ]


@pytest.mark.parametrize("form", FORMS)
def test_type_of_activations(form):
    limits = limited(activations=IntegerRange("uint8", 0, 255))
    verdicts = held(BASE["Add"], form, limits)
    if form == "int8":
        assert [each.reason for each in verdicts] == [
            "its operand is int8, not uint8",
            "its result is int8, not uint8",
        ]
    else:
        assert [each.decision for each in verdicts] == ["int8"]


@pytest.mark.parametrize("form", FORMS)
def test_concat_is_converted_before(form):
    check(replace(Case("Concat"), attributes=(("axis", 1),)), form, None)


@pytest.mark.parametrize("form", FORMS)
def test_concat_beyond_conversions(form):
    case = replace(Case("Concat"), attributes=(("axis", 1),), y=2.0**-14)
    reasons = [each.reason for each in held(case, form)]
    assert reasons[0].startswith("input / output is 256, the limit 128")
    assert any(reason.startswith("scale of input and output") for reason in reasons)


def moving(kind, form, x, y, x_zero=3, y_zero=3, **more):
    """Write an operator that must have one quantization, between Q/DQ, or on integers."""
    dtype, shift = (np.int8, 0) if form == "int8" else (np.uint8, 128)
    nodes = [
        node("QuantizeLinear", ["x", "xs", "xz"], "xq"),
        node("DequantizeLinear", ["xq", "xs", "xz"], "xf"),
        node(kind, ["xf", *more.pop("inputs", [])], "h", **more.pop("attributes", {})),
        node("QuantizeLinear", ["h", "ys", "yz"], "yq"),
        node("DequantizeLinear", ["yq", "ys", "yz"], "y"),
    ]
    known = {"xs": np.float32(x), "xz": dtype(x_zero + shift)}
    known |= {"ys": np.float32(y), "yz": dtype(y_zero + shift), **more}
    return model(nodes, {"x": [1, 3, 8, 8]}, {"y": [None] * 4}, known)


@pytest.mark.parametrize("form", ["int8", "uint8"])
@pytest.mark.parametrize(
    ("scale", "zero", "what"),
    [
        (2.0**-5, 3, None),
        (2.0**-6, -5, None),
        (2.0**-14, 3, ("input / output", 2.0**8, 2.0**7)),
        (2.0**3, 3, ("input / output", 2.0**-9, 2.0**-8)),
    ],
)
def test_one_quantization(form, scale, zero, what):
    proto = moving(
        "MaxPool", form, 2.0**-6, scale, y_zero=zero, attributes={"kernel_shape": [2, 2]}
    )
    verdicts = repaired(proto).of("h")
    if what is None:
        assert [each.decision for each in verdicts] == ["repaired", "int8"]
        return
    assert (verdicts[0].measured, verdicts[0].limit) == what[1:]
    assert all(each.decision == "float" for each in verdicts)


@pytest.mark.parametrize("form", ["int8", "uint8"])
@pytest.mark.parametrize(
    ("y", "zero", "reason", "measured", "limit"),
    [
        (2.0**-5, 3, "scale of input and output", 2.0**-6, 2.0**-5),
        (2.0**-6, 4, "zero point of input and output", 3, 4),
    ],
)
def test_one_quantization_that_cannot_be_had(form, y, zero, reason, measured, limit):
    """What a linear Resize computes is between the numbers that it reads."""
    proto = moving(
        "Resize",
        form,
        2.0**-6,
        y,
        y_zero=zero,
        inputs=["", "factor"],
        attributes={"mode": "linear"},
        factor=np.float32([1, 1, 2, 2]),
    )
    (only,) = repaired(proto).of("h")
    assert only.reason.startswith(reason)
    assert (only.measured, only.limit) == (measured, limit)


@pytest.mark.parametrize("form", FORMS)
class TestSoftmax:
    """Its result is unsigned, with the scale 2⁻⁸ and the zero point 0."""

    CASE = Case("Softmax", attributes=(("axis", -1),), y=2.0**-8, y_zero=-128)

    def test_the_only_one(self, form):
        found = repaired(self.CASE.build(form))
        assert found.of("yq")[-1].decision == "int8"
        quantizing = [n for n in found.after.graph.node if n.op_type == "QuantizeLinear"]
        dtypes = [found.constants()[n.input[2]].dtype.name for n in quantizing]
        assert dtypes == (["int8", "uint8", "int8"] if form == "int8" else ["int8", "uint8"])

    def test_another(self, form):
        verdicts = held(replace(self.CASE, y=2.0**-7), form)
        assert any(each.measured == 2.0**-7 and each.limit == 2.0**-8 for each in verdicts)


@pytest.mark.parametrize("form", ["int8", "uint8"])
def test_conversions(form):
    dtype, shift = (np.int8, 0) if form == "int8" else (np.uint8, 128)
    for scale, good in ((2.0**-13, True), (2.0**-14, False), (2.0**2, True), (2.0**3, False)):
        nodes = [
            node("QuantizeLinear", ["x", "xs", "xz"], "xq"),
            node("DequantizeLinear", ["xq", "xs", "xz"], "xf"),
            node("QuantizeLinear", ["xf", "ys", "xz"], "yq"),
            node("DequantizeLinear", ["yq", "ys", "xz"], "y"),
        ]
        known = {"xs": np.float32(2.0**-6), "ys": np.float32(scale), "xz": dtype(3 + shift)}
        found = repaired(model(nodes, {"x": [8]}, {"y": [8]}, known))
        assert (found.of("yq")[-1].decision == "int8") is good


@pytest.mark.parametrize("form", FORMS)
def test_int32_accumulators(form):
    """A bias near 2³¹ leaves no headroom for 3 terms of 127·128."""
    case = BASE["Conv"]
    for bias, good in ((2**31 - 3 * 127 * 128 - 1, True), (2**31 - 3 * 127 * 128, False)):
        proto = case.build(form)
        given = model([], {}, {}, {"b": np.full(4, bias, np.int32), "bs": np.float32(2.0**-12)})
        proto.graph.initializer.extend(given.graph.initializer)
        operator = next(n for n in proto.graph.node if n.op_type in ("Conv", "QLinearConv"))
        if form == "one node":
            operator.input.append("b")
        else:
            proto.graph.node.insert(0, node("DequantizeLinear", ["b", "bs"], "bf"))
            operator = next(n for n in proto.graph.node if n.op_type == "Conv")
            operator.input.append("bf")
        last = repaired(proto).of("yq")[-1]
        assert (last.decision == "int8") is good
        if not good:
            assert (last.measured, last.limit) == (2.0**31, 2.0**31)


@pytest.mark.parametrize(
    ("changed", "measured", "limit"),
    [({"y": 2.0**-20}, 2.0**8, 2.0**8), ({"weight": (-128, 127)}, -128, -127)],
)
def test_a_node_that_cannot_be_rewritten_is_measured_too(changed, measured, limit):
    """Operator set 11 has no DequantizeLinear for channels, but QLinearConv has scales for them."""
    case = replace(BASE["Conv"], channels=0, opset=11, **changed)
    found = repaired(case.build("one node"))
    assert "QLinearConv" in found.kinds()
    assert (measured, limit) in [(each.measured, each.limit) for each in found.of("yq")]


def test_without_a_target_nothing_is_limited_but_weights():
    found = repaired(replace(BASE["Conv"], y=2.0**-40).build("uint8"), QuantizationSpec())
    assert found.of("yq")[-1].decision == "int8"
