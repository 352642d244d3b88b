"""Loop and Scan against onnxruntime: values, shapes and types."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from flow_kit import agrees, floats, model_of
from xnn_kit import check, compile_model

from narrowpass.errors import BackendError

LOOP = """g (int64 n, float[A, 4] x, float[4] w) => (float[A, 4] y, float[T, A, 4] rows)
    <bool go = {1}> { y, rows = Loop (n, go, x) <body = b (int64 i, bool c, float[A, 4] s)
        => (bool d, float[A, 4] t, float[A, 4] r) { %s }> }"""


@pytest.mark.parametrize(
    "body",
    [
        "d = Identity(c) t = Add(s, w) r = Mul(t, w)",
        pytest.param("d = Identity(c) t = Add(s, w) r = Identity(t)", id="stacked state"),
        pytest.param("d = Identity(c) t = Add(s, w) r = Identity(s)", id="stacked input"),
        pytest.param("d = Identity(c) t = Identity(s) r = Mul(s, w)", id="unchanged state"),
        pytest.param("d = Identity(c) t = Add(s, w) r = Identity(x)", id="stacked outer value"),
        pytest.param(
            "d = Constant<value = bool {1}>() t = Add(s, w) r = Relu(t)", id="constant condition"
        ),
        pytest.param("d = Constant<value = bool {0}>() t = Add(s, w) r = Relu(t)", id="one only"),
        pytest.param(
            "d = Identity(c) f = Cast<to = 1>(i) t = Add(s, f) r = Mul(t, f)", id="number"
        ),
        pytest.param(
            "d = Identity(c) q = Concat<axis = 1>(s, s) k = Constant<value_ints = [2]>()"
            " e = Constant<value_ints = [6]>() o = Constant<value_ints = [1]>()"
            " t = Slice(q, k, e, o) r = Sub(t, w)",
            id="slices",
        ),
    ],
)
def test_loop_states_and_iterations(body):
    """State that is computed, kept, or stacked as it is; from 0 to many iterations."""
    model = model_of(LOOP % body)
    w = floats(4, seed=1)
    agrees(
        model,
        *({"n": np.array(n), "x": floats(2, 4), "w": w} for n in (0, 1, 2, 7)),
        {"n": np.array(40), "x": floats(5, 4), "w": w / 8},
        {"n": np.array(3), "x": floats(0, 4), "w": w},
    )


def test_states_that_change_places():
    """Each state of an iteration is the other state of the next one."""
    model = model_of("""g (int64 n, float[A] x, float[A] z)
        => (float[A] p, float[A] q, float[T, A] rows) {
            p, q, rows = Loop (n, , x, z) <body = b (int64 i, bool c, float[A] s, float[A] t)
            => (bool d, float[A] u, float[A] v, float[A] r) {
                d = Identity(c) u = Identity(t) v = Add(s, t) r = Sub(s, t)
            }> }""")
    x, z = floats(3), floats(3, seed=1)
    agrees(model, *({"n": np.array(n), "x": x, "z": z} for n in (1, 2, 3, 8, 0)))


def test_a_condition_that_is_computed_ends_a_loop():
    """Natively: stacked outputs have room for 16 iterations at first, and for more when needed."""
    model = model_of("""g (float[1] x, float[1] most) => (float[1] y, float[T, 1] rows)
        <bool go = {1}, int64[1] zero = {0}> {
            y, rows = Loop (, go, x) <body = b (int64 i, bool c, float[1] s)
            => (bool d, float[1] t, float[1] r) {
                e = Less(s, most) d = Squeeze(e, zero) t = Add(s, s) r = Mul(s, most)
            }> }""")
    x = np.float32([2.0**-30])
    feeds = [{"x": x, "most": np.float32([2.0**k])} for k in (-40, -30, -20, -5, 20)]
    agrees(model, *feeds)


@pytest.mark.parametrize("ends", [0, 1, 15, 16, 17, 33, 40])
@pytest.mark.parametrize("limited", [False, True])
def test_a_condition_that_is_carried_ends_a_native_loop(ends, limited):
    """Conditions move down by one state in each iteration; more than memory was taken for."""
    count = 40
    value = onnx.helper.make_tensor_value_info
    states = [value(f"s{i}", 9, []) for i in range(count)]
    moved = [value(f"s{i}", 9, []) for i in range(1, count)]
    body = onnx.helper.make_graph(
        [
            onnx.helper.make_node("Add", ["f", "x"], ["h"]),
            onnx.helper.make_node("Neg", ["h"], ["r"]),
            *(
                onnx.helper.make_node("Identity", [given.name], [f"{given.name}_next"])
                for given in (*moved, states[0])
            ),
        ],
        "b",
        [value("i", 7, []), value("c", 9, []), *states, value("f", 1, [3])],
        [
            value("s0_next", 9, []),
            *(value(f"s{i}_next", 9, []) for i in range(1, count)),
            value("stop", 9, []),
            value("h", 1, [3]),
            value("r", 1, [3]),
        ],
        [onnx.numpy_helper.from_array(np.array(False), "stop")],
    )
    given = [f"p{i}" for i in range(count)]
    node = onnx.helper.make_node(
        "Loop",
        ["n" if limited else "", "", *given, "x"],
        [*(f"q{i}" for i in range(count)), "y", "rows"],
        body=body,
    )
    inputs = [value("x", 1, [3]), *(value(name, 9, []) for name in given)]
    if limited:
        inputs.append(value("n", 7, []))
    outputs = [value("q0", 9, []), value("y", 1, [3]), value("rows", 1, ["T", 3])]
    graph = onnx.helper.make_graph([node], "g", inputs, outputs)
    opset = onnx.helper.make_opsetid("", 18)
    model = onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8)
    feeds = {"x": floats(3), **{f"p{i}": np.array(i < ends) for i in range(count)}}
    if limited:
        feeds["n"] = np.array(35)
    program = agrees(model, feeds)
    assert not any(plan.kernel.startswith("numpy") for plan in program.explain())


@pytest.mark.parametrize("limit", [0, 1, 5, 60])
def test_a_condition_and_a_limit(limit):
    model = model_of("""g (int64 n, bool go, float x) => (float y, float[T] rows)
        <float most = {9}> { y, rows = Loop (n, go, x) <body = b (int64 i, bool c, float s)
            => (bool d, float t, float r) {
                d = Less(s, most) one = Constant<value = float {1}>() t = Add(s, one) r = Neg(s)
            }> }""")
    for go in (True, False):
        feeds = {"n": np.array(limit), "go": np.array(go), "x": np.array(0.5, np.float32)}
        agrees(model, feeds)


def test_state_of_another_shape_in_each_iteration():
    model = model_of("""g (int64 n, float[A, 2] x) => (float[B, 2] y, int64[T, 2] rows) {
            y, rows = Loop (n, , x) <body = b (int64 i, bool c, float[S, 2] s)
            => (bool d, float[R, 2] t, int64[2] r) {
                d = Identity(c) t = Concat<axis = 0>(s, x) r = Shape(t)
            }> }""")
    agrees(model, *({"n": np.array(n), "x": floats(1, 2)} for n in (1, 4, 0)))


@pytest.mark.parametrize("dtype", ["float16", "int64", "bool", "double"])
def test_states_of_other_types(dtype):
    operator = "t = Not(s)" if dtype == "bool" else "t = Add(s, x)"
    model = model_of(f"""g (int64 n, {dtype}[3] x) => ({dtype}[3] y, {dtype}[T, 3] rows) {{
            y, rows = Loop (n, , x) <body = b (int64 i, bool c, {dtype}[3] s)
            => (bool d, {dtype}[3] t, {dtype}[3] r) {{
                d = Identity(c) {operator} r = Identity(t) }}> }}""")
    x = np.array([0, 1, 2]).astype(dtype)
    agrees(model, *({"n": np.array(n), "x": x} for n in (3, 0, 1)))


def test_loops_in_loops():
    """The inner loop reads values of both graphs around it."""
    model = model_of("""g (int64 n, int64 m, float[4] x) => (float[4] y, float[T, U, 4] all) {
        y, all = Loop (n, , x) <body = b (int64 i, bool c, float[4] s)
        => (bool d, float[4] t, float[V, 4] rows) {
            d = Identity(c) h = Mul(s, x)
            t, rows = Loop (m, , h) <body = e (int64 j, bool c2, float[4] s2)
            => (bool d2, float[4] t2, float[4] r2) {
                d2 = Identity(c2) g2 = Add(s2, s) t2 = Sub(g2, x) r2 = Mul(t2, h)
            }>
        }> }""")
    x = floats(4) / 2
    agrees(
        model, *({"n": np.array(n), "m": np.array(m), "x": x} for n, m in ((2, 3), (1, 5), (3, 1)))
    )


def test_matmuls_in_loops_on_two_threads():
    rng = np.random.default_rng(0)
    model = model_of("""g (int64 n, float[B, 96] x) => (float[B, 96] y, float[T, B, 96] rows) {
        y, rows = Loop (n, , x) <body = b (int64 i, bool c, float[B, 96] s)
        => (bool d, float[B, 96] t, float[B, 96] r) {
            d = Identity(c) m = MatMul(s, w) t = Tanh(m) r = Add(t, x)
        }> }""")
    w = rng.standard_normal((96, 96)).astype(np.float32) / 10
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    feeds = [{"n": np.array(n), "x": floats(b, 96)} for n, b in ((6, 40), (30, 1), (2, 3))]
    agrees(model, *feeds, threads=2)


def test_runs_of_a_loop_do_not_share_results():
    model = model_of(LOOP % "d = Identity(c) t = Add(s, w) r = Mul(t, w)")
    program = compile_model(model)
    feeds = {"n": np.array(3), "x": floats(2, 4), "w": floats(4)}
    first = program.run(feeds)
    before = {name: value.copy() for name, value in first.items()}
    program.run({**feeds, "x": floats(2, 4, seed=5)})
    for name, value in before.items():
        np.testing.assert_array_equal(first[name], value)


def test_an_error_in_a_loop_names_both_nodes():
    model = model_of("""g (int64 n, float[3, 2] x, int64[1] at) => (float[3, 2] y) {
        y = Loop (n, , x) <body = b (int64 i, bool c, float[3, 2] s) => (bool d, float[3, 2] t) {
            d = Identity(c) row = Gather<axis = 0>(s, at) t = Add(s, row)
        }> }""")
    model.graph.node[0].name = "outer"
    model.graph.node[0].attribute[0].g.node[1].name = "inner"
    program = compile_model(model)
    feeds = {"n": np.array(4), "x": floats(3, 2), "at": np.array([7])}
    with pytest.raises(BackendError, match=r"in Loop 'outer': node 'inner'.*out of range"):
        program.run(feeds)
    feeds["at"] = np.array([2])
    check(model, feeds, program=program, native=None, oracle="onnxruntime")


SCAN = """g (float[4] x, float[%s] v) => (float[4] y, float[%s] rows)
    { y, rows = Scan <num_scan_inputs = 1, %s body = b (float[4] s, float[4] e)
        => (float[4] t, float[4] r) { t = Add(s, e) r = Mul(t, x) }> (x, v) }"""


@pytest.mark.parametrize("opset", [9, 11, 16, 18])
@pytest.mark.parametrize("backwards", [(0, 0), (1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("axes", [(0, 0), (1, 0), (0, 1), (-1, -1), (1, 1)])
def test_scan_axes_and_directions(opset, backwards, axes):
    if opset == 9 and min(axes) < 0:
        pytest.skip("negative axes are of operator set 11")
    names = [("T, 4", "4, T")[abs(axis)] for axis in axes]
    attributes = "".join(
        f"{name} = [{value}], "
        for name, value in (
            ("scan_input_axes", axes[0]),
            ("scan_output_axes", axes[1]),
            ("scan_input_directions", backwards[0]),
            ("scan_output_directions", backwards[1]),
        )
    )
    model = model_of(SCAN % (*names, attributes), opset)
    shapes = [(n, 4) if axes[0] == 0 else (4, n) for n in (1, 2, 5)]
    agrees(model, *({"x": floats(4), "v": floats(*shape, seed=1)} for shape in shapes))


@pytest.mark.parametrize("lengths", [None, [3, 1], [3, 3], [2, 3]])
@pytest.mark.parametrize("backwards", [0, 1])
def test_scans_of_operator_set_8(lengths, backwards):
    """Batches along axis 0, each with a length of its own."""
    body = onnx.parser.parse_graph(
        "b (float[2] s, float[2] e) => (float[2] t, float[2] r) { t = Add(s, e) r = Mul(t, e) }"
    )
    node = onnx.helper.make_node(
        "Scan",
        ["" if lengths is None else "n", "x", "v"],
        ["y", "rows"],
        body=body,
        num_scan_inputs=1,
        directions=[backwards],
    )
    value = onnx.helper.make_tensor_value_info
    inputs = [value("x", 1, [2, 2]), value("v", 1, [2, 3, 2])]
    feeds = {"x": floats(2, 2), "v": floats(2, 3, 2, seed=1)}
    if lengths is not None:
        inputs.append(value("n", 7, [2]))
        feeds["n"] = np.array(lengths)
    outputs = [value("y", 1, [2, 2]), value("rows", 1, [2, 3, 2])]
    graph = onnx.helper.make_graph([node], "g", inputs, outputs)
    opset = onnx.helper.make_opsetid("", 8)
    agrees(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8), feeds)


def test_scans_without_state_and_with_several_inputs():
    model = model_of("""g (float[T, 3] u, float[T, 2, 3] v) => (float[T, 2, 3] y, float[T] z) {
        y, z = Scan <num_scan_inputs = 2, body = b (float[3] a, float[2, 3] e)
            => (float[2, 3] r, float q) { r = Add(a, e) q = ReduceSum<keepdims = 0>(r) }>
            (u, v) }""")
    agrees(model, *({"u": floats(n, 3), "v": floats(n, 2, 3)} for n in (4, 1, 9)))


def test_control_flow_has_no_node_on_the_evaluator():
    for text in (SCAN % ("T, 4", "T, 4", ""), LOOP % "d = Identity(c) t = Add(s, w) r = Neg(t)"):
        plans = compile_model(model_of(text)).explain()
        assert "control flow" in {plan.kernel for plan in plans}
        assert not any(plan.reason for plan in plans)
