"""Each constraint of a backend varied alone: scales are raised for it, or the node stays float."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest
from int8_kit import floats
from static_kit import Limited, graph, limits, quantized

import narrowpass
from narrowpass import Reject
from narrowpass.errors import NarrowpassError
from narrowpass.runtime.quantization import (
    FixedOutput,
    IntegerRange,
    OperatorSpec,
    Parameters,
    QuantizationSpec,
    ScaleBound,
)

IMAGE = "float[1,4,8,8]"
WEIGHTED = ScaleBound("input * weight / output", 2.0**-32, 2.0**8)
SUM = ScaleBound("input / output", 2.0**-10, 2.0**8)
MUL = ScaleBound("input * input / output", 2.0**-16, 2.0**8)


SAME_RELU = QuantizationSpec(operators={"Relu": OperatorSpec(same=True)})


def images(scale=1.0):
    return [{"x": floats(1, 4, 8, 8) * np.float32(scale)} for _ in range(2)]


def chain(middle, scale=1.0, **constants):
    kinds = "".join(f", float{list(a.shape)} {name}" for name, a in constants.items())
    text = f"""g ({IMAGE} x, float[4,4,1,1] w{kinds}) => ({IMAGE} y) {{
        a = Conv (x, w) {middle} y = Conv (m, w) }}"""
    return graph(text, {"w": floats(4, 4, 1, 1) * np.float32(scale), **constants})


def ratios(rewritten, op_type):
    """Return the ratio of input to output scale of each node of an operator, as emitted."""
    for node in rewritten.model.graph:
        if node.op_type != op_type or node.domain:
            continue
        scales = []
        for value in node.inputs[:2]:
            maker = value.producer()
            if maker is not None and maker.op_type == "DequantizeLinear":
                scales.append(np.asarray(rewritten.constant(maker.inputs[1]), np.float64))
        value = node.outputs[0]
        while not any(use.node.op_type == "QuantizeLinear" for use in value.uses()):
            value = next(iter(value.uses())).node.outputs[0]
        reader = next(use.node for use in value.uses() if use.node.op_type == "QuantizeLinear")
        yield scales, float(rewritten.constant(reader.inputs[1]))


def test_without_limits_nothing_is_raised():
    model, data = chain("m = Relu (a)"), images()
    plain = quantized(model, data)
    limited = quantized(model, data, limits(Conv=WEIGHTED))
    for name in ("x.float", "m.float", "y"):
        assert plain.parameters(name) == limited.parameters(name)


def test_a_ratio_that_is_too_large_raises_the_result(caplog):
    high = 2.0**-14
    limit = limits(Conv=replace(WEIGHTED, high=high))
    model, data = chain("m = Relu (a)"), images()
    rewritten = quantized(model, data, limit)
    assert set(rewritten.verdicts.values()) == {"int8"}
    for (operand, weight), result in ratios(rewritten, "Conv"):
        assert np.float32((operand * weight / result).max()) < high
        # No more than was asked.
        assert (operand * weight / result).max() > high * (1 - 2.0**-18)
    assert not caplog.records


def test_a_ratio_that_is_too_small_raises_the_channel_alone():
    weight = floats(4, 4, 1, 1)
    weight[1] *= np.float32(2.0**-30)
    text = f"g ({IMAGE} x, float[4,4,1,1] w) => ({IMAGE} y) {{ y = Conv (x, w) }}"
    model, data = graph(text, {"w": weight}), images()
    plain = quantized(model, data)
    rewritten = quantized(model, data, limits(Conv=replace(WEIGHTED, low=2.0**-16)))
    raised = rewritten.constant("w.scale") / plain.constant("w.scale")
    np.testing.assert_array_equal(raised[[0, 2, 3]], 1)
    assert raised[1] > 1000
    for (operand, weights), result in ratios(rewritten, "Conv"):
        assert (operand * weights / result).min() == pytest.approx(2.0**-16, rel=1e-5)
    # What rounds to zero is less than a step of the result.
    assert rewritten.sqnr() == pytest.approx(plain.sqnr(), abs=0.5)


@pytest.mark.parametrize("factor", [2.0**-14, 2.0**14])
@pytest.mark.parametrize("operator", ["Add", "Sub"])
def test_operands_of_additions(operator, factor):
    k = (floats(4, 4, 1, 1) * np.float32(factor)).astype(np.float32)
    model = chain(f"b = Conv (x, k) m = {operator} (a, b)", k=k)
    rewritten = quantized(model, images(), limits(**{operator: SUM}))
    assert set(rewritten.verdicts.values()) == {"int8"}
    (((a, b), result),) = ratios(rewritten, operator)
    for scale in (float(a), float(b)):
        assert 2.0**-10 <= np.float32(scale / result) < 2.0**8
    assert rewritten.sqnr() > 20


def test_operands_of_elementwise_mul():
    k = floats(4, 4, 1, 1) * np.float32(2.0**-24)
    low = quantized(
        chain("b = Conv (x, k) m = Mul (a, b)", k=k),
        images(),
        limits(Mul=replace(MUL, low=2.0**-4)),
    )
    (((a, b), result),) = ratios(low, "Mul")
    assert np.float32(a * b / result) >= 2.0**-4
    rewritten = quantized(chain("b = Conv (x, k) m = Mul (a, b)", k=k), images(), limits(Mul=MUL))
    assert rewritten.sqnr() > 20


def test_slopes():
    middle = "m = LeakyRelu <alpha = 0.001> (a)"
    closed = ScaleBound("input / output", 2.0**-8, 2.0**7, closed=True)
    rewritten = quantized(chain(middle), images(), limits(LeakyRelu=closed))
    ((operands, result),) = ratios(rewritten, "LeakyRelu")
    assert np.float32(operands[0] * 0.001 / result) >= 2.0**-8


def test_the_same_quantization_of_an_activation():
    middle = "n = Neg (a) m = Relu (n)"
    text = f"""g ({IMAGE} x, float[4,4,1,1] w) => ({IMAGE} y, {IMAGE} z) {{
        a = Conv (x, w) m = Relu (a) y = Conv (m, w) z = Conv (a, w) }}"""
    model, data = graph(text, {"w": floats(4, 4, 1, 1)}), images()
    apart = quantized(model, data)
    assert apart.parameters("m.float") != apart.parameters("a.float")
    same = quantized(model, data, SAME_RELU)
    assert same.parameters("m.float") == same.parameters("a.float")
    assert quantized(chain(middle), data, SAME_RELU).sqnr() > 20


def test_what_cannot_be_kept_stays_float_with_a_warning(caplog):
    """Result and operand of the convolution share one scale, which no increase can separate."""
    text = f"""g ({IMAGE} x, float[4,4,1,1] w, float[4,4,1,1] k, float[4,8,1,1] v)
        => ({IMAGE} y) {{
        a = Conv (x, w) b = Conv (a, k) m = Concat <axis = 1> (a, b) y = Conv (m, v) }}"""
    constants = {"w": floats(4, 4, 1, 1), "k": floats(4, 4, 1, 1), "v": floats(4, 8, 1, 1)}
    limit = limits(Conv=replace(WEIGHTED, high=2.0**-7))
    with caplog.at_level(logging.WARNING):
        rewritten = quantized(graph(text, constants), images(), limit)
    left = [item for item in rewritten.decisions if item.decision == "float"]
    assert [item.by for item in left if item.op_type == "Conv"] == ["constraint"]
    (item,) = [item for item in left if item.by == "constraint"]
    assert item.node == "b"
    assert item.limit == 2.0**-7
    assert item.measured >= item.limit
    assert f"{item.measured:.6g}" in item.reason
    warnings = {r.getMessage() for r in caplog.records if r.levelno == logging.WARNING}
    assert len(warnings) == 1
    assert "Conv 'b' stays float: input * weight / output is" in warnings.pop()
    assert rewritten.sqnr() > 25


def test_the_floor_is_that_of_the_presets():
    weight = floats(4, 4, 1, 1)
    weight[2] *= np.float32(1e-5)
    text = f"g ({IMAGE} x, float[4,4,1,1] w) => ({IMAGE} y) {{ y = Conv (x, w) }}"
    model, data = graph(text, {"w": weight}), images(1e-3)
    rewritten = quantized(model, data, limits(Conv=WEIGHTED), scale_policy="floor")
    assert rewritten.parameters("x.float")[0] == 2.0**-12
    assert rewritten.constant("w.scale")[2] == np.float32(2.0**-12)
    solved = quantized(model, data, limits(Conv=WEIGHTED))
    assert solved.parameters("x.float")[0] < 2.0**-15
    assert solved.sqnr() > rewritten.sqnr() + 10


def test_the_floor_raises_nothing_for_a_limit(caplog):
    limit = limits(Conv=replace(WEIGHTED, high=2.0**-14))
    rewritten = quantized(chain("m = Relu (a)"), images(), limit, scale_policy="floor")
    assert {item.by for item in rewritten.decisions if item.op_type == "Conv"} == {"constraint"}
    assert not rewritten.modified
    assert "stays float" in caplog.text


def test_the_smallest_scale():
    rewritten = quantized(chain("m = Relu (a)"), images(), QuantizationSpec(smallest_scale=2.0**-4))
    for name in ("x.float", "m.float", "y"):
        assert rewritten.parameters(name)[0] >= 2.0**-4
    assert (rewritten.constant("w.scale") >= 2.0**-4).all()


def softmax_as(output):
    return QuantizationSpec(operators={"Softmax": OperatorSpec(output=output)})


def test_the_only_quantization_of_a_result():
    fixed = softmax_as(FixedOutput("int8", 2.0**-8, -128))
    rewritten = quantized(chain("m = Softmax (a)"), images(), fixed, green=("op:Softmax",))
    assert rewritten.parameters("m.float") == (2.0**-8, -128)
    other = softmax_as(FixedOutput("uint8", 2.0**-8, 0))
    rewritten = quantized(chain("m = Softmax (a)"), images(), other, green=("op:Softmax",))
    (item,) = [item for item in rewritten.decisions if item.op_type == "Softmax"]
    assert item.decision == "float"
    assert "uint8" in item.reason


def test_accumulators_that_overflow_int32_stay_float(caplog):
    weight = np.zeros((70000, 2), np.float32)
    weight[:5] = floats(5, 2)
    text = "g (float[1,70000] x, float[70000,2] w) => (float[1,2] y) { y = MatMul (x, w) }"
    rewritten = quantized(graph(text, {"w": weight}), [{"x": floats(1, 70000)}])
    (item,) = rewritten.decisions
    assert (item.decision, item.measured, item.limit) == ("float", 70000 * 255 * 127, 2**31 - 1)
    assert "largest accumulator" in caplog.text


def test_what_is_written_keeps_what_the_native_backend_asks():
    spec = pytest.importorskip("narrowpass_xnn_cpu.constraints").spec()
    k = floats(4, 4, 1, 1) * np.float32(2.0**-13)
    middle = "b = Conv (x, k) c = Add (a, b) d = Mul (c, a) m = Relu (d)"
    rewritten = quantized(chain(middle, k=k), images(), spec)
    for kind in ("Conv", "Add", "Mul"):
        for scales, result in ratios(rewritten, kind):
            weights = scales[1] if kind == "Conv" else None
            operands = [Parameters(float(s), 0) for s in (scales[:1] if kind == "Conv" else scales)]
            assert not spec.violations(kind, operands, Parameters(result, 0), weights)
    assert isinstance(rewritten.model, ir.Model)


@pytest.mark.parametrize(
    "spec",
    [
        QuantizationSpec(activations=IntegerRange("uint8", 0, 255)),
        QuantizationSpec(weights=IntegerRange("int8", -64, 64)),
    ],
)
def test_a_target_that_wants_other_integers(spec):
    data = images()
    with pytest.raises(NarrowpassError, match="limited has"):
        quantized(chain("m = Relu (a)"), data, spec)


class Particular(Limited):
    """A backend that rejects one proposed node for a reason of its own."""

    def supports_quantized(self, node, quantization):
        assert quantization.weight_scales is not None or node.op_type != "Conv"
        if node.outputs[0].name == "b":
            return Reject("its kernel takes 8 channels")
        return super().supports_quantized(node, quantization)


def test_a_proposal_that_the_target_rejects_stays_float_with_its_reason(caplog):
    model = chain("b = Conv (a, k) m = Relu (b)", k=floats(4, 4, 1, 1))
    with caplog.at_level(logging.WARNING):
        result = quantized(model, images(), target=Particular(limits(Conv=WEIGHTED)))
    assert result.verdicts["b"] == "float"
    assert result.reasons["b"] == "the target: its kernel takes 8 channels"
    assert result.verdicts["a"] == result.verdicts["y"] == "int8"
    assert "'b' stays float: the target: its kernel takes 8 channels" in caplog.text


@pytest.mark.parametrize("middle", ["m = Relu (a)", "b = Conv (a, k) c = Add (a, b) m = Relu (c)"])
def test_the_native_backend_computes_in_int8_what_was_quantized_for_it(middle):
    backend = pytest.importorskip("narrowpass_xnn_cpu.backend").XnnCpuBackend()
    k = {"k": floats(4, 4, 1, 1)} if "k)" in middle else {}
    result = quantized(chain(middle, **k), images(), target=backend)
    with narrowpass.load(narrowpass.build(result.model, ""), backend) as program:
        dtypes = [plan.dtype for plan in program.explain() if plan.op_type in ("Conv", "Add")]
    assert dtypes == ["int8"] * (result.count["Conv"] + result.count["Add"])
