"""Methods with calibration data, on models that run in segments."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from int4_kit import build, constants, decisions, floats, kinds, model, rewritten, run
from onnx import helper
from threadpoolctl import threadpool_info

from narrowpass import Context, Observer, Samples
from narrowpass.errors import DataError, PassError
from narrowpass_int4 import rewriting
from narrowpass_int4.data import hessian, observation
from narrowpass_int4.data.hessian import Hessian
from narrowpass_int4.int4 import Int4
from narrowpass_int4.scaling import divide, find_divisors

K = 64


def gated(rng=None):
    """Return a normalized, gated layer as language models have it, with a residual and a head."""
    nodes = [
        helper.make_node("LayerNormalization", ["x", "scale", "shift"], ["n"], axis=-1),
        helper.make_node("MatMul", ["n", "gate"], ["g"], name="gate"),
        helper.make_node("MatMul", ["n", "up"], ["u"], name="up"),
        helper.make_node("Sigmoid", ["g"], ["s"]),
        helper.make_node("Mul", ["g", "s"], ["silu"]),
        helper.make_node("Mul", ["silu", "u"], ["h"]),
        helper.make_node("MatMul", ["h", "down"], ["d"], name="down"),
        helper.make_node("Add", ["x", "d"], ["r"]),
        helper.make_node("Gemm", ["r", "head", "bias"], ["y"], transB=1, name="head"),
    ]
    scale = np.ones(K, np.float32)
    scale[:5] = 12
    held = {
        "scale": scale,
        "shift": floats(K, scale=0.1),
        "gate": floats(K, 2 * K, scale=K**-0.5),
        "up": floats(K, 2 * K, scale=K**-0.5),
        "down": floats(2 * K, K, scale=K**-0.5),
        "head": floats(24, K, scale=K**-0.5),
        "bias": floats(24),
    }
    return model(nodes, {"x": ["m", K]}, {"y": ["m", 24]}, held)


def samples(count=6):
    mix = floats(K, K)
    return [{"x": floats(40, K) @ mix} for _ in range(count)]


def noise(proto, after, feeds):
    right, got = run(proto, feeds), run(after, feeds)
    return float(np.linalg.norm(got - right) / np.linalg.norm(right))


@pytest.mark.parametrize("form", ["qdq", "nbits"])
@pytest.mark.parametrize("symmetric", ["true", "false"])
@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_data_beats_rounding(form, symmetric, method):
    proto, data = gated(), samples()
    options = f"symmetric={symmetric},format={form},head=int4"
    plain = rewritten(proto, f"int4{{method=rtn,{options}}}")
    after = rewritten(proto, f"int4{{method={method},{options}}}", data)
    assert len(kinds(after)) == len(kinds(plain))  # factors cost no operator
    assert noise(proto, after, data[0]) < 0.9 * noise(proto, plain, data[0])


@pytest.mark.parametrize("method", ["rtn", "mse", "hqq", "gptq", "awq"])
def test_the_loss_on_data_is_reported(method):
    """Of the first layers it is what numpy computes from their inputs and weights."""
    proto, data = gated(), samples(2)
    bundle = build(proto, f"int4{{method={method},head=int4}}", data)
    after = ir.to_proto(bundle.methods["main"])
    found = decisions(bundle)
    assert [found[n]["decision"] for n in ("gate", "up", "down", "head")] == ["int4"] * 4
    right = _intermediate(proto, "g", data)
    got = _intermediate(after, "g", data)
    lost = np.linalg.norm(got - right) / np.linalg.norm(right)
    assert found["gate"]["measured"] == pytest.approx(lost, rel=2e-3)
    assert found["gate"]["histogram"].counts if hasattr(found["gate"]["histogram"], "counts") else 1


def _intermediate(proto, name, data):
    copy = type(proto)()
    copy.CopyFrom(proto)
    del copy.graph.output[:]
    copy.graph.output.append(helper.make_tensor_value_info(name, 1, None))
    return np.concatenate([run(copy, feeds) for feeds in data])


def test_later_layers_see_quantized_ones():
    """The error of the last layer is measured on what the narrow layers before it compute."""
    proto, data = gated(), samples(2)
    bundle = build(proto, "int4{method=rtn,head=int4}", data)
    after = ir.to_proto(bundle.methods["main"])
    x = _intermediate(after, "h", data).astype(np.float64)
    found = constants(after)
    spread = np.repeat(found["down.scale"], 32, 0).astype(np.float64)
    lost = x @ (found["down.int4"] * spread) - x @ constants(proto)["down"]
    share = np.linalg.norm(lost) / np.linalg.norm(x @ constants(proto)["down"])
    assert decisions(bundle)["down"]["measured"] == pytest.approx(share, rel=1e-3)


def test_factors_leave_the_function_as_it_was():
    """In float, dividing what AWQ divides, and multiplying weights, changes nothing."""
    proto = gated()
    graph = ir.from_proto(proto).graph
    by_name = {node.name: node for node in graph}
    factors = np.exp(floats(K)).astype(np.float32)
    readers = {by_name["gate"], by_name["up"]}
    divisors = find_divisors(by_name["gate"].inputs[0], readers, K)
    assert [each.index for each in divisors] == [1, 2]
    taken = set(graph.initializers)
    for each in divisors:
        divide(each, factors, taken)
    wide = np.exp(floats(2 * K)).astype(np.float32)
    (divisor,) = find_divisors(by_name["down"].inputs[0], {by_name["down"]}, 2 * K)
    assert divisor.node is by_name["up"]
    divide(divisor, wide, taken)
    for node in readers | {by_name["down"]}:
        row = wide if node.name == "down" else factors
        value = node.inputs[1]
        value.const_value = ir.Tensor(value.const_value.numpy() * row[:, None], name=value.name)
    after = ir.to_proto(ir.Model(graph, ir_version=10))
    feeds = samples(1)[0]
    np.testing.assert_allclose(run(after, feeds), run(proto, feeds), rtol=2e-4, atol=2e-4)


def test_what_cannot_be_divided():
    proto = gated()
    graph = ir.from_proto(proto).graph
    by_name = {node.name: node for node in graph}
    value = by_name["gate"].inputs[0]
    assert find_divisors(value, {by_name["gate"]}, K) == []  # `up` reads it, too
    assert find_divisors(by_name["head"].inputs[0], {by_name["head"]}, K) == []  # a residual


def test_awq_divides_a_quantized_layer_by_its_scales():
    proto, data = gated(), samples()
    for each in data:
        each["x"][:, 3] *= 8
    bundle = build(proto, "int4{method=awq,head=int4,symmetric=false}", data)
    after = ir.to_proto(bundle.methods["main"])
    assert not any("divided" in name for name in constants(after) if name.startswith("up"))
    assert noise(proto, after, data[1]) < 0.2


@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_missing_data(method):
    with pytest.raises(PassError, match=f"method={method} needs data: pass --calibration"):
        build(gated(), f"int4{{method={method}}}")


def test_data_that_is_nan():
    data = samples(2)
    data[1]["x"][3, 3] = np.nan
    with pytest.raises(DataError, match=r"sample 2 of .* is NaN or infinite"):
        build(gated(), "int4{method=gptq}", data)


def test_hessian_by_hand():
    hessian = Hessian(8, "x")
    parts = [floats(5, 8), floats(3, 8)]
    for part in parts:
        hessian.add(part, "a sample")
    whole = np.concatenate(parts).astype(np.float64)
    np.testing.assert_allclose(hessian.matrix, whole.T @ whole, rtol=1e-5)
    np.testing.assert_allclose(hessian.magnitude, np.abs(whole).sum(0), rtol=1e-6)
    assert hessian.count == 8
    with pytest.raises(DataError, match="rows of 9 elements, and not of 8"):
        hessian.add(floats(2, 9), "a sample")


def test_diagonal_of_a_hessian_alone_by_hand():
    hessian = Hessian(8, "x", whole=False)
    parts = [floats(5, 8), floats(3, 8)]
    for part in parts:
        hessian.add(part, "a sample")
    both = np.concatenate(parts).astype(np.float64)
    np.testing.assert_allclose(hessian.diagonal, (both**2).sum(0), rtol=1e-6)
    assert hessian.count == 8


@pytest.mark.parametrize("method", ["mse", "hqq"])
def test_weights_are_the_same_where_nobody_reads_decisions(method):
    """They follow from the diagonal, which is rounded otherwise: choices near a tie may differ."""
    proto, data, built = gated(), samples(3), []
    for reads in (True, False):
        ctx = Context(samples=Samples.of(data), observer=Observer(reads_decisions=reads))
        model = Int4(method=method).run(ir.from_proto(proto), ctx).model
        stored = [value.const_value for value in model.graph.initializers.values()]
        kinds = (ir.DataType.INT4, ir.DataType.UINT4, ir.DataType.INT8)
        built.append([tensor.numpy() for tensor in stored if tensor.dtype in kinds])
    assert built[0]
    for one, other in zip(*built, strict=True):
        assert np.mean(one != other) < 0.01


def test_tolerance_with_data_leaves_layers_wide():
    proto, data = gated(), samples(2)
    every = decisions(build(proto, "int4{method=awq,head=int4}", data))
    limit = sorted(d["measured"] for d in every.values())[2] * 1.02
    bundle = build(proto, f"int4{{method=awq,head=int4,tolerance={limit:.6f}}}", data)
    found = decisions(bundle)
    wide = [name for name, each in found.items() if each["decision"] == "wide"]
    assert wide
    assert all("outputs would lose" in found[name]["reason"] for name in wide)
    assert all(d["measured"] <= limit for d in found.values() if d["decision"] == "int4")
    after = ir.to_proto(bundle.methods["main"])
    assert noise(proto, after, data[0]) < 0.5


def test_bodies_and_shape_computations_between_layers():
    """Values that are no floats, and an If that reads a value from outside, cross segments."""
    then = helper.make_graph(
        [helper.make_node("Add", ["a", "one"], ["t"])],
        "then",
        [],
        [helper.make_tensor_value_info("t", 1, None)],
    )
    other = helper.make_graph(
        [helper.make_node("Identity", ["a"], ["e"])],
        "else",
        [],
        [helper.make_tensor_value_info("e", 1, None)],
    )
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("ReduceMax", ["x"], ["top"], keepdims=0),
        helper.make_node("Greater", ["top", "one"], ["large"]),
        helper.make_node("MatMul", ["x", "w"], ["a"], name="first"),
        helper.make_node("If", ["large"], ["c"], then_branch=then, else_branch=other),
        helper.make_node("Reshape", ["c", "shape"], ["d"]),
        helper.make_node("MatMul", ["d", "v"], ["y"], name="second"),
    ]
    held = {"w": floats(K, K), "v": floats(K, K), "one": np.array(1.0, np.float32)}
    proto = model(nodes, {"x": ["m", K]}, {"y": ["m", K]}, held)
    data = samples(2)
    after = rewritten(proto, "int4{method=gptq,head=int4}", data)
    plain = rewritten(proto, "int4{method=rtn,head=int4}")
    assert noise(proto, after, data[0]) < noise(proto, plain, data[0])


def test_blas_has_one_thread_while_weights_are_quantized(monkeypatch):
    """And as many as before where the model runs, and afterwards."""

    def count():
        return [each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"]

    seen: dict[str, list[int]] = {}

    def watched(module, name):
        before = getattr(module, name)

        def call(*args, **named):
            seen[name] = count()
            return before(*args, **named)

        monkeypatch.setattr(module, name, call)

    watched(rewriting, "quantize")
    watched(hessian, "columns_of")
    monkeypatch.setattr(observation, "columns_of", hessian.columns_of)
    wanted = count()
    if not wanted:
        pytest.skip("numpy has no BLAS that threadpoolctl knows")
    build(gated(), "int4{method=gptq,head=int4}", samples(2))
    assert set(seen["quantize"]) == {1}
    assert seen["columns_of"] == count() == wanted
