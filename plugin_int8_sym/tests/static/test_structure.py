"""Units between matmuls: binary operators, data movement, averages, pointwise regions."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from int8_kit import floats
from static_kit import assert_runs_elsewhere, graph, outputs, quantized

from narrowpass.errors import NarrowpassError
from narrowpass.runtime.quantization import QuantizationSpec

IMAGE = "float[1,4,8,8]"


def images(count=3):
    return [{"x": floats(1, 4, 8, 8)} for _ in range(count)]


def between(middle, result=IMAGE, opset=21, extra="", **constants):
    """Put something between two convolutions."""
    text = f"""g ({IMAGE} x, float[4,4,1,1] w, float[6,C,1,1] v{extra}) => (float[1,6,H,W] y) {{
        a = Conv (x, w)
        {middle}
        y = Conv (m, v)
    }}"""
    channels = constants.pop("channels", 4)
    return graph(
        text, {"w": floats(4, 4, 1, 1), "v": floats(6, channels, 1, 1), **constants}, opset
    )


MOVES = {
    "MaxPool": "m = MaxPool <kernel_shape = [2,2]> (a)",
    "Transpose": "m = Transpose <perm = [0,1,3,2]> (a)",
    "Slice": "m = Slice (a, one, three, one)",
    "Pad": "m = Pad (a, pads)",
    "Pad, reflecting": 'm = Pad <mode = "reflect"> (a, pads)',
    "Reshape": "m = Reshape (a, dims)",
    "Flatten and Reshape": "f = Flatten (a) m = Reshape (f, dims)",
    "Resize, nearest": 'm = Resize <mode = "nearest"> (a, , scales)',
    "Resize, linear": 'm = Resize <mode = "linear"> (a, , scales)',
    "DepthToSpace": "s = SpaceToDepth <blocksize = 2> (a) m = DepthToSpace <blocksize = 2> (s)",
    "Unsqueeze and Squeeze": "u = Unsqueeze (a, one) m = Squeeze (u, one)",
    "Split and Concat": "p, q = Split <num_outputs = 2, axis = 1> (a) m = Concat <axis = 1> (q, p)",
    "Gather": "m = Gather <axis = 2> (a, picked)",
    "Identity": "m = Identity (a)",
    "Tile": "m = Tile (a, tiles)",
}
NUMBERS = {
    "one": np.array([1]),
    "three": np.array([3]),
    "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]),
    "dims": np.array([1, 4, 4, 16]),
    "scales": np.array([1, 1, 2, 2], np.float32),
    "picked": np.array([3, 1, 2]),
    "tiles": np.array([1, 1, 2, 1]),
}
KINDS = ", " + ", ".join(
    f"{'float' if a.dtype == np.float32 else 'int64'}[{a.size}] {n}" for n, a in NUMBERS.items()
)


@pytest.mark.parametrize("name", MOVES)
def test_moves_keep_scale_and_zero_point(name):
    middle = MOVES[name]
    extra = {"channels": 2} if name == "Slice" else {}
    text = middle.replace("(a, one, three, one)", "(a, one, three, one)")
    result = quantized(between(text, extra=KINDS, **NUMBERS, **extra), images())
    assert {item.decision for item in result.decisions} == {"int8"}
    moved = result.producer("y").inputs[0].producer().inputs[0].producer()
    assert moved.op_type == "Conv"
    first = result.producer("a.float")
    last = next(
        node
        for node in result.model.graph
        if node.op_type == "Conv" and node.inputs[0].name == "m.float"
    )
    inner = result.parameters("m.float")
    assert inner == result.parameters("a.float")
    assert first.op_type == last.inputs[0].producer().op_type == "DequantizeLinear"
    assert result.sqnr() > 25
    assert_runs_elsewhere(result, steps=2)


def test_shared_parameters_hold_all_ranges():
    middle = """b = Conv (x, u)
        m = Concat <axis = 1> (a, b, k)"""
    model = between(
        middle,
        extra=", float[4,4,1,1] u, float[1,2,8,8] k",
        channels=10,
        u=floats(4, 4, 1, 1) * 3,
        k=np.full((1, 2, 8, 8), 40, np.float32),
    )
    result = quantized(model, images(), calibrator="minmax")
    scale, zero = result.parameters("m.float")
    assert result.parameters("a.float") == result.parameters("b.float") == (scale, zero)
    assert scale * (127 - zero) == pytest.approx(40, rel=0.01)
    assert result.constant("k.int8").dtype == np.int8
    assert result.sqnr() > 20
    assert_runs_elsewhere(result, steps=2)


JOINS = {
    "Add": "b = Conv (x, u) m = Add (a, b)",
    "Sub": "b = Conv (x, u) m = Sub (a, b)",
    "Mul": "b = Conv (x, u) m = Mul (a, b)",
    "Add and Relu": "b = Conv (x, u) s = Add (a, b) m = Relu (s)",
    "Add of the input": "m = Add (x, a)",
    "Mul of channels": "m = Mul (a, k)",
    "Add of channels": "m = Add (k, a)",
    "squeeze and excite": """p = GlobalAveragePool (a) b = Conv (p, u) g = Sigmoid (b)
        m = Mul (a, g)""",
    "AveragePool": "m = AveragePool <kernel_shape = [3,3], pads = [1,1,1,1]> (a)",
    "ReduceMean": "m = ReduceMean (a, axes)",
}


@pytest.mark.parametrize("name", JOINS)
def test_what_computes_of_several_elements(name):
    model = between(
        JOINS[name],
        extra=", float[4,4,1,1] u, float[1,4,1,1] k, int64[2] axes",
        u=floats(4, 4, 1, 1),
        k=floats(1, 4, 1, 1),
        axes=np.array([2, 3]),
    )
    result = quantized(model, images())
    assert {item.decision for item in result.decisions} == {"int8"}
    assert result.parameters("m.float") != result.parameters("a.float")
    readers = [use.node.op_type for use in result.producer("a.float").outputs[0].uses()]
    assert "Conv" not in readers
    assert result.sqnr() > 25
    # A step of difference in the middle may become a few at the end.
    assert_runs_elsewhere(result, steps=4)


REGIONS = {
    "GELU": "d = Div (a, c) e = Erf (d) f = Add (e, i) g = Mul (a, f) m = Mul (g, h)",
    "SiLU": "s = Sigmoid (a) m = Mul (a, s)",
    "HardSwish": "p = Add (a, t) q = Clip (p, z, s6) r = Div (q, s6) m = Mul (a, r)",
    "Tanh": "m = Tanh (a)",
    "LeakyRelu": "m = LeakyRelu <alpha = 0.1> (a)",
    "Elu": "m = Elu (a)",
    "HardSigmoid": "m = HardSigmoid (a)",
    "Neg and Sigmoid": "r = Neg (a) m = Sigmoid (r)",
    "square inside": "p = Pow (a, two) q = Mul (p, a) r = Tanh (q) m = Add (r, i)",
}
SCALARS = {"c": 1.41421, "i": 1.0, "h": 0.5, "t": 3.0, "z": 0.0, "s6": 6.0, "two": 2.0}
SCALAR_KINDS = ", " + ", ".join(f"float {name}" for name in SCALARS)


@pytest.mark.parametrize("name", REGIONS)
def test_nothing_is_quantized_within_a_region(name):
    scalars = {name: np.array(value, np.float32) for name, value in SCALARS.items()}
    result = quantized(between(REGIONS[name], extra=SCALAR_KINDS, **scalars), images())
    assert {item.decision for item in result.decisions} == {"int8"}
    # The input, the region's operand and result, and the result.
    assert result.count["QuantizeLinear"] == 4
    region = [
        n
        for n in result.model.graph
        if n.op_type not in ("Conv", "QuantizeLinear", "DequantizeLinear")
    ]
    for node in region:
        for value in node.inputs:
            producer = value.producer()
            assert producer is None or producer in region or value.name == "a.float"
    assert result.sqnr() > 25
    assert_runs_elsewhere(result, steps=4)


def test_a_value_that_others_read_ends_a_region():
    result = quantized(
        between("s = Sigmoid (a) t = Mul (a, s) u = Tanh (t) m = Add (t, u)"), images()
    )
    # t + tanh(t) is of t alone.
    assert result.count["QuantizeLinear"] == 4
    result = quantized(
        between("s = Sigmoid (a) t = Conv (s, w) u = Tanh (s) m = Add (t, u)"), images()
    )
    assert result.producer("u").inputs[0].name == "s.float"


FLOATS = {
    "an island": ("b = Sigmoid (x) e = Softmax (b) d = Add (b, e) m = Sub (d, a)", "d"),
    "Softmax": ("m = Softmax (a)", "m"),
    "LayerNormalization": ("m = LayerNormalization <axis = 1> (a, k)", "m"),
    "Exp": ("m = Exp (a)", "m"),
    "a square": ("m = Mul (a, a)", "m"),
    "Div": ("m = Div (a, x)", "m"),
    "Resize, cubic": ('m = Resize <mode = "cubic"> (a, , scales)', "m"),
    "Pad with infinity": ("p = Pad (a, pads, inf) m = MaxPool <kernel_shape = [3,3]> (p)", "p"),
    "PRelu": ("m = PRelu (a, c)", "m"),
}


@pytest.mark.parametrize("name", FLOATS)
def test_what_stays_float_has_a_reason(name):
    middle, node = FLOATS[name]
    model = between(
        middle,
        extra=KINDS + ", float[4,8,8] k, float inf, float[4,1,1] c",
        **NUMBERS,
        k=floats(4, 8, 8),
        inf=np.array(-np.inf, np.float32),
        c=floats(4, 1, 1),
    )
    result = quantized(model, images())
    assert result.verdicts[node] == "float"
    assert result.reasons[node]
    assert result.verdicts["y"] == "int8"
    assert result.sqnr() > 20


def test_green_quantizes_what_a_rule_leaves():
    model = between("m = Softmax (a)")
    result = quantized(model, images(), green=("op:Softmax",))
    (decision,) = [item for item in result.decisions if item.op_type == "Softmax"]
    assert (decision.decision, decision.by) == ("int8", "option green=op:Softmax")
    assert result.producer("m").inputs[0].name == "a.float"
    text = "g (float[3,8] x, float[8,5] z) => (float[3,5] y) { y = MatMul (x, z) }"
    data = [{"x": floats(3, 8), "z": floats(8, 5)}]
    assert not quantized(graph(text), data).modified
    both = quantized(graph(text), data, green=("y",))
    assert both.count == {"QuantizeLinear": 3, "DequantizeLinear": 3, "MatMul": 1}
    assert_runs_elsewhere(both)


def test_red_stays_float(caplog):
    model = between("m = Relu (a)")
    result = quantized(model, images(), red=("op:Relu", "nobody"))
    (decision,) = [item for item in result.decisions if item.op_type == "Relu"]
    assert (decision.decision, decision.by) == ("float", "option red=op:Relu")
    assert "red item 'nobody' selects no node" in caplog.text
    assert result.producer("m").inputs[0].name == "a.float"
    result = quantized(model, images(), red=("a", "y"))
    assert not result.modified


def test_outputs_keep_names_and_types():
    text = f"""g ({IMAGE} x, float[4,4,1,1] w) => ({IMAGE} a, {IMAGE} r, {IMAGE} y) {{
        a = Conv (x, w) r = Relu (a) y = Conv (r, w) }}"""
    result = quantized(graph(text, {"w": floats(4, 4, 1, 1)}), images())
    assert [value.name for value in result.model.graph.outputs] == ["a", "r", "y"]
    assert all(result.producer(n).op_type == "DequantizeLinear" for n in "ary")
    assert result.sqnr() > 25
    assert_runs_elsewhere(result, steps=3)


def test_names_do_not_collide():
    text = f"""g ({IMAGE} x, float[4,4,1,1] w) => ({IMAGE} y) {{
        x.int8 = Conv (x, w) w.int8 = Relu (x.int8) y = Conv (w.int8, w) }}"""
    text = text.replace("x.int8", "x_int8").replace("w.int8", "w_int8")
    model = graph(text, {"w": floats(4, 4, 1, 1)})
    for node in model.graph:
        node.name = None
        for value in node.outputs:
            value.name = value.name.replace("_", ".")
    result = quantized(model, images())
    names = [v.name for node in result.model.graph for v in node.outputs]
    assert len(names) == len(set(names))
    assert set(result.verdicts.values()) == {"int8"}
    assert result.sqnr() > 25


def test_subgraphs_stay_float():
    text = f"""g ({IMAGE} x, float[4,4,1,1] w, bool c) => ({IMAGE} y) {{
        a = Conv (x, w)
        y = If (c) <
            then_branch = t () => ({IMAGE} p) {{ p = Conv (a, w) }},
            else_branch = e () => ({IMAGE} q) {{ q = Relu (a) }}
        >
    }}"""
    model = graph(text, {"w": floats(4, 4, 1, 1)})
    data = [{"x": floats(1, 4, 8, 8), "c": np.array(i % 2 == 0)} for i in range(2)]
    result = quantized(model, data)
    assert result.reasons["p"] == "subgraphs are not quantized"
    assert result.verdicts["a"] == "int8"
    assert "w" in result.model.graph.initializers
    assert result.sqnr() > 30


def test_nan_in_the_data_is_an_error_that_names_value_and_sample():
    text = f"g ({IMAGE} x, float[4,4,1,1] w) => ({IMAGE} y) {{ y = Conv (x, w) }}"
    data = images()
    data[1]["x"][0, 0, 0, 0] = np.nan
    with pytest.raises(NarrowpassError, match=r"value 'x' on sample 2 of test data is NaN"):
        quantized(graph(text, {"w": floats(4, 4, 1, 1)}), data)


def test_an_outlier_does_not_enlarge_the_range():
    values = np.random.default_rng(0).standard_normal((1, 4, 32, 32)).astype(np.float32)
    values[0, 0, 0, 0] = 60
    text = "g (float[1,4,32,32] x, float[4,4,1,1] w) => (float[1,4,32,32] y) { y = Conv (x, w) }"
    model = graph(text, {"w": floats(4, 4, 1, 1)})
    widths = {}
    for calibrator in ("minmax", "l2", "entropy", "percentile", "moving-average"):
        result = quantized(model, [{"x": values}], calibrator=calibrator)
        widths[calibrator] = result.parameters("x.float")[0] * 255
    assert widths["minmax"] == pytest.approx(60 - values.min(), rel=1e-5)
    assert 6 < widths["l2"] < 16
    assert 6 < widths["entropy"] < 16


def test_only_the_first_samples_are_taken():
    text = f"g ({IMAGE} x, float[4,4,1,1] w) => ({IMAGE} y) {{ y = Conv (x, w) }}"
    data = images()
    data[2]["x"] *= 100
    model = graph(text, {"w": floats(4, 4, 1, 1)})
    result = quantized(model, data, samples=2, calibrator="minmax")
    largest = max(float(np.ptp(np.append(each["x"], 0))) for each in data[:2])
    assert result.parameters("x.float")[0] * 255 <= 2 * largest


def test_static_mode_needs_data():
    import narrowpass

    model = graph(f"g ({IMAGE} x) => ({IMAGE} y) {{ y = Relu (x) }}")
    with pytest.raises(NarrowpassError, match="mode=static needs data"):
        narrowpass.build(model, "int8-sym{mode=static}", target="reference")


def test_the_original_model_is_not_changed():
    model = between("m = Relu (a)")
    data = images()
    before = outputs(model, data)
    quantized(model, data)
    for first, second in zip(before, outputs(model, data), strict=True):
        np.testing.assert_array_equal(first["y"], second["y"])
    assert isinstance(model, ir.Model)


def test_which_mode_was_chosen_is_reported(caplog):
    import narrowpass

    model = graph(
        "g (float[3,16] x, float[16,8] w) => (float[3,8] y) { y = MatMul (x, w) }",
        {"w": floats(16, 8)},
    )
    data = [{"x": floats(3, 16)}]
    for calibration, mode, why in ((data, "static", "are samples"), (None, "dynamic", "are no")):
        with caplog.at_level("INFO", "narrowpass"):
            bundle = narrowpass.build(
                model, "int8-sym", target="reference", calibration=calibration
            )
        assert f"mode={mode}, because there {why}" in caplog.text
        decisions = bundle.reports[-1].methods["main"].decisions
        (item,) = [item for item in decisions if item.get("op_type")]
        assert (item["decision"], item["by"]) == ("int8", f"mode={mode}")


def test_samples_must_be_some():
    from narrowpass_int8_sym.int8_sym import Int8Sym

    with pytest.raises(NarrowpassError, match="samples must be at least 1"):
        Int8Sym(samples=0)


def test_ranges_are_found_once_and_the_rewrite_is_repeated():
    """What the search for nodes to keep in float does: one calibration, many rewrites."""
    from static_kit import Limited

    from narrowpass import Context, Samples
    from narrowpass_int8_sym.static import StaticQuantizer

    model, data = between("s = Sigmoid (a) m = Mul (a, s)"), images()
    static, ctx = StaticQuantizer(), Context(target=Limited(QuantizationSpec()))
    calibrated = static.calibrate(model, Samples("test data", lambda: data), ctx)
    numbers = static.quantizable_nodes(model, ctx)
    assert [list(model.graph)[number].op_type for number in numbers] == ["Conv", "Sigmoid", "Conv"]
    counts = []
    for kept_float in ({}, {numbers[1]: "why"}, dict.fromkeys(numbers, "why")):
        clone, own = model.clone(), Context(target=Limited(QuantizationSpec()))
        static.rewrite(clone, calibrated, kept_float, own)
        counts.append([n.op_type for n in clone.graph].count("QuantizeLinear"))
        left = [item for item in own.decisions if item.by == "verification"]
        assert {item.reason for item in left} == ({"why"} if kept_float else set())
    # Input, operand and result of the region, result; the region float; nothing.
    assert counts == [4, 4, 0]


def test_a_tolerance_leaves_what_harms_most_float():
    middle = "c = Conv (a, k) m = Relu (c)"
    k = floats(4, 4, 1, 1)
    k[:, 0] *= 300
    model = between(middle, extra=", float[4,4,1,1] k", k=k)
    data = images()
    everything = quantized(model, data)
    asked = everything.sqnr() + 3
    result = quantized(model, data, tolerance=f"sqnr:{asked:.2f}")
    left = [item for item in result.decisions if item.by == "verification"]
    assert left
    assert any(item.decision == "int8" for item in result.decisions)
    assert result.sqnr() > everything.sqnr()
