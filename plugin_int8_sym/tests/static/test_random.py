"""Random models, with everything quantized that can be: valid, and near what they were."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from static_kit import Limited, graph, outputs, quantized

from narrowpass import Context, Samples
from narrowpass.errors import DataError
from narrowpass.runtime.quantization import OperatorSpec, QuantizationSpec, ScaleBound
from narrowpass_int8_sym.int8_sym import Int8Sym
from narrowpass_int8_sym.static import StaticQuantizer
from narrowpass_ir.verify import verify
from narrowpass_testing import random_feeds, run_pass
from narrowpass_testing.strategies import models


@settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(model=models(), seed=st.integers(0, 1000), symmetric=st.booleans())
def test_random_models_stay_valid(model, seed, symmetric):
    data = [random_feeds(model, seed)]
    samples = Samples("random data", lambda: data)
    ctx = Context(target=Limited(QuantizationSpec()), samples=samples)
    kind = "symmetric" if symmetric else "affine"
    try:
        quantized_model = run_pass(Int8Sym(green=("*",), activations=kind), model, ctx=ctx).model
    except DataError as error:
        # Some constants are NaN or infinite, additions may overflow, inputs may be empty.
        reasons = "NaN", "infinite", "has no elements"
        assert any(reason in str(error) for reason in reasons)  # noqa: PT017
        return
    onnx.checker.check_model(ir.to_proto(quantized_model), full_check=True)
    with np.errstate(all="ignore"):
        for before, after in zip(outputs(model, data), outputs(quantized_model, data), strict=True):
            for name, right in before.items():
                assert (after[name].dtype, after[name].shape) == (right.dtype, right.shape)


LAYERS = {
    "conv": "v{o} = Conv <pads = [1,1,1,1]> (v{a}, w, b)",
    "depthwise": "v{o} = Conv <pads = [1,1,1,1], group = 4> (v{a}, d)",
    "relu": "v{o} = Relu (v{a})",
    "sigmoid": "v{o} = Sigmoid (v{a})",
    "add": "v{o} = Add (v{a}, v{b})",
    "sub": "v{o} = Sub (v{a}, v{b})",
    "mul": "v{o} = Mul (v{a}, v{b})",
    "pool": "v{o} = MaxPool <kernel_shape = [3,3], pads = [1,1,1,1]> (v{a})",
    "average": "v{o} = AveragePool <kernel_shape = [3,3], pads = [1,1,1,1]> (v{a})",
    "turn": "v{o} = Transpose <perm = [0,1,3,2]> (v{a})",
    "double": "t{o} = Concat <axis = 1> (v{a}, v{b}) v{o} = Conv (t{o}, e)",
    "softmax": "v{o} = Softmax <axis = 1> (v{a})",
}


networks = st.lists(
    st.tuples(st.sampled_from(sorted(LAYERS)), st.integers(0, 9), st.integers(0, 9)),
    min_size=3,
    max_size=9,
)


def network(layers):
    """Build a network of layers, each of which reads results of some before it; and its data."""
    image = "float[1,4,6,6]"
    steps = [
        LAYERS[name].format(o=place + 1, a=a % (place + 1), b=b % (place + 1))
        for place, (name, a, b) in enumerate(layers)
    ]
    text = f"""g ({image} x, float[4,4,3,3] w, float[4] b, float[4,1,3,3] d, float[4,8,1,1] e)
        => ({image} y) {{ v0 = Identity (x) {" ".join(steps)}
        y = Conv <pads = [1,1,1,1]> (v{len(layers)}, w, b) }}"""
    rng = np.random.default_rng(5)
    shapes = {"w": (4, 4, 3, 3), "b": (4,), "d": (4, 1, 3, 3), "e": (4, 8, 1, 1)}
    constants = {
        name: (rng.standard_normal(shape) / 3).astype(np.float32) for name, shape in shapes.items()
    }
    data = [{"x": rng.standard_normal((1, 4, 6, 6)).astype(np.float32)} for _ in range(2)]
    return graph(text, constants), data


@settings(
    deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(layers=networks, symmetric=st.booleans(), limited=st.booleans())
def test_random_networks_are_near_what_they_were(layers, symmetric, limited):
    model, data = network(layers)
    spec = QuantizationSpec(
        operators={
            "Conv": OperatorSpec(ScaleBound("input * weight / output", 2.0**-32, 2.0**8)),
            "Add": OperatorSpec(ScaleBound("input / output", 2.0**-10, 2.0**8)),
            "Sub": OperatorSpec(ScaleBound("input / output", 2.0**-10, 2.0**8)),
            "Mul": OperatorSpec(ScaleBound("input * input / output", 2.0**-16, 2.0**8)),
            **dict.fromkeys(("Concat", "MaxPool", "Relu", "Transpose"), OperatorSpec(same=True)),
        }
    )
    result = quantized(
        model,
        data,
        spec if limited else None,
        calibrator="minmax",
        activations="symmetric" if symmetric else "affine",
    )
    assert result.decisions[-1].decision == "int8"
    # Few layers of 8 bits, but chains of elementwise Mul square what is lost.
    assert result.sqnr() > 5


@settings(deadline=None, max_examples=40)
@given(layers=networks, chosen=st.sets(st.integers(0, 11)), red=st.sets(st.integers(0, 11)))
def test_any_nodes_may_stay_float_after_calibration(layers, chosen, red):
    """The ranges of the whole model are enough, whatever stays float."""
    model, data = network(layers)
    names = [node.outputs[0].name or "" for node in model.graph]
    static = StaticQuantizer(
        calibrator="minmax", red=tuple(names[n] for n in red if n < len(names))
    )
    ctx = Context(target=Limited(QuantizationSpec()))
    calibrated = static.calibrate(model, Samples("test data", lambda: data), ctx)
    numbers = static.quantizable_nodes(model, ctx)
    kept_float = {numbers[place]: "why" for place in chosen if place < len(numbers)}
    clone = model.clone()
    static.rewrite(clone, calibrated, kept_float, ctx)
    onnx.checker.check_model(ir.to_proto(clone), full_check=True)
    verify(clone)
    decisions = {item.node: item for item in ctx.decisions}
    for number in kept_float:
        node = list(model.graph)[number]
        item = decisions[node.name or node.outputs[0].name]
        assert (item.decision, item.by, item.reason) == ("float", "verification", "why")
